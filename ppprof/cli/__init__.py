"""The command line: parse, call the library, print, choose an exit code.

One module a command, each with ``register(subparsers)`` that adds its parser and sets
``run_command=<function(args) -> exit code>``. stdout is the result, stderr the talk.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from ppprof.cli import config, finish
from ppprof.errors import PpprofError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns 0 done, 1 a check failed, 2 bad usage or config, 3 no usable input."""
    parser = argparse.ArgumentParser(
        prog="ppprof", description="What is slow in a Paddle training job, from its run directory."
    )
    parser.add_argument("--version", action="version", version=version("ppprof"))
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (config, finish):
        command.register(subparsers)
    args = parser.parse_args(argv)
    try:
        code: int = args.run_command(args)
    except PpprofError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return code
