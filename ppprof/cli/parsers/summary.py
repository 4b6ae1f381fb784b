"""The parser of ``ppprof summary``, and the checks of its options."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ppprof.choices.formats import check_time_unit
from ppprof.choices.rows import sort_key
from ppprof.choices.steps import StepRange
from ppprof.choices.views import ACROSS, ALL_VIEWS, VIEWS, WAYS, check_across
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

_SHAPE = "shape"
"""The value of ``--by`` that is short for ``--views shape``."""

_OF_ONE_RANK = ("thread_sep", "op_detail")
"""Options without effect if several ranks share a table."""

TABLE_OPTIONS = ("time_unit", "op_detail", "row_limit")
"""Options of ``--format table`` only: the other formats hold every row, in nanoseconds."""


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "summary",
        help=COMMANDS["summary"],
        description=(
            "Prints the tables of each PATH: a run directory (profiler_log; the newest run in it), "
            "a directory of traces, or a trace file. Directories that the nodes of one job wrote "
            "are one run: give each as a PATH, or a directory above all of them. Options that are "
            "not given here come from the run's own Profiler block."
        ),
    )
    add = parser.add_argument
    switch = argparse.BooleanOptionalAction
    add("paths", nargs="+", metavar="PATH", help="run directory or trace file")
    add("--views", metavar="V,...", help=f"all (Paddle's nine), or some of {','.join(ALL_VIEWS)}")
    add(
        "--by",
        choices=(*WAYS, _SHAPE),
        help="rank, name: all ranks in one table, a row for each operator and rank, with Node ID; or "
        "a row for each operator, with minimum, median, maximum and spread over the ranks. shape: a "
        "row for each operator and shapes of its inputs",
    )
    add_selection(parser, "the run's print_ranks")
    add(
        "--sorted-by",
        metavar="KEY",
        help="auto, or cpu_ or gpu_ and total, avg, max or min (GPUTotal works too)",
    )
    add("--thread-sep", action=switch, help="operators and spans by thread")
    add("--time-unit", metavar="UNIT", help="s, ms, us or ns")
    add("--op-detail", action=switch, help="below each operator its calls and launches")
    add_rows(parser, "operators, kernels, spans", "as the run's config has it")
    add_format(
        parser, "table: as Paddle prints them; json: a list of windows; csv: one view; md: Markdown"
    )
    add_layout(parser)
    add_output(parser)
    add_reading(parser, workers=False)
    parser.set_defaults(command="summary", check=check)


@dataclass(frozen=True)
class Request:
    """The checked options of the command."""

    views: Sequence[str] | None
    """The views to show; None for the views of the run's config."""
    ranks: RankSelector | None
    """The ranks to show; None for all ranks with ``by``, else for the ranks that the run's config
    prints."""
    by: str | None
    """One of `WAYS`; None for a table for each rank."""
    window: int | None
    """The window to show; None for all windows."""
    steps: StepRange | None
    """The steps to show; None for all steps."""
    settings: Mapping[str, Any]
    """Values of the options of tables that the user gave, keyed by option. The run's
    config has the others."""


def check(args: argparse.Namespace) -> Request:
    """Return the options, checked.

    Raises:
        UsageError: an option is invalid; the message has one line for each problem.
    """
    checks = Checks(args)
    by = None if args.by == _SHAPE else args.by
    views = checks.parsed("views", partial(_views, by=by), None)
    if args.by == _SHAPE:
        if args.views is not None:
            checks.problems.append("--by shape: is --views shape; give one of them")
        views = (_SHAPE,)
    ranks, window, steps = checks.ranks(None), checks.window(), checks.steps()
    settings = {
        "sorted_by": checks.parsed("sorted_by", sort_key, None),
        "thread_sep": args.thread_sep,
        "time_unit": checks.parsed("time_unit", check_time_unit, None),
        "op_detail": args.op_detail,
        "row_limit": checks.row_limit(None),
    }
    given = {name: value for name, value in settings.items() if getattr(args, name) is not None}
    if args.format != "table":
        checks.no_effect(TABLE_OPTIONS, f"on {args.format}, which holds every row, in nanoseconds")
    if by:
        views = views or ("op",)
        checks.no_effect(_OF_ONE_RANK, "with --by: each operator is one row of a rank")
    if args.format == "csv" and (views is None or len(views) != 1):
        checks.problems.append("--format csv: one table: name it with --views")
    checks.layout()
    checks.output(args.paths)
    checks.done()
    return Request(views, ranks, by, window, steps, given)


def _views(text: str, by: str | None) -> tuple[str, ...]:
    if text == "all":
        return ACROSS if by else VIEWS
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in ALL_VIEWS]
    if unknown:
        expected = f"all, or some of {', '.join(ALL_VIEWS)}"
        raise UsageError(f"{', '.join(map(repr, unknown))}: expected {expected}")
    if by:
        check_across(names, by)
    return tuple(view for view in ALL_VIEWS if view in names)
