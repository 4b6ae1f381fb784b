"""``ppprof finish``: make traces and tables of what a capture left raw."""

from __future__ import annotations

import argparse
import os
import re
import resource
import select
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ppprof.cli.options import Checks, add_run, whole_number
from ppprof.cli.terminal import log, print_now
from ppprof.errors import PpprofError, UsageError
from ppprof.paths import is_remote

if TYPE_CHECKING:
    from ppprof.analysis.profile.profile import Profile
    from ppprof.config import ProfilerConfig
    from ppprof.run.summary import WindowTables
    from ppprof.rundir.recordings import Recording

EXAMPLES = {
    "ppprof finish profiler_log": "tables and traces that a killed run could not write",
}
_IDLE_SECONDS = 60.0
_MOST_MEMORY_BYTES, _MOST_OUTPUT_BYTES = 1 << 30, 16 << 20
"""Peak memory, and output so far, after which a helper lets another one go on."""
_WALL_TIME_FACTOR = 24
"""Wall time that ``--seconds`` allows, as a multiple of the processor time."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "For every raw capture in RUN: write the trace in the configured formats and the "
        "tables as data, print the configured tables, and remove the raw file unless the "
        "formats keep pb. A capture does this itself; run it after a job was killed. Of a log "
        "directory with several runs, it finishes all that are unfinished."
    )
    add_run(parser)
    add = parser.add_argument
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
    # The helper of a capture:
    add("--serve", metavar="FD", help=argparse.SUPPRESS)
    add("--verdict", action="store_true", help=argparse.SUPPRESS)


def check(args: argparse.Namespace) -> None:
    """Replace the texts of options by their values, or raise UsageError."""
    if is_remote(args.run):
        raise UsageError(f"{args.run}: finish writes beside what it reads; copy the run to a disk")
    checks = Checks(args)
    checks.parse("rank", whole_number)
    checks.parse("window", whole_number)
    checks.parse("then", _command, ())
    checks.parse("seconds", partial(whole_number, least=1))
    checks.parse("serve", whole_number)
    checks.done()


def _command(text: str) -> Sequence[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{text}: {str(error).lower()}") from error


def run(args: argparse.Namespace) -> int:
    """Return 0 when every capture was finished, or none was left; 3 when none could be."""
    from ppprof.run.finish import finish, unfinished_runs

    verdicts: list[str] = []

    def captures_of(run: Path) -> Callable[..., None]:
        concludes = args.verdict or args.serve is None
        return partial(
            finish,
            run,
            partial(_print, run),
            rank=args.rank,
            window=args.window,
            command=args.then,
            conclude=partial(_conclude, run, verdicts, args.verdict) if concludes else None,
        )

    given = Path(args.run)
    if args.serve is not None:
        _serve(captures_of(given), verdicts, args.seconds, args.serve)
        return 0
    runs = unfinished_runs(given)
    num_failed = 0
    with _limited(args.seconds):
        for run in runs:
            if run != given:
                log.info("%s: looking for raw captures", run)
            try:
                captures_of(run)()
            except PpprofError as error:
                num_failed += 1
                if num_failed == len(runs):
                    raise
                log.error("%s", error)
            print_now("".join(f"{verdict}\n" for verdict in verdicts))
            verdicts.clear()
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
    written much: the capture then starts another one. Writes a line to ``status`` for each window.
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
        if _peak_bytes() > _MOST_MEMORY_BYTES or out > _MOST_OUTPUT_BYTES:
            return


def _peak_bytes() -> int:
    """Return the peak memory of this program; ``ru_maxrss`` counts the training that started it, too."""
    with suppress(OSError):
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        if peak:
            return int(peak[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _numbers_on_stdin() -> Iterator[int]:
    """Yield the numbers on stdin, until its end or a minute without one."""
    text = b""
    while select.select([0], [], [], _IDLE_SECONDS)[0]:
        more = os.read(0, 1 << 16)
        if not more:
            return
        *lines, text = (text + more).split(b"\n")
        yield from map(int, lines)


def _conclude(
    run: Path,
    verdicts: list[str],
    always: bool,
    recording: Recording,
    profile: Profile,
    profiler: ProfilerConfig,
) -> None:
    """Add a sentence about a window to ``verdicts``, if it has steps; its largest parts if it is brief.

    Nothing if the config prints tables, unless ``always`` is True.
    """
    from ppprof.analysis.efficiency.efficiency import largest_modules
    from ppprof.report.text.advice import verdict
    from ppprof.report.text.summary import render_largest
    from ppprof.run.advise import findings_of_window

    if not (always or profiler.brief):
        return
    found = findings_of_window(run, recording, profile.trace)
    if found is not None:
        evidence, findings = found
        steps, num_steps = evidence.typical_lengths["step"], evidence.step_lengths.height
        num_slow = num_steps - len(steps)
        sentence = verdict(evidence.step_ns, findings, num_slow=num_slow, num_steps=num_steps)
        lines = [f"rank {recording.rank}, window {recording.window}: {sentence}"]
        lines += (
            render_largest(largest_modules(profile.without_pauses, steps)) if profiler.brief else []
        )
        verdicts.append("\n".join(lines))


def _print(run: Path, tables: WindowTables, profiler: ProfilerConfig) -> None:
    """Print the tables of a window, in one piece; none if the config is brief."""
    from ppprof.report.text.summary import TableOptions, explain_empty, render_tables, title
    from ppprof.rundir import name_of
    from ppprof.rundir.summaries import rows_of

    if profiler.brief:
        return
    recording = tables.recording
    heading = title(recording.rank, recording.what, recording.window, tables.steps)
    every = shlex.join(["ppprof", "summary", str(name_of(run)), "--row-limit", "none"])
    where = f"all: {every}, or summary/*.json"
    options = TableOptions(profiler.time_unit, profiler.op_detail, profiler.row_limit, where)
    rows = rows_of(tables.tables)
    text = f"{render_tables(rows, options)}{explain_empty(rows)}"
    print_now(f"{heading}\n\n{text}")
