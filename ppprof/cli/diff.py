"""``ppprof diff``: what changed between two runs, the biggest change on top."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ppprof.analysis.diff.thresholds import Threshold
from ppprof.choices import (
    DIFF_SORT_KEYS,
    DIFF_VIEWS,
    PADDLE_SORT_KEYS,
    StepRange,
    check_pattern,
    check_time_unit,
)
from ppprof.cli.options import (
    Checks,
    add_format,
    add_layout,
    add_output,
    add_reading,
    add_renamed,
    add_rows,
    add_selection,
    names_in,
    nanoseconds,
    whole_number,
)
from ppprof.cli.terminal import log
from ppprof.errors import InputError, UsageError
from ppprof.messages import Counted
from ppprof.topology import parse_selector

if TYPE_CHECKING:
    from ppprof.analysis.diff.several_runs import RunTime

EXAMPLES = {
    "ppprof diff base_log new_log": "a verdict on the step time, and the largest changes",
    'ppprof diff base_log new_log --fail-if "step_time > 5%"': "exit code 1 if surely more than 5% slower",
    "ppprof diff base1 base2 base3 -- new1 new2 new3": "a verdict that knows how much equal runs differ",
}
_FAILED = 1
"""Exit code where a threshold of ``--fail-if`` fails."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Compares EXPERIMENT with BASELINE: step time with an interval and a verdict, operators, "
        "kernels, collectives, runtime calls and modules. Both are run directories or traces of any "
        "kind; without EXPERIMENT, two parts of one run are compared, such as --rank 0 "
        "--experiment-rank 3. With several runs of either side, BASELINE... -- EXPERIMENT..., only the "
        "step time is compared, by the spread between runs."
    )
    add = parser.add_argument
    add(
        "sides",
        metavar="RUN",
        nargs="+",
        help="BASELINE [EXPERIMENT]: run directories or trace files; or BASELINE... -- EXPERIMENT...: several run directories of either",
    )
    add("--views", metavar="V,...", help=f"some of {','.join(DIFF_VIEWS)}; default: all")
    add_selection(parser, names=False)
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
    add(
        "--names",
        metavar="FILE",
        help="YAML, name: [other names of the same operator...]; and communication: {library: [patterns of names of kernels that communicate]}",
    )
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


def check(args: argparse.Namespace) -> None:
    """Replace the texts of options by their values, or raise UsageError."""
    checks = Checks(args)
    if args.num_after_dashes == 0 and len(args.sides) > 1:
        raise UsageError("no run after --; expected BASELINE... -- EXPERIMENT...")
    num_experiments = args.num_after_dashes or len(args.sides) - 1
    baselines = args.sides[: len(args.sides) - num_experiments]
    args.sides = (baselines, args.sides[len(baselines) :])
    if args.num_after_dashes is None and num_experiments > 1:
        raise UsageError(
            f"{num_experiments + 1} runs; expected BASELINE EXPERIMENT, or BASELINE... -- EXPERIMENT..."
        )
    if not baselines:
        raise UsageError("no run before --; expected BASELINE... -- EXPERIMENT...")
    if len(baselines) > 1 or num_experiments > 1:
        _check_several(args, checks)
        return
    args.baseline, args.experiment = baselines[0], next(iter(args.sides[1]), None)
    part = (args.experiment_rank, args.experiment_window, args.experiment_steps)
    checks.selection()
    checks.parse("experiment_rank", parse_selector, args.rank)
    checks.parse("experiment_window", whole_number, args.window)
    checks.parse("experiment_steps", StepRange.parse, args.steps)
    if args.experiment is None and part == (None, None, None):
        checks.problems.append(
            "EXPERIMENT: missing; expected a second run, or the part of BASELINE to compare "
            "with: --experiment-rank, --experiment-window or --experiment-steps"
        )
    is_data = args.format in ("json", "csv")
    checks.parse("views", _views, DIFF_VIEWS)
    checks.row_limit(None if is_data else 20, least=0)
    checks.parse("min_delta", nanoseconds)
    checks.parse("filter", _pattern)
    checks.parse("sorted_by", _sort_key)
    checks.parse("time_unit", check_time_unit, "ms")
    limits = [checks.parsed("--fail-if", rule, Threshold.parse, None) for rule in args.fail_if]
    args.fail_if = [limit for limit in limits if limit is not None]
    checks.workers()
    if is_data:
        checks.no_effect(["row_limit", "all"], f"on {args.format}, which holds every change")
    if args.exact:
        checks.no_effect(["names"], "with --exact")
    if args.format == "csv" and len(args.views) != 1:
        checks.problems.append("--format csv: one table: name it with --views")
    checks.layout()
    checks.output([path for path in (args.baseline, args.experiment) if path])
    checks.done()


def _check_several(args: argparse.Namespace, checks: Checks) -> None:
    checks.no_effect(_OF_A_PAIR, "on several runs, of which only the step time is compared")
    if args.exact:
        checks.problems.append("--exact: has no effect on several runs")
    if args.format == "csv":
        checks.problems.append(
            "--format csv: has no effect on several runs; expected json, md or table"
        )
    args.fail_if = limits_of_several(args, checks)
    checks.layout()
    checks.output([path for side in args.sides for path in side])
    checks.done()


def limits_of_several(args: argparse.Namespace, checks: Checks) -> list[Threshold]:
    """Return the limits of ``--fail-if`` for several runs of either side."""
    limits = [checks.parsed("--fail-if", rule, Threshold.parse, None) for rule in args.fail_if]
    known = [limit for limit in limits if limit is not None]
    checks.problems += [
        f"--fail-if {limit.text!r}: of several runs, only step_time in % is compared"
        for limit in known
        if limit.target != "step_time" or not limit.is_ratio
    ]
    return known


_OF_A_PAIR = (
    *("views", "rank", "window", "steps", "step_mark", "experiment_rank", "experiment_window"),
    *("experiment_steps", "sorted_by", "filter", "row_limit", "min_delta", "all", "names"),
    *("time_unit", "workers"),
)
"""Options that select parts and tables of two runs."""


def _views(text: str) -> tuple[str, ...]:
    names = names_in(text, DIFF_VIEWS)
    return tuple(view for view in DIFF_VIEWS if view in names)


def _pattern(text: str) -> str:
    check_pattern(text)
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


def run(args: argparse.Namespace) -> int:
    """Return 0 when the comparison was shown, 1 where a threshold of ``--fail-if`` fails."""
    if max(map(len, args.sides)) > 1:
        return _run_several(args)
    from ppprof.analysis.diff.gate import check as check_thresholds
    from ppprof.cli.executors import processes
    from ppprof.cli.output import show
    from ppprof.cli.runs import NAMES_OF_RUNS, is_any_same, open_run
    from ppprof.report.diff_rows import RowSelection, diff_document, select_rows
    from ppprof.report.markdown import diff_markdown
    from ppprof.report.text.diff import render_diff
    from ppprof.report.text.summary import TableOptions
    from ppprof.run.diff import diff
    from ppprof.rundir.summaries import dumps

    baseline = experiment = open_run(args.baseline, reading=args.reading)
    if args.experiment not in (None, args.baseline):
        experiment = open_run(args.experiment, reading=args.reading)
    part = (args.rank, args.window, args.steps)
    other_part = (args.experiment_rank, args.experiment_window, args.experiment_steps)
    if part == other_part and is_any_same(baseline, experiment):
        raise UsageError(
            f"EXPERIMENT: {experiment}: the same run and part as BASELINE; expected another run "
            f"({NAMES_OF_RUNS}), or --experiment-rank, --experiment-window or --experiment-steps"
        )
    num_windows = len(baseline.recordings) + len(experiment.recordings)
    with processes(args.workers, num_windows) as executor:
        comparison = diff(
            baseline,
            experiment,
            ranks=(args.rank, args.experiment_rank),
            windows=(args.window, args.experiment_window),
            steps=(args.steps, args.experiment_steps),
            exact=args.exact,
            names=args.names,
            executor=executor,
        )
    outcomes = check_thresholds(args.fail_if, comparison)
    shown = RowSelection(
        args.views,
        bool(args.all) or args.format in ("json", "csv"),
        args.row_limit,
        args.min_delta,
        args.filter,
        args.sorted_by,
    )
    options = TableOptions(args.time_unit, layout=args.layout)
    if args.format == "json":
        text = dumps(diff_document(comparison, shown, outcomes)) + "\n"
    elif args.format == "csv":
        (table,) = select_rows(comparison, shown).values()
        text = table.write_csv()
    else:
        render = diff_markdown if args.format == "md" else render_diff
        text = render(comparison, shown, options, outcomes)
    show(args, [text])
    if args.format != "table" or args.output is not None:
        for outcome in outcomes:
            log.info("%s", outcome)
    return _FAILED if any(outcome.status == "fail" for outcome in outcomes) else 0


def time_of_several(path: str, time: RunTime | None) -> RunTime:
    """Return the step time of one of several runs.

    Raises:
        InputError: too few of its steps have a time.
    """
    from ppprof.analysis.profile.step_basis import LEAST_STEPS

    if time is None or not time.quiet_ns:
        raise InputError(
            f"{path}: no times of steps outside windows (steps/*.jsonl); without Profiler.scheduler every "
            "step is in one: record with -o Profiler.timer_only=True"
        )
    if time.num_steps < LEAST_STEPS:
        what = f"{Counted(time.num_steps):step|steps} outside windows"
        raise InputError(f"{path}: {what}; expected at least {LEAST_STEPS} of each run")
    return time


def _run_several(args: argparse.Namespace) -> int:
    """Compare several runs of either side, as `run` compares two."""
    from dataclasses import asdict

    from ppprof.analysis.diff.gate import runs_outcome
    from ppprof.analysis.diff.several_runs import run_times, runs_change, wait_difference
    from ppprof.cli.output import show
    from ppprof.cli.runs import NAMES_OF_RUNS, is_any_same, open_run
    from ppprof.report.diff_rows import SCHEMA_VERSION
    from ppprof.report.text.several_runs import several_runs_text
    from ppprof.rundir.summaries import dumps

    opened = [[(path, open_run(path)) for path in paths] for paths in args.sides]
    if is_any_same(*(run for side in opened for _, run in side)):
        raise UsageError(
            "the same run is named twice; expected different runs, as each counts as one: "
            f"{NAMES_OF_RUNS}"
        )
    tables = [{path: run.step_times for path, run in side} for side in opened]
    sides = [
        {path: time_of_several(path, time) for path, time in read.items()}
        for read in run_times(tables)
    ]
    times = [list(side.values()) for side in sides]
    change, median, quiet = (
        runs_change(*([getattr(time, value) for time in side] for side in times))
        for value in ("mean_ns", "median_ns", "quiet_ns")
    )
    outcomes = [runs_outcome(limit, times[0], times[1]) for limit in args.fail_if]
    waits = wait_difference(times[0], times[1])
    if args.format == "json":
        text = dumps(
            {
                "schema_version": SCHEMA_VERSION,
                "change": {**asdict(change), "verdict": change.verdict},
                "median_step": {**asdict(median), "verdict": median.verdict},
                "quiet_steps": {**asdict(quiet), "verdict": quiet.verdict},
                "wait_difference": waits or None,
                "runs": [
                    {"side": name, "run": path, **asdict(time)}
                    for name, side in zip(("baseline", "experiment"), sides)
                    for path, time in side.items()
                ],
                "thresholds": [outcome._asdict() for outcome in outcomes],
            }
        )
        text += "\n"
    else:
        text = several_runs_text(sides[0], sides[1], (change, median, quiet), waits)
        text = f"```\n{text}```\n" if args.format == "md" else text
    show(args, [text])
    for outcome in outcomes:
        log.info("%s", outcome)
    return _FAILED if any(outcome.status == "fail" for outcome in outcomes) else 0
