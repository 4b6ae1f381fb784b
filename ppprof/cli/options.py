"""Options that commands share: the same name, meaning and check in each of them."""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ppprof.choices import ReadOptions, StepRange, check_pattern, check_time_unit
from ppprof.cli.output import problem_of_output
from ppprof.cli.terminal import LEAST_WIDTH
from ppprof.errors import UsageError
from ppprof.paths import to_path
from ppprof.topology import parse_selector

log = logging.getLogger("ppprof")
T = TypeVar("T")

FORMATS = ("table", "json", "csv", "md")
"""Values of ``--format``."""

_MOST_DIGITS = 18
_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_DURATION = r"(?P<number>\d{1,9}(\.\d{1,9})?)\s*(?P<unit>ns|us|ms|s)"


def add_selection(
    parser: argparse.ArgumentParser, rank_default: str = "all", *, names: bool = True
) -> None:
    """Add ``--rank``, ``--window`` and ``--steps``, which select the windows and steps to read.

    Args:
        parser: the command's parser.
        rank_default: the default of ``--rank`` for the help text alone; the command applies it.
        names: whether to add ``--names``; False for a command with names of its own in that file.
    """
    add = parser.add_argument
    add(
        "--rank",
        metavar="R",
        help=f"3, 0,8-15, all, or coordinates such as pp=0,mp=1; default: {rank_default}",
    )
    add("--window", metavar="W", help="only this window, counted from 0")
    add("--steps", metavar="A:B", help="only steps A to B-1; also A:, :B or one number")
    add(
        "--step-mark",
        metavar="REGEX",
        help="the spans that begin steps, by their names; default: ProfilerStep#N, else marks of the loader or optimizer",
    )
    if names:
        add(
            "--names",
            metavar="FILE",
            help="YAML, communication: {library: [patterns of names of kernels that communicate]}",
        )


def add_reading(parser: argparse.ArgumentParser, *, workers: bool = True) -> None:
    """Add ``--workers``, if ``workers`` is True, and ``--no-cache``, which only logs a warning."""
    if workers:
        add_workers(parser)
    parser.add_argument("--no-cache", action=_NoCache, nargs=0, help=argparse.SUPPRESS)


class _NoCache(argparse.Action):
    def __call__(self, *_: object) -> None:
        log.warning(
            "--no-cache: has no effect: ppprof keeps no caches any more; 0.4 will reject the option"
        )


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add ``--workers``."""
    parser.add_argument(
        "--workers",
        metavar="N",
        help="read traces in N processes; default: one per processor for 16 windows each",
    )


def add_rows(parser: argparse.ArgumentParser, rows: str, default: str) -> None:
    """Add ``--row-limit``.

    Args:
        parser: the command's parser.
        rows: the rows of the tables, for the help text: a plural noun such as "groups".
        default: the default for the help text alone; the command applies it.
    """
    parser.add_argument(
        "--row-limit", metavar="N", help=f"{rows} of a table, or none; default: {default}"
    )


def add_format(parser: argparse.ArgumentParser, explanation: str) -> None:
    """Add ``--format``, one of `FORMATS`; ``explanation`` is its help text."""
    parser.add_argument("--format", choices=FORMATS, default="table", help=explanation)


def add_layout(parser: argparse.ArgumentParser, *, tables: bool = True) -> None:
    """Add ``--width``, ``--no-color`` and, if ``tables`` is True, ``--style``."""
    add = parser.add_argument
    add("--width", metavar="N", help="columns of the output; default: those of the terminal")
    if tables:
        explanation = "paddle: tables as wide as Paddle prints them, as in pipes and files"
        add("--style", choices=("paddle",), help=explanation)
    add(
        "--no-color",
        action="store_true",
        help="no colours, as with NO_COLOR=1; FORCE_COLOR=1 sets them",
    )


DEFAULT_RUN = "profiler_log"
"""The run that a command reads if none is named: where ``Profiler.profiler_log`` is by default."""


def add_paths(
    parser: argparse.ArgumentParser,
    explanation: str = "run directory, or those of a run's nodes; or a directory of traces, or a trace file",
    metavar: str = "RUN",
) -> None:
    """Add the paths of a run; ``explanation`` is the help text, to which the default is added."""
    text = f"{explanation}; default: {DEFAULT_RUN}"
    parser.add_argument("paths", metavar=metavar, nargs="*", default=[DEFAULT_RUN], help=text)


def add_run(parser: argparse.ArgumentParser, explanation: str = "run directory") -> None:
    """Add the path of one run directory; ``explanation`` as for `add_paths`."""
    text = f"{explanation}; default: {DEFAULT_RUN}"
    parser.add_argument("run", metavar="RUN", nargs="?", default=DEFAULT_RUN, help=text)


def add_output(
    parser: argparse.ArgumentParser, explanation: str = "write to FILE instead of stdout"
) -> None:
    """Add ``-o FILE`` and ``--force``; ``explanation`` is the help text of ``-o``."""
    add = parser.add_argument
    add("-o", "--output", type=to_path, metavar="FILE", help=explanation)
    add("--force", action="store_true", help="replace FILE where it exists")


def add_renamed(parser: argparse.ArgumentParser, old: str, new: str) -> None:
    """Keep the old name of an option for one version: it works and logs a warning."""

    class Renamed(argparse.Action):
        def __call__(
            self,
            parser: argparse.ArgumentParser,
            namespace: argparse.Namespace,
            values: Any,
            option_string: str | None = None,
        ) -> None:
            log.warning("%s is now called %s; the next version will reject %s", old, new, old)
            setattr(namespace, self.dest, values)

    dest = new.lstrip("-").replace("-", "_")
    parser.add_argument(old, dest=dest, action=Renamed, help=argparse.SUPPRESS)


def whole_number(text: str, least: int = 0, word: str | None = None) -> int:
    """Return the value of an option as a whole number.

    Args:
        text: the value.
        least: the least valid number.
        word: a word that the option accepts too, for the message alone; the caller handles it.

    Raises:
        UsageError: ``text`` is not a whole number, or is below ``least``.
    """
    if text.isdecimal() and len(text) <= _MOST_DIGITS and int(text) >= least:
        return int(text)
    or_word = f", or {word}" if word else ""
    raise UsageError(f"{text!r}: expected a whole number from {least}{or_word}")


def names_in(
    text: str,
    known: Sequence[str],
    also: Callable[[str], bool] = lambda _: False,
    word: str | None = None,
) -> tuple[str, ...]:
    """Return the names in an option's value, which are separated by commas, each once.

    Args:
        text: the value.
        known: the valid names, for the message too.
        also: returns whether another name is valid.
        word: a word that the option accepts instead, for the message alone; the caller handles it.

    Raises:
        UsageError: some names are invalid.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := [name for name in names if name not in known and not also(name)]:
        expected = f"{f'{word}, or ' if word else ''}some of {', '.join(known)}"
        raise UsageError(f"{', '.join(map(repr, unknown))}: expected {expected}")
    return names


def nanoseconds(text: str) -> int:
    """Return a duration with its unit in nanoseconds.

    >>> nanoseconds("20us"), nanoseconds("0.5 ms")
    (20000, 500000)

    Raises:
        UsageError: ``text`` is not a duration, or has no unit.
    """
    match = re.fullmatch(_DURATION, text.strip())
    if match is None:
        raise UsageError(f"{text!r}: expected a duration with its unit: 50us, 0.5ms, 1s")
    from decimal import Decimal  # only for durations: it takes longer to import than this module

    return int(Decimal(match["number"]) * _UNITS_NS[match["unit"]])


class Checks:
    """Replaces the texts of a command's options in ``args`` by their values, and collects every problem.

    An invalid option gets its default, and adds a line to ``problems``. `done` raises all problems.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._given = dict(vars(args))
        self.problems: list[str] = []

    def parse(self, name: str, parse: Callable[[str], Any], default: Any = None) -> None:
        """Replace the text of an option by its value.

        Args:
            name: the option as an attribute of the arguments, such as ``row_limit``.
            parse: returns the value of a text; raises UsageError if the text is invalid.
            default: the value of a missing or invalid option.
        """
        setattr(self._args, name, self.parsed(_flag(name), self._given[name], parse, default))

    def parsed(self, flag: str, text: str | None, parse: Callable[[str], T], default: T) -> T:
        """Return the value of an option's text; ``default`` for None and for invalid text."""
        try:
            return default if text is None else parse(text)
        except UsageError as error:
            self.problems.append(f"{flag}: {error}")
            return default

    def selection(self, rank_default: str | None = "all") -> None:
        """Parse ``--rank`` (a RankSelector), ``--window`` and ``--steps`` (None for all of them).

        ``reading`` becomes the `ReadOptions` of ``--step-mark`` and ``--names``.
        """
        self.parse("rank", parse_selector, rank_default)
        self.parse("window", whole_number)
        self.parse("steps", StepRange.parse)
        self.parse("step_mark", check_pattern)
        added: tuple[str, ...] = ()
        if self._args.names is not None:
            from ppprof.trace.communication_names import communication_patterns  # imports polars

            added = communication_patterns(self._args.names)
        self._args.reading = ReadOptions(self._args.step_mark, added)

    def workers(self) -> None:
        """Parse ``--workers``: the number of processes; None if it is missing."""
        self.parse("workers", partial(whole_number, least=1))

    def row_limit(self, default: int | None, least: int = 1) -> None:
        """Parse ``--row-limit``: None, for no limit, if the user gives ``none``."""

        def parse(text: str) -> int | None:
            return None if text == "none" else whole_number(text, least, "none")

        self.parse("row_limit", parse, default)

    def table_options(self, row_limit: int) -> None:
        """Parse ``--time-unit`` and ``--row-limit``, and check that they have an effect.

        ``row_limit`` is the default of ``--row-limit``.
        """
        self.parse("time_unit", check_time_unit, "ms")
        self.row_limit(row_limit)
        if self._args.format != "table":
            self.no_effect(
                ["time_unit", "row_limit"],
                f"on {self._args.format}, which holds every row, in nanoseconds",
            )

    def no_effect(self, names: Iterable[str], reason: str) -> None:
        """Add a problem for each option in ``names`` that the user gave although it has no effect.

        Args:
            names: the options as attributes of the arguments, such as ``row_limit``.
            reason: the end of the message, after "has no effect".
        """
        for name in names:
            if self._given[name] is not None:
                self.problems.append(f"{_flag(name)}: has no effect {reason}")

    def layout(self) -> None:
        """Parse ``--width``, and check that it and ``--style`` have an effect."""
        args = self._args
        self.parse("width", partial(whole_number, least=LEAST_WIDTH))
        style = getattr(args, "style", None)
        if args.format not in ("table", "text"):
            names = [name for name in ("width", "style") if hasattr(args, name)]
            self.no_effect(names, f"on {args.format}")
        elif style == "paddle":
            self.no_effect(["width"], "with --style paddle")

    def output(self, sources: Sequence[str | Path]) -> None:
        """Add a problem if a command that reads ``sources`` cannot write the file of ``-o``.

        Add a problem also for ``--force`` without ``-o``.
        """
        args = self._args
        if args.output is None:
            if args.force:
                self.problems.append("--force: has no effect without -o FILE")
        elif problem := problem_of_output(args.output, sources, args.force):
            self.problems.append(f"-o {args.output}: {problem}")

    def new_folder(self, flag: str, text: str) -> Path:
        """Return the path of a directory that the command makes; add a problem if it exists and is not empty."""
        folder = to_path(text)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            self.problems.append(f"{flag} {folder}: it exists; name a new directory, or remove it")
        return folder

    def done(self) -> None:
        """Raise UsageError if there are problems; its message has one line for each problem."""
        if self.problems:
            raise UsageError("\n".join(self.problems))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
