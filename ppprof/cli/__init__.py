"""The command line: parse, call the library, print, choose an exit code.

One module for each command, with three functions: ``prepare_parser(parser)`` adds the arguments,
``check(args)`` replaces their texts by values, or raises UsageError with a line for each problem, and
``run(args)`` returns the exit code. The result goes to stdout, messages to stderr.

The modules import what takes long inside functions: ``--help``, completion and usage errors must not
wait for numpy and polars, which take longer to import than many commands to run.
"""

from __future__ import annotations

import _thread
import argparse
import contextlib
import errno
import io
import os
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

from ppprof.cli.options import DEFAULT_RUN
from ppprof.cli.terminal import (
    Terminal,
    discard_stdout,
    fit_message,
    is_data,
    layout_of,
    log,
    logging_to_stderr,
    print_now,
)
from ppprof.errors import InputError, PpprofError, UsageError
from ppprof.packages import installed_version

COMMANDS = {
    "run": "run a training script and record some of its steps, without any config",
    "config": "print the resolved config, or every problem in it",
    "summary": "print the tables of a run or of a trace file",
    "ranks": "print what each rank spends its steps on: computation, waiting, idling",
    "path": "print what a step's length depends on, across ranks, and what a change would win",
    "predict": "print the step time and memory that another configuration would have",
    "merge": "put all ranks into one timeline, on one clock",
    "diff": "print what changed between two runs, the biggest change on top",
    "bench": "run two trainings in turn, and say whether their steps differ",
    "advise": "print what is slow, what that costs a step, and what to change",
    "report": "write a page to look at: findings, steps, ranks, pipeline, memory, timeline",
    "convert": "write a trace in another format, or mend a broken one",
    "watch": "show a running job in the terminal: speed, waits, each rank, what needs a look",
    "hang": "name the rank that a job waits for, and the operation it has not come to",
    "memory": "name who holds the memory, when it ran out or at the peak of a window",
    "demo": "show what you would get: a recorded run and its page, without Paddle",
    "doctor": "check what this machine can record, and what is missing",
    "trigger": "open a window in a running job that was started with Profiler.trigger",
    "finish": "make traces and tables of raw captures, as after a killed run",
    "mcp": "answer an assistant's questions about runs (Model Context Protocol, stdio)",
    "schema": "print the JSON Schema of what a command prints with --format json",
    "completion": "print a script that lets your shell complete what you type",
}
"""Modules of this package, in the order of the help, and what each command does."""

_FIRST_STEPS = """Examples:
  ppprof run train.py
      train, record 10 steps, and print where their time went
  ppprof advise profiler_log
      what costs time, how much, and what to change
  ppprof COMMAND --help
      the options of a command, and examples
"""

_PADDLES = ("paddlepaddle", "paddlepaddle-gpu", "paddlepaddle-xpu", "paddlepaddle-dcu")
"""Distributions that hold the package ``paddle``."""

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_WRITTEN = 2
_READING = {
    "summary",
    "ranks",
    "path",
    "predict",
    "merge",
    "diff",
    "advise",
    "report",
    "convert",
    "memory",
    "watch",
}
"""Commands that import numpy, and start no program of the user's."""
_INTERRUPTED = 130  # a shell's exit code for a program that Ctrl-C ended
_LATER_S = 0.01
_LONG_FILE_BYTES = 4 << 20
"""Bytes of a file that takes longer to read than to start a thread for it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0 done, 1 a check failed, 2 bad usage or config, 3 no usable input.

    130 when it was interrupted. A stdout that is closed, or a pipe whose reader has gone, is not a
    failure; a full disk behind it is one.
    """
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may hold what a locale cannot
    arguments = sys.argv[1:] if argv is None else argv
    with logging_to_stderr(arguments):
        try:
            with _late_interrupts():
                code = _run(arguments)
            print_now("")
        except PpprofError as error:
            log.error("%s", error)
            return error.exit_code
        except KeyboardInterrupt:
            return _INTERRUPTED
        except BrokenPipeError:
            discard_stdout()
            return 0
        except OSError as error:
            if error.filename is not None:  # a path that cannot be reached, such as a loop of links
                log.error("%s: %s", error.filename, error.strerror or error)
                return InputError.exit_code
            if error.errno not in _DISK_FULL:
                raise
            discard_stdout()
            log.error("stdout: cannot write the output: %s", error.strerror or error)
            return _NOT_WRITTEN
        return code


@contextlib.contextmanager
def _late_interrupts() -> Iterator[None]:
    """Raise a ``KeyboardInterrupt`` again if Python ignores it during the block.

    Python only prints an exception that is raised while an object is freed, and goes on.
    """
    print_it = sys.unraisablehook
    timers: list[threading.Timer] = []

    def interrupt_again(ignored: sys.UnraisableHookArgs) -> None:
        if not issubclass(ignored.exc_type, KeyboardInterrupt):
            print_it(ignored)
            return
        timer = threading.Timer(_LATER_S, _thread.interrupt_main)
        timer.daemon = True
        timers.append(timer)
        timer.start()

    sys.unraisablehook = interrupt_again
    try:
        yield
    finally:
        sys.unraisablehook = print_it
        for timer in timers:
            timer.cancel()


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


class _Version(argparse.Action):
    """Print the versions, looked up only now, and end the program."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(versions())
        parser.exit()


def versions() -> str:
    """Return a line each for ppprof, Python, the platform, and packages that results depend on.

    No package is imported for it: a Paddle that cannot be loaded still has a version.
    """
    import platform

    from ppprof.trace.fastpath import core

    lines = {
        "ppprof": installed_version("ppprof") or "not installed: run from a checkout",
        "core": core.describe(),
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "polars": installed_version("polars") or "not installed",
        "numpy": installed_version("numpy") or "not installed",
        "paddle": _paddle(),
        "visualdl": installed_version("visualdl") or "not installed",
    }
    return "\n".join(f"{name} {text}" for name, text in lines.items())


def _paddle() -> str:
    from importlib.util import find_spec

    installed = [f"{number} ({name})" for name in _PADDLES if (number := installed_version(name))]
    if installed:
        return ", ".join(installed)  # two at once overwrite each other, so show both
    try:
        is_importable = find_spec("paddle") is not None
    except (ImportError, ValueError):
        is_importable = False
    return "of unknown version, not installed by pip" if is_importable else "not installed"


class _Help(argparse.HelpFormatter):
    """Breaks the lines of prose, and leaves examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        prose, mark, lines = text.partition("Examples:\n")
        filled = super()._fill_text(prose, width, indent) if prose.strip() else ""
        return "\n\n".join(part for part in (filled, mark + lines) if part)


class _Parser(argparse.ArgumentParser):
    """A parser that names the option that the user may have meant."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the arguments, and as ``num_after_dashes`` how many words follow ``--``; None without it.

        argparse drops the dashes; all words after them are positional arguments.
        """
        words = sys.argv[1:] if args is None else list(args)
        parsed = super().parse_args(words, namespace)
        parsed.num_after_dashes = len(words) - words.index("--") - 1 if "--" in words else None
        return parsed

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and end the program with exit code 2."""
        _, is_unknown, words = message.partition("unrecognized arguments: ")
        word = words.partition(" ")[0].partition("=")[0]
        if is_unknown and word.startswith("--"):
            flags = [flag for parser in _parsers(self) for flag in parser._option_string_actions]
            message += _meant(word, flags)
        super().error(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End the program, after a message in the width of the terminal."""
        super().exit(status, fit_message(message) if message else None)


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of the commands; argparse has no public way to them."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def _meant(word: str, choices: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: what the user may have meant."""
    from difflib import get_close_matches  # only for errors

    matches = get_close_matches(word, choices, 1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _check_command(argv: Sequence[str]) -> None:
    """Raise UsageError if the first word that is no option is no command."""
    word = next((word for word in argv if not word.startswith("-")), None)
    if word is not None and word not in COMMANDS:
        meant = _meant(word, COMMANDS) or f"; expected one of {', '.join(COMMANDS)}"
        raise UsageError(f"{word}: unknown command{meant}")


def _run(argv: Sequence[str]) -> int:
    if not argv:
        command_parser(()).print_help()
        return 0
    _check_command(argv)
    args = command_parser(COMMANDS.keys() & set(argv)).parse_args(argv)
    command = import_module(f"ppprof.cli.{args.command}")
    runs = getattr(args, "paths", None) or [getattr(args, "run", None)]
    if runs == [DEFAULT_RUN] and not Path(DEFAULT_RUN).exists():
        raise InputError(
            f"{DEFAULT_RUN}: no such directory; expected a run: name its directory, or record one with "
            "ppprof run train.py"
        )
    command.check(args)
    with contextlib.ExitStack() as stack:
        if args.command in _READING:
            # numpy would start a thread for each processor; they wait in a loop, a tenth of a command.
            stack.enter_context(one_thread("OPENBLAS_NUM_THREADS"))
            stack.enter_context(_begun_reading(args))
        if args.command not in ("completion", "mcp", "schema"):  # for programs
            args.layout = layout_of(args)
            if sys.stdout.isatty() or not is_data(args):
                terminal = cast(TextIO, Terminal(sys.stdout, args.layout))
                stack.enter_context(contextlib.redirect_stdout(terminal))
        code: int = command.run(args)
    return code


def _begun_reading(args: argparse.Namespace) -> AbstractContextManager[None]:
    """Begin to read the file that the command line names, if it is long, during the imports."""
    paths = getattr(args, "paths", None) or [getattr(args, "source", "")]
    path = Path(str(paths[0]))
    try:
        is_long = path.is_file() and path.stat().st_size >= _LONG_FILE_BYTES
    except OSError:  # the command finds the same error
        is_long = False
    if not is_long or len(paths) > 1:
        return contextlib.nullcontext()
    from ppprof.trace.fastpath.ahead import scanned_ahead
    from ppprof.trace.json_head import new_scans

    return scanned_ahead(path, new_scans)


@contextlib.contextmanager
def one_thread(*variables: str) -> Iterator[None]:
    """Set these environment variables to 1 for the block, unless they are set."""
    missing = [name for name in variables if name not in os.environ]
    os.environ.update(dict.fromkeys(missing, "1"))
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]


def command_parser(commands: Collection[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """Return the parser of all commands, with the arguments of some of them.

    A command line can only call a command that it names: the arguments of the others would take
    longer to define than the line to parse.

    Args:
        commands: the commands whose arguments are defined, of `COMMANDS`.
    """
    parser = _Parser(
        prog="ppprof",
        description="Find what is slow in a Paddle training job, from its run directory.",
        epilog=_FIRST_STEPS,
        formatter_class=_Help,
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="print the versions that matter in a bug report"
    )
    subparsers = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True
    )
    for command, about in COMMANDS.items():
        added = subparsers.add_parser(command, help=about)
        if command in commands:
            module = import_module(f"ppprof.cli.{command}")
            module.prepare_parser(added)
            added.formatter_class = _Help
            examples = [f"  {line}\n      {seen}\n" for line, seen in module.EXAMPLES.items()]
            added.epilog = "".join([added.epilog or "", "Examples:\n", *examples])
    return parser
