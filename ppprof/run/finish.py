"""What a capture left raw becomes traces and tables: the library behind ``ppprof finish``."""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import polars as pl

from ppprof import rundir
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.views import summarize
from ppprof.choices import VIEWS, SummaryOptions
from ppprof.config import ProfilerConfig
from ppprof.errors import InputError, TraceError
from ppprof.run.summary import WindowTables, tables_of_profile
from ppprof.run.traces import ProblemLog, notes_on, with_job_context
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
from ppprof.rundir.recordings import Recording
from ppprof.rundir.run_file import RunFile
from ppprof.rundir.summaries import document, dumps, rows_of
from ppprof.rundir.triggers import write_completion
from ppprof.trace import Trace, read_window, write_paddle_json
from ppprof.trace.paddle.folded_phases import has_interleaved_phases
from ppprof.trace.paddle.json_writer import TooLargeError
from ppprof.units import MEGABYTE, format_bytes, format_skipped

_COMMAND_SECONDS = 600.0
"""How long the user's command may take."""

_log = logging.getLogger("ppprof")

ShowTables = Callable[[WindowTables, ProfilerConfig], None]
"""Called with the tables that the config selects, before the traces are written."""

Conclude = Callable[[Recording, Profile, ProfilerConfig], None]
"""Called with a window once all its files are written."""


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
        InputError: not a run of ppprof, or no capture that was chosen could be finished.
    """
    manifest = read_manifest(run)
    if not isinstance(manifest.get("profiler"), Mapping):
        raise InputError(f"{run}/manifest.json: no profiler block; expected one of a ppprof run")
    profiler = ProfilerConfig.from_mapping(manifest["profiler"])
    job = job_context_of(manifest)
    captures = [
        (name, path)
        for name, path in raw_files(run)
        if rank in (None, name.rank) and window in (None, name.window)
    ]
    rundir.reject_symlinks(run)
    _remove_cut_captures(run, rank, window)
    if not captures:
        _log.info("%s: nothing left to finish; tables as data: %s/summary", run, run)
    num_failed = 0
    for name, path in captures:
        try:
            with _locked(run, name, path) as is_locked:
                if is_locked:
                    files = _finish_window(run, name, path, profiler, job, show, conclude)
                    if command:
                        _run_command(command, run, name, files)
        except TraceError as error:
            num_failed += 1
            _log.error("%s", error)
        except OSError as error:
            num_failed += 1
            _log.error("%s: %s", error.filename or path, error.strerror or error)
    if num_failed and num_failed == len(captures):
        raise InputError(f"{run}: no raw capture could be finished")


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
        if name.rank in alive:
            _log.warning("%s: %s is being saved, or its process was killed elsewhere", file, what)
            continue
        with suppress(OSError):
            file.remove()
        _log.warning("%s: removed: %s is lost: its process ended while it was saved", file, what)


@contextmanager
def _locked(run: Path, name: TraceName, raw: Path) -> Iterator[bool]:
    """Lock a capture; yield whether it is ours: the training's own process may be finishing it.

    Partial files of a process that was killed are removed.
    """
    with ExitStack() as stack:
        try:
            is_ours = stack.enter_context(RunFile(run, name.raw).locked())
        except FileNotFoundError:
            _log.info("%s: another process has just finished it", raw)
            is_ours = False
        else:
            if not is_ours:
                _log.info("%s: skipped: another process is finishing it", raw)
        if is_ours:
            for partial_file in partial_files(run, name):
                with suppress(OSError):
                    partial_file.remove()
        yield is_ours


def _finish_window(
    run: Path,
    name: TraceName,
    raw: Path,
    profiler: ProfilerConfig,
    job: JobContext,
    show: ShowTables,
    conclude: Conclude | None,
) -> list[Path]:
    """Show the tables that the config selects, then write the configured traces.

    Returns:
        The files of the window: its traces, then its tables.
    """
    trace = with_job_context(read_window(raw), job)
    ProblemLog().report(raw, {}, (), notes_on(raw, trace), trace.unrecorded_device)
    profile = Profile(trace, SummaryOptions(profiler.sorted_by, profiler.thread_sep))
    recording = Recording(name.rank, name.window, raw.name, name.label, (raw,))
    tables = tables_of_profile(profile, recording, raw, profiler.views())
    show(tables, profiler)  # before the slow part: a user is waiting for them
    every = {
        view: tables.tables[view] if view in tables.tables else summarize(profile, view)
        for view in VIEWS
    }
    RunFile(run, name.summary).write(dumps(document(rows_of(every), **tables.identity())).encode())
    max_bytes = None if profiler.max_trace_mb is None else int(profiler.max_trace_mb * MEGABYTE)
    traces, skipped = _write_traces(trace, run, name, profiler, max_bytes)
    if name.rank == 0:  # once for a job
        _log_interleaved(trace, raw)
    if skipped:
        _log.warning("%s: kept: %s", raw, skipped)
    if trace.skipped:
        _log.warning("%s; the file is kept", format_skipped(raw, trace.skipped))
    if trace.events.is_empty():
        _log.warning("%s: contains no event; the file is kept", raw)
    if trace.skipped or trace.events.is_empty() or skipped or "pb" in profiler.formats:
        traces.append(raw)
    else:
        with suppress(FileNotFoundError):
            RunFile(run, name.raw).remove()
        with suppress(OSError):
            RunFile(run, name.calls).remove_folder()
        with suppress(OSError):
            RunFile(run, name.operator_calls).remove()
    files = [*traces, run / name.summary]
    write_completion(run, name.rank, name.window, files, skipped)
    if conclude is not None:
        try:
            conclude(recording, profile, profiler)
        except Exception as error:  # the window is finished: only the sentence about it is missing
            _log.info("rank %d, window %d: no verdict: %s", name.rank, name.window, error)
    return files


def _log_interleaved(trace: Trace, raw: Path) -> None:
    """Log that VisualDL's chart of steps is incomplete, if passes take turns in a step."""
    hosts = trace.events.filter(pl.col("depth").is_not_null()).with_row_index("event")
    if has_interleaved_phases(hosts.cast({"event": pl.Int32})):
        _log.info(
            "%s: VisualDL's chart of steps shows only the last of several forward or backward passes "
            "that take turns; its totals, and ppprof's tables, count all",
            raw,
        )


def _write_traces(
    trace: Trace, run: Path, name: TraceName, profiler: ProfilerConfig, max_bytes: int | None
) -> tuple[list[Path], str | None]:
    """Write the traces beside the raw file; return them, and which were left out and why.

    Args:
        trace: the window.
        run: the run directory.
        name: the name of the window.
        profiler: selects the formats.
        max_bytes: what all traces of the rank may take; None: no limit.
    """
    written, skipped = [], []
    for fmt in profiler.formats:
        if fmt == "pb":
            continue
        path, left = run / name.trace(fmt), None
        if max_bytes is not None:
            left = max(0, max_bytes - trace_bytes(run, name.rank))
        try:
            write_paddle_json(trace, path, left)
            written.append(path)
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
            "ppprof: rank %d, window %d: on_window_end %s: %s",
            name.rank,
            name.window,
            shlex.join(command),
            why,
        )
