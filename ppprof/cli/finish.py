"""``ppprof finish``: make traces and tables of what a capture left raw."""

from __future__ import annotations

import argparse
import os
import resource
import select
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from ppprof.cli.parsers.finish import Request
from ppprof.cli.terminal import log
from ppprof.config import ProfilerConfig
from ppprof.errors import PpprofError
from ppprof.report.text.summary import TableOptions, explain_empty, render_tables, title
from ppprof.run.finish import finish as finish_run
from ppprof.run.summary import WindowTables
from ppprof.rundir.recordings import Recording
from ppprof.rundir.summaries import rows_of
from ppprof.trace import Trace

_IDLE_SECONDS = 60.0
_MOST_MEMORY_BYTES, _MOST_OUTPUT_BYTES = 1 << 30, 16 << 20
"""Peak memory, and output so far, after which a helper lets another one go on."""
_WALL_TIME_FACTOR = 24
"""Wall time that ``--seconds`` allows, as a multiple of the processor time."""


def run(args: argparse.Namespace) -> int:
    """Return 0 when every capture was finished, or none was left; 3 when none could be."""
    request: Request = args.request
    run = Path(args.run)
    finish_captures = partial(
        finish_run,
        run,
        partial(_print, run),
        rank=request.rank,
        window=request.window,
        command=request.command,
    )
    if request.status is not None:
        verdicts: list[str] = []
        if args.verdict:
            finish_captures.keywords["conclude"] = partial(_conclude, run, verdicts)
        _serve(finish_captures, verdicts, request.seconds, request.status)
    else:
        with _limited(request.seconds):
            finish_captures()
    return 0


@contextmanager
def _limited(seconds: int | None) -> Iterator[None]:
    """End the process if the block computes for longer; None is no limit.

    Either signal ends the process, whatever it does. A training may leave it few cores, so waiting
    counts less than computing.
    """
    if seconds is None:
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(_WALL_TIME_FACTOR * seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _serve(
    finish_captures: Callable[..., None], verdicts: list[str], seconds: int | None, status: int
) -> None:
    """Finish the windows whose numbers come on stdin, a line each, as `ppprof.capture.postprocess` asks.

    Ends at the end of stdin, after a minute without a number, and once this process has taken or
    written much: the capture then starts another one.

    Args:
        finish_captures: called with ``window``.
        verdicts: to which ``finish_captures`` adds a sentence about the window, if it can.
        seconds: limit of computing for each window.
        status: file descriptor to which a line is written for each finished window.
    """
    # A thread of the training that blocks all signals may have started this process.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    for window in _numbers_on_stdin():
        code = 0
        with _limited(seconds):
            try:
                finish_captures(window=window)
            except PpprofError as error:
                log.error("%s", error)
                code = error.exit_code
        sys.stdout.flush()
        tables = os.lseek(1, 0, os.SEEK_CUR)
        print(*verdicts, sep="", end="", flush=True)
        verdicts.clear()
        out, err = (os.lseek(stream, 0, os.SEEK_CUR) for stream in (1, 2))
        with suppress(BrokenPipeError):  # the training has ended
            os.write(status, f"{window} {code} {tables} {out} {err}\n".encode())
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if peak_bytes > _MOST_MEMORY_BYTES or out > _MOST_OUTPUT_BYTES:
            return


def _numbers_on_stdin() -> Iterator[int]:
    """Yield the numbers on stdin, until its end or a minute without one."""
    text = b""
    while select.select([0], [], [], _IDLE_SECONDS)[0]:
        more = os.read(0, 1 << 16)
        if not more:
            return
        *lines, text = (text + more).split(b"\n")
        yield from map(int, lines)


def _conclude(run: Path, verdicts: list[str], recording: Recording, trace: Trace) -> None:
    """Add a sentence about a window to ``verdicts``, if it has steps."""
    from ppprof.report.text.advice import verdict
    from ppprof.run.verdict import findings_of_window

    found = findings_of_window(run, recording, trace)
    if found is not None:
        what = f"rank {recording.rank}, window {recording.window}"
        verdicts.append(f"{what}: {verdict(*found)}")


def _print(run: Path, tables: WindowTables, profiler: ProfilerConfig) -> None:
    """Print the tables of a window, in one piece."""
    recording = tables.recording
    heading = title(recording.rank, recording.what, recording.window, tables.steps)
    every = shlex.join(["ppprof", "summary", str(run), "--row-limit", "none"])
    where = f"all: {every}, or summary/*.json"
    options = TableOptions(profiler.time_unit, profiler.op_detail, profiler.row_limit, where)
    rows = rows_of(tables.tables)
    text = f"{render_tables(rows, options)}{explain_empty(rows)}"
    print(f"{heading}\n\n{text}", end="", flush=True)
