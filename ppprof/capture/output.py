"""How a capture writes: results to stdout, log messages to stderr."""

from __future__ import annotations

import io
import logging
import os
import sys
from contextlib import suppress
from typing import TextIO

from ppprof.units import escape_control_chars


class StderrHandler(logging.Handler):
    """Writes one line per record to stderr: ``ppprof: <message>``.

    It has no lock. A SIGTERM is handled in a thread of its own while the training may hang in a
    write of another thread; waiting for that thread's lock would cost the window. One line is one
    ``write``, which needs no lock.

    A failed write is ignored: a full disk may hold the log as well.
    """

    def createLock(self) -> None:  # noqa: N802 (the name that logging calls)
        """Create no lock."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Write a record unless a filter rejects it; the base class would take the lock."""
        is_accepted = bool(self.filter(record))
        if is_accepted:
            self.emit(record)
        return is_accepted

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        forward_stderr(f"ppprof: {escape_control_chars(record.getMessage())}\n")


def log_to_stderr() -> None:
    """Install a `StderrHandler` on the logger "ppprof", unless the logger has a handler already.

    The logger then no longer passes records to the root logger: most training scripts configure
    that one to write to stderr too, and every line would come out twice.
    """
    logger = logging.getLogger("ppprof")
    handlers = [item for item in logger.handlers if not isinstance(item, logging.NullHandler)]
    if not handlers:
        handlers = [StderrHandler()]
        logger.addHandler(handlers[0])
        logger.propagate = False
        logger.setLevel(logging.INFO)
    if isinstance(handlers[0], StderrHandler):
        # By default, `logging.config.dictConfig` disables every logger that it does not name.
        logger.disabled = False
        # The first call of each level takes logging's global lock; later ones read a cache.
        for level in (logging.INFO, logging.WARNING):
            logger.isEnabledFor(level)


def forward_stderr(text: str) -> None:
    """Write what a child process wrote to its stderr, unchanged, to this process's stderr."""
    with suppress(OSError, ValueError):  # a full disk may hold the log as well
        _write(text, sys.stderr)


def print_result(text: str) -> None:
    """Write text to stdout.

    Raises:
        OSError: the reader of a pipe is gone, or the disk is full.
    """
    _write(text, sys.stdout)


def reason(error: BaseException) -> str:
    """Return why something failed, in one line; the error's type if it has no text.

    >>> reason(OSError(28, "No space left on device", "/data/log"))
    'No space left on device'
    >>> reason(MemoryError())
    'MemoryError'
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" -\t")]
    return lines[0][:300] if lines else type(error).__name__


def _write(text: str, stream: TextIO | None) -> None:
    if stream is None:  # a daemon's
        return
    stream.flush()
    # A test or a notebook may replace the stream; a notebook's stream has a file but shows its
    # text elsewhere.
    fd = _file_descriptor(stream) if isinstance(stream, io.TextIOWrapper) else None
    if fd is None:
        stream.write(text)
        stream.flush()
        return
    # Not through the stream: text that cannot be written stays in its buffer, Python tries again
    # as the program ends, and the exit code becomes 120.
    data = text.encode(stream.encoding or "utf-8", "backslashreplace")
    while data:
        data = data[os.write(fd, data) :]


def _file_descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None
