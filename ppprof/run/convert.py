"""Files for the tools around torch.profiler: the library behind ``ppprof convert --to kineto``."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from ppprof.analysis.profile.steps import select_steps
from ppprof.choices.steps import StepRange
from ppprof.errors import InputError, UsageError
from ppprof.paths import to_path
from ppprof.rundir.clocks import Clock
from ppprof.rundir.recordings import Recording
from ppprof.topology import RankSelector
from ppprof.trace import Trace
from ppprof.trace.kineto.writer import write_kineto_file
from ppprof.units import format_omitted, format_ranges

if TYPE_CHECKING:
    from ppprof.run.run import Run

_log = logging.getLogger("ppprof")


@dataclass
class KinetoFiles:
    """The result of `write_kineto`."""

    paths: list[Path] = field(default_factory=list)
    """The files that were written, by rank and window."""
    ranks: list[int] = field(default_factory=list)
    """Their ranks, ascending."""
    num_events: int = 0
    """Number of events of the traces in them."""


def write_kineto(
    run: Run,
    target: str | Path,
    *,
    ranks: RankSelector = "all",
    window: int | None = None,
    steps: StepRange | str | int | None = None,
    gzip: bool = False,
) -> KinetoFiles:
    """Write one file for each rank as torch.profiler does, for HTA, TraceLens and Perfetto.

        ppprof.write_kineto(ppprof.open("profiler_log"), "kineto", window=0)

    `ppprof.trace.kineto.writer` describes the content. Existing files are replaced.

    Args:
        run: the run.
        target: a directory, which is made if it is missing; or the file, for one window. See
            `kineto_paths`.
        ranks: as in `ppprof.run.run.Run`, as are ``window`` and ``steps``.
        window: the window; None: all windows.
        steps: the steps; None: all steps.
        gzip: whether the files of a directory are compressed.

    Raises:
        InputError: no window can be read.
        UsageError: the run has no such rank, window or step; or ``target`` is one file, and there
            are several windows.
        OSError: a file cannot be written.
    """
    paths = kineto_paths(run, target, ranks, window, gzip)
    return write_kineto_files(run, paths, StepRange.of(steps))


def kineto_paths(
    run: Run,
    target: str | Path,
    ranks: RankSelector = "all",
    window: int | None = None,
    gzip: bool = False,
) -> Mapping[Recording, Path]:
    """Return the file to write for each window.

    ``target`` is the file if its name ends in .json or .json.gz, and a directory otherwise: of files
    such as ``rank3.pt.trace.json``, or, if ranks have several windows, of directories ``window_0``
    with such files. So each directory has one file a rank, as HTA and TraceLens expect.

    Raises:
        UsageError: ``target`` is one file, and there are several windows.
    """
    recordings = run.select_ranks(ranks, window)
    path = to_path(target)
    if path.name.endswith((".json", ".json.gz")):
        if len(recordings) > 1:
            windows = format_ranges("window", {recording.window for recording in recordings})
            written = format_ranges("rank", {recording.rank for recording in recordings})
            raise UsageError(
                f"{target}: one file cannot hold {written}, {windows}; name a directory"
            )
        return {recordings[0]: path}
    suffix = ".pt.trace.json.gz" if gzip else ".pt.trace.json"
    is_nested = max(Counter(recording.rank for recording in recordings).values()) > 1
    return {
        recording: (path / f"window_{recording.window}" if is_nested else path)
        / f"rank{recording.rank}{suffix}"
        for recording in recordings
    }


def write_kineto_files(
    run: Run, paths: Mapping[Recording, Path], steps: StepRange | None = None
) -> KinetoFiles:
    """Write each window to its file; memory holds one window at a time.

    Times are on rank 0's clock where the capture compared the clocks. Windows that are unreadable, or
    have none of the steps, are left out; the former with a warning.

    Args:
        run: the run.
        paths: the files, from `kineto_paths`.
        steps: only these steps; None: all steps.

    Raises:
        InputError: no window can be read.
        UsageError: no window has any of the steps.
        OSError: a file cannot be written.
    """
    files = KinetoFiles()
    errors: list[str] = []
    existing: set[int] = set()
    hosts = dict(run.places.select("rank", "host").iter_rows())
    for recording, path in paths.items():
        try:
            trace = run.reader.trace(recording)[1]
        except InputError as error:
            errors.append(f"rank {recording.rank} is left out: {error}")
            continue
        existing.update(trace.events["step"].drop_nulls().unique().to_list())
        if steps is not None:
            trace = select_steps(trace, steps)
            if trace.events.is_empty():
                continue
        trace = _on_reference_clock(trace, run.clocks.get(recording.rank))
        path.parent.mkdir(parents=True, exist_ok=True)
        rank, world_size = _place(run, recording, trace)
        omitted = write_kineto_file(trace, path, rank, world_size, hosts.get(recording.rank))
        if omitted:
            _log.warning("%s", format_omitted(path, omitted))
        files.paths.append(path)
        files.ranks += [recording.rank] if recording.rank not in files.ranks else []
        files.num_events += trace.events.height
    if errors and not files.paths and not existing:
        raise InputError("\n".join(errors))
    for message in errors:
        _log.warning("%s", message)
    if not files.paths:
        raise UsageError(f"{run}: no step of {steps}; it has {format_ranges('step', existing)}")
    return files


def _place(run: Run, recording: Recording, trace: Trace) -> tuple[int, int]:
    """Return the rank of a window, and the number of ranks of its job.

    torch's traces hold both. In other traces without a manifest, the job is taken to have the ranks
    that were recorded.
    """
    information = trace.extra_info if not run.manifest else {}
    rank, size = (information.get(key, "") for key in ("rank", "world_size"))
    stated = run.manifest.get("world_size")
    return (
        int(rank) if rank.isdecimal() else recording.rank,
        int(size)
        if size.isdecimal()
        else stated
        if isinstance(stated, int)
        else max(run.ranks) + 1,
    )


def _on_reference_clock(trace: Trace, clock: Clock | None) -> Trace:
    """Return the trace with times on rank 0's clock; unchanged without a clock."""
    if clock is None:
        return trace

    def moved(table: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
        start = columns[0]
        times = clock.to_reference(table[start].to_numpy())
        if len(columns) == 1:
            return table.with_columns(pl.Series(start, times))
        ends = clock.to_reference((table[start] + table["dur_ns"]).to_numpy())
        return table.with_columns(pl.Series(start, times), dur_ns=pl.Series(ends - times))

    return replace(
        trace,
        events=moved(trace.events, ("start_ns", "dur_ns")),
        memory=moved(trace.memory, ("time_ns",)),
        frames=moved(trace.frames, ("start_ns", "dur_ns")),
    )
