"""Options that commands have in common, and what they all do with them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

from ppprof.cli.terminal import Progress, is_data, problem_of_output, tell
from ppprof.errors import UsageError
from ppprof.paths import to_path, write_atomically
from ppprof.run.run import Run
from ppprof.run.run import open as open_run
from ppprof.units import escape_control_chars

T = TypeVar("T")
U = TypeVar("U")


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """Adds ``--rank``, which takes several."""
    parser.add_argument(
        "--rank", metavar="R", help="only these: 3, 0,8-15, or coordinates such as pp=0,mp=1"
    )


def add_part(parser: argparse.ArgumentParser) -> None:
    """Adds ``--window`` and ``--steps``."""
    parser.add_argument("--window", metavar="W", help="only this window, counted from 0")
    parser.add_argument(
        "--steps", metavar="A:B", help="only steps A to B-1; A:, :B or one number as well"
    )


def whole_number(text: str, least: int = 0, word: str | None = None) -> int:
    """A whole number that an option was given; ``word`` is what it takes beside them.

    Raises:
        UsageError: it is none, or below ``least``.
    """
    if text.isdecimal() and int(text) >= least:
        return int(text)
    or_word = f", or {word}" if word else ""
    raise UsageError(f"{text!r}: expected a whole number from {least}{or_word}")


class Checks:
    """What is wrong with a command line, all of it at once."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def of(self, flag: str, text: str | None, make: Callable[[str], T], default: U) -> T | U:
        """What ``make`` makes of an option; the default where it was not given, or is wrong."""
        try:
            return default if text is None else make(text)
        except UsageError as error:
            self.problems.append(f"{flag}: {error}")
            return default

    def done(self) -> None:
        """Raises UsageError: with all that is wrong, one a line; if anything is."""
        if self.problems:
            raise UsageError("\n".join(self.problems))


def add_output(parser: argparse.ArgumentParser) -> None:
    """Adds ``-o`` and ``--force``."""
    parser.add_argument(
        "-o", "--output", type=to_path, metavar="FILE", help="write there and not to stdout"
    )
    parser.add_argument("--force", action="store_true", help="replace FILE where it exists")


def add_cache(parser: argparse.ArgumentParser) -> None:
    """Adds ``--no-cache``."""
    parser.add_argument(
        "--no-cache", action="store_true", help="neither use nor keep parsed events"
    )


def problems_of_output(args: argparse.Namespace, sources: list[str]) -> list[str]:
    """What is wrong with `add_output`'s options of a command that reads ``sources``."""
    if args.output is None:
        return ["--force: has no effect without -o FILE"] if args.force else []
    problem = problem_of_output(args.output, sources, args.force)
    return [f"-o {args.output}: {problem}"] if problem else []


def write_output(args: argparse.Namespace, text: str) -> None:
    """Writes ``-o``'s file, whole or not at all; tables without what a terminal would obey.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        is_text = hasattr(args, "format") and not is_data(args)
        write_atomically(args.output, (escape_control_chars(text) if is_text else text).encode())
    except OSError as error:
        raise UsageError(f"-o {args.output}: {error.strerror or error}") from error


def opened(*paths: str, cache: bool) -> Run:
    """The run of these paths; tells where it was found, if not there."""
    run = open_run(*paths, cache=cache, progress=Progress.on_terminal(), tell=tell)
    if run.paths != tuple(map(to_path, paths)):
        tell(f"{', '.join(paths)}: the newest run is {run}")
    return run
