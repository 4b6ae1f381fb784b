"""``ppprof diff``: what changed between two runs, the biggest change on top."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from ppprof.analysis.diff.diff import KERNEL_VALUES, OPERATOR_VALUES, Diff
from ppprof.analysis.diff.gate import Outcome, Threshold, check
from ppprof.analysis.profile.steps import StepRange
from ppprof.cli import executors
from ppprof.cli.merge import nanoseconds
from ppprof.cli.options import (
    add_cache,
    add_output,
    add_part,
    opened,
    problems_of_output,
    whole_number,
    write_output,
)
from ppprof.cli.terminal import tell
from ppprof.errors import UsageError
from ppprof.report.data import dumps
from ppprof.report.diff_rows import VIEWS, RowSelection, diff_document, select_rows
from ppprof.report.markdown import diff_markdown
from ppprof.report.text.diff import render_diff
from ppprof.report.text.summary import TableOptions
from ppprof.run.diff import diff as compare
from ppprof.topology import parse_selector

_BROKEN = 1
"""Exit code where a rule is broken."""


def register(subparsers: Any) -> None:
    """Adds the command's parser."""
    parser = subparsers.add_parser(
        "diff",
        help="print what changed between two runs, the biggest change on top",
        description=(
            "Compares EXPERIMENT with BASELINE: step time with an interval and a verdict, operators, "
            "kernels and modules. Both are run directories or traces of any kind; without EXPERIMENT, "
            "two parts of one run are compared, such as --rank 0 --experiment-rank 3."
        ),
    )
    add = parser.add_argument
    add("baseline", metavar="BASELINE", help="run directory or trace file")
    add("experiment", metavar="EXPERIMENT", nargs="?", help="the same; default: BASELINE")
    add("--views", metavar="V,...", help=f"some of {','.join(VIEWS)}; default: all")
    add("--rank", metavar="R", help="only these ranks: 3, 0,8-15, or coordinates such as pp=0,mp=1")
    add_part(parser)
    for what in ("rank", "window", "steps"):
        add(f"--experiment-{what}", metavar="X", help=f"of EXPERIMENT, if not as --{what}")
    add(
        "--sort",
        metavar="KEY",
        help="of operators and kernels: calls, cpu_self, cpu_total, gpu_self or gpu_total",
    )
    add("--filter", metavar="REGEX", help="only names that match somewhere")
    add("--limit", metavar="N", help="rows of a table (20), or none")
    add(
        "--min-delta",
        metavar="T",
        help="only what changed by so much: 50us; default: 0.1%% of a step",
    )
    add("--all", action="store_true", help="also what changed by less than the noise")
    add(
        "--exact",
        action="store_true",
        help="names as recorded: template arguments tell kernels apart",
    )
    add("--names", metavar="FILE", help="YAML, name: [what it is called...]: what counts as one")
    add(
        "--fail-if",
        metavar="RULE",
        action="append",
        default=[],
        help="exit with 1 if so: 'step_time > 5%%', 'op.matmul.gpu > 0.2ms', 'ips < -5%%'; repeatable",
    )
    add("--workers", metavar="N", default="1", help="read the traces in N processes")
    add("--time-unit", metavar="UNIT", default="ms", help="s, ms (as it is without), us or ns")
    add(
        "--format",
        choices=("table", "json", "csv", "md"),
        default="table",
        help="json: everything, in nanoseconds; csv: one view; md: for a comment",
    )
    add_output(parser)
    add_cache(parser)
    parser.set_defaults(run_command=diff)


def diff(args: argparse.Namespace) -> int:
    """0 when it was shown, 1 where a rule of ``--fail-if`` is broken."""
    request = _Request.of(args)
    cache = not args.no_cache
    baseline = opened(args.baseline, cache=cache)
    experiment = baseline
    if args.experiment not in (None, args.baseline):
        experiment = opened(args.experiment, cache=cache)
    with executors.processes(request.workers) as executor:
        found = compare(
            baseline,
            experiment,
            ranks=request.ranks,
            windows=request.windows,
            steps=request.steps,
            exact=args.exact,
            names=args.names,
            executor=executor,
        )
    outcomes = check(request.rules, found)
    text = _FORMATS[args.format](found, request.shown, request.layout, outcomes)
    if args.output is None:
        print(text, end="")
    else:
        write_output(args, text)
    if args.format != "table" or args.output is not None:
        for outcome in outcomes:
            tell(outcome)
    return _BROKEN if any(outcome.status == "broken" for outcome in outcomes) else 0


@dataclass(frozen=True)
class _Request:
    """The command line, checked."""

    ranks: tuple[Any, Any]
    windows: tuple[int | None, int | None]
    steps: tuple[str | None, str | None]
    shown: RowSelection
    layout: TableOptions
    rules: Sequence[Threshold]
    workers: int

    @classmethod
    def of(cls, args: argparse.Namespace) -> _Request:
        """The command line of `register`.

        Raises:
            UsageError: with all that is wrong with it.
        """
        problems: list[str] = []

        def checked(flag: str, make: Callable[[Any], Any], value: Any) -> Any:
            try:
                return make(value)
            except UsageError as error:
                problems.append(f"{flag}: {error}")
                return None

        def pair(flag: str, make: Callable[[Any], Any], default: Any) -> tuple[Any, Any]:
            texts = [getattr(args, flag), getattr(args, f"experiment_{flag}")]
            one, other = (
                default if text is None else checked(name, make, text)
                for name, text in zip((f"--{flag}", f"--experiment-{flag}"), texts)
            )
            return one, one if texts[1] is None else other

        ranks = pair("rank", parse_selector, "all")
        windows = pair("window", whole_number, None)
        steps = pair("steps", lambda text: str(StepRange.parse(text)), None)
        whole = (args.experiment_rank, args.experiment_window, args.experiment_steps)
        if args.experiment is None and whole == (None, None, None):
            problems.append(
                "EXPERIMENT: missing; expected a second run, or what of BASELINE to compare with: "
                "--experiment-rank, --experiment-window or --experiment-steps"
            )
        views = VIEWS if args.views is None else checked("--views", _views, args.views)
        layout = checked("--time-unit", TableOptions, args.time_unit)
        is_data = args.format in ("json", "csv")
        for flag, given in (("--limit", args.limit), ("--all", args.all)):
            if is_data and given:
                problems.append(f"{flag}: has no effect on {args.format}, which holds every change")
        if args.exact and args.names:
            problems.append("--names: has no effect with --exact")
        limit = "none" if is_data else args.limit or "20"
        shown = RowSelection(
            views or VIEWS,
            args.all or is_data,
            None if limit == "none" else checked("--limit", whole_number, limit),
            None if args.min_delta is None else checked("--min-delta", nanoseconds, args.min_delta),
            checked("--filter", _pattern, args.filter),
            checked("--sort", _sort_key, args.sort),
        )
        rules = [checked("--fail-if", Threshold.parse, rule) for rule in args.fail_if]
        workers = checked("--workers", partial(whole_number, least=1), args.workers)
        if args.format == "csv" and len(shown.views) != 1:
            problems.append("--format csv: one table: name it with --views")
        sources = [path for path in (args.baseline, args.experiment) if path]
        problems += problems_of_output(args, sources)
        if problems:
            raise UsageError("\n".join(problems))
        return cls(ranks, windows, steps, shown, layout, rules, workers)


def _views(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in VIEWS]
    if unknown:
        raise UsageError(f"{unknown[0]!r}: expected some of {', '.join(VIEWS)}")
    return tuple(view for view in VIEWS if view in names)


def _pattern(text: str | None) -> str | None:
    if text is not None:
        try:
            re.compile(text)
            pl.Series([""]).str.contains(text)  # which knows no look-around
        except (re.error, pl.exceptions.PolarsError) as error:
            raise UsageError(f"{text!r}: no regular expression: {error}") from error
    return text


def _sort_key(text: str | None) -> str | None:
    keys = list(dict.fromkeys(at.removesuffix("_ns") for at in (*OPERATOR_VALUES, *KERNEL_VALUES)))
    if text is not None and text not in keys:
        raise UsageError(f"{text!r}: expected one of {', '.join(keys)}")
    return text


def _table(
    found: Diff, shown: RowSelection, layout: TableOptions, outcomes: Sequence[Outcome]
) -> str:
    return render_diff(found, shown, layout, outcomes)


def _json(
    found: Diff, shown: RowSelection, layout: TableOptions, outcomes: Sequence[Outcome]
) -> str:
    return dumps(diff_document(found, shown, outcomes)) + "\n"


def _csv(
    found: Diff, shown: RowSelection, layout: TableOptions, outcomes: Sequence[Outcome]
) -> str:
    (table,) = select_rows(found, shown).values()
    return table.write_csv()


_FORMATS: dict[str, Callable[[Diff, RowSelection, TableOptions, Sequence[Outcome]], str]] = {
    "table": _table,
    "json": _json,
    "csv": _csv,
    "md": diff_markdown,
}
