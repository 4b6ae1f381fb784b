"""Who holds the memory of a run: when it ran out, and at the peak of a window; and what would give some back."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import NamedTuple

import polars as pl

from ppprof.analysis.predict.peak_memory import memory_of as modelled_memory
from ppprof.analysis.predict.training_spec import TrainingSpec
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.held_memory import HeldMemory, held_at_peak
from ppprof.config import load_config
from ppprof.config.yaml_source import ConfigTree
from ppprof.errors import ConfigError, InputError, UsageError
from ppprof.run.base import BaseRun
from ppprof.run.predict import spec_of
from ppprof.rundir.out_of_memory import OutOfMemory, read_out_of_memory
from ppprof.topology import Topology
from ppprof.units import format_bytes

_LAST_STEPS = 5
_INDEX = re.compile(r"\[\d+\](?=/|\Z)")
"""End of a module's name if it occurs several times in a row: Net/Block, Net/Block[1], Net/Block[2]."""

SHARDING, MICRO_BATCH, RECOMPUTE = "sharding stage", "half the micro-batch size", "recompute of"
"""First words of remedies that both tensors and the memory model may give."""

_log = logging.getLogger("ppprof")


class Remedy(NamedTuple):
    """A change of the configuration, and what it gives back on a rank."""

    name: str
    bytes: int
    """At most."""
    why: str
    """What the bytes are computed from."""


class WindowPeak(NamedTuple):
    """The peak of a rank's window."""

    rank: int
    window: int
    held: HeldMemory


@dataclass(frozen=True)
class MemoryUse:
    """The memory of a run."""

    failures: Mapping[int, OutOfMemory]
    """What the ranks held whose memory ran out, by rank."""
    peaks: pl.DataFrame
    """Peak so far after the last steps of each rank, ascending: rank, step, peak_bytes, reserved_bytes and
    total_bytes int64 (of the device; without one, the process's resident memory, and null)."""
    window: WindowPeak | None
    """None if no window with memory events was recorded."""
    failed: int | None
    """The rank of ``failures`` that was asked for, else the first; None if no memory ran out."""
    remedies: tuple[Remedy, ...]
    """What gives most back on rank ``failed``, or on that of ``window``."""


def memory_of(run: BaseRun, rank: int | None = None, window: int | None = None) -> MemoryUse:
    """Return who holds the memory of a run.

    Args:
        run: the run.
        rank: the rank that counts; None: the first whose memory ran out, else the first recorded one.
        window: its number; None: the rank's last one.

    Raises:
        UsageError: no such rank or window.
        InputError: the run has neither step times nor windows.
    """
    failures: dict[int, OutOfMemory] = {}
    for path in run.paths:
        found, problems = read_out_of_memory(path)
        failures.update(found)
        for problem in problems:
            _log.warning("%s", problem)
    peak = _window_peak(run, failures, rank, window)
    peaks = _peaks(run.step_times)
    if not failures and peak is None and peaks.is_empty():
        raise InputError(
            f"{run}: nothing is known about its memory: no step times, no window with allocations "
            "(Profiler.profile_memory), and no MemoryError was noted"
        )
    failed = rank if rank in failures else min(failures, default=None)
    failure = failures[failed] if failed is not None else None
    held = peak.held if peak is not None else None
    whose = failed if failed is not None else peak.rank if peak is not None else rank or 0
    most_first = tuple(remedies(failure, held, run.topology, _spec(run), whose))
    return MemoryUse(failures, peaks, peak, failed, most_first)


def remedies(
    failure: OutOfMemory | None,
    held: HeldMemory | None,
    topology: Topology | None,
    spec: TrainingSpec | None = None,
    rank: int = 0,
) -> list[Remedy]:
    """Return what would give memory back, the most bytes first; those that are not known are left out.

    What tensors show counts; where they do not, the memory model of ``ppprof predict`` does, if the configuration is
    known.
    """
    found = []
    kinds = failure.bytes_by_kind if failure is not None else {}
    num = topology.degree("dp") if topology is not None else 1
    if num > 1 and topology is not None and topology.degree("sharding") == 1:
        shared, names = 0, []
        for stage, kind in enumerate(("optimizer state", "gradient", "parameter"), 1):
            shared += kinds.get(kind, 0)
            names.append(f"{kind}s")
            if shared:
                why = f"{' and '.join(names)} are split over the {num} ranks of dp"
                name = f"{SHARDING} {stage}, sharding_degree {num} in place of dp_degree {num}"
                found.append(Remedy(name, shared * (num - 1) // num, why))
    if failure is not None and failure.reserved_bytes and failure.allocated_bytes:
        free = failure.reserved_bytes - failure.allocated_bytes
        if failure.requested_bytes and free >= failure.requested_bytes:
            why = "reserved, not in tensors, and more than was asked for: it is in pieces"
            found.append(
                Remedy("less fragmentation (FLAGS_use_virtual_memory_auto_growth)", free, why)
            )
    if held is not None:
        found += _of_activations(held.table.filter(pl.col("phase") == "Forward"))
    if spec is not None and topology is not None:
        measured = {_kind(each.name) for each in found}
        modelled = _of_configuration(spec, topology.coordinate(rank).get("pp", 0))
        found += [each for each in modelled if _kind(each.name) not in measured]
    return sorted((each for each in found if each.bytes > 0), key=lambda each: -each.bytes)


def _of_activations(forward: pl.DataFrame) -> list[Remedy]:
    total = int(forward["bytes"].sum())
    found = [Remedy(MICRO_BATCH, total // 2, "activations at the window's peak")]
    rows = forward.drop_nulls("module").select("module", "bytes").rows()
    for name in _repeated(module for module, _ in rows):
        instance = re.compile(rf"{re.escape(name)}({_INDEX.pattern}|(?=/|\Z))")
        held: Counter[str] = Counter()
        for module, num in rows:
            if match := instance.match(module):
                held[match[0]] += num
        given = sum(held.values()) - max(held.values())
        why = f"{len(held)} of it hold activations at the peak; one at a time is computed again"
        found.append(Remedy(f"{RECOMPUTE} {name.rpartition('/')[2]}", given, why))
    return found


def _kind(name: str) -> str:
    """Return what a remedy changes: the first words of its name."""
    return next(
        (kind for kind in (SHARDING, MICRO_BATCH, RECOMPUTE) if name.startswith(kind)), name
    )


def _of_configuration(spec: TrainingSpec, stage: int) -> list[Remedy]:
    """Return what other configurations take less on a rank of a stage, by `ppprof.analysis.predict`."""
    changes = {}
    if not spec.recompute:
        name = f"{RECOMPUTE} all blocks, Model.use_recompute=True"
        changes[name] = replace(spec, recompute="full")
    if spec.dp > 1 and spec.sharding == 1:
        degrees = f"sharding_degree {spec.dp} in place of dp_degree {spec.dp}"
        for level in (1, 2):
            split = replace(spec, dp=1, sharding=spec.dp, sharding_stage=level)
            changes[f"{SHARDING} {level}, {degrees}"] = split
    if spec.micro_batch_size % 2 == 0:
        half = spec.micro_batch_size // 2
        changes[f"{MICRO_BATCH}, Global.micro_batch_size={half}"] = replace(
            spec, micro_batch_size=half, micro_batches=2 * spec.micro_batches
        )
    if spec.mp > 1 and not spec.sequence_parallel:
        name = "sequence parallel, Model.sequence_parallel=True"
        changes[name] = replace(spec, sequence_parallel=True)
    now = modelled_memory(spec, stage)
    why = f"by the memory model of ppprof predict, of {format_bytes(now.total_bytes)}"
    found = [
        Remedy(name, now.total_bytes - modelled_memory(other, stage).total_bytes, why)
        for name, other in changes.items()
    ]
    # The product with the vocabulary is held at these moments alone, and in quarters.
    logits = spec.length * spec.micro_batch_size * spec.vocabulary // spec.mp
    word = spec.word_bytes or 0
    parts = {"loss": 8 + (word < 4) * word, "backward pass of the loss": word}
    rest = {name: size - 3 * logits * parts.get(name, 0) // 4 for name, size in now.moments.items()}
    given = now.total_bytes - now.state_bytes - max(rest.values())
    return [*found, Remedy("the loss in 4 parts of the tokens", given, why)]


def _spec(run: BaseRun) -> TrainingSpec | None:
    """Return the configuration of a run of the harness's GPT in numbers; None if it is not known."""
    values = run.manifest.get("config")
    if not isinstance(values, Mapping) or not {"Model", "Distributed"} <= values.keys():
        return None
    try:
        config = load_config(ConfigTree(deepcopy(dict(values)), path=str(run)))
        spec = spec_of(config)
    except (ConfigError, UsageError):
        return None
    is_modelled = spec.word_bytes and not (spec.sharding > 1 and spec.sharding_stage == 3)
    return spec if is_modelled and config.Model.module == "GPTModule" else None


def _repeated(modules: Iterable[str]) -> list[str]:
    """Return the modules that occur several times in a row, and that are in no other such module.

    >>> _repeated(["Net/Block", "Net/Block/Linear[1]", "Net/Block[1]", "Net/Linear"])
    ['Net/Block']
    """
    names = {module[: index.start()] for module in modules if (index := _INDEX.search(module))}
    return sorted(
        name for name in names if not any(name.startswith(f"{other}/") for other in names)
    )


def _window_peak(
    run: BaseRun, failures: Mapping[int, OutOfMemory], rank: int | None, window: int | None
) -> WindowPeak | None:
    is_without = rank in failures or (rank is None and not run.recordings)
    if window is None and is_without and rank not in run.ranks:
        return None
    if rank is None:
        rank = next((each for each in (*sorted(failures), *run.ranks) if each in run.ranks), None)
    recording = run.select(rank, window)[-1]
    held = held_at_peak(Profile(run.reader.trace(recording)[1]))
    return WindowPeak(recording.rank, recording.window, held) if held is not None else None


def _peaks(times: pl.DataFrame) -> pl.DataFrame:
    is_on_device = pl.col("device_peak_bytes").is_not_null()
    return (
        times.group_by("rank", maintain_order=True)
        .tail(_LAST_STEPS)
        .select(
            "rank",
            "step",
            peak_bytes=pl.coalesce("device_peak_bytes", "host_peak_bytes"),
            reserved_bytes="device_peak_reserved_bytes",
            total_bytes=pl.when(is_on_device).then("device_total_bytes"),
        )
    )
