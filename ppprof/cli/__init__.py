"""The command line: parse, call the library, print, choose an exit code.

One module a command, each with ``register(subparsers)`` that adds its parser and sets
``run_command=<function(args) -> exit code>``. stdout is the result, stderr the talk.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, TextIO, cast

from ppprof.cli.terminal import Terminal, is_data, tell
from ppprof.errors import PpprofError

COMMANDS = (
    *("config", "summary", "ranks", "merge", "diff", "advise", "report", "convert"),
    *("trigger", "finish", "completion"),
)
"""Modules of this package, in the order of the help."""

_INTERRUPTED = 130  # what a shell says of a program that Ctrl-C ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns 0 done, 1 a check failed, 2 bad usage or config, 3 no usable input.

    130 when it was interrupted; a reader of stdout that has seen enough is no failure.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may hold what a locale cannot
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except PpprofError as error:
        tell(error)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at exit
        return 0
    return code


class _Version(argparse.Action):
    """Prints the versions and ends the program; nothing is looked up before it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from ppprof.cli.version import versions

        print(versions())
        parser.exit()


def _run(argv: Sequence[str]) -> int:
    # The imports of the other commands would take longer than many a command itself.
    first = argv[:1]
    chosen = () if first == ["--version"] else first if set(first) & set(COMMANDS) else COMMANDS
    parser = parser_of(chosen)
    gc.freeze()  # modules stay until the end: to look for garbage in them takes 20 ms each time
    args = parser.parse_args(argv)
    with contextlib.ExitStack() as stack:
        if sys.stdout.isatty() or not is_data(args):
            stack.enter_context(contextlib.redirect_stdout(cast(TextIO, Terminal(sys.stdout))))
        code: int = args.run_command(args)
    return code


def parser_of(commands: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of some of `COMMANDS`."""
    parser = argparse.ArgumentParser(
        prog="ppprof", description="What is slow in a Paddle training job, from its run directory."
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="print the versions that matter in a bug report"
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in commands:
        import_module(f"ppprof.cli.{command}").register(subparsers)
    return parser
