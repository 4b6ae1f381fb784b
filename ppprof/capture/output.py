"""What a capture says to people: stdout is the result, stderr the talk."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TextIO

from ppprof.units import escape_control_chars


def tell(message: str) -> None:
    """One line to stderr that says who speaks."""
    pass_on(f"ppprof: {escape_control_chars(message)}\n")


def pass_on(said: str) -> None:
    """What a process of ours has said to stderr."""
    with suppress(OSError, ValueError):  # a full disk may hold the log as well
        _write(said, sys.stderr)


def print_result(text: str) -> None:
    """Text to stdout.

    Raises:
        OSError: whoever reads it has left, or it is a file on a full disk.
    """
    _write(text, sys.stdout)


def reason(error: BaseException) -> str:
    """Why something failed, in one line: MemoryError and others have no words of their own.

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
    # Somebody may collect what is printed; a notebook's stream has a file, and shows another.
    fd = _file_of(stream) if isinstance(stream, io.TextIOWrapper) else None
    if fd is None:
        stream.write(text)
        stream.flush()
        return
    # Not through the stream: Python would try what could not be written again as the program
    # ends, and end it with exit code 120.
    data = text.encode(stream.encoding or "utf-8", "backslashreplace")
    while data:
        data = data[os.write(fd, data) :]


def _file_of(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None
