"""``ppprof advise``: what is slow in a run, what it costs, and what to change."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ppprof.analysis.advice.finding import Finding
from ppprof.cli import executors
from ppprof.cli.output import show
from ppprof.cli.parsers.advise import Request
from ppprof.cli.runs import open_run
from ppprof.messages import logged_in
from ppprof.report.markdown import findings_markdown
from ppprof.report.text.advice import (
    findings_document,
    findings_table,
    render_findings,
)
from ppprof.run.advise import advise as findings_of
from ppprof.run.run import Run
from ppprof.rundir.summaries import dumps


def run(args: argparse.Namespace) -> int:
    """Return 0 when the findings were shown, whatever they are."""
    with logged_in(args.language):
        return _show(args)


def _show(args: argparse.Namespace) -> int:
    request: Request = args.request
    run = open_run(*args.paths)
    with executors.processes(request.workers, run) as executor:
        findings = findings_of(
            run, request.ranks, request.window, steps=request.steps, executor=executor
        )
    show(args, [_text(args, run, findings, request.row_limit)])
    return 0


def _text(
    args: argparse.Namespace, run: Run, findings: Sequence[Finding], row_limit: int | None
) -> str:
    if args.format == "json":
        return f"{dumps(findings_document(findings, args.language, run=str(run)))}\n"
    if args.format == "csv":
        return findings_table(findings, args.language).write_csv()
    if args.format == "md":
        return findings_markdown(findings, args.language, row_limit)
    return render_findings(findings, args.language, row_limit, args.layout)
