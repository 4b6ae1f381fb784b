"""The parser of ``ppprof diff``, and the checks of its options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ppprof.choices.formats import check_time_unit
from ppprof.choices.rows import DIFF_SORT_KEYS, PADDLE_SORT_KEYS
from ppprof.choices.steps import StepRange
from ppprof.choices.thresholds import Threshold
from ppprof.choices.views import DIFF_VIEWS
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
    nanoseconds,
    whole_number,
)
from ppprof.errors import UsageError
from ppprof.topology import RankSelector, parse_selector


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "diff",
        help=COMMANDS["diff"],
        description=(
            "Compares EXPERIMENT with BASELINE: step time with an interval and a verdict, operators, "
            "kernels, collectives, runtime calls and modules. Both are run directories or traces of any "
            "kind; without EXPERIMENT, two parts of one run are compared, such as --rank 0 "
            "--experiment-rank 3."
        ),
    )
    add = parser.add_argument
    add("baseline", metavar="BASELINE", help="run directory or trace file")
    add("experiment", metavar="EXPERIMENT", nargs="?", help="the same; default: BASELINE")
    add("--views", metavar="V,...", help=f"some of {','.join(DIFF_VIEWS)}; default: all")
    add_selection(parser)
    for name in ("rank", "window", "steps"):
        add(f"--experiment-{name}", metavar="X", help=f"--{name} of EXPERIMENT; default: --{name}")
    add(
        "--sorted-by",
        metavar="KEY",
        help="of operators and kernels: calls, cpu_self, cpu_total, gpu_self or gpu_total",
    )
    add_renamed(parser, "--sort", "--sorted-by")
    add("--filter", metavar="REGEX", help="only names that match somewhere")
    add_rows(parser, "rows", "20")
    add_renamed(parser, "--limit", "--row-limit")
    add(
        "--min-delta",
        metavar="T",
        help="only changes of at least this much: 50us; default: 0.1%% of a step",
    )
    add("--all", action="store_true", default=None, help="also changes smaller than the noise")
    add("--exact", action="store_true", help="compare names as recorded, with template arguments")
    add("--names", metavar="FILE", help="YAML, name: [other names of the same operator...]")
    add(
        "--fail-if",
        metavar="RULE",
        action="append",
        default=[],
        help="exit with code 1 if the change is beyond this limit with its whole 95%% interval: 'step_time > 5%%', 'op.matmul.gpu > 0.2ms', 'ips < -5%%'; repeatable",
    )
    add("--time-unit", metavar="UNIT", help="s, ms, us or ns; default: ms")
    add_format(parser, "json: everything, in nanoseconds; csv: one view; md: for a comment")
    add_layout(parser)
    add_output(parser)
    add_reading(parser)
    parser.set_defaults(command="diff", check=check)


@dataclass(frozen=True)
class Request:
    """The checked options of the command."""

    ranks: tuple[RankSelector, RankSelector]
    """Of the baseline and the experiment, as ``windows`` and ``steps``."""
    windows: tuple[int | None, int | None]
    steps: tuple[StepRange | None, StepRange | None]
    views: Sequence[str]
    """Some of `DIFF_VIEWS`, in their order."""
    include_noise: bool
    """Whether to show changes within the noise as well."""
    row_limit: int | None
    """Most rows of a printed table; None for all."""
    min_delta_ns: int | None
    """Smallest change to show; None for the default of `ppprof.report.diff_rows.RowSelection`."""
    pattern: str | None
    """A regular expression that must match in a name; None for all names."""
    sort: str | None
    """One of `DIFF_SORT_KEYS`; None for the default of each table."""
    time_unit: str
    """One of `ppprof.choices.formats.TIME_UNITS`."""
    thresholds: Sequence[Threshold]
    workers: int | None


def check(args: argparse.Namespace) -> Request:
    """Return the options, checked.

    Raises:
        UsageError: an option is invalid; the message has one line for each problem.
    """
    checks = Checks(args)

    def of_experiment(name: str, parse: Callable[[str], Any], baseline: Any) -> Any:
        return checks.parsed(f"experiment_{name}", parse, baseline)

    ranks, window, steps = checks.ranks("all"), checks.window(), checks.steps()
    pairs = (
        (ranks, of_experiment("rank", parse_selector, ranks)),
        (window, of_experiment("window", whole_number, window)),
        (steps, of_experiment("steps", StepRange.parse, steps)),
    )
    parts = (args.experiment_rank, args.experiment_window, args.experiment_steps)
    if args.experiment is None and parts == (None, None, None):
        checks.problems.append(
            "EXPERIMENT: missing; expected a second run, or the part of BASELINE to compare "
            "with: --experiment-rank, --experiment-window or --experiment-steps"
        )
    is_data = args.format in ("json", "csv")
    request = Request(
        *pairs,
        views=checks.parsed("views", _views, DIFF_VIEWS),
        include_noise=bool(args.all) or is_data,
        row_limit=checks.row_limit(None if is_data else 20, least=0),
        min_delta_ns=checks.parsed("min_delta", nanoseconds, None),
        pattern=checks.parsed("filter", _pattern, None),
        sort=checks.parsed("sorted_by", _sort_key, None),
        time_unit=checks.parsed("time_unit", check_time_unit, "ms"),
        thresholds=[
            threshold
            for rule in args.fail_if
            if (threshold := checks.parsed_text("--fail-if", rule, Threshold.parse, None))
        ],
        workers=checks.workers(),
    )
    if is_data:
        checks.no_effect(["row_limit", "all"], f"on {args.format}, which holds every change")
    if args.exact:
        checks.no_effect(["names"], "with --exact")
    if args.format == "csv" and len(request.views) != 1:
        checks.problems.append("--format csv: one table: name it with --views")
    checks.layout()
    checks.output([path for path in (args.baseline, args.experiment) if path])
    checks.done()
    return request


def _views(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in DIFF_VIEWS]
    if unknown:
        raise UsageError(f"{unknown[0]!r}: expected some of {', '.join(DIFF_VIEWS)}")
    return tuple(view for view in DIFF_VIEWS if view in names)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise UsageError(f"{text!r}: not a regular expression: {error}") from error
    import polars as pl  # only with --filter: importing it takes longer than all checks together

    try:
        pl.Series([""]).str.contains(text)  # polars supports no look-around
    except pl.exceptions.PolarsError as error:
        raise UsageError(f"{text!r}: not a regular expression: {error}") from error
    return text


def _sort_key(text: str) -> str:
    key = PADDLE_SORT_KEYS.get(text, text)
    if key not in DIFF_SORT_KEYS:
        raise UsageError(f"{text!r}: expected one of {', '.join(DIFF_SORT_KEYS)}")
    return key
