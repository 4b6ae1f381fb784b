"""The parser of ``ppprof report``, and the checks of its options."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from ppprof.choices.formats import LANGUAGES
from ppprof.choices.steps import StepRange
from ppprof.cli.parsers import COMMANDS
from ppprof.cli.parsers.options import Checks, add_output, add_reading, add_selection
from ppprof.topology import RankSelector


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
    parser.set_defaults(command="report", check=check)


@dataclass(frozen=True)
class Request:
    """The checked options of the command."""

    ranks: RankSelector
    window: int | None
    """The window to read; None for all windows."""
    steps: StepRange | None
    """The steps to read; None for all steps."""
    workers: int | None


def check(args: argparse.Namespace) -> Request:
    """Return the options, checked.

    Raises:
        UsageError: an option is invalid; the message has one line for each problem.
    """
    checks = Checks(args)
    ranks, window, steps = checks.ranks("all"), checks.window(), checks.steps()
    workers = checks.workers()
    checks.output([path for path in (*args.paths, args.baseline) if path is not None])
    if args.output is None:
        checks.problems.append("-o: expected the page to write, -o report.html")
    checks.done()
    return Request(ranks, window, steps, workers)
