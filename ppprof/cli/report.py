"""``ppprof report``: a run as one page of HTML."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from ppprof.analysis.profile.steps import StepRange
from ppprof.cli import executors
from ppprof.cli.options import (
    Checks,
    add_cache,
    add_output,
    add_part,
    add_ranks,
    opened,
    problems_of_output,
    whole_number,
    write_output,
)
from ppprof.cli.terminal import tell
from ppprof.report.html import LANGUAGES
from ppprof.topology import parse_selector


def register(subparsers: Any) -> None:
    """Adds the command's parser."""
    parser = subparsers.add_parser(
        "report",
        help="write a page to look at: findings, steps, ranks, pipeline, memory, timeline",
        description=(
            "Writes one HTML file that opens without a network: where the time goes and what to do "
            "about it, steps and ranks, communication, pipeline, operators, kernels, modules, memory "
            "and a timeline; with --baseline also what changed."
        ),
    )
    add = parser.add_argument
    add(
        "paths",
        metavar="RUN",
        nargs="+",
        help="run directory, or those of a run's nodes; or a directory of traces, or a trace file",
    )
    add("--baseline", metavar="BASE", help="a run to compare with")
    add_ranks(parser)
    add_part(parser)
    add("--language", choices=LANGUAGES, default="en", help="of the page: English or Chinese")
    add("--workers", metavar="N", help="read the traces in N processes; default: in this one")
    add_output(parser)
    add_cache(parser)
    parser.set_defaults(run_command=report)


def report(args: argparse.Namespace) -> int:
    """0 when it was written."""
    checks = Checks()
    ranks = checks.of("--rank", args.rank, parse_selector, "all")
    window = checks.of("--window", args.window, whole_number, None)
    checks.of("--steps", args.steps, StepRange.parse, None)
    workers = checks.of("--workers", args.workers, partial(whole_number, least=1), 1)
    sources = [path for path in (*args.paths, args.baseline) if path is not None]
    checks.problems += problems_of_output(args, sources)
    if args.output is None:
        checks.problems.append("-o: expected the page to write, -o report.html")
    checks.done()

    from ppprof.report.html import render
    from ppprof.run.report import collect_report_data

    cache = not args.no_cache
    run = opened(*args.paths, cache=cache)
    baseline = None if args.baseline is None else opened(args.baseline, cache=cache)
    with executors.processes(workers) as executor:
        found = collect_report_data(
            run, baseline=baseline, ranks=ranks, window=window, steps=args.steps, executor=executor
        )
    write_output(args, render(found, args.language))
    tell(f"{args.output}: open it in a browser")
    return 0
