"""What a command writes to a terminal: its output on stdout, and messages beside it on stderr."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ppprof.units import escape_cell, escape_control_chars

if TYPE_CHECKING:
    from ppprof.report.text.layout import Layout


log = logging.getLogger("ppprof")
"""Logger of the library and of the commands."""

LEAST_WIDTH = 40
"""The least columns of a terminal that tables are fitted to."""


class _StderrHandler(logging.Handler):
    """Writes a message to the current ``sys.stderr``, with terminal control characters escaped.

    Args:
        arguments: of the command line, in which line breaks are escaped, too: a path is one line.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__(logging.INFO)
        values = (part for text in arguments for part in (text, text.partition("=")[2]))
        paths = {os.path.normpath(value) for value in values if set("\n\t") & set(value)}
        self._escaped = {path: escape_cell(path) for path in sorted(paths, key=len, reverse=True)}

    def emit(self, record: logging.LogRecord) -> None:
        """Write one message; a stderr that is closed or full does not end the command."""
        if sys.stderr is None:
            return
        text = record.getMessage()
        for path, escaped in self._escaped.items():
            text = text.replace(path, escaped)
        with contextlib.suppress(OSError, ValueError):
            print(fit_message(text), file=sys.stderr, flush=True)


def fit_message(text: str) -> str:
    """Return a message for stderr: control characters escaped, and in the width of a terminal."""
    columns = columns_of(sys.stderr)
    if columns is None or max(map(len, text.split("\n"))) * 2 <= columns:
        return escape_control_chars(text)
    from ppprof.report.text.layout import Layout  # only for long messages

    return Layout(columns).fit(text)


def columns_of(stream: TextIO) -> int | None:
    """Return the width of the terminal that a stream writes to; None if it is no terminal.

    A terminal that does not know its size, as in some containers, counts as one of 80 columns.
    """
    if not stream.isatty():
        return None
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        columns = 0
    return max(columns or 80, LEAST_WIDTH)


@contextlib.contextmanager
def logging_to_stderr(arguments: Sequence[str] = ()) -> Iterator[None]:
    """Send the library's messages to stderr, and nowhere else, while a command with these arguments runs."""
    handlers, level, propagates = log.handlers, log.level, log.propagate
    log.handlers, log.propagate = [_StderrHandler(arguments)], False
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.handlers, log.propagate = handlers, propagates
        log.setLevel(level)


class ProgressBar:
    """A progress bar for each file that takes longer than half a second to read."""

    def __init__(self) -> None:
        self._bar: Any = None

    @classmethod
    def on_terminal(cls) -> ProgressBar | None:
        """Return a progress bar if stderr is a terminal, else None."""
        return cls() if sys.stderr.isatty() else None

    def __call__(self, path: Path, done: int, total: int) -> None:
        """Show on stderr how much of a file was read; remove the bar when all of it was read.

        Args:
            path: the file.
            done: bytes read so far.
            total: bytes of the file.
        """
        if self._bar is None and done < total:
            from tqdm import tqdm

            self._bar = tqdm(
                desc=escape_cell(path.name),
                total=total,
                unit="B",
                unit_scale=True,
                leave=False,
                delay=0.5,
            )
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
            if done >= total:
                self._bar.close()
                self._bar = None


def layout_of(args: argparse.Namespace) -> Layout:
    """Return how a command draws its output: Paddle's layout in pipes and files, and as data.

    On a terminal, tables and lines have its width, and colours unless NO_COLOR (https://no-color.org)
    is set or TERM is dumb. FORCE_COLOR sets colours in pipes, too. ``--width``, ``--style paddle`` and
    ``--no-color`` come first.
    """
    from ppprof.report.text.layout import PADDLE, Layout

    is_text = getattr(args, "format", "table") in ("table", "text")
    if not is_text or getattr(args, "style", None) == "paddle":
        return PADDLE
    is_to_stdout = getattr(args, "output", None) is None
    given = getattr(args, "width", None)
    columns = int(given) if given else columns_of(sys.stdout) if is_to_stdout else None
    has_colour = is_to_stdout and not getattr(args, "no_color", False) and _wants_colour()
    return Layout(columns, has_colour)


def _wants_colour() -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    is_forced = os.environ.get("FORCE_COLOR", "") not in ("", "0")
    return is_forced or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")


class Terminal:
    """A text stream that escapes control characters, and breaks lines that are too wide."""

    def __init__(self, stream: TextIO, layout: Layout) -> None:
        self._stream = stream
        self._layout = layout

    def write(self, text: str) -> int:
        """Write text, which begins with a new line; return its length."""
        self._stream.write(self._layout.fit(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the stream."""
        return getattr(self._stream, name)


def print_now(text: str) -> bool:
    """Print text, and flush it; return False if stdout is a pipe whose reader has gone.

    What is printed later is discarded then, so that the command ends with its own exit code.
    """
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        discard_stdout()
        return False
    return True


def discard_stdout() -> None:
    """Let what is still buffered for stdout, which Python flushes when it ends, go nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def is_data(args: argparse.Namespace) -> bool:
    """Return whether ``--format`` is csv or json: the output is for programs.

    The caller escapes control characters in such output only if stdout is a terminal.
    """
    return getattr(args, "format", "") in ("csv", "json")
