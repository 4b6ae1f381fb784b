"""The parser of ``ppprof merge``, and the checks of its options."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from ppprof.choices.steps import StepRange
from ppprof.cli.parsers import COMMANDS
from ppprof.cli.parsers.options import (
    Checks,
    add_output,
    add_reading,
    add_renamed,
    add_selection,
    nanoseconds,
)
from ppprof.topology import RankSelector


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "merge",
        help=COMMANDS["merge"],
        description=(
            "Writes the ranks of RUN into one timeline, which https://ui.perfetto.dev and "
            "chrome://tracing open: a process for each rank, threads and streams under it, times "
            "on the clock of rank 0, arrows between the ranks of a collective."
        ),
    )
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        metavar="RUN",
        help="run directory (the newest run in it), or those of a run's nodes; or one of traces",
    )
    add_selection(parser)
    add_renamed(parser, "--ranks", "--rank")
    add(
        "--min-dur",
        metavar="T",
        help="leave out shorter events (50us, 1ms), but no step, communication or pipeline span",
    )
    add_output(parser, "the timeline to write; ends in .json or .json.gz; required")
    add_reading(parser, workers=False)
    parser.set_defaults(command="merge", check=check)


@dataclass(frozen=True)
class Request:
    """The checked options of the command."""

    ranks: RankSelector
    window: int | None
    """The window to merge; None for all windows."""
    steps: StepRange | None
    """The steps to merge; None for all steps."""
    min_dur_ns: int
    """Events shorter than this are left out."""


def check(args: argparse.Namespace) -> Request:
    """Return the options, checked.

    Raises:
        UsageError: an option is invalid; the message has one line for each problem.
    """
    checks = Checks(args)
    ranks, window, steps = checks.ranks("all"), checks.window(), checks.steps()
    min_dur_ns = checks.parsed("min_dur", nanoseconds, 0)
    if args.output is None:
        checks.problems.append("-o: expected the timeline to write, -o merged.json.gz")
    elif not args.output.name.endswith((".json", ".json.gz")):
        checks.problems.append(f"-o {args.output}: expected a name that ends in .json or .json.gz")
    else:
        checks.output(args.paths)
    checks.done()
    return Request(ranks, window, steps, min_dur_ns)
