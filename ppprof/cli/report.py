"""``ppprof report``: a run as one page of HTML."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from ppprof.analysis.steps import Steps
from ppprof.cli import executors
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
    add("path", metavar="RUN", help="run directory, or any directory of traces or trace file")
    add("--baseline", metavar="BASE", help="a run to compare with")
    add("--rank", metavar="R", help="only these: 3, 0,8-15, or coordinates such as pp=0,mp=1")
    add_part(parser)
    add("--language", choices=LANGUAGES, default="en", help="of the page: English or Chinese")
    add("--workers", metavar="N", help="read the traces in N processes; default: in this one")
    add_output(parser)
    add_cache(parser)
    parser.set_defaults(run_command=report)


def report(args: argparse.Namespace) -> int:
    """0 when it was written."""
    problems: list[str] = []

    def checked(flag: str, make: Any, text: str | None, default: Any) -> Any:
        try:
            return default if text is None else make(text)
        except UsageError as error:
            problems.append(f"{flag}: {error}")
            return default

    ranks = checked("--rank", parse_selector, args.rank, "all")
    window = checked("--window", whole_number, args.window, None)
    steps = checked("--steps", lambda text: str(Steps.parse(text)), args.steps, None)
    workers = checked("--workers", partial(whole_number, least=1), args.workers, 1)
    sources = [path for path in (args.path, args.baseline) if path is not None]
    problems += problems_of_output(args, sources)
    if args.output is None:
        problems.append("-o: expected the page to write, -o report.html")
    if problems:
        raise UsageError("\n".join(problems))

    from ppprof.report.html import render
    from ppprof.reporting import picture

    cache = not args.no_cache
    run = opened(args.path, cache=cache)
    baseline = None if args.baseline is None else opened(args.baseline, cache=cache)
    with executors.processes(workers) as executor:
        found = picture(
            run, baseline=baseline, ranks=ranks, window=window, steps=steps, executor=executor
        )
    write_output(args, render(found, args.language))
    tell(f"{args.output}: open it in a browser")
    return 0
