"""Who holds the memory of a run: when it ran out, and at the peak of a window; and what would give some back."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import polars as pl

from ppprof.analysis.predict.peak_memory import memory_of as modelled_memory
from ppprof.analysis.predict.training_spec import TrainingSpec
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.held_memory import HeldMemory, held_at_peak
from ppprof.errors import InputError, UsageError
from ppprof.run.base import BaseRun
from ppprof.run.predict import spec_in
from ppprof.rundir.out_of_memory import OutOfMemory, read_out_of_memory
from ppprof.topology import Topology
from ppprof.units import format_bytes

_LAST_STEPS = 5
_INDEX = re.compile(r"\[\d+\](?=/|\Z)")
"""End of a module's name if it occurs several times in a row: Net/Block, Net/Block[1], Net/Block[2]."""

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
    """Peak so far after the last steps of each rank, or of the one asked for, ascending: rank, step, peak_bytes, reserved_bytes and
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
        window: its number; None: the rank's last readable one.

    Raises:
        UsageError: no such rank or window.
        InputError: the run has neither step times nor windows, or the window is unreadable.
    """
    failures: dict[int, OutOfMemory] = {}
    for path in run.paths:
        found, problems = read_out_of_memory(path)
        failures.update(found)
        for problem in problems:
            _log.warning("%s", problem)
    peak = _window_peak(run, failures, rank, window)
    peaks = _peaks(run.step_times)
    if rank is not None:
        peaks = peaks.filter(pl.col("rank") == rank)
    if not failures and peak is None and peaks.is_empty():
        raise InputError(
            f"{run}: nothing is known about its memory: no step times, no window with allocations "
            "(Profiler.profile_memory), and no MemoryError was noted"
        )
    failed = min(failures, default=None) if rank is None else rank if rank in failures else None
    failure = failures[failed] if failed is not None else None
    whose = failed if failed is not None else peak.rank if peak is not None else rank or 0
    held = peak.held if peak is not None and peak.rank == whose else None
    most_first = tuple(
        remedies(failure, held, run.topology, _spec(run), whose, _micro_batch_size(run))
    )
    return MemoryUse(failures, peaks, peak, failed, most_first)


def remedies(
    failure: OutOfMemory | None,
    held: HeldMemory | None,
    topology: Topology | None,
    spec: TrainingSpec | None = None,
    rank: int = 0,
    micro_batch_size: int | None = None,
) -> list[Remedy]:
    """Return what would give memory back, the most bytes first; those that are not known are left out.

    What tensors show counts; where they do not, the memory model of ``ppprof predict`` does, if the configuration is
    known. Without that, ``micro_batch_size`` may be known.
    """
    size = micro_batch_size if spec is None else spec.micro_batch_size
    found: dict[str, list[Remedy]] = {}
    if spec is not None and topology is not None:
        found = _of_configuration(spec, topology.coordinate(rank).get("pp", 0))
    if failure is not None:
        found |= _of_failure(failure, topology)
    if held is not None:
        found |= _of_activations(held.table.filter(pl.col("phase") == "Forward"), spec, size)
    return sorted(
        (each for kind in found.values() for each in kind if each.bytes > 0),
        key=lambda each: -each.bytes,
    )


def _sharding_stages(pp: int) -> range:
    """Return the stages of sharding; Fleet's pipeline takes the first one only."""
    return range(1, 4 if pp == 1 else 2)


def _of_failure(failure: OutOfMemory, topology: Topology | None) -> dict[str, list[Remedy]]:
    found: dict[str, list[Remedy]] = {}
    num = topology.degree("dp") if topology is not None else 1
    if topology is not None and num > 1 and topology.degree("sharding") == 1:
        shared, names = 0, []
        kinds = ("optimizer state", "gradient", "parameter")
        for stage, kind in zip(_sharding_stages(topology.degree("pp")), kinds):
            shared += failure.bytes_by_kind.get(kind, 0)
            names.append(f"{kind}s")
            if shared:
                why = f"{' and '.join(names)} are split over the {num} ranks of dp"
                name = f"sharding stage {stage}, sharding_degree {num} in place of dp_degree {num}"
                remedy = Remedy(name, shared * (num - 1) // num, why)
                found.setdefault("sharding", []).append(remedy)
    if failure.reserved_bytes and failure.allocated_bytes:
        free = failure.reserved_bytes - failure.allocated_bytes
        if failure.requested_bytes and free >= failure.requested_bytes:
            name = "less fragmentation (FLAGS_use_virtual_memory_auto_growth)"
            why = "reserved, not in tensors, and more than was asked for: it is in pieces"
            found["fragmentation"] = [Remedy(name, free, why)]
    return found


def _of_activations(
    forward: pl.DataFrame, spec: TrainingSpec | None, size: int | None
) -> dict[str, list[Remedy]]:
    found: dict[str, list[Remedy]] = {}
    total = int(forward["bytes"].sum())
    if size is None or size % 2 == 0:
        why = "activations at the window's peak"
        found["micro-batch"] = [Remedy(_half(size), total // 2, why)]
    if spec is not None and spec.recompute == "full":
        return found
    rows = forward.drop_nulls("module").select("module", "bytes").rows()
    for name in _repeated(module for module, _ in rows):
        instance = re.compile(rf"{re.escape(name)}({_INDEX.pattern}|(?=/|\Z))")
        held: Counter[str] = Counter()
        for module, num in rows:
            if match := instance.match(module):
                held[match[0]] += num
        given = sum(held.values()) - max(held.values())
        why = f"{len(held)} of it hold activations at the peak; one at a time is computed again"
        remedy = Remedy(f"recompute of {name.rpartition('/')[2]}", given, why)
        found.setdefault("recompute", []).append(remedy)
    return found


def _of_configuration(spec: TrainingSpec, stage: int) -> dict[str, list[Remedy]]:
    """Return what other configurations take less on a rank of a stage, by `ppprof.analysis.predict`."""
    now = modelled_memory(spec, stage).total_bytes
    found: dict[str, list[Remedy]] = {}

    def add(kind: str, name: str, **changes: Any) -> None:
        other = modelled_memory(replace(spec, **changes), stage).total_bytes
        why = f"by the memory model of ppprof predict, of {format_bytes(now)}"
        found.setdefault(kind, []).append(Remedy(name, now - other, why))

    if spec.recompute != "full":
        name = "recompute of all blocks, Model.use_recompute=True"
        if spec.recompute:
            name = "recompute of whole blocks, Model.recompute_granularity=full"
        add("recompute", name, recompute="full")
    if spec.dp > 1 and spec.sharding == 1:
        degrees = f"sharding_degree {spec.dp} in place of dp_degree {spec.dp}"
        for level in _sharding_stages(spec.pp)[:2]:  # the third one is not modelled
            name = f"sharding stage {level}, {degrees}"
            add("sharding", name, dp=1, sharding=spec.dp, sharding_stage=level)
    if spec.micro_batch_size % 2 == 0:
        half = spec.micro_batch_size // 2
        name = _half(spec.micro_batch_size)
        add("micro-batch", name, micro_batch_size=half, micro_batches=2 * spec.micro_batches)
    if spec.mp > 1 and not spec.sequence_parallel:
        name = "sequence parallel, Model.sequence_parallel=True"
        add("sequence parallel", name, sequence_parallel=True)
    add("loss", "the loss in 4 parts of the tokens", loss_parts=4)
    return found


def _half(size: int | None) -> str:
    """Return the name of the change that halves a micro-batch.

    >>> _half(4), _half(None)
    ('half the micro-batch size, Global.micro_batch_size=2', 'half the micro-batch size, if it is above 1')
    """
    known = "if it is above 1" if size is None else f"Global.micro_batch_size={size // 2}"
    return f"half the micro-batch size, {known}"


def _micro_batch_size(run: BaseRun) -> int | None:
    """Return the size in the run's config; None if it has none."""
    size: Any = run.manifest.get("config")
    for name in ("Global", "micro_batch_size"):
        size = size.get(name) if isinstance(size, Mapping) else None
    return size if type(size) is int else None


def _spec(run: BaseRun) -> TrainingSpec | None:
    """Return the configuration of a run of the harness's GPT; None if its memory is not known."""
    try:
        spec = spec_in(run)
    except (InputError, UsageError):
        return None
    return spec if spec.is_memory_known else None


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
    is_known = rank is None or rank in run.step_times["rank"]
    is_without = rank in failures or (is_known and not run.has_traces)
    if window is None and is_without and rank not in run.ranks:
        return None
    if rank is None:
        rank = next((each for each in (*sorted(failures), *run.ranks) if each in run.ranks), None)
    for recording in reversed(run.select(rank, window)):
        try:
            trace = run.reader.trace(recording)[1]
        except InputError as error:
            if window is not None:
                raise
            _log.warning("%s", error)
            continue
        held = held_at_peak(Profile(trace))
        if held is not None:
            return WindowPeak(recording.rank, recording.window, held)
        if run.profiler is not None and not run.profiler.profile_memory:
            break  # no other window has allocations either
    return None


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
        .drop_nulls("peak_bytes")
    )
