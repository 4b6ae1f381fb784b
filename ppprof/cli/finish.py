"""``ppprof finish``: what a capture left raw becomes traces and tables."""

from __future__ import annotations

import argparse
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ppprof import rundir
from ppprof.analysis.profile.profile import Profile, SummaryOptions
from ppprof.cli.terminal import tell
from ppprof.config import ProfilerConfig
from ppprof.errors import InputError, TraceError, UsageError
from ppprof.paths import is_remote, remove_quietly, write_atomically
from ppprof.report.data import to_json
from ppprof.report.text.summary import TableOptions, render, title
from ppprof.rundir import TraceName, partial_files, raw_files, read_manifest, trace_bytes
from ppprof.rundir.triggers import write_completion
from ppprof.trace import Trace, read_window, write_paddle_json
from ppprof.trace.paddle.json_writer import TooLargeError
from ppprof.units import MEGABYTE, bytes_text

_THEN_SECONDS = 600.0
"""How long a command of the user's may take."""

_WAITING = 24
"""Times as long as it may compute, ``--seconds`` lets it run."""


def register(subparsers: Any) -> None:
    """Adds the command's parser."""
    parser = subparsers.add_parser(
        "finish",
        help="make traces and tables of what a capture left raw, as after a killed run",
        description=(
            "For every raw capture in RUN: write the trace in the configured formats and the "
            "tables as data, print the configured tables, and remove the raw file unless the "
            "formats keep pb. A capture does this itself; run it after a job was killed."
        ),
    )
    parser.add_argument("run", metavar="RUN", help="run directory (profiler_log)")
    parser.add_argument("--rank", type=int, help="only this rank's captures")
    parser.add_argument("--window", type=int, help="only this window, counted from 0")
    parser.add_argument(
        "--seconds",
        type=int,
        metavar="N",
        help="end after N seconds of computing, or 24 N in all; what is not finished stays raw",
    )
    parser.add_argument(
        "--then",
        metavar="COMMAND",
        help=(
            "run this for each window, with the names of its files; a capture passes "
            "Profiler.on_window_end, and the manifest's is never run"
        ),
    )
    parser.set_defaults(run_command=finish)


def finish(args: argparse.Namespace) -> int:
    """0 when every capture asked for was finished, or there was none left; 3 when none could be."""
    if is_remote(args.run):
        raise UsageError(f"{args.run}: finish writes beside what it reads; copy the run to a disk")
    try:
        then = shlex.split(args.then or "")
    except ValueError as error:
        raise UsageError(f"--then {args.then}: {str(error).lower()}") from error
    if args.seconds is None:
        return _finish(args, then)
    if args.seconds < 1:
        raise UsageError(f"--seconds {args.seconds}: expected a whole number from 1")
    # Both signals end the process, whatever it does. Beside a training that leaves little of the
    # cores it is slow for no fault of its own, so the time that it waits counts less.
    signal.setitimer(signal.ITIMER_PROF, args.seconds)
    signal.alarm(_WAITING * args.seconds)
    try:
        return _finish(args, then)
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _finish(args: argparse.Namespace, then: Sequence[str]) -> int:
    run = Path(args.run)
    manifest = read_manifest(run)
    if not isinstance(manifest.get("profiler"), Mapping):
        raise InputError(f"{run}/manifest.json: no profiler block; expected one of a ppprof run")
    profiler = ProfilerConfig.from_mapping(manifest["profiler"])
    chosen = [
        (name, path)
        for name, path in raw_files(run)
        if args.rank in (None, name.rank) and args.window in (None, name.window)
    ]
    rundir.reject_symlinks(run)
    if not chosen:
        tell(f"{run}: nothing left to finish; tables as data: {run}/summary")
    failed = 0
    for name, path in chosen:
        try:
            with _alone(run, name, path) as free:
                if free:
                    files = _finish_window(run, name, path, profiler)
                    if then:
                        _run_command(then, run, name, files)
        except (TraceError, OSError) as error:
            failed += 1
            tell(error)
    if failed and failed == len(chosen):
        raise InputError(f"{run}: no raw capture could be finished")
    return 0


@contextmanager
def _alone(run: Path, name: TraceName, raw: Path) -> Iterator[bool]:
    """Whether no other process is at this capture: the training's own may be, or have been killed.

    What one that was killed left half-written is removed.
    """
    try:
        # A network's file system locks for writing only what is open for it.
        file = raw.open("rb+" if os.access(raw, os.W_OK) else "rb")
    except FileNotFoundError:
        tell(f"{raw}: another process has just finished it")
        yield False
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f"{raw}: another process is finishing it; leaving it to that")
            yield False
            return
        except OSError:  # a file system without locks: who else is there is not known
            yield True
            return
        for half in partial_files(run, name):
            remove_quietly(half)
        yield True


def _finish_window(run: Path, name: TraceName, raw: Path, profiler: ProfilerConfig) -> list[Path]:
    """Prints the tables that the config selects, then writes what it asks for.

    Returns:
        The files of the window: its traces, then its tables.
    """
    trace = read_window(raw)
    profile = Profile(trace, SummaryOptions(profiler.sorted_by, profiler.thread_sep))
    layout = TableOptions(profiler.time_unit, profiler.op_detail, profiler.row_limit)
    heading = title(name.rank, name.label.replace("_", " "), name.window, profile.steps)
    # In one piece, and before the slow part: somebody is waiting for it.
    print(f"{heading}\n\n{render(profile, profiler.views(), layout)}", end="", flush=True)
    identity: Mapping[str, Any] = {
        "rank": name.rank,
        "coordinate": name.label,
        "window": name.window,
        "steps": profile.steps,
        "sorted_by": profile.sorted_by,
        "lost": dict(trace.skipped),
    }
    write_atomically(run / name.summary, to_json(profile, **identity).encode())
    most_bytes = None if profiler.max_trace_mb is None else int(profiler.max_trace_mb * MEGABYTE)
    traces, skipped = _write_traces(trace, run, name, profiler, most_bytes)
    if skipped:
        tell(f"{raw}: kept, for {skipped}")
    losses = [f"{count} {what}" for what, count in trace.skipped.items()]
    if trace.events.is_empty():
        losses.append("no event was found")
    if losses:
        tell(f"{raw}: kept, for not all of it was read: {', '.join(losses)}")
    if losses or skipped or "pb" in profiler.formats:
        traces.append(raw)
    else:
        raw.unlink(missing_ok=True)
        shutil.rmtree(run / name.calls, ignore_errors=True)
    files = [*traces, run / name.summary]
    write_completion(run, name.rank, name.window, files, skipped)
    return files


def _write_traces(
    trace: Trace, run: Path, name: TraceName, profiler: ProfilerConfig, most_bytes: int | None
) -> tuple[list[Path], str | None]:
    """The traces beside the raw file, and which of them were left out, if any.

    Args:
        trace: the window.
        run: the run directory.
        name: of the window.
        profiler: says the formats.
        most_bytes: what all traces of the rank may take; None for what they need.
    """
    written, skipped = [], []
    for fmt in profiler.formats:
        if fmt == "pb":
            continue
        path, left = run / name.trace(fmt), None
        if most_bytes is not None:
            left = max(0, most_bytes - trace_bytes(run, name.rank))
        try:
            write_paddle_json(trace, path, left)
            written.append(path)
        except TooLargeError:
            skipped.append(f"no {fmt}, which would take more than {bytes_text(left or 0)}")
    if not skipped:
        return written, None
    of = f"the rest of Profiler.max_trace_mb {profiler.max_trace_mb:g}"
    return written, f"{', '.join(skipped)}, {of}; ppprof convert makes it elsewhere"


def _run_command(command: Sequence[str], run: Path, name: TraceName, files: list[Path]) -> None:
    """Runs a command of the user's with the files of a window; its failure is a warning."""
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
            stdout=sys.stderr.fileno(),  # ours is for the tables
            env=environment,
            timeout=_THEN_SECONDS,
            check=False,
        )
        why = f"exit code {done.returncode}" if done.returncode else ""
    except subprocess.TimeoutExpired:
        why = f"ended after {_THEN_SECONDS:.0f} s"
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        who = f"rank {name.rank}, window {name.window}"
        tell(f"ppprof: {who}: on_window_end {shlex.join(command)}: {why}")
