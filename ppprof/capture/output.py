"""The output of a capture: results go to stdout, log messages to stderr."""

from __future__ import annotations

import io
import logging
import os
import sys
from contextlib import suppress
from typing import TextIO

from ppprof.units import escape_control_chars, without_cpp_stack


class StderrHandler(logging.Handler):
    """Writes one line per record to stderr: ``ppprof: <message>``.

    The handler has no lock. A separate thread handles SIGTERM and logs, while another thread may
    hang in a write: if the SIGTERM's thread waited for that thread's lock, the window would be
    lost. Each line is a single ``write``, which needs no lock.

    A failed write is ignored, since stderr may be a file on a full disk.
    """

    def createLock(self) -> None:  # noqa: N802 (the name that logging calls)
        """Set ``lock`` to None; the base class would create a lock."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Write a record unless a filter rejects it; return whether it was accepted.

        The base class would take the lock.
        """
        is_accepted = bool(self.filter(record))
        if is_accepted:
            self.emit(record)
        return is_accepted

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as one line, with control characters escaped; ignore a failed write."""
        forward_stderr(f"ppprof: {escape_control_chars(record.getMessage())}\n")


def log_to_stderr() -> None:
    """Install a `StderrHandler` on the logger "ppprof", unless the logger has a handler already.

    With a `StderrHandler`, the logger has the level INFO and passes no records to the root logger.
    Most training scripts make the root logger write to stderr too, and every line would come out
    twice. A logger that has another handler is left as it is.
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
        # The first call for a level takes logging's global lock; later calls read a cache.
        for level in (logging.INFO, logging.WARNING):
            logger.isEnabledFor(level)


def forward_stderr(text: str) -> None:
    """Write text to stderr, unchanged: a log line, or the stderr of a child process.

    A failed write is ignored.
    """
    with suppress(OSError, ValueError):  # stderr may be a file on a full disk
        _write(text, sys.stderr)


def print_result(text: str) -> None:
    """Write text to stdout.

    Raises:
        OSError: the reader of a pipe is gone, or the disk is full.
        ValueError: stdout is closed.
    """
    _write(text, sys.stdout)


def reason(error: BaseException) -> str:
    """Return the cause of an error in one line.

    That is the system's message of an OSError, else the first line of the error's text, cut to 300
    characters. For an error without text it is the name of the error's type.

    >>> reason(OSError(28, "No space left on device", "/data/log"))
    'No space left on device'
    >>> reason(MemoryError())
    'MemoryError'
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = without_cpp_stack(text_of(error))
    lines = [line.strip() for line in text.splitlines() if line.strip(" -\t")]
    return lines[0][:300] if lines else type(error).__name__


def text_of(value: object) -> str:
    """Return ``str(value)``; "" if that fails, as it may for an object of the training."""
    try:
        return str(value)
    except Exception:
        return ""


def _write(text: str, stream: TextIO | None) -> None:
    if stream is None:  # a daemon's
        return
    stream.flush()
    # A test or a notebook may replace the stream. Such a stream may have a file descriptor and
    # still show its text elsewhere: write through it.
    fd = _file_descriptor(stream) if isinstance(stream, io.TextIOWrapper) else None
    if fd is None:
        stream.write(text)
        stream.flush()
        return
    # Write to the descriptor, not to the stream. Text that cannot be written would stay in the
    # stream's buffer; Python would try again as the program ends, and exit with code 120.
    data = text.encode(stream.encoding or "utf-8", "backslashreplace")
    while data:
        data = data[os.write(fd, data) :]


def _file_descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None
