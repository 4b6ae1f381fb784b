"""What a capture left raw becomes traces and tables: the library behind ``ppprof finish``."""

from __future__ import annotations

import errno
import logging
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ppprof import rundir
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.views import summarize
from ppprof.choices import VIEWS, SummaryOptions
from ppprof.config import ProfilerConfig
from ppprof.errors import InputError, PpprofError, TraceError
from ppprof.run.summary import WindowTables, tables_of_profile
from ppprof.run.traces import ProblemLog, notes_on, read_first_readable, with_job_context
from ppprof.rundir import (
    JobContext,
    TraceName,
    job_context_of,
    partial_files,
    raw_files,
    read_manifest,
    trace_bytes,
)
from ppprof.rundir.liveness import live_ranks
from ppprof.rundir.recordings import Recording, scan
from ppprof.rundir.run_file import RunFile
from ppprof.rundir.summaries import document, dumps, rows_of
from ppprof.rundir.triggers import write_completion
from ppprof.trace import Trace, read_window, write_paddle_json
from ppprof.trace.paddle.json_writer import TooLargeError
from ppprof.units import MEGABYTE, format_bytes, format_skipped

_COMMAND_SECONDS = 600.0
"""How long the user's command may take."""
_SILENT_S = 600.0
"""After how long without step times a job of another machine counts as one that was killed."""

_log = logging.getLogger("ppprof")

ShowTables = Callable[[WindowTables, ProfilerConfig], None]
"""Called with the tables that the config selects, before the traces are written."""

Conclude = Callable[[Recording, Profile, ProfilerConfig], None]
"""Called with a window once all its files are written."""


def unfinished_runs(log_dir: Path) -> list[Path]:
    """Return the runs of a log directory that have captures to finish, oldest first; else the newest run.

    A job that still runs beside others finishes its captures itself: it is left out, with a message.

    Raises:
        InputError: there is no run.
    """
    runs = rundir.runs_of(log_dir)
    unfinished = [run for run in runs if _is_unfinished(run)]
    running = [run for run in unfinished if len(runs) > 1 and _is_running(run)]
    for run in running:
        _log.info("%s: left to its job, which still runs", run)
    return [run for run in unfinished if run not in running] or ([] if running else runs[-1:])


def _is_running(run: Path) -> bool:
    """Return whether the job of a run works here, or has written step times elsewhere lately."""
    if live_ranks(run, here=True) or not live_ranks(run):
        return bool(live_ranks(run))
    times = [path.lstat().st_mtime for path in run.glob("steps/*")]
    return time.time() - max(times, default=0.0) < _SILENT_S


def _is_unfinished(run: Path) -> bool:
    """Return whether tables or traces of a raw capture are missing: a finished one may be kept."""
    if rundir.cut_captures(run):
        return True
    try:
        formats = _profiler(run, read_manifest(run)).formats
    except PpprofError:  # `finish` raises it
        return bool(raw_files(run))
    return any(
        not (run / file).exists()
        for name, _ in raw_files(run)
        for file in (name.summary, *(name.trace(fmt) for fmt in formats if fmt != "pb"))
    )


def finish(
    run: Path,
    show: ShowTables,
    *,
    rank: int | None = None,
    window: int | None = None,
    command: Sequence[str] = (),
    conclude: Conclude | None = None,
) -> None:
    """Make traces and tables of every raw capture in a run directory.

    Args:
        run: the run directory.
        show: prints the tables of a window.
        rank: only this rank's captures; None: all.
        window: only this window; None: all.
        command: run after each window, with the names of its files as arguments.
        conclude: called once the files of a window are written; None: not called. Its errors are
            logged.

    Raises:
        InputError: not a run of ppprof, or no capture that was chosen could be finished. Its message is
            the last reason; other reasons are logged, each once.
    """
    manifest = read_manifest(run)
    profiler = _profiler(run, manifest)
    job = job_context_of(manifest)
    captures = _captures(run, rank, window)
    rundir.reject_symlinks(run)
    _remove_cut_captures(run, rank, window)
    if not captures:
        _log.info("%s: nothing left to finish; tables as data: %s/summary", run, run)
    num_failed, reasons = 0, []
    for names in captures:
        first = names[0]
        try:
            with _locked(run, names) as is_locked:
                if is_locked:
                    files = _finish_window(run, names, profiler, job, show, conclude)
                    if command:
                        _run_command(command, run, first, files)
        except (TraceError, OSError) as error:
            num_failed += 1
            where = run / first.raw
            why = _unwritten(run, error, where) if isinstance(error, OSError) else str(error)
            if why not in reasons:
                reasons.append(why)
    all_failed = num_failed and num_failed == len(captures)
    for why in reasons[:-1] if all_failed else reasons:
        _log.error("%s", why)
    if all_failed:
        raise InputError(reasons[-1])


def _profiler(run: Path, manifest: Mapping[str, Any]) -> ProfilerConfig:
    if not isinstance(manifest.get("profiler"), Mapping):
        raise InputError(f"{run}/manifest.json: no profiler block; expected one of a ppprof run")
    return ProfilerConfig.from_mapping(manifest["profiler"])


def _captures(run: Path, rank: int | None, window: int | None) -> list[list[TraceName]]:
    """Return the raw captures of each window, one for each segment that is still raw."""
    windows: dict[object, list[TraceName]] = {}
    for name, _ in raw_files(run):
        if rank in (None, name.rank) and window in (None, name.window):
            windows.setdefault(name.of_window, []).append(name)
    return list(windows.values())


def _unwritten(run: Path, error: OSError, raw: Path) -> str:
    """Return what to log if the files of a window cannot be written."""
    in_rust = re.search(
        r"\(os error (\d+)\)", str(error)
    )  # polars' errors have no number of their own
    number = int(in_rust[1]) if in_rust else error.errno
    is_full = number in (errno.ENOSPC, errno.EDQUOT)
    where = run if is_full else error.filename or raw
    once = "there is space" if is_full else "it can be written"
    return (
        f"{where}: {os.strerror(number) if number else error}: the raw capture is kept; once {once} again, run: "
        f"ppprof finish {shlex.quote(str(run))}"
    )


def _remove_cut_captures(run: Path, rank: int | None, window: int | None) -> None:
    """Remove raw captures whose process ended while it wrote them, and log each as a lost window."""
    cut = [
        (name, file)
        for name, file in rundir.cut_captures(run)
        if rank in (None, name.rank) and window in (None, name.window)
    ]
    alive = live_ranks(run) if cut else set()
    for name, file in cut:
        what = f"rank {name.rank}, window {name.window}"
        what += f", segment {name.segment}" * bool(name.segment)
        if name.rank in alive:
            _log.warning("%s: %s is being saved, or its process was killed elsewhere", file, what)
            continue
        with suppress(OSError):
            file.remove()
        _log.warning("%s: removed: %s is lost: its process ended while it was saved", file, what)


@contextmanager
def _locked(run: Path, names: Sequence[TraceName]) -> Iterator[bool]:
    """Lock a window; yield whether it is ours: the training's own process may be finishing it.

    The first raw capture is locked, and removed last. Partial files of a process that was killed are
    removed.
    """
    raw = run / names[0].raw
    with ExitStack() as stack:
        try:
            is_ours = stack.enter_context(RunFile(run, names[0].raw).locked())
        except FileNotFoundError:
            _log.info("%s: another process has just finished it", raw)
            is_ours = False
        else:
            if not is_ours:
                _log.info("%s: skipped: another process is finishing it", raw)
        if is_ours:
            for partial_file in partial_files(run, names[0]):
                with suppress(OSError):
                    partial_file.remove()
        yield is_ours


def _finish_window(
    run: Path,
    names: Sequence[TraceName],
    profiler: ProfilerConfig,
    job: JobContext,
    show: ShowTables,
    conclude: Conclude | None,
) -> list[Path]:
    """Show the tables that the config selects, write the traces of each segment, and return all files of the window."""
    name = names[0]
    recording = _recording(run, name)
    is_whole = len(recording.segments) == 1
    errors: list[str] = []
    recorded: Trace | None = None
    if is_whole:
        raw, recorded = run / name.raw, read_window(run / name.raw)
        trace = with_job_context(recorded, job)
    else:
        raw, trace, errors = read_first_readable(recording, job=job)
    ProblemLog().report(raw, {}, errors, notes_on(raw, trace))
    profile = Profile(trace, SummaryOptions(profiler.sorted_by, profiler.thread_sep))
    tables = tables_of_profile(profile, recording, raw, profiler.views())
    show(tables, profiler)  # before the slow part: a user is waiting for them
    every = {
        view: tables.tables[view] if view in tables.tables else summarize(profile, view)
        for view in VIEWS
    }
    identity = tables.identity()
    del identity["file"]  # the raw capture, which is deleted
    RunFile(run, name.summary).write(dumps(document(rows_of(every), **identity)).encode())
    traces: list[Path] = []
    kept: list[str] = []
    finished: list[TraceName] = []
    left = None
    if profiler.max_trace_mb is not None:
        left = max(0, int(profiler.max_trace_mb * MEGABYTE) - trace_bytes(run, name.rank))
    for segment in names:
        try:
            # As recorded: analyses cut the lengths of some events.
            segment_trace = recorded or read_window(run / segment.raw)
        except TraceError:  # reported above
            continue
        written, why_kept = _write_segment(segment_trace, run, segment, profiler, left)
        traces += written
        left = _rest(left, [path for path in written if path != run / segment.raw])
        kept += [why_kept] if why_kept and why_kept not in kept else []
        finished += [segment] if run / segment.raw not in written else []
    for segment in reversed(finished):  # the one that is locked last
        with suppress(FileNotFoundError):
            RunFile(run, segment.raw).remove()
        with suppress(OSError):
            RunFile(run, segment.calls).remove_folder()
        with suppress(OSError):
            RunFile(run, segment.operator_calls).remove()
    files = [*traces, run / name.summary]
    write_completion(run, name.rank, name.window, files, "; ".join(kept) or None)
    if conclude is not None:
        try:
            conclude(recording, profile, profiler)
        except Exception as error:  # the window is finished: only the sentence about it is missing
            _log.info("rank %d, window %d: no verdict: %s", name.rank, name.window, error)
    return files


def _recording(run: Path, name: TraceName) -> Recording:
    """Return a window with all its segments, those that are no longer raw included."""
    for recording in scan([run]):
        if (recording.rank, recording.window) == (name.rank, name.window) and recording.files:
            return recording
    raise TraceError(f"{run / name.raw}: it was removed meanwhile; expected one process to finish")


def _write_segment(
    trace: Trace, run: Path, name: TraceName, profiler: ProfilerConfig, max_bytes: int | None
) -> tuple[list[Path], str | None]:
    """Write the configured traces of a segment, in ``max_bytes`` in all.

    Returns:
        The files of the segment, with the raw capture if it is kept; and why a format is missing.
    """
    raw = run / name.raw
    traces, skipped = _write_traces(trace, run, name, profiler, max_bytes)
    if skipped:
        _log.warning("%s: kept: %s", raw, skipped)
    if trace.skipped:
        _log.warning("%s; the file is kept", format_skipped(raw, trace.skipped))
    if trace.events.is_empty():
        _log.warning("%s: contains no event; the file is kept", raw)
    if trace.skipped or trace.events.is_empty() or skipped or "pb" in profiler.formats:
        traces.append(raw)
    return traces, skipped


def _rest(left: int | None, written: Sequence[Path]) -> int | None:
    return None if left is None else max(0, left - sum(path.stat().st_size for path in written))


def _write_traces(
    trace: Trace, run: Path, name: TraceName, profiler: ProfilerConfig, max_bytes: int | None
) -> tuple[list[Path], str | None]:
    """Write the traces beside the raw file, in ``max_bytes`` in all; return them, and which were left out and why."""
    written, skipped, left = [], [], max_bytes
    for fmt in profiler.formats:
        if fmt == "pb":
            continue
        path = run / name.trace(fmt)
        try:
            write_paddle_json(trace, path, left)
            written.append(path)
            left = _rest(left, [path])
        except TooLargeError:
            skipped.append(f"no {fmt}, which would take more than {format_bytes(left or 0)}")
    if not skipped:
        return written, None
    limit = f"what is left of Profiler.max_trace_mb {profiler.max_trace_mb:g}"
    return written, f"{', '.join(skipped)}, {limit}; ppprof convert writes it elsewhere"


def _run_command(command: Sequence[str], run: Path, name: TraceName, files: list[Path]) -> None:
    """Run the user's command with the files of a window; log its failure as a warning."""
    environment = {
        **{key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"},
        "PPPROF_RUN": str(run),
        "PPPROF_RANK": str(name.rank),
        "PPPROF_WINDOW": str(name.window),
    }
    try:
        done = subprocess.run(
            [*command, *map(str, files)],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),  # our stdout is for the tables
            env=environment,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
        why = f"exit code {done.returncode}" if done.returncode else ""
    except subprocess.TimeoutExpired:
        why = f"ended after {_COMMAND_SECONDS:.0f} s"
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        _log.warning(
            "rank %d, window %d: on_window_end %s: %s",
            name.rank,
            name.window,
            shlex.join(command),
            why,
        )
