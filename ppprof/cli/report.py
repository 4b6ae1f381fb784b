"""``ppprof report``: a run as one page of HTML."""

from __future__ import annotations

import argparse
from typing import Any

from ppprof.choices.formats import LANGUAGES
from ppprof.cli import COMMANDS, executors
from ppprof.cli.options import (
    Checks,
    add_output,
    add_reading,
    add_selection,
    open_run,
)
from ppprof.cli.terminal import log
from ppprof.errors import UsageError


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "report",
        help=COMMANDS["report"],
        description=(
            "Writes one HTML file that opens without a network: where the time goes and what to do "
            "about it, steps and ranks, communication, pipeline, operators, kernels, modules, memory "
            "and a timeline; with --baseline also what changed."
        ),
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
    parser.set_defaults(run_command=report)


def report(args: argparse.Namespace) -> int:
    """Return 0 when the page was written."""
    checks = Checks(args)
    ranks, window, steps = checks.ranks("all"), checks.window(), checks.steps()
    workers = checks.workers()
    checks.output([path for path in (*args.paths, args.baseline) if path is not None])
    if args.output is None:
        checks.problems.append("-o: expected the page to write, -o report.html")
    checks.done()

    from ppprof.report.html import write_report

    run = open_run(args, *args.paths)
    baseline = None if args.baseline is None else open_run(args, args.baseline)
    with executors.processes(workers) as executor:
        try:
            write_report(
                run,
                args.output,
                baseline=baseline,
                ranks=ranks,
                window=window,
                steps=steps,
                language=args.language,
                executor=executor,
            )
        except OSError as error:
            raise UsageError(f"-o {args.output}: {error.strerror or error}") from error
    log.info("%s: open it in a browser", args.output)
    return 0
