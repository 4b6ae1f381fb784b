"""``ppprof finish``: make traces and tables of what a capture left raw."""

from __future__ import annotations

import argparse
import shlex
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ppprof.cli.options import Checks, whole_number
from ppprof.config import ProfilerConfig
from ppprof.errors import UsageError
from ppprof.paths import is_remote
from ppprof.report.text.summary import TableOptions, explain_empty, render_tables, title
from ppprof.run.finish import finish as finish_run
from ppprof.run.summary import WindowTables

_WALL_TIME_FACTOR = 24
"""Wall time that ``--seconds`` allows, as a multiple of the processor time."""


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "finish",
        help="make traces and tables of raw captures, as after a killed run",
        description=(
            "For every raw capture in RUN: write the trace in the configured formats and the "
            "tables as data, print the configured tables, and remove the raw file unless the "
            "formats keep pb. A capture does this itself; run it after a job was killed."
        ),
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="run directory (profiler_log)")
    add("--rank", metavar="R", help="only this rank's captures")
    add("--window", metavar="W", help="only this window, counted from 0")
    add(
        "--seconds",
        metavar="N",
        help="end after N seconds of computing, or 24 N in all; unfinished captures stay raw",
    )
    add(
        "--then",
        metavar="COMMAND",
        help=(
            "run this for each window, with the names of its files; a capture passes "
            "Profiler.on_window_end, and the manifest's is never run"
        ),
    )
    parser.set_defaults(run_command=finish)


def finish(args: argparse.Namespace) -> int:
    """Return 0 when every capture was finished, or none was left; 3 when none could be."""
    if is_remote(args.run):
        raise UsageError(f"{args.run}: finish writes beside what it reads; copy the run to a disk")
    checks = Checks(args)
    finish_captures = partial(
        finish_run,
        Path(args.run),
        _print,
        rank=checks.parsed("rank", whole_number, None),
        window=checks.window(),
        command=checks.parsed("then", _command, ()),
    )
    seconds = checks.parsed("seconds", partial(whole_number, least=1), None)
    checks.done()
    if seconds is None:
        finish_captures()
        return 0
    # Either signal ends the process, whatever it does. A training may leave it few cores, so waiting
    # counts less than computing.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(_WALL_TIME_FACTOR * seconds)
    try:
        finish_captures()
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    return 0


def _command(text: str) -> Sequence[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{text}: {str(error).lower()}") from error


def _print(tables: WindowTables, profiler: ProfilerConfig) -> None:
    """Print the tables of a window, in one piece."""
    recording = tables.recording
    heading = title(recording.rank, recording.what, recording.window, tables.steps)
    options = TableOptions(profiler.time_unit, profiler.op_detail, profiler.row_limit)
    text = f"{render_tables(tables.tables, options)}{explain_empty(tables.tables)}"
    print(f"{heading}\n\n{text}", end="", flush=True)
