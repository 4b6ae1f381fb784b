"""The command line: parse, call the library, print, choose an exit code.

One module a command, each with ``register(subparsers)`` that adds its parser and sets
``run_command=<function(args) -> exit code>``. stdout is the result, stderr the talk.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from ppprof.errors import PpprofError

COMMANDS = ("config", "summary", "ranks", "merge", "diff", "advise", "report", "convert", "finish")
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
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at exit
        return 0
    return code


def _run(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="ppprof", description="What is slow in a Paddle training job, from its run directory."
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    # The imports of the other commands would take longer than many a command itself.
    chosen = argv[:1] if argv and argv[0] in COMMANDS else COMMANDS
    if chosen is COMMANDS:
        from importlib.metadata import version

        parser.add_argument("--version", action="version", version=version("ppprof"))
    for command in chosen:
        import_module(f"ppprof.cli.{command}").register(subparsers)
    gc.freeze()  # modules stay until the end: to look for garbage in them takes 20 ms each time
    args = parser.parse_args(argv)
    code: int = args.run_command(args)
    return code
