"""``ppprof convert``: a trace in another format, or mended in its own."""

from __future__ import annotations

import argparse
from functools import partial

from ppprof.cli.terminal import Progress, log
from ppprof.errors import UsageError
from ppprof.trace import read, write
from ppprof.units import format_omitted, format_skipped


def run(args: argparse.Namespace) -> int:
    """Return 0 when OUT was written, even if parts of IN were skipped."""
    progress = Progress.on_terminal()
    trace = read(
        args.source, progress=partial(progress, args.source) if progress else None, cache=False
    )
    if trace.skipped:
        log.warning("%s", format_skipped(args.source, trace.skipped))
    try:
        if omitted := write(trace, args.target):
            log.warning("%s", format_omitted(args.target, omitted))
    except OSError as error:
        raise UsageError(f"{args.target}: {error.strerror or error}") from error
    size = args.target.stat().st_size
    log.info("%s: %d events, %d bytes", args.target, trace.events.height, size)
    return 0
