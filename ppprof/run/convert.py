"""Files for other tools, the library behind ``ppprof convert --to``: those around torch.profiler, and flame graphs."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.profile.steps import select_steps
from ppprof.choices import StepRange
from ppprof.errors import InputError, UsageError
from ppprof.paths import to_path
from ppprof.run.run import Run, opened
from ppprof.rundir.clocks import Clock
from ppprof.rundir.recordings import Recording
from ppprof.topology import RankSelector
from ppprof.trace import Frame, PythonStacks, Trace
from ppprof.trace.kineto.copied import copy_kineto_file
from ppprof.trace.kineto.writer import write_kineto_file
from ppprof.units import format_omitted, format_ranges, format_unusable

_log = logging.getLogger("ppprof")

_NUMBER = re.compile("[0-9]{1,9}")
_SPEEDSCOPE = "https://www.speedscope.app/file-format-schema.json"


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
    run: Run | str | Path,
    target: str | Path,
    *,
    ranks: RankSelector = "all",
    window: int | None = None,
    steps: StepRange | str | int | None = None,
    gzip: bool = False,
    executor: Executor | None = None,
) -> KinetoFiles:
    """Write one file for each rank as torch.profiler does, for HTA, TraceLens and Perfetto.

        ppprof.write_kineto("profiler_log", "kineto", window=0)

    `ppprof.trace.kineto.writer` describes the content. Existing files are replaced.

    Args:
        run: the run, or its path for `ppprof.open`.
        target: a directory, which is made if it is missing; or the file, for one window. See
            `kineto_paths`.
        ranks: as in `ppprof.run.run.Run`, as are ``window`` and ``steps``.
        window: the window; None: all windows.
        steps: the steps; None: all steps.
        gzip: whether the files of a directory are compressed.
        executor: as in `ppprof.run.run.Run`; its processes read the windows and write the files.

    Raises:
        InputError: no window can be read, or none has events.
        UsageError: the run has no such rank, window or step; or ``target`` is one file, and there
            are several windows.
        OSError: a file cannot be written.
    """
    run = opened(run)
    paths = kineto_paths(run, target, ranks, window, gzip)
    return write_kineto_files(run, paths, StepRange.of(steps), executor)


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
    run: Run,
    paths: Mapping[Recording, Path],
    steps: StepRange | None = None,
    executor: Executor | None = None,
) -> KinetoFiles:
    """Write each window to its file; memory of a process holds one window at a time.

    Times are on rank 0's clock where the capture compared the clocks. Windows that are unreadable,
    have no events, or have none of the steps, are left out; all but the last with a warning.

    Args:
        run: the run.
        paths: the files, from `kineto_paths`.
        steps: only these steps; None: all steps.
        executor: any of ``concurrent.futures``, which converts several windows at once; its
            processes write the files. None: this process.

    Raises:
        InputError: no window can be read, or none has events.
        UsageError: no window has any of the steps.
        OSError: a file cannot be written.
    """
    stated = run.manifest.get("world_size")
    world_size = stated if isinstance(stated, int) else max(run.ranks) + 1
    hosts = dict(run.coordinates.select("rank", "host").iter_rows())
    works = {
        recording: _Conversion(
            path,
            _copied(recording) if steps is None and recording.rank not in run.clocks else None,
            steps,
            recording.rank,
            world_size,
            bool(run.manifest),
            hosts.get(recording.rank),
            run.clocks.get(recording.rank),
        )
        for recording, path in paths.items()
    }
    files = KinetoFiles()
    existing: set[int] = set()
    empty: list[str] = []
    for result in run.reader.map_works(works, executor):
        converted = result.value
        if not converted.has_events:
            empty.append(format_unusable(result.source, result.skipped))
            continue
        existing.update(converted.steps)
        if converted.num_events is None:
            continue
        path, rank = paths[result.recording], result.recording.rank
        if converted.omitted:
            _log.warning("%s", format_omitted(path, converted.omitted))
        files.paths.append(path)
        files.ranks += [rank] if rank not in files.ranks else []
        files.num_events += converted.num_events
    if empty and not files.paths and not existing:
        raise InputError("\n".join(empty))
    for message in empty:
        _log.warning("%s", message)
    if not files.paths:
        raise UsageError(f"{run}: no step of {steps}; it has {format_ranges('step', existing)}")
    return files


class _Converted(NamedTuple):
    """The result of converting one window."""

    has_events: bool
    steps: tuple[int, ...] = ()
    """The steps of the whole window."""
    num_events: int | None = None
    """Number of events in the file; None if no file was written: the window has no wanted step."""
    omitted: Mapping[str, int] | None = None
    """The result of `write_kineto_file`; None if no file was written."""


def _copied(recording: Recording) -> Path | None:
    """Return the file of a window that may be copied as it is: JSON with the events of one rank."""
    files = list(recording.every_file)
    is_json = len(files) == 1 and files[0].name.endswith((".json", ".json.gz"))
    return files[0] if is_json and not recording.is_in_shared_file else None


@dataclass(frozen=True)
class _Conversion:
    """Write the trace of one window to a file; an executor's process can do it."""

    path: Path
    source: Path | None
    """A file that may be copied event by event; None if only its tables can be written."""
    steps: StepRange | None
    rank: int
    world_size: int
    """The number of ranks in the manifest, or of recorded ranks if there is no manifest."""
    has_manifest: bool
    host: str | None
    clock: Clock | None

    def __call__(self, trace: Trace) -> _Converted:
        if not has_events(trace):
            return _Converted(False)
        steps = tuple(trace.events["step"].drop_nulls().unique().to_list())
        if self.steps is not None:
            trace = select_steps(trace, self.steps)
            if trace.events.is_empty():
                return _Converted(True, steps)
        trace = _on_reference_clock(trace, self.clock)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        place = self._place(trace)
        if self.source is not None and copy_kineto_file(self.source, self.path, *place):
            return _Converted(True, steps, trace.events.height, {})
        omitted = write_kineto_file(trace, self.path, *place, self.host)
        return _Converted(True, steps, trace.events.height, omitted)

    def _place(self, trace: Trace) -> tuple[int, int]:
        """Return the rank of the window, and the number of ranks of its job.

        torch's traces hold both. In other traces without a manifest, the job is taken to have the
        ranks that were recorded.
        """
        information = trace.extra_info if not self.has_manifest else {}
        rank, size = (information.get(key, "") for key in ("rank", "world_size"))
        return (
            int(rank) if _NUMBER.fullmatch(rank) else self.rank,
            int(size) if _NUMBER.fullmatch(size) else self.world_size,
        )


def has_events(trace: Trace) -> bool:
    """Return whether a trace holds anything that can be written: events, memory events, frames."""
    return any(table.height for table in (trace.events, trace.memory, trace.frames))


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
        overheads=moved(trace.overheads, ("start_ns", "dur_ns")),
    )


def speedscope(windows: Mapping[str, PythonStacks]) -> str:
    """Return samples as a file of https://www.speedscope.app: one profile a window and thread.

    Args:
        windows: the samples, keyed by the name of their window, such as ``rank 0, window 0``.

    Source: https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources
    """
    rows: dict[tuple[str, str, int], int] = {}
    profiles = []
    for title, stacks in windows.items():
        frames = [
            rows.setdefault((frame.function, frame.file, frame.line), len(rows))
            for frame in stacks.frames
        ]
        paths = [[frames[row] for row in reversed(stack)] for stack in stacks.stacks] + [[]]
        for thread in np.unique(stacks.samples[:, 0]).tolist():
            samples = stacks.samples[stacks.samples[:, 0] == thread]
            profiles.append(
                {
                    "type": "sampled",
                    "name": f"{title}, thread {thread}",
                    "unit": "nanoseconds",
                    "startValue": 0,
                    "endValue": int(samples[:, 2].sum()),
                    "samples": [paths[row] for row in samples[:, 3].tolist()],
                    "weights": samples[:, 2].tolist(),
                }
            )
    shared = [{"name": name, "file": file, "line": line} for name, file, line in rows]
    document = {
        "$schema": _SPEEDSCOPE,
        "exporter": "ppprof",
        "shared": {"frames": shared},
        "profiles": profiles,
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def collapsed(windows: Mapping[str, PythonStacks]) -> str:
    """Return samples as collapsed stacks: ``rank 0, window 0;thread 7;main (a.py:3);f (a.py:9) 1200``.

    The number is the time in microseconds. flamegraph.pl, inferno and speedscope read such files.

    Args:
        windows: the samples, keyed by the name of their window.
    """
    times: dict[str, int] = {}
    for title, stacks in windows.items():
        names = [_name(frame) for frame in stacks.frames]
        for thread, _, weight_ns, row, _ in stacks.samples.tolist():
            path = [names[each] for each in reversed(stacks.stacks[row])] if row >= 0 else []
            line = ";".join([title, f"thread {thread}", *path])
            times[line] = times.get(line, 0) + weight_ns
    return "".join(f"{line} {round(time_ns / 1000)}\n" for line, time_ns in sorted(times.items()))


def _name(frame: Frame) -> str:
    return f"{frame.function} ({frame.file}:{frame.line})".replace(";", ",")


STACK_FORMATS: Mapping[str, Callable[[Mapping[str, PythonStacks]], str]] = {
    "speedscope": speedscope,
    "collapsed": collapsed,
}
"""Function that writes each format of ``ppprof convert --to``."""
