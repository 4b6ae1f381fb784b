"""Options that commands share: the same name, meaning and check in each of them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ppprof.cli.terminal import Progress, is_data, log
from ppprof.errors import UsageError
from ppprof.paths import is_remote, store_errors_as_oserror, to_path, write_atomically
from ppprof.topology import RankSelector, parse_selector
from ppprof.units import escape_control_chars

if TYPE_CHECKING:
    from ppprof.choices.steps import StepRange
    from ppprof.run.run import Run
    from ppprof.rundir.recordings import RunLocation

T = TypeVar("T")
U = TypeVar("U")

FORMATS = ("table", "json", "csv", "md")
"""Values of ``--format``."""

_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_DURATION = re.compile(r"(?P<number>\d{1,9}(\.\d{1,9})?)\s*(?P<unit>ns|us|ms|s)")


def add_selection(parser: argparse.ArgumentParser, rank_default: str = "all") -> None:
    """Add ``--rank``, ``--window`` and ``--steps``, which select the windows and steps to read.

    Args:
        parser: the command's parser.
        rank_default: the default of ``--rank`` for the help text alone; the command applies it.
    """
    add = parser.add_argument
    add(
        "--rank",
        metavar="R",
        help=f"3, 0,8-15, all, or coordinates such as pp=0,mp=1; default: {rank_default}",
    )
    add("--window", metavar="W", help="only this window, counted from 0")
    add("--steps", metavar="A:B", help="only steps A to B-1; also A:, :B or one number")


def add_reading(parser: argparse.ArgumentParser, *, workers: bool = True) -> None:
    """Add ``--workers``, if ``workers`` is True, and ``--no-cache``."""
    add = parser.add_argument
    if workers:
        add("--workers", metavar="N", help="read traces in N processes; default: in this one")
    add("--no-cache", action="store_true", help="neither use nor keep parsed events")


def add_rows(parser: argparse.ArgumentParser, rows: str, default: str) -> None:
    """Add ``--row-limit``; `Checks.row_limit` returns its value.

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
    if text.isdecimal() and int(text) >= least:
        return int(text)
    or_word = f", or {word}" if word else ""
    raise UsageError(f"{text!r}: expected a whole number from {least}{or_word}")


def nanoseconds(text: str) -> int:
    """Return a duration with its unit in nanoseconds.

    >>> nanoseconds("20us"), nanoseconds("0.5 ms")
    (20000, 500000)

    Raises:
        UsageError: ``text`` is not a duration, or has no unit.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r}: expected a duration with its unit: 50us, 0.5ms, 1s")
    return int(Decimal(match["number"]) * _UNITS_NS[match["unit"]])


class Checks:
    """Checks the options of a command and collects every problem in ``problems``.

    A method that returns an option's value returns the default if the value is invalid, and adds
    the problem. `done` raises all problems.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self.problems: list[str] = []

    def parsed(self, name: str, parse: Callable[[str], T], default: U) -> T | U:
        """Return the parsed value of an option; ``default`` if it is missing or invalid.

        Args:
            name: the option as an attribute of the arguments, such as ``row_limit``.
            parse: returns the value of a text; raises UsageError if the text is invalid.
            default: the value of a missing or invalid option.
        """
        return self.parsed_text(_flag(name), getattr(self._args, name), parse, default)

    def parsed_text(
        self, flag: str, text: str | None, parse: Callable[[str], T], default: U
    ) -> T | U:
        """Return the parsed value of an option's text; ``default`` for None and for invalid text.

        Args:
            flag: the option's name for the message, such as ``--row-limit``.
            text: the text; None if the option is missing.
            parse: as for `parsed`.
            default: the value of a missing or invalid option.
        """
        try:
            return default if text is None else parse(text)
        except UsageError as error:
            self.problems.append(f"{flag}: {error}")
            return default

    def ranks(self, default: T) -> RankSelector | T:
        """Return the rank selector of ``--rank``; ``default`` if it is missing or invalid."""
        return self.parsed("rank", parse_selector, default)

    def window(self) -> int | None:
        """Return the number of ``--window``; None for all windows."""
        return self.parsed("window", whole_number, None)

    def steps(self) -> StepRange | None:
        """Return the range of ``--steps``; None for all steps."""
        from ppprof.choices.steps import StepRange  # polars takes 0.3 s to import

        return self.parsed("steps", StepRange.parse, None)

    def workers(self) -> int:
        """Return the number of processes of ``--workers``; 1 if it is missing."""
        return self.parsed("workers", partial(whole_number, least=1), 1)

    def row_limit(self, default: int | None, least: int = 1) -> int | None:
        """Return the number of ``--row-limit``; None, for no limit, if the user gives ``none``.

        Args:
            default: the value of a missing or invalid option.
            least: the least valid number.
        """

        def parse(text: str) -> int | None:
            return None if text == "none" else whole_number(text, least, "none")

        return self.parsed("row_limit", parse, default)

    def no_effect(self, names: Iterable[str], reason: str) -> None:
        """Add a problem for each option in ``names`` that the user gave although it has no effect.

        Args:
            names: the options as attributes of the arguments, such as ``row_limit``.
            reason: the end of the message, after "has no effect".
        """
        for name in names:
            if getattr(self._args, name) is not None:
                self.problems.append(f"{_flag(name)}: has no effect {reason}")

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

    def done(self) -> None:
        """Raise UsageError if there are problems; its message has one line for each problem."""
        if self.problems:
            raise UsageError("\n".join(self.problems))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def open_run(args: argparse.Namespace, *paths: str) -> Run:
    """Open the one run at the given paths; log its directory if that is not one of the paths.

    A log directory may hold several runs: its newest run is opened.

    Args:
        args: the command's arguments; reads ``no_cache``.
        paths: as for `ppprof.rundir.recordings.resolve`: a run directory, the run directories of
            several nodes of one job, a directory of traces, or a trace file.

    Raises:
        InputError: the paths have no run and no trace, are unreadable, or belong to several runs.
    """
    from ppprof.rundir.recordings import resolve

    return open_located(args, resolve(*paths))


def open_located(args: argparse.Namespace, location: RunLocation) -> Run:
    """Open a run whose files are known; log its directory if that is not one of the given paths."""
    from ppprof.run.run import open_location

    run = open_location(location, cache=not args.no_cache, progress=Progress.on_terminal())
    if run.paths != tuple(map(to_path, location.given)):
        log.info("%s: the newest run is %s", ", ".join(location.given), run)
    return run


def is_same(output: Path, source: Path) -> bool:
    """Return whether two paths are one file; False for a local ``source`` that does not exist."""
    if is_remote(output) or is_remote(source):
        return output == source
    return source.exists() and output.samefile(source)


def problem_of_output(output: Path, sources: Iterable[str | Path], force: bool) -> str | None:
    """Return why a command that reads ``sources`` cannot write ``output``; None if it can.

    It cannot write to a directory, into a missing directory, to one of ``sources``, or, unless
    ``force`` is True, to a file that exists.
    """
    try:
        with store_errors_as_oserror(output):
            return _problem_of(output, sources, force)
    except OSError as error:
        return error.strerror or str(error)


def _problem_of(output: Path, sources: Iterable[str | Path], force: bool) -> str | None:
    if output.is_dir():
        return "a directory; expected a file"
    if not is_remote(output) and not output.parent.is_dir():  # a store creates them itself
        return f"{output.parent} is not a directory"
    if output.exists() and any(is_same(output, to_path(source)) for source in sources):
        return "this command reads it; write to another file"
    if output.exists() and not force:
        return "exists; --force replaces it"
    return None


def show(args: argparse.Namespace, chunks: Iterable[str]) -> bool:
    """Print text chunk by chunk, or write it to ``-o``'s file; return whether there was any text.

    Raises:
        UsageError: the file cannot be written.
    """
    if args.output is None:
        is_any = False
        for chunk in chunks:
            print(chunk, end="", flush=True)  # at once: the next trace may be a long one
            is_any = True
        return is_any
    text = "".join(chunks)
    if text:
        write_output(args, text)
    return bool(text)


def write_output(args: argparse.Namespace, text: str) -> None:
    """Write ``-o``'s file, whole or not at all.

    Control characters are escaped if the command has ``--format`` and writes neither CSV nor JSON.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        is_text = hasattr(args, "format") and not is_data(args)
        write_atomically(args.output, (escape_control_chars(text) if is_text else text).encode())
    except OSError as error:
        raise UsageError(f"-o {args.output}: {error.strerror or error}") from error
