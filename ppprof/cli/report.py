"""``ppprof report``: a run as one page of HTML."""

from __future__ import annotations

import argparse

from ppprof.cli.options import Checks, add_output, add_reading, add_selection
from ppprof.cli.terminal import log
from ppprof.errors import UsageError
from ppprof.messages import LANGUAGES

EXAMPLES = {
    "ppprof report profiler_log -o page.html": "a page that needs no network",
    "ppprof report new_log --baseline base_log -o page.html": "with what changed",
}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Writes one HTML file that opens without a network: where the time goes and what to do "
        "about it, steps and ranks, communication, pipeline, operators, kernels, modules, memory "
        "and a timeline; with --baseline also what changed."
    )
    add = parser.add_argument
    add(
        "paths",
        metavar="RUN",
        nargs="+",
        help="run directory, or those of a run's nodes; or a directory of traces, or a trace file",
    )
    add("--baseline", metavar="BASE", help="a run to compare with")
    add_selection(parser)
    add("--language", choices=LANGUAGES, default="en", help="language of the page: en or zh")
    add_output(parser, "the page to write; required")
    add_reading(parser)


def check(args: argparse.Namespace) -> None:
    """Replace the texts of options by their values, or raise UsageError."""
    checks = Checks(args)
    checks.selection()
    checks.workers()
    checks.output([path for path in (*args.paths, args.baseline) if path is not None])
    if args.output is None:
        checks.problems.append("-o: expected the page to write, -o report.html")
    checks.done()


def run(args: argparse.Namespace) -> int:
    """Return 0 when the page was written."""
    from ppprof.cli.executors import processes
    from ppprof.cli.runs import open_run
    from ppprof.messages import Message, logged_in
    from ppprof.report.html import write_report

    with logged_in(args.language):
        run = open_run(*args.paths, reading=args.reading)
        baseline = None
        if args.baseline is not None:
            baseline = open_run(args.baseline, reading=args.reading)
        with processes(args.workers, run) as executor:
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
