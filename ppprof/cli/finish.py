"""``ppprof finish``: what a capture left raw becomes traces and tables."""

from __future__ import annotations

import argparse
import fcntl
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ppprof import rundir
from ppprof.analysis.profile import Options, Profile
from ppprof.cli.terminal import tell
from ppprof.config import ProfilerConfig
from ppprof.errors import InputError, TraceError, UsageError
from ppprof.paths import is_remote
from ppprof.report.data import to_json
from ppprof.report.text import Layout, render, title
from ppprof.rundir import (
    TraceName,
    discard,
    raw_files,
    read_manifest,
    unpublished,
    write_atomically,
)
from ppprof.trace import read_window, write_paddle_json

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
    parser.set_defaults(run_command=finish)


def finish(args: argparse.Namespace) -> int:
    """0 when every capture asked for was finished, or there was none left; 3 when none could be."""
    if is_remote(args.run):
        raise UsageError(f"{args.run}: finish writes beside what it reads; copy the run to a disk")
    if args.seconds is None:
        return _finish(args)
    if args.seconds < 1:
        raise UsageError(f"--seconds {args.seconds}: expected a whole number from 1")
    # Both signals end the process, whatever it does. Beside a training that leaves little of the
    # cores it is slow for no fault of its own, so the time that it waits counts less.
    signal.setitimer(signal.ITIMER_PROF, args.seconds)
    signal.alarm(_WAITING * args.seconds)
    try:
        return _finish(args)
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _finish(args: argparse.Namespace) -> int:
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
    rundir.check_inside(run)
    if not chosen:
        tell(f"{run}: nothing left to finish; tables as data: {run}/summary")
    failed = 0
    for name, path in chosen:
        try:
            with _alone(run, name, path) as free:
                if free:
                    _finish_window(run, name, path, profiler)
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
        file = raw.open("rb+")
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            raise
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
        for half in unpublished(run, name):
            discard(half)
        yield True


def _finish_window(run: Path, name: TraceName, raw: Path, profiler: ProfilerConfig) -> None:
    """Prints the tables that the config selects, then writes what it asks for."""
    trace = read_window(raw)
    profile = Profile(trace, Options(profiler.sorted_by, profiler.thread_sep))
    layout = Layout(profiler.time_unit, profiler.op_detail, profiler.row_limit)
    heading = title(name.rank, name.label.replace("_", " "), name.window, profile.steps)
    # In one piece, and before the slow part: somebody is waiting for it.
    print(f"{heading}\n\n{render(profile, profiler.views(), layout)}", end="", flush=True)
    identity: Mapping[str, Any] = {
        "rank": name.rank,
        "coordinate": name.label,
        "window": name.window,
        "steps": profile.steps,
        "sorted_by": profile.sorted_by,
        "lost": dict(trace.lost),
    }
    write_atomically(run / name.summary, to_json(profile, **identity).encode())
    for fmt in profiler.formats:
        if fmt != "pb":
            write_paddle_json(trace, run / name.trace(fmt))
    losses = [f"{count} {what}" for what, count in trace.lost.items()]
    if trace.events.is_empty():
        losses.append("no event was found")
    if losses:
        tell(f"{raw}: kept, for not all of it was read: {', '.join(losses)}")
    elif "pb" not in profiler.formats:
        raw.unlink(missing_ok=True)
        shutil.rmtree(run / name.calls, ignore_errors=True)
