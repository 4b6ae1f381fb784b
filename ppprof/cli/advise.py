"""``ppprof advise``: what is slow in a run, what it costs, and what to change."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

from ppprof.analysis.advice.finding import Finding
from ppprof.analysis.profile.steps import StepRange
from ppprof.cli import executors
from ppprof.cli.options import Checks, add_cache, add_part, add_ranks, opened, whole_number
from ppprof.report.data import dumps
from ppprof.report.markdown import findings_markdown
from ppprof.report.text.advice import (
    LANGUAGES,
    findings_document,
    findings_table,
    render_findings,
)
from ppprof.run.advise import advise as findings_of
from ppprof.run.run import Run
from ppprof.topology import parse_selector

_FORMATS = ("table", "json", "csv", "md")


def register(subparsers: Any) -> None:
    """Adds the command's parser."""
    parser = subparsers.add_parser(
        "advise",
        help="print what is slow, what that costs a step, and what to change",
        description=(
            "Prints what a run loses its time to, most costly first: each finding with what would be "
            "won per step, how sure that is, the rows that show it, and the config key or code to "
            "change. Says so where nothing stands out."
        ),
    )
    add = parser.add_argument
    add(
        "paths",
        metavar="RUN",
        nargs="+",
        help="run directory, or those of a run's nodes; or traces",
    )
    add_ranks(parser)
    add_part(parser)
    add("--workers", metavar="N", default="1", help="read the traces in N processes")
    add("--language", choices=LANGUAGES, default="en", help="of the texts: en or zh")
    add("--limit", metavar="N", help="findings at the most")
    add(
        "--format",
        choices=_FORMATS,
        default="table",
        help="json: everything, in nanoseconds; csv: a row a finding; md: for a comment",
    )
    add_cache(parser)
    parser.set_defaults(run_command=advise)


def advise(args: argparse.Namespace) -> int:
    """0 when it was shown, whatever was found."""
    ranks, window, workers, limit = _checked(args)
    run = opened(*args.paths, cache=not args.no_cache)
    with executors.processes(workers) as executor:
        found = findings_of(run, ranks, window, steps=args.steps, executor=executor)
    print(_text(args, run, found, limit), end="")
    return 0


def _checked(args: argparse.Namespace) -> tuple[Any, int | None, int, int | None]:
    """Ranks, window, workers and limit of the command line.

    Raises:
        UsageError: with all that is wrong with it, one a line.
    """
    checks = Checks()
    ranks = checks.of("--rank", args.rank, parse_selector, "all")
    window = checks.of("--window", args.window, whole_number, None)
    checks.of("--steps", args.steps, StepRange.parse, None)
    workers = checks.of("--workers", args.workers, partial(whole_number, least=1), 1)
    limit = checks.of("--limit", args.limit, partial(whole_number, least=1), None)
    if args.limit is not None and args.format in ("json", "csv"):
        checks.problems.append(
            f"--limit: has no effect on {args.format}, which holds every finding"
        )
    checks.done()
    return ranks, window, workers, limit


def _text(args: argparse.Namespace, run: Run, found: Sequence[Finding], limit: int | None) -> str:
    if args.format == "json":
        return f"{dumps(findings_document(found, args.language, run=str(run)))}\n"
    if args.format == "csv":
        return findings_table(found, args.language).write_csv()
    render = findings_markdown if args.format == "md" else render_findings
    return render(found, args.language, limit)
