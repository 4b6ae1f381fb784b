"""The parser of ``ppprof finish``, and the checks of its options."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ppprof.cli.parsers import COMMANDS
from ppprof.cli.parsers.options import Checks, whole_number
from ppprof.errors import UsageError
from ppprof.paths import is_remote


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "finish",
        help=COMMANDS["finish"],
        description=(
            "For every raw capture in RUN: write the trace in the configured formats and the "
            "tables as data, print the configured tables, and remove the raw file unless the "
            "formats keep pb. A capture does this itself; run it after a job was killed."
        ),
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="run directory (profiler_log)")
    add("--rank", metavar="R", help="only this rank's captures")
    add("--window", metavar="W", help="only this window, counted from 0")
    add(
        "--seconds",
        metavar="N",
        help="end after N seconds of computing, or 24 N in all; unfinished captures stay raw",
    )
    add(
        "--then",
        metavar="COMMAND",
        help=(
            "run this for each window, with the names of its files; a capture passes "
            "Profiler.on_window_end, and the manifest's is never run"
        ),
    )
    # The helper of a capture:
    add("--serve", metavar="FD", help=argparse.SUPPRESS)
    add("--verdict", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(command="finish", check=check)


@dataclass(frozen=True)
class Request:
    """The checked options of the command."""

    rank: int | None
    """The rank whose captures are finished; None for all ranks."""
    window: int | None
    """The window to finish; None for all windows."""
    command: Sequence[str]
    """The program of ``--then`` and its arguments; empty without it."""
    seconds: int | None
    """Limit of computing; None for no limit."""
    status: int | None
    """The file descriptor of ``--serve``; None without it."""


def check(args: argparse.Namespace) -> Request:
    """Return the options, checked.

    Raises:
        UsageError: an option is invalid; the message has one line for each problem.
    """
    if is_remote(args.run):
        raise UsageError(f"{args.run}: finish writes beside what it reads; copy the run to a disk")
    checks = Checks(args)
    request = Request(
        rank=checks.parsed("rank", whole_number, None),
        window=checks.window(),
        command=checks.parsed("then", _command, ()),
        seconds=checks.parsed("seconds", partial(whole_number, least=1), None),
        status=checks.parsed("serve", whole_number, None),
    )
    checks.done()
    return request


def _command(text: str) -> Sequence[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{text}: {str(error).lower()}") from error
