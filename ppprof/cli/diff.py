"""``ppprof diff``: what changed between two runs, the biggest change on top."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.diff.gate import Outcome, check
from ppprof.cli import executors
from ppprof.cli.output import show
from ppprof.cli.parsers.diff import Request
from ppprof.cli.runs import open_run
from ppprof.cli.terminal import log
from ppprof.report.diff_rows import RowSelection, diff_document, select_rows
from ppprof.report.markdown import diff_markdown
from ppprof.report.text.diff import render_diff
from ppprof.report.text.summary import TableOptions
from ppprof.run.diff import diff as compare
from ppprof.rundir.summaries import dumps

_FAILED = 1
"""Exit code where a threshold of ``--fail-if`` fails."""


def run(args: argparse.Namespace) -> int:
    """Return 0 when the comparison was shown, 1 where a threshold of ``--fail-if`` fails."""
    request: Request = args.request
    baseline = experiment = open_run(args.baseline)
    if args.experiment not in (None, args.baseline):
        experiment = open_run(args.experiment)
    with executors.processes(request.workers, baseline, experiment) as executor:
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
    shown = RowSelection(
        request.views,
        request.include_noise,
        request.row_limit,
        request.min_delta_ns,
        request.pattern,
        request.sort,
    )
    options = TableOptions(request.time_unit, layout=args.layout)
    show(args, [_FORMATS[args.format](comparison, shown, options, outcomes)])
    if args.format != "table" or args.output is not None:
        for outcome in outcomes:
            log.info("%s", outcome)
    return _FAILED if any(outcome.status == "fail" for outcome in outcomes) else 0


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
