"""The parser of ``ppprof advise``, and the checks of its options."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from ppprof.choices.formats import LANGUAGES
from ppprof.choices.steps import StepRange
from ppprof.cli.parsers import COMMANDS
from ppprof.cli.parsers.options import (
    Checks,
    add_format,
    add_layout,
    add_output,
    add_reading,
    add_renamed,
    add_rows,
    add_selection,
)
from ppprof.topology import RankSelector


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "advise",
        help=COMMANDS["advise"],
        description=(
            "Prints what costs a run its time, the most costly first: each finding with the time it "
            "would save per step, how certain that is, the rows that show it, and the config key "
            "or code to change."
        ),
    )
    add = parser.add_argument
    add(
        "paths",
        metavar="RUN",
        nargs="+",
        help="run directory, or those of a run's nodes; or traces",
    )
    add_selection(parser)
    add("--language", choices=LANGUAGES, default="en", help="language of the findings: en or zh")
    add_rows(parser, "findings", "none")
    add_renamed(parser, "--limit", "--row-limit")
    add_format(
        parser, "json: everything, in nanoseconds; csv: a row for each finding; md: for a comment"
    )
    add_layout(parser)
    add_output(parser)
    add_reading(parser)
    parser.set_defaults(command="advise", check=check)


@dataclass(frozen=True)
class Request:
    """The checked options of the command."""

    ranks: RankSelector
    window: int | None
    """The window to read; None for all windows."""
    steps: StepRange | None
    """The steps to read; None for all steps."""
    workers: int | None
    row_limit: int | None
    """Most findings to show; None for all."""


def check(args: argparse.Namespace) -> Request:
    """Return the options, checked.

    Raises:
        UsageError: an option is invalid; the message has one line for each problem.
    """
    checks = Checks(args)
    ranks, window, steps = checks.ranks("all"), checks.window(), checks.steps()
    workers, row_limit = checks.workers(), checks.row_limit(None)
    if args.format in ("json", "csv"):
        checks.no_effect(["row_limit"], f"on {args.format}, which holds every finding")
    checks.layout()
    checks.output(args.paths)
    checks.done()
    return Request(ranks, window, steps, workers, row_limit)
