"""The parser of ``ppprof ranks``, and the checks of its options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ppprof.choices.formats import check_time_unit
from ppprof.choices.rows import GROUPS
from ppprof.choices.steps import StepRange
from ppprof.cli.parsers import COMMANDS
from ppprof.cli.parsers.options import (
    Checks,
    add_format,
    add_layout,
    add_output,
    add_reading,
    add_rows,
    add_selection,
)
from ppprof.errors import UsageError
from ppprof.topology import RankSelector


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "ranks",
        help=COMMANDS["ranks"],
        description=(
            "Prints, for each rank of RUN or each group of ranks, what an average step consists of: "
            "computation, communication that nothing hides (axis by axis), pipeline bubble, data "
            "loading, idling for the host, and the rest. The parts add up to the step."
        ),
    )
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        metavar="RUN",
        help="run directory, or those of a run's nodes; or a directory of traces, or a trace file",
    )
    add(
        "--by",
        default="rank",
        metavar="KEY,...",
        help=f"a row for each {', '.join(GROUPS[:-1])} or {GROUPS[-1]}, or combination (rank,step)",
    )
    add_selection(parser)
    add(
        "--dask",
        metavar="ADDRESS",
        help="read traces on the Dask cluster with this scheduler, tcp://HOST:8786; its workers "
        "need ppprof, and the files under the same paths",
    )
    add(
        "--what-if",
        action="store_true",
        help="also the step time if slow workers, stages and links were as fast as usual",
    )
    add("--time-unit", metavar="UNIT", help="s, ms, us or ns, of tables; default: ms")
    add_rows(parser, "groups and sizes", "20")
    add_format(parser, "json, csv and md hold every column, in nanoseconds")
    add_layout(parser)
    add_output(parser)
    add_reading(parser)
    parser.set_defaults(command="ranks", check=check)


@dataclass(frozen=True)
class Request:
    """The checked options of the command."""

    by: Sequence[str]
    """The columns of ``--by``, some of `GROUPS`."""
    ranks: RankSelector
    window: int | None
    """The window to read; None for all windows."""
    steps: StepRange | None
    """The steps to read; None for all steps."""
    workers: int | None
    time_unit: str
    """One of `ppprof.choices.formats.TIME_UNITS`."""
    row_limit: int | None
    """Most rows of a table of groups; None for no limit."""


def check(args: argparse.Namespace) -> Request:
    """Return the options, checked.

    Raises:
        UsageError: an option is invalid; the message has one line for each problem.
    """
    checks = Checks(args)
    request = Request(
        checks.parsed("by", _groups, ()),
        checks.ranks("all"),
        checks.window(),
        checks.steps(),
        checks.workers(),
        checks.parsed("time_unit", check_time_unit, "ms"),
        checks.row_limit(20),
    )
    if args.workers is not None and args.dask is not None:
        checks.problems.append("--workers, --dask: both say where to read; give one of them")
    if args.format != "table":
        checks.no_effect(
            ["time_unit", "row_limit"],
            f"on {args.format}, which holds every row, in nanoseconds",
        )
    checks.layout()
    checks.output(args.paths)
    checks.done()
    return request


def _groups(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        raise UsageError(f"{', '.join(map(repr, unknown))}: expected some of {', '.join(GROUPS)}")
    return tuple(dict.fromkeys(names))
