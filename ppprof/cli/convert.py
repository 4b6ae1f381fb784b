"""``ppprof convert``: a trace in another format, or mended in its own."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from ppprof.cli.terminal import Progress, is_same, tell, tell_lost
from ppprof.errors import UsageError
from ppprof.paths import store_errors_as_oserror, to_path
from ppprof.trace import read, write
from ppprof.trace.formats import suffix_of
from ppprof.units import format_omitted


def register(subparsers: Any) -> None:
    """Adds the command's parser."""
    parser = subparsers.add_parser(
        "convert",
        help="write a trace in another format, or mend a broken one",
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
    """0 when OUT was written, whatever of IN could not be used."""
    suffix_of(args.target)
    try:
        with store_errors_as_oserror(args.target):
            is_there = args.target.exists()
            if is_there and not args.force:
                raise UsageError(f"{args.target}: exists; --force replaces it")
            if is_there and is_same(args.target, args.source):
                raise UsageError(f"{args.target}: IN and OUT are one file; give OUT another name")
    except OSError as error:
        raise UsageError(f"{args.target}: {error.strerror or error}") from error
    progress = Progress.on_terminal()
    trace = read(
        args.source, progress=partial(progress, args.source) if progress else None, cache=False
    )
    tell_lost(args.source, trace.skipped)
    try:
        omitted = write(trace, args.target)
        if omitted:
            tell(format_omitted(args.target, omitted))
    except OSError as error:
        raise UsageError(f"{args.target}: {error.strerror or error}") from error
    tell(f"{args.target}: {trace.events.height} events, {args.target.stat().st_size} bytes")
    return 0
