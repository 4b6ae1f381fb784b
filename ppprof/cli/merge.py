"""``ppprof merge``: all ranks in one timeline, on one clock."""

from __future__ import annotations

import argparse

from ppprof.cli.parsers.merge import Request
from ppprof.cli.parsers.outputs import problem_of_output
from ppprof.cli.runs import open_run
from ppprof.cli.terminal import log
from ppprof.errors import UsageError
from ppprof.units import format_ranges


def run(args: argparse.Namespace) -> int:
    """Return 0 when FILE was written, even if some ranks could not be read."""
    request: Request = args.request
    run = open_run(*args.paths)
    sources = [file for recording in run.recordings for file in recording.files]
    if problem := problem_of_output(args.output, sources, args.force):
        raise UsageError(f"-o {args.output}: {problem}")
    try:
        merged = run.merge(
            args.output,
            ranks=request.ranks,
            window=request.window,
            steps=request.steps,
            min_dur_ns=request.min_dur_ns,
        )
    except OSError as error:
        raise UsageError(f"-o {args.output}: {error.strerror or error}") from error
    log.info(
        "%s: %s, %d events, %d bytes",
        args.output,
        format_ranges("rank", merged.ranks),
        merged.num_events,
        args.output.stat().st_size,
    )
    return 0
