"""All ranks of a run in one timeline: the library behind ``ppprof merge``."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ppprof.analysis.profile.steps import select_steps
from ppprof.analysis.ranks.clock_alignment import align_clocks
from ppprof.analysis.ranks.collectives import collectives
from ppprof.choices import StepRange
from ppprof.errors import InputError, UsageError
from ppprof.paths import to_path
from ppprof.run.base import BaseRun
from ppprof.run.ranks import tables_by_rank
from ppprof.rundir.clocks import Clock, Clocks, Reading
from ppprof.rundir.recordings import Recording
from ppprof.topology import RankSelector
from ppprof.trace import Trace
from ppprof.trace.merge import Window, write_merged
from ppprof.trace.segments import with_stalls
from ppprof.units import format_ranges

_log = logging.getLogger("ppprof")

_MAX_HELD_BYTES = 512 << 20
"""Most bytes of events that are kept between finding the clocks and writing the timeline."""


@dataclass(frozen=True)
class Merged:
    """The result of `merge_ranks`."""

    path: Path
    """The file that was written."""
    ranks: tuple[int, ...]
    """The ranks in the file, ascending."""
    num_events: int
    """Number of events in the file, without arrows between events."""


def merge_ranks(
    run: BaseRun,
    path: str | Path,
    ranks: RankSelector = "all",
    window: int | None = None,
    steps: StepRange | None = None,
    min_dur_ns: int = 0,
    clocks: Clocks | None = None,
) -> Merged:
    """Write ranks into one timeline on one clock.

    `ppprof.run.run.Run.merge` describes the arguments and errors.
    """
    recordings = run.select_ranks(ranks, window)
    held: dict[Recording, Trace] = {}
    if clocks is None:
        clocks = _clocks_of(run, recordings, held)
    written: list[int] = []
    errors: list[str] = []
    windows = _windows(run, recordings, steps, clocks, held, written, errors)
    recorded = {recording.rank for recording in recordings if recording.files}
    num_events = write_merged(windows, path, ranks=recorded, min_dur_ns=min_dur_ns)
    for error in errors:
        _log.warning("%s", error)
    unaligned = [rank for rank in written if rank not in clocks and rank != 0]
    if unaligned and len(written) > 1:
        _log.warning(
            "%s: no clock offset is known for %s; their events keep their machine's clock and may "
            "be misaligned with ranks on other hosts",
            run,
            run.name_ranks(unaligned),
        )
    return Merged(to_path(path), tuple(written), num_events)


def _windows(
    run: BaseRun,
    recordings: Sequence[Recording],
    steps: StepRange | None,
    clocks: Clocks,
    held: dict[Recording, Trace],
    written: list[int],
    errors: list[str],
) -> Iterator[Window]:
    """Yield the windows to write; memory holds one of them at a time, and the traces in ``held`` until written.

    ``written`` receives the ranks of the windows, ascending; ``errors`` a message for each unreadable window.
    """
    existing: set[int] = set()
    hosts = dict(run.coordinates.select("rank", "host").iter_rows())
    for recording in recordings:
        rank = recording.rank
        try:
            trace = held.pop(recording, None) or run.reader.trace(recording)[1]
        except InputError as error:
            errors.append(f"rank {rank} is left out: {error}")
            continue
        existing.update(trace.events["step"].drop_nulls().unique().to_list())
        if steps is not None:
            trace = select_steps(trace, steps)
            if trace.events.is_empty():
                continue
        trace = with_stalls(trace, run.stalls.get((rank, recording.window), {}))
        if rank not in written:
            written.append(rank)
        name = _process_name(run, recording, hosts)
        yield Window(rank, recording.window, name, trace, clocks.get(rank))
        del trace
    if errors and not written and not existing:
        raise InputError("\n".join(errors))
    if not written:
        raise UsageError(f"{run}: no step of {steps}; it has {format_ranges('step', existing)}")


def _clocks_of(
    run: BaseRun, recordings: Sequence[Recording], held: dict[Recording, Trace]
) -> Clocks:
    """Return the measured clocks of the ranks, keyed by rank; if some lack, estimate from the collectives.

    ``held`` receives the traces that this reads, up to `_MAX_HELD_BYTES`.
    """
    reference = {0: Clock(0, (Reading(0, 0, 0),), "same")}
    measured = {**reference, **run.clocks} if run.clocks else {}
    ranks = {recording.rank for recording in recordings}
    if len(ranks) < 2 or ranks <= set(measured):
        return measured
    tables = []
    num_bytes = 0
    for recording in recordings:
        with suppress(InputError):  # reported where the window is written
            trace = run.reader.trace(recording)[1]
            tables.append(collectives(trace, recording.rank))
            num_bytes += int(trace.events.estimated_size())
            if num_bytes <= _MAX_HELD_BYTES:
                held[recording] = trace
    clocks = measured
    if tables:
        hosts = dict(run.coordinates.select("rank", "host").iter_rows())
        clocks = align_clocks(tables_by_rank(tables), measured, hosts)
    errors_ns = {
        rank: clock.error_ns for rank, clock in clocks.items() if clock.method == "collectives"
    }
    if errors_ns:
        _log.warning(
            "%s: the clocks of %s were not compared; their collectives bound them to %.3f ms",
            run,
            format_ranges("rank", errors_ns),
            max(errors_ns.values()) / 1e6,
        )
    return clocks if len(clocks) > 1 else measured


def _process_name(run: BaseRun, recording: Recording, hosts: Mapping[int, str | None]) -> str:
    """Return the name of a rank's process, such as ``dp1 pp0 mp1 · host-b``; without a topology, `what`."""
    topology, rank = run.topology, recording.rank
    if topology is None or rank >= topology.world_size:
        return recording.what
    coordinate = " ".join(
        f"{axis}{index}"
        for axis, index in topology.coordinate(rank).items()
        if axis in ("dp", "pp", "mp") or topology.degree(axis) > 1
    )
    host = run.manifest["nodes"].get(rank) or hosts.get(rank)
    return f"{coordinate} · {host}" if host else coordinate
