"""The command line: parse, call the library, print, choose an exit code.

One module for each command, with ``run(args)``, which returns the exit code. It is imported when the
command line has been parsed and checked, see `ppprof.cli.parsers`; ``args.request`` has the result
of the checks. The result goes to stdout, messages to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import io
import os
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any, TextIO, cast

from ppprof.cli.parsers import COMMANDS
from ppprof.cli.terminal import Terminal, is_data, layout_of, log, logging_to_stderr
from ppprof.errors import InputError, PpprofError

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_WRITTEN = 2
_INTERRUPTED = 130  # a shell's exit code for a program that Ctrl-C ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0 done, 1 a check failed, 2 bad usage or config, 3 no usable input.

    130 when it was interrupted. A stdout that is closed, or a pipe whose reader has gone, is not a
    failure; a full disk behind it is one.
    """
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may hold what a locale cannot
    with logging_to_stderr():
        try:
            code = _run(sys.argv[1:] if argv is None else argv)
            sys.stdout.flush()
        except PpprofError as error:
            log.error("%s", error)
            return error.exit_code
        except KeyboardInterrupt:
            return _INTERRUPTED
        except BrokenPipeError:
            _discard_stdout()
            return 0
        except OSError as error:
            if error.filename is not None:  # a path that cannot be reached, such as a loop of links
                log.error("%s: %s", error.filename, error.strerror or error)
                return InputError.exit_code
            if error.errno not in _DISK_FULL:
                raise
            _discard_stdout()
            log.error("stdout: cannot write the output: %s", error.strerror or error)
            return _NOT_WRITTEN
        return code


def _open_closed_streams() -> None:
    """Open the null device in place of a closed stdout or stderr.

    Otherwise the next file that is opened gets the descriptor, and what is printed there.
    """
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
            setattr(sys, name, open(descriptor, "w", closefd=False))  # noqa: SIM115


def _discard_stdout() -> None:
    """Let what is still buffered for stdout, which Python flushes when it ends, go nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


class _Version(argparse.Action):
    """Print the versions, looked up only now, and end the program."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from ppprof.cli.version import versions

        print(versions())
        parser.exit()


def _run(argv: Sequence[str]) -> int:
    args = command_parser(COMMANDS.keys() & set(argv)).parse_args(argv)
    args.request = args.check(args) if args.check else None
    gc.disable()  # modules stay until the end: looking for garbage in them takes 20 ms each time
    run = import_module(f"ppprof.cli.{args.command}").run
    gc.freeze()
    gc.enable()
    with contextlib.ExitStack() as stack:
        if args.command != "completion":  # a script for a shell
            args.layout = layout_of(args)
            if sys.stdout.isatty() or not is_data(args):
                terminal = cast(TextIO, Terminal(sys.stdout, args.layout))
                stack.enter_context(contextlib.redirect_stdout(terminal))
        code: int = run(args)
    return code


def command_parser(commands: Collection[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """Return the parser of all commands, with the arguments of some of them.

    A command line can only call a command that it names: the arguments of the others would take
    longer to define than the line to parse.

    Args:
        commands: the commands whose arguments are defined, of `COMMANDS`.
    """
    parser = argparse.ArgumentParser(
        prog="ppprof",
        description="Find what is slow in a Paddle training job, from its run directory.",
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="print the versions that matter in a bug report"
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command, about in COMMANDS.items():
        if command in commands:
            import_module(f"ppprof.cli.parsers.{command}").register(subparsers)
        else:
            subparsers.add_parser(command, help=about)
    return parser
