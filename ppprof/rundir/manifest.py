"""The manifest of a run, with run id and topology, and the host names of the run's ranks."""

from __future__ import annotations

import json
import math
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ppprof.errors import InputError, UsageError
from ppprof.paths import PathLike, store_errors_as_oserror, to_path
from ppprof.rundir.run_file import RunFile, matches
from ppprof.topology import Topology

SCHEMA_VERSION = 2
"""Version of manifest and layout. Increases when older readers would misread a run directory."""

MANIFEST = "manifest.json"
_NODE = re.compile(r"([0-9]{1,6})\.(.+)")
_MOST_BYTES = 64 << 20
"""Largest manifest to read. 10,000 ranks and their groups take about 3 MB."""


def write_node_marker(run: PathLike, rank: int) -> None:
    """Record that ``rank`` runs on this machine: create ``nodes/00000.node7`` for rank 0 on node7.

    The manifest has no host names, since it is written before all of them are known.

    Raises:
        OSError: the file cannot be written.
    """
    with suppress(FileExistsError):
        RunFile(Path(run), f"nodes/{rank:05d}.{platform.node()}").create()


def nodes(run: PathLike) -> dict[int, str]:
    """Return the host names that `write_node_marker` recorded, keyed by rank."""
    return {int(match[1]): match[2] for match in matches(to_path(run), "nodes", _NODE)}


def has_manifest(run: PathLike) -> bool:
    """Whether the directory ``run`` has a file ``manifest.json``; its content is not checked.

    Raises:
        OSError: the store cannot be reached.
    """
    path = to_path(run) / MANIFEST
    with store_errors_as_oserror(path):
        return path.is_file()


def read_run_id(run: PathLike) -> str | None:
    """Return the unique id of the run; None without a readable manifest that has a run id."""
    try:
        run_id = read_manifest(run).get("run_id")
    except InputError:
        return None
    return run_id if isinstance(run_id, str) else None


def write_manifest(run: PathLike, manifest: Mapping[str, Any]) -> None:
    """Write ``manifest.json`` atomically, with `SCHEMA_VERSION` added as ``schema_version``.

    Raises:
        OSError: the file cannot be written.
    """
    values = plain({"schema_version": SCHEMA_VERSION, **manifest})
    content = json.dumps(values, indent=1, allow_nan=False).encode()
    RunFile(Path(run), MANIFEST).write(content)


def topology_of(manifest: Mapping[str, Any]) -> Topology | None:
    """Return the topology in a manifest; None if its ``axes`` are missing or invalid."""
    axes = manifest.get("axes")
    try:
        return Topology(tuple(axes["degrees"]), tuple(axes["order"]))  # type: ignore[index]
    except (KeyError, TypeError, UsageError):
        return None


class JobContext(NamedTuple):
    """What the traces of a job do not say themselves."""

    device: str | None = None
    """The device that the job ran on: ``gpu:0``, ``cpu``; None if unknown."""
    only_axis: str | None = None
    """The only axis with a degree above 1; None if there are several or the topology is unknown."""
    peak_flops: float | None = None
    """Peak FLOP/s of one device, as the job states it; None if unknown."""
    peak_bytes_per_s: float | None = None
    """Bandwidth of one device's memory, likewise."""
    uses_tf32: bool = False
    """Whether Paddle may compute products of float32 in TF32."""
    num_ranks: int | None = None
    """How many ranks have a trace; None if unknown."""


def job_context_of(manifest: Mapping[str, Any] | InputError) -> JobContext:
    """Return what a manifest says about the job; all None for an empty or an unreadable manifest.

    The device is the text ``device`` at the top level or in one of the blocks below it.
    """
    if isinstance(manifest, InputError):
        return JobContext()
    topology = topology_of(manifest)
    axes = [axis for axis in topology.order if topology.degree(axis) > 1] if topology else []
    blocks = [manifest, *(block for block in manifest.values() if isinstance(block, Mapping))]
    devices = [block.get("device") for block in blocks]
    device = next((device for device in devices if isinstance(device, str) and device), None)
    flops, gbps = (_positive(manifest.get(f"device_peak_{unit}")) for unit in ("flops", "gbps"))
    return JobContext(
        device,
        axes[0] if len(axes) == 1 else None,
        flops,
        gbps * 1e9 if gbps is not None else None,
        manifest.get("tf32") is True,
    )


def _positive(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < 1e30 else None


def plain(value: Any) -> Any:
    """Return a value of YAML as JSON can hold it: others, such as dates and infinite floats, become text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    finite = not isinstance(value, float) or math.isfinite(value)
    return (
        value if isinstance(value, (bool, int, float, str, type(None))) and finite else str(value)
    )


def read_manifest(run: PathLike) -> dict[str, Any]:
    """Read the manifest of a run.

    Raises:
        InputError: the manifest is missing, unreadable, too large or not JSON, or it has no schema
            version or a newer one than `SCHEMA_VERSION`.
    """
    path = RunFile(to_path(run), MANIFEST)
    try:
        manifest = path.read_json(_MOST_BYTES)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{path}: not a manifest: {error}") from error
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if not isinstance(version, int):
        raise InputError(f"{path}: not a manifest: no schema_version")
    if version > SCHEMA_VERSION:
        raise InputError(
            f"{path}: schema {version} is newer than this ppprof reads ({SCHEMA_VERSION}); update it"
        )
    return dict(manifest)
