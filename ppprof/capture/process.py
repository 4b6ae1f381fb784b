"""This process: its file descriptors, its threads with their frames, and its forks.

A training that becomes a daemon calls ``os.closerange(3, 1000)``. The next files that it opens get
the numbers of descriptors, ours among them. A later ``os.close(5)`` of ours would close the training's
checkpoint, and a message that we send would go into it. So each descriptor that is kept over steps
remembers which file it was opened for. It is used and closed only while it still means that file; asking
takes 1 to 3 us.
"""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import accumulate, repeat, takewhile
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, cast

T = TypeVar("T")

CLOSED = "the training has closed this file descriptor of ppprof, as os.closerange() does"
_LEAST_FD = 400
"""C code writes to a descriptor without asking whose file it is. A training that has closed all
descriptors uses low numbers first."""


class Descriptor:
    """A file descriptor, and the file that it was opened for.

    Args:
        fd: the descriptor; this object is the only one that may close it.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._file = file_of(fd)

    @property
    def is_ours(self) -> bool:
        """Whether it is open and still means the file that it was opened for."""
        return self.fd >= 0 and file_of(self.fd) == self._file

    def close(self) -> None:
        """Close it, unless it is closed or means a file of the training now."""
        if self.is_ours:
            os.close(self.fd)
        self.fd = -1


def with_high_number(fd: int) -> int:
    """Return a duplicate of a descriptor with a number from 400, and close the descriptor.

    Return the descriptor itself if the process may not have such a number.
    """
    try:
        duplicate = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LEAST_FD)
    except OSError:
        return fd
    os.close(fd)
    return duplicate


class ScratchFile(Descriptor):
    """A temporary file without a name, into which a child process writes.

    Raises:
        OSError: the folder for temporary files cannot be written.
    """

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
        super().__init__(fd)

    def read(self, max_bytes: int) -> bytes:
        """Return the end of the file; empty if the training has closed the descriptor."""
        if not self.is_ours:
            return b""
        size = os.fstat(self.fd).st_size
        # `pread` does not move the position at which a child writes.
        return os.pread(self.fd, max_bytes, max(0, size - max_bytes))


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


def file_of(fd: int) -> tuple[int, ...] | None:
    """Return numbers that differ between open files; None for a closed descriptor.

    The number of links belongs to them: a file that we have deleted has none, and a file system may
    give its inode to the training's next file.
    """
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino, stat.S_IFMT(status.st_mode), status.st_nlink


num_forks = 0
"""Forks between the process that imported this module and this one. To ask the system for the number
of this process in every step would take longer."""


def _after_fork_in_child() -> None:
    global num_forks
    num_forks += 1


os.register_at_fork(after_in_child=_after_fork_in_child)


log = logging.getLogger("ppprof")


_CRASHES = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGSYS,
}
"""Signals of a fault of the thread itself. If it blocks them, Linux ends the process without a word."""


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Start a daemon thread that receives no signals but those of its own faults, and return it.

    An exception of ``target`` is logged.

    A signal goes to any thread of the process that does not block it. So a training that blocks
    SIGTERM in its own thread would end by a SIGTERM that arrives in a thread of ours. A process that
    the thread starts inherits the blocked signals, and has to unblock those that it needs.
    """

    def run() -> None:
        try:
            target()
        except Exception as error:
            log.warning(f"the thread of {name} failed: {error!r}; the training goes on without it")

    thread = threading.Thread(target=run, name=f"ppprof {name}", daemon=True)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # Handlers of signals that are pending run in this call, and may raise.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _CRASHES)
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return thread


if sys.version_info[:2] == (3, 11):
    from operator import call

    def _undisturbed(function: Callable[[], T]) -> T:
        """Call a function in C; no garbage is collected meanwhile, and no other thread runs.

        CPython 3.11 makes an object of a frame only when it is asked for, and may collect garbage for
        it. Callbacks and finalizers in Python let other threads run, the one of the frame among
        them: it returns, and its frame is used after it has been freed.
        """
        results: list[Any] = []
        try:
            results.extend(map(call, (gc.isenabled, gc.disable, function, gc.enable)))
        finally:
            if results and results[0] != gc.isenabled():
                (gc.enable if results[0] else gc.disable)()
        return cast("T", results[2])

else:

    def _undisturbed(function: Callable[[], T]) -> T:
        return function()


def current_frames() -> dict[int, FrameType]:
    """Return the innermost frame of each other thread of this process, by the thread's identifier."""
    frames = _undisturbed(sys._current_frames)
    # Its frame holds `frames`: a cycle, which would keep all frames of its callers with their locals.
    frames.pop(threading.get_ident(), None)
    return frames


def stack_of(frame: FrameType, most: int) -> list[FrameType]:
    """Return a frame of any thread with those that called it, the innermost first.

    Args:
        frame: the innermost one.
        most: how many to return at most.
    """
    frames = accumulate(repeat("f_back", most - 1), getattr, initial=frame)
    return _undisturbed(partial(list, takewhile(bool, frames)))


def keep_from_translation() -> None:
    """Keep SOT, by which Paddle's ``to_static`` compiles the functions that a call reaches, from translating ours.

    Those run in wrapped functions and handlers, below the training's. Translated, they take longer, and what SOT cannot
    translate raises in the training. Paddle 2.6 has no such function. For a path that is not ASCII, Paddle 3.3's writes ahead
    of an array.
    """
    package = Path(__file__).parents[1]
    if not str(package).isascii():
        return
    folders = [f"{package / name}{os.sep}" for name in ("capture", "integrations", "rundir")]
    with suppress(Exception):
        from paddle.base import core

        core.eval_frame_skip_file_prefix((*folders, str(package / "units.py")))


@contextmanager
def without_collection() -> Iterator[None]:
    """Let Python collect no garbage within it: in a training, that may take longer than all the rest."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()
