"""The parser of ``ppprof convert``, and the checks of its options."""

from __future__ import annotations

import argparse
from typing import Any

from ppprof.choices.formats import suffix_of
from ppprof.cli.parsers import COMMANDS
from ppprof.cli.parsers.outputs import is_same
from ppprof.errors import UsageError
from ppprof.paths import store_errors_as_oserror, to_path


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
    parser.set_defaults(command="convert", check=check)


def check(args: argparse.Namespace) -> None:
    """Reject an OUT of an unknown format, and one that exists.

    Raises:
        UsageError: OUT cannot be written; the message has the reason.
    """
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
