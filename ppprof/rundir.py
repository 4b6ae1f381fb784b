"""The run directory: what a capture leaves and everything after it reads.

::

    profiler_log/
      manifest.json
      rank_00000_dp0_pp0_sharding0_mp0_time_20261120T201530_000.paddle_trace.json
      raw/rank_00000_dp0_pp0_sharding0_mp0_time_20261120T201530_000.pb
      raw/rank_00000_..._000.calls/   its remote calls (ppprof/calls.py)
      summary/rank_00000_w0.json
      steps/rank_00000.jsonl
      vdlrecords.rank_00000.log       scalars of the first rank that prints, for VisualDL
      scalars/rank_00001/             and of each further one: VisualDL shows one log a directory
      nodes/00000.node7               rank 0 ran on the machine of that name
      clocks/rank_00000.jsonl         a rank's clock against rank 0's (ppprof/clocks.py)
      trigger/                        windows asked for while it runs (ppprof/window_requests.py)
      alive/, failed/                 ranks in their session, and those that failed (capture/roster)
      run_002/                        a later run, laid out the same way

Nodes that share no disk leave one each; ``run_id`` of the manifest says what belongs together.

This module holds the names and the manifest, and knows nothing of what is in the other files.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, cast

from ppprof.errors import InputError, Problem
from ppprof.paths import PathLike, is_remote, located, reaching, read_small

SCHEMA_VERSION = 1
"""Of the manifest and of the layout; goes up when an older reader would misread a directory."""

TRACE_SUFFIXES = {"json": ".json", "json.gz": ".json.gz", "pb": ".pb"}
"""File suffix of each entry of ``Profiler.formats``."""

_MANIFEST = "manifest.json"
_MOST_BYTES = 64 << 20
"""Of a manifest: 10,000 ranks and their groups take some 3 MB."""
# Numbers have an end: a name is anybody's, and ranks up to the highest are counted out.
_STEM = re.compile(r"rank_([0-9]{5,6})_(\w+)_time_([0-9]{8}T[0-9]{6})_([0-9]{3,6})")
_SUMMARY = re.compile(r"rank_([0-9]{5,6})_w([0-9]{1,6})\.json")
_LINES = re.compile(r"rank_([0-9]{5,6})\.jsonl")
_RUN = re.compile(r"run_([0-9]{3,6})")
_CLAIM_SECONDS = 10.0
"""How long a directory is taken to be somebody's who claimed it and has yet to say which run's."""


@dataclass(frozen=True)
class TraceName:
    """Which rank and which window a trace file holds: what its name says.

    >>> name = TraceName(0, "dp0_pp0_sharding0_mp0", datetime(2026, 11, 20, 20, 15, 30), 0)
    >>> name.stem
    'rank_00000_dp0_pp0_sharding0_mp0_time_20261120T201530_000'
    >>> TraceName.parse(name.trace("json.gz")) == name
    True
    """

    rank: int
    label: str
    """The rank's coordinate as `ppprof.topology.Topology.label` writes it."""
    started: datetime
    """When the window opened: local time of that rank, to the second."""
    window: int
    """0 for the first window of a run."""

    @property
    def stem(self) -> str:
        """The name without a suffix; what stands before ``_time_`` is VisualDL's worker."""
        stamp = f"{self.started:%Y%m%dT%H%M%S}"
        return f"rank_{self.rank:05d}_{self.label}_time_{stamp}_{self.window:03d}"

    def trace(self, fmt: str) -> str:
        """File name of the trace in one of the formats of `TRACE_SUFFIXES`."""
        return f"{self.stem}.paddle_trace{TRACE_SUFFIXES[fmt]}"

    @property
    def raw(self) -> str:
        """Path of Paddle's own ``.pb`` inside the run directory."""
        return f"raw/{self.stem}.pb"

    @property
    def calls(self) -> str:
        """Path of the window's remote calls (`ppprof.calls`) inside the run directory."""
        return f"raw/{self.stem}.calls"

    @property
    def summary(self) -> str:
        """Path of the window's tables, as data, inside the run directory."""
        return f"summary/rank_{self.rank:05d}_w{self.window}.json"

    @classmethod
    def parse(cls, path: PathLike) -> TraceName | None:
        """The name behind a raw file or a trace in any format; None for any other file."""
        stem, _, suffix = located(path).name.partition(".")
        match = _STEM.fullmatch(stem)
        if match is None or suffix not in _SUFFIXES:
            return None
        rank, label, stamp, window = match.groups()
        try:
            started = datetime.strptime(stamp, "%Y%m%dT%H%M%S")
        except ValueError:
            return None
        return cls(int(rank), label, started, int(window))


_SUFFIXES = frozenset(["pb", *(f"paddle_trace{suffix}" for suffix in TRACE_SUFFIXES.values())])


def steps_path(rank: int) -> str:
    """Path of a rank's step times inside the run directory.

    >>> steps_path(3)
    'steps/rank_00003.jsonl'
    """
    return f"steps/rank_{rank:05d}.jsonl"


def scalars_path(rank: int, *, is_first: bool) -> str:
    """Path of a rank's scalars for VisualDL inside the run directory.

    VisualDL shows one log a directory: the first rank's stands where the traces are.

    >>> scalars_path(0, is_first=True)
    'vdlrecords.rank_00000.log'
    >>> scalars_path(1, is_first=False)
    'scalars/rank_00001/vdlrecords.rank_00001.log'
    """
    name = f"vdlrecords.rank_{rank:05d}.log"
    return name if is_first else f"scalars/rank_{rank:05d}/{name}"


def line_files(run: PathLike, folder: str) -> list[tuple[int, Path]]:
    """Rank and path of what is in ``steps`` or ``clocks``: lines that each rank has left."""
    found = ((_LINES.fullmatch(path.name), path) for path in located(run).glob(f"{folder}/*.jsonl"))
    return sorted((int(match[1]), path) for match, path in found if match)


def raw_files(run: PathLike) -> list[tuple[TraceName, Path]]:
    """Windows that were saved and not yet finished, by rank, then window."""
    named = ((TraceName.parse(path), path) for path in located(run).glob("raw/*.pb"))
    found = [(name, path) for name, path in named if name is not None]
    return sorted(found, key=lambda item: (item[0].rank, item[0].window, item[0].started))


def trace_bytes(run: PathLike, rank: int) -> int:
    """What a rank's traces take in a run directory, raw ones included."""
    named = (f"rank_{rank:05d}_*.paddle_trace.*", f"raw/rank_{rank:05d}_*.pb")
    return sum(path.stat().st_size for name in named for path in located(run).glob(name))


def summary_files(run: PathLike) -> list[tuple[int, int, Path]]:
    """Rank, window and path of the tables that were left as data (`TraceName.summary`)."""
    found = ((_SUMMARY.fullmatch(path.name), path) for path in located(run).glob("summary/*.json"))
    return sorted((int(match[1]), int(match[2]), path) for match, path in found if match)


def check_writable(path: PathLike) -> Problem | None:
    """What keeps ``path`` from becoming a run directory, or None; creates nothing that stays.

    The nearest parent that exists is asked, by making a file in it: permission bits say little
    about read-only mounts and network file systems.
    """
    wanted = Path(path)
    existing = wanted
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        return Problem(str(wanted), "", f"{existing} is a file; expected a directory")
    try:
        with tempfile.TemporaryFile(dir=existing):
            return None
    except OSError as error:
        return Problem(str(wanted), "", f"cannot write: {error.strerror or error}")


def claim(log: PathLike, name: str = "", run_id: str | None = None) -> Path:
    """Makes a run's directory: ``log`` itself, or a ``log/run_NNN`` above those that are taken.

    Making ``steps/`` is the claim: it fails for all but one of several that try at once.

    Args:
        log: the log directory.
        name: the lowest name to take, such as ``run_003``; any other is that of ``log`` itself.
        run_id: of a run that others may claim a directory of this disk for at the same time: the
            first one does, and all of them get that one. Its manifest is to follow at once.

    Raises:
        OSError: not a directory, no permission, disk full.
    """
    taken = [number for number, run in _runs(log) if (run / "steps").is_dir()]
    number = max([_number(name), *taken])
    while True:
        run = Path(log) if number == 1 else Path(log) / f"run_{number:03d}"
        run.mkdir(parents=True, exist_ok=True)
        try:
            (run / "steps").mkdir()
        except FileExistsError:
            if run_id is not None and _turns_out_to_be(run, run_id):
                return run
            number += 1
        else:
            for folder in ("raw", "summary"):
                (run / folder).mkdir(exist_ok=True)
            return run


def _turns_out_to_be(run: Path, run_id: str) -> bool:
    deadline = time.monotonic() + _CLAIM_SECONDS
    while not has_manifest(run) and time.monotonic() < deadline:
        time.sleep(0.01)
    return read_run_id(run) == run_id


def _runs(log: PathLike) -> list[tuple[int, Path]]:
    """Where a log directory has or had a run, ascending: itself, then every ``run_NNN``."""
    at = located(log)
    children = (
        [child for child in at.iterdir() if _RUN.fullmatch(child.name)] if at.is_dir() else []
    )
    return [(1, at), *sorted((_number(child.name), child) for child in children)]


def _number(name: str) -> int:
    match = _RUN.fullmatch(name)
    return int(match[1]) if match else 1


def check_inside(run: Path) -> None:
    """Lets no run pass whose folders are links: what is written there would be somewhere else.

    Raises:
        InputError: one of them is.
    """
    for folder in ("raw", "summary"):
        if (run / folder).is_symlink():
            raise InputError(f"{run / folder}: a link; expected a folder of the run")


def newest(path: PathLike) -> Path:
    """The newest run under a log directory: the highest ``run_NNN``, else ``path`` itself.

    Raises:
        InputError: no manifest there, so no run.
    """
    runs = [run for _, run in _runs(path) if has_manifest(run)]
    if not runs:
        raise InputError(f"{located(path)}: no run here: expected a directory with a {_MANIFEST}")
    return runs[-1]


def find(log: PathLike, run_id: str) -> Path | None:
    """The directory under ``log`` of the run with this id; None where there is none."""
    return next((run for _, run in reversed(_runs(log)) if read_run_id(run) == run_id), None)


def beneath(path: PathLike, levels: int = 2) -> list[Path]:
    """The newest run of each log directory below ``path``: ``node0``, or ``node0/profiler_log``."""
    found: list[Path] = []
    for child in sorted(child for child in located(path).iterdir() if child.is_dir()):
        try:
            found.append(newest(child))
        except InputError:
            found += beneath(child, levels - 1) if levels > 1 else []
    return found


def leave_node(run: PathLike, rank: int) -> None:
    """Leaves word of the machine that a rank runs on; the manifest is written before all are known.

    Raises:
        OSError: it cannot be written.
    """
    folder = Path(run, "nodes")
    folder.mkdir(exist_ok=True)
    (folder / f"{rank:05d}.{platform.node()}").touch()


def nodes(run: PathLike) -> dict[int, str]:
    """Host name of each rank that has left it."""
    named = sorted(path.name.partition(".") for path in located(run).glob("nodes/*.*"))
    return {int(rank): node for rank, _, node in named if rank.isdecimal()}


def has_manifest(run: PathLike) -> bool:
    """Whether a rank of the run has written its manifest."""
    return (located(run) / _MANIFEST).is_file()


def read_run_id(run: PathLike) -> str | None:
    """What tells the run from every other; None without a manifest that can be read and has one."""
    try:
        run_id = read_manifest(run).get("run_id")
    except InputError:
        return None
    return run_id if isinstance(run_id, str) else None


def write_manifest(run: PathLike, manifest: Mapping[str, Any]) -> None:
    """Writes ``manifest.json`` with the schema version added: whole, or not at all.

    Values that JSON has no form for (a date, an infinite float: YAML has both) become text.
    """
    plain = _plain({"schema_version": SCHEMA_VERSION, **manifest})
    write_atomically(Path(run, _MANIFEST), json.dumps(plain, indent=1, allow_nan=False).encode())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    finite = not isinstance(value, float) or math.isfinite(value)
    return (
        value if isinstance(value, (bool, int, float, str, type(None))) and finite else str(value)
    )


def read_manifest(run: PathLike) -> dict[str, Any]:
    """The manifest of a run.

    Raises:
        InputError: missing, not JSON, or of a newer schema.
    """
    path = located(run) / _MANIFEST
    try:
        with reaching(path):
            manifest = json.loads(read_small(path, _MOST_BYTES))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a manifest: {error}") from error
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if not isinstance(version, int):
        raise InputError(f"{path}: not a manifest: no schema_version")
    if version > SCHEMA_VERSION:
        raise InputError(
            f"{path}: schema {version} is newer than this ppprof reads ({SCHEMA_VERSION}); update it"
        )
    return dict(manifest)


def write_atomically(path: Path, data: bytes) -> None:
    """Writes ``path`` under another name, then `publish`: readers see all of it or none.

    A store takes a file whole of itself.
    """
    if is_remote(path):
        with reaching(path):
            path.write_bytes(data)
        return
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")  # others may write it at once
    try:
        hidden.write_bytes(data)
        publish(hidden, path)
    finally:
        discard(hidden)


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name when it is complete and on disk, or not at all.

    Until then it has a hidden name; VisualDL takes any with "paddle_trace" in it for a trace. What
    goes to a store is written here and put there whole.
    """
    if is_remote(path):
        with tempfile.NamedTemporaryFile() as whole:
            yield cast("IO[bytes]", whole)
            whole.flush()
            with reaching(path):
                path.fs.put_file(whole.name, path.path)  # type: ignore[attr-defined]
        return
    name = path.name.replace("paddle_trace", "")
    # Not to be guessed, and never one that is there: a link, perhaps, in a directory of others.
    hidden = path.with_name(f".writing_{name}.{uuid.uuid4().hex}")
    try:
        with hidden.open("xb") as file:
            yield file
        publish(hidden, path)
    finally:
        discard(hidden)


def discard(hidden: Path) -> None:
    """Removes what is left of a file that `publish` did not come to; never raises.

    Whoever writes would otherwise hear of the file that cannot be removed, not of why.
    """
    with suppress(OSError):
        hidden.unlink()


def unpublished(run: Path, name: TraceName) -> list[Path]:
    """What was made of a window and never published: half a file, if nobody is writing it."""
    summary = Path(name.summary)
    return [
        *run.glob(f".writing_{name.stem}.*"),
        *run.glob(f"{summary.parent}/.{summary.name}.*.tmp"),
    ]


def publish(hidden: Path, path: Path) -> None:
    """Gives a complete file its name once the disk has it (fsync, rename)."""
    with hidden.open("rb+") as file:
        os.fsync(file.fileno())
    hidden.replace(path)
