"""Messages beside a command's output: on stderr, so that stdout can be piped."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from ppprof.units import escape_cell, escape_control_chars

log = logging.getLogger("ppprof")
"""Logger of the library and of the commands."""


class _StderrHandler(logging.Handler):
    """Writes a message to the current ``sys.stderr``, with terminal control characters escaped."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one message; a stderr that is closed or full does not end the command."""
        if sys.stderr is None:
            return
        with contextlib.suppress(OSError, ValueError):
            print(escape_control_chars(record.getMessage()), file=sys.stderr, flush=True)


@contextlib.contextmanager
def logging_to_stderr() -> Iterator[None]:
    """Send the library's messages to stderr, and nowhere else, while a command runs."""
    handlers, level, propagates = log.handlers, log.level, log.propagate
    log.handlers, log.propagate = [_StderrHandler(logging.INFO)], False
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.handlers, log.propagate = handlers, propagates
        log.setLevel(level)


class Progress:
    """A progress bar for each file that takes longer than half a second to read."""

    def __init__(self) -> None:
        self._bar: Any = None

    @classmethod
    def on_terminal(cls) -> Progress | None:
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


class Terminal:
    """A text stream that escapes terminal control characters."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text; return its length."""
        self._stream.write(escape_control_chars(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the stream."""
        return getattr(self._stream, name)


def is_data(args: argparse.Namespace) -> bool:
    """Return whether ``--format`` is csv or json: the output is for programs.

    The caller escapes control characters in such output only if stdout is a terminal.
    """
    return getattr(args, "format", "") in ("csv", "json")
