"""``ppprof report``: a run as one page of HTML."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from ppprof.cli.options import Checks, add_output, add_paths, add_reading, add_selection
from ppprof.cli.terminal import log
from ppprof.errors import UsageError
from ppprof.messages import LANGUAGES
from ppprof.paths import to_path

EXAMPLES = {
    "ppprof report": "a page of the run in profiler_log that needs no network: report.html",
    "ppprof report new_log --baseline base_log -o page.html": "with what changed",
}
_PAGE, _NEXT_PAGE = "report.html", "report_N.html"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Writes one HTML file that opens without a network: where the time goes and what to do "
        "about it, steps and ranks, communication, pipeline, operators, kernels, modules, Python, memory "
        "and a timeline; with --baseline also what changed."
    )
    add = parser.add_argument
    add_paths(parser)
    add("--baseline", metavar="BASE", help="a run to compare with")
    add_selection(parser)
    add("--language", choices=LANGUAGES, default="en", help="language of the page: en or zh")
    add_output(parser, f"the page to write; default: {_PAGE}, or the first free {_NEXT_PAGE}")
    add_reading(parser)


def check(args: argparse.Namespace) -> None:
    """Replace the texts of options by their values, or raise UsageError."""
    checks = Checks(args)
    checks.selection()
    checks.workers()
    if args.output is None:
        args.output = to_path(_PAGE) if args.force else _free_page()
    checks.output([path for path in (*args.paths, args.baseline) if path is not None])
    checks.done()


def _free_page() -> Path:
    pages = (to_path(_NEXT_PAGE.replace("N", str(number))) for number in itertools.count(2))
    return next(page for page in itertools.chain([to_path(_PAGE)], pages) if not page.exists())


def run(args: argparse.Namespace) -> int:
    """Return 0 when the page was written."""
    from ppprof.cli.executors import processes
    from ppprof.cli.runs import NAMES_OF_RUNS, is_any_same, open_run
    from ppprof.messages import Message, logged_in
    from ppprof.report.html import write_report

    with logged_in(args.language):
        run = open_run(*args.paths, reading=args.reading)
        baseline = None
        if args.baseline is not None:
            baseline = open_run(args.baseline, reading=args.reading)
            last = max((recording.window for recording in baseline.recordings), default=None)
            if args.window in (None, last) and is_any_same(run, baseline):
                raise UsageError(
                    f"--baseline: {baseline}: the run of the page; expected another run: {NAMES_OF_RUNS}"
                )
        with processes(args.workers, len(run.recordings)) as executor:
            try:
                write_report(
                    run,
                    args.output,
                    baseline=baseline,
                    ranks=args.rank,
                    window=args.window,
                    steps=args.steps,
                    language=args.language,
                    executor=executor,
                )
            except OSError as error:
                raise UsageError(f"-o {args.output}: {error.strerror or error}") from error
        log.info("%s", Message("open", path=args.output))
    return 0
