"""``ppprof convert``: a trace in another format, or mended in its own."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from ppprof.choices.formats import suffix_of
from ppprof.cli import COMMANDS
from ppprof.cli.options import is_same
from ppprof.cli.terminal import Progress, log
from ppprof.errors import UsageError
from ppprof.paths import store_errors_as_oserror, to_path
from ppprof.trace import read, write
from ppprof.units import format_omitted, format_skipped


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "convert",
        help=COMMANDS["convert"],
        description=(
            "Reads the trace IN, of Paddle's or torch's profiler and broken or not, and writes it "
            "to OUT: Paddle's JSON, which VisualDL, Perfetto and chrome://tracing open, or "
            "Paddle's .pb."
        ),
    )
    add = parser.add_argument
    add("source", type=to_path, metavar="IN", help="trace file; its content says what it is")
    add("target", type=to_path, metavar="OUT", help="ends in .json, .json.gz or .pb")
    add("--force", action="store_true", help="replace OUT where it exists")
    parser.set_defaults(run_command=convert)


def convert(args: argparse.Namespace) -> int:
    """Return 0 when OUT was written, even if parts of IN were skipped."""
    suffix_of(args.target)
    try:
        with store_errors_as_oserror(args.target):
            exists = args.target.exists()
            if exists and not args.force:
                raise UsageError(f"{args.target}: exists; --force replaces it")
            if exists and is_same(args.target, args.source):
                raise UsageError(f"{args.target}: IN and OUT are one file; give OUT another name")
    except OSError as error:
        raise UsageError(f"{args.target}: {error.strerror or error}") from error
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
