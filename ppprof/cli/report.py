"""``ppprof report``: a run as one page of HTML."""

from __future__ import annotations

import argparse

from ppprof.cli import executors
from ppprof.cli.parsers.report import Request
from ppprof.cli.runs import open_run
from ppprof.cli.terminal import log
from ppprof.errors import UsageError
from ppprof.messages import Message, logged_in
from ppprof.report.html import write_report


def run(args: argparse.Namespace) -> int:
    """Return 0 when the page was written."""
    with logged_in(args.language):
        return _write(args)


def _write(args: argparse.Namespace) -> int:
    request: Request = args.request
    run = open_run(*args.paths)
    baseline = None if args.baseline is None else open_run(args.baseline)
    with executors.processes(request.workers, run) as executor:
        try:
            write_report(
                run,
                args.output,
                baseline=baseline,
                ranks=request.ranks,
                window=request.window,
                steps=request.steps,
                language=args.language,
                executor=executor,
            )
        except OSError as error:
            raise UsageError(f"-o {args.output}: {error.strerror or error}") from error
    log.info("%s", Message("open", path=args.output))
    return 0
