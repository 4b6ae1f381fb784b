"""``ppprof advise``: what is slow in a run, what it costs, and what to change."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ppprof.analysis.advice.finding import Finding
from ppprof.choices.formats import LANGUAGES
from ppprof.cli import COMMANDS, executors
from ppprof.cli.options import (
    Checks,
    add_format,
    add_output,
    add_reading,
    add_renamed,
    add_rows,
    add_selection,
    open_run,
    show,
)
from ppprof.report.markdown import findings_markdown
from ppprof.report.text.advice import (
    findings_document,
    findings_table,
    render_findings,
)
from ppprof.run.advise import advise as findings_of
from ppprof.run.run import Run
from ppprof.rundir.summaries import dumps


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
    add_output(parser)
    add_reading(parser)
    parser.set_defaults(run_command=advise)


def advise(args: argparse.Namespace) -> int:
    """Return 0 when the findings were shown, whatever they are."""
    checks = Checks(args)
    ranks, window, steps = checks.ranks("all"), checks.window(), checks.steps()
    workers, row_limit = checks.workers(), checks.row_limit(None)
    if args.format in ("json", "csv"):
        checks.no_effect(["row_limit"], f"on {args.format}, which holds every finding")
    checks.output(args.paths)
    checks.done()
    run = open_run(args, *args.paths)
    with executors.processes(workers) as executor:
        findings = findings_of(run, ranks, window, steps=steps, executor=executor)
    show(args, [_text(args, run, findings, row_limit)])
    return 0


def _text(
    args: argparse.Namespace, run: Run, findings: Sequence[Finding], row_limit: int | None
) -> str:
    if args.format == "json":
        return f"{dumps(findings_document(findings, args.language, run=str(run)))}\n"
    if args.format == "csv":
        return findings_table(findings, args.language).write_csv()
    render = findings_markdown if args.format == "md" else render_findings
    return render(findings, args.language, row_limit)
