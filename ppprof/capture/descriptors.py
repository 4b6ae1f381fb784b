"""File descriptors that the training may close and use again, without ppprof's knowledge.

A training that becomes a daemon calls ``os.closerange(3, 1000)``. The next files that it opens get
these numbers, ours among them. A later ``os.close(5)`` of ours would close the training's checkpoint,
and a message that we send would go into it. So each descriptor that is kept over steps remembers which
file it was opened for. It is used and closed only while it still means that file; asking takes 1 to
3 us.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CLOSED = "the training has closed this file descriptor of ppprof, as os.closerange() does"
_BLOCK = 1 << 20


class Descriptor:
    """A file descriptor, and the file that it was opened for.

    Args:
        fd: the descriptor; this object is the only one that may close it.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._file = _file_of(fd)

    @property
    def is_ours(self) -> bool:
        """Whether it is open and still means the file that it was opened for."""
        return self.fd >= 0 and _file_of(self.fd) == self._file

    def close(self) -> None:
        """Close it, unless it is closed or means a file of the training now."""
        if self.is_ours:
            os.close(self.fd)
        self.fd = -1


class ScratchFile(Descriptor):
    """A temporary file without a name, into which a child process writes.

    Raises:
        OSError: the folder for temporary files cannot be written.
    """

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
        super().__init__(fd)

    def read(self, max_bytes: int | None = None) -> bytes:
        """Return the file's content; empty if the training has closed the descriptor.

        Args:
            max_bytes: the longest part to return, from the file's end; None for all of it.
        """
        if not self.is_ours:
            return b""
        size = os.fstat(self.fd).st_size
        position = 0 if max_bytes is None else max(0, size - max_bytes)
        parts: list[bytes] = []
        while True:  # `pread` does not move the position at which a child writes
            part = os.pread(self.fd, _BLOCK, position)
            if not part:
                return b"".join(parts)
            parts.append(part)
            position += len(part)


@contextmanager
def above_standard_streams() -> Iterator[None]:
    """Within it, files that are opened get descriptors from 3.

    If the training has closed 0, 1 or 2, a file of ours would get that number otherwise, and with it
    all that C++ code prints.
    """
    taken: list[int] = []
    try:
        while not taken or taken[-1] < 3:
            taken.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        os.close(taken.pop())
        yield
    finally:
        for fd in taken:
            os.close(fd)


class Socket(socket.socket):
    """A socket whose calls raise ``OSError`` (EBADF) once its descriptor is not ours any more."""

    def __init__(self, family: int, kind: int) -> None:
        super().__init__(family, kind)
        self._file = _file_of(self.fileno())

    @property
    def is_ours(self) -> bool:
        """Whether the socket is open and its descriptor still means it."""
        return self.fileno() >= 0 and _file_of(self.fileno()) == self._file

    def recv(self, *args: Any) -> bytes:
        """Receive data, as ``socket.recv`` does."""
        self._check()
        return super().recv(*args)

    def recvfrom(self, *args: Any) -> tuple[bytes, Any]:
        """Receive data and its sender, as ``socket.recvfrom`` does."""
        self._check()
        return super().recvfrom(*args)

    def send(self, *args: Any) -> int:
        """Send data, as ``socket.send`` does."""
        self._check()
        return super().send(*args)

    def sendto(self, *args: Any) -> int:
        """Send data to an address, as ``socket.sendto`` does."""
        self._check()
        return super().sendto(*args)

    def close(self) -> None:
        """Close the socket; leave a descriptor alone that means a file of the training now."""
        if not self.is_ours:
            self.detach()
        super().close()

    def _check(self) -> None:
        if not self.is_ours:
            raise OSError(errno.EBADF, CLOSED)


def _file_of(fd: int) -> tuple[int, ...] | None:
    """Return numbers that differ between open files; None for a closed descriptor.

    The number of links belongs to them: a file that we have deleted has none, and a file system may
    give its inode to the training's next file.
    """
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino, stat.S_IFMT(status.st_mode), status.st_nlink
