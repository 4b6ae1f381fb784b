"""``ppprof diff``: what changed between two runs, the biggest change on top."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.diff.gate import Outcome, check
from ppprof.analysis.diff.run_costs import VALUES
from ppprof.choices.rows import PADDLE_SORT_KEYS
from ppprof.choices.steps import StepRange
from ppprof.choices.thresholds import Threshold
from ppprof.choices.views import DIFF_VIEWS as VIEWS
from ppprof.cli import COMMANDS, executors
from ppprof.cli.options import (
    Checks,
    add_format,
    add_output,
    add_reading,
    add_renamed,
    add_rows,
    add_selection,
    nanoseconds,
    open_run,
    show,
    whole_number,
)
from ppprof.cli.terminal import log
from ppprof.errors import UsageError
from ppprof.report.diff_rows import RowSelection, diff_document, select_rows
from ppprof.report.markdown import diff_markdown
from ppprof.report.text.diff import render_diff
from ppprof.report.text.summary import TableOptions
from ppprof.run.diff import diff as compare
from ppprof.rundir.summaries import dumps
from ppprof.topology import RankSelector, parse_selector

_FAILED = 1
"""Exit code where a threshold of ``--fail-if`` fails."""


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
    add("--views", metavar="V,...", help=f"some of {','.join(VIEWS)}; default: all")
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
        help="exit with code 1 if the condition holds: 'step_time > 5%%', 'op.matmul.gpu > 0.2ms', 'ips < -5%%'; repeatable",
    )
    add("--time-unit", metavar="UNIT", help="s, ms, us or ns; default: ms")
    add_format(parser, "json: everything, in nanoseconds; csv: one view; md: for a comment")
    add_output(parser)
    add_reading(parser)
    parser.set_defaults(run_command=diff)


def diff(args: argparse.Namespace) -> int:
    """Return 0 when the comparison was shown, 1 where a threshold of ``--fail-if`` fails."""
    request = _Request.of(args)
    baseline = experiment = open_run(args, args.baseline)
    if args.experiment not in (None, args.baseline):
        experiment = open_run(args, args.experiment)
    with executors.processes(request.workers) as executor:
        comparison = compare(
            baseline,
            experiment,
            ranks=request.ranks,
            windows=request.windows,
            steps=request.steps,
            exact=args.exact,
            names=args.names,
            executor=executor,
        )
    outcomes = check(request.thresholds, comparison)
    show(args, [_FORMATS[args.format](comparison, request.shown, request.options, outcomes)])
    if args.format != "table" or args.output is not None:
        for outcome in outcomes:
            log.info("%s", outcome)
    return _FAILED if any(outcome.status == "fail" for outcome in outcomes) else 0


@dataclass(frozen=True)
class _Request:
    """The command line, checked."""

    ranks: tuple[RankSelector, RankSelector]
    windows: tuple[int | None, int | None]
    steps: tuple[StepRange | None, StepRange | None]
    shown: RowSelection
    options: TableOptions
    thresholds: Sequence[Threshold]
    workers: int

    @classmethod
    def of(cls, args: argparse.Namespace) -> _Request:
        """Return the command line of `register`, checked.

        Raises:
            UsageError: with every problem, one a line.
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
        shown = RowSelection(
            checks.parsed("views", _views, VIEWS),
            bool(args.all) or is_data,
            checks.row_limit(None if is_data else 20, least=0),
            checks.parsed("min_delta", nanoseconds, None),
            checks.parsed("filter", _pattern, None),
            checks.parsed("sorted_by", _sort_key, None),
        )
        options = checks.parsed("time_unit", TableOptions, TableOptions())
        thresholds = [
            threshold
            for rule in args.fail_if
            if (threshold := checks.parsed_text("--fail-if", rule, Threshold.parse, None))
        ]
        workers = checks.workers()
        if is_data:
            checks.no_effect(["row_limit", "all"], f"on {args.format}, which holds every change")
        if args.exact:
            checks.no_effect(["names"], "with --exact")
        if args.format == "csv" and len(shown.views) != 1:
            checks.problems.append("--format csv: one table: name it with --views")
        checks.output([path for path in (args.baseline, args.experiment) if path])
        checks.done()
        return cls(*pairs, shown, options, thresholds, workers)


def _views(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in VIEWS]
    if unknown:
        raise UsageError(f"{unknown[0]!r}: expected some of {', '.join(VIEWS)}")
    return tuple(view for view in VIEWS if view in names)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
        pl.Series([""]).str.contains(text)  # polars supports no look-around
    except (re.error, pl.exceptions.PolarsError) as error:
        raise UsageError(f"{text!r}: not a regular expression: {error}") from error
    return text


def _sort_key(text: str) -> str:
    columns = (*VALUES["operators"], *VALUES["kernels"])
    keys = list(dict.fromkeys(column.removesuffix("_ns") for column in columns))
    key = PADDLE_SORT_KEYS.get(text, text)
    if key not in keys:
        raise UsageError(f"{text!r}: expected one of {', '.join(keys)}")
    return key


def _table(
    diff: Diff, shown: RowSelection, options: TableOptions, outcomes: Sequence[Outcome]
) -> str:
    return render_diff(diff, shown, options, outcomes)


def _json(
    diff: Diff, shown: RowSelection, options: TableOptions, outcomes: Sequence[Outcome]
) -> str:
    return dumps(diff_document(diff, shown, outcomes)) + "\n"


def _csv(
    diff: Diff, shown: RowSelection, options: TableOptions, outcomes: Sequence[Outcome]
) -> str:
    (table,) = select_rows(diff, shown).values()
    return table.write_csv()


_FORMATS: dict[str, Callable[[Diff, RowSelection, TableOptions, Sequence[Outcome]], str]] = {
    "table": _table,
    "json": _json,
    "csv": _csv,
    "md": diff_markdown,
}
