"""Sample the Python stacks of the workers of DataLoaders, while a window is open.

Workers are forked from the training. A thread of ours in a worker sleeps until a window is open, which a byte
says that both processes share. It appends its samples to a file in memory, which both have open::

    training   fork               opens                                closes, and reads the file
    worker       thread   .   .   .   samples, appends, samples, appends   .   .   .

What a worker samples in its last quarter of a second is lost. The worker runs a thread of Python's own, too,
which sends its batches; ours takes no lock but that of the interpreter, and ends with the worker. Where
workers are not forked, there are no samples.
"""

from __future__ import annotations

import dataclasses
import fcntl
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType

from ppprof.capture.process import Descriptor, stack_of, start_thread, with_high_number
from ppprof.rundir.python_stacks import PythonStacks, decoded_stacks, encoded_stacks

_PERIOD_SECONDS, _ASLEEP_SECONDS = 0.25, 0.1
_MOST_BYTES = 16 << 20
"""Limit of the samples of all workers in a window. Later ones are not kept."""
_LOADERS = "paddle.io.dataloader"
"""Package of the functions that fork workers."""
_MOST_FRAMES = 20
_LENGTH_BYTES = 8


class LoaderStacks:
    """The samples of the workers that this process forks from now on; to be made once.

    Args:
        sample: called in a worker with a number of seconds; samples for so long.

    Raises:
        OSError: there is no file in memory.
    """

    def __init__(self, sample: Callable[[float], PythonStacks]) -> None:
        self._sample = sample
        self._is_open = mmap.mmap(-1, 1)
        self._file = Descriptor(with_high_number(os.memfd_create("ppprof")))
        fcntl.fcntl(self._file.fd, fcntl.F_SETFL, os.O_RDWR | os.O_APPEND)
        self._num_read = self._opened_ns = 0
        self._switch_s: float | None = None
        os.register_at_fork(after_in_child=self._after_fork_in_child)

    def open(self, switch_s: float | None) -> None:
        """Let workers sample.

        Args:
            switch_s: the switch interval that this process has outside the window, which processes that
                it forks now get; None if it has that one.
        """
        self._switch_s = switch_s
        if not self._is_open[0]:
            self._empty()
            self._opened_ns = time.time_ns()
        self._is_open[0] = 1

    def close(self) -> None:
        """Let workers sample no longer."""
        self._switch_s = None
        self._is_open[0] = 0

    def read(self) -> Iterator[PythonStacks]:
        """Yield what workers have sampled in the window since the last call."""
        while self._file.is_ours:
            length = int.from_bytes(self._bytes(_LENGTH_BYTES, 0), "little")
            content = self._bytes(length, _LENGTH_BYTES)
            if not length or len(content) < length:
                break
            self._num_read += _LENGTH_BYTES + length
            with suppress(ValueError):
                stacks = decoded_stacks(content)
                samples = stacks.samples  # the end of an earlier window may come late
                yield dataclasses.replace(stacks, samples=samples[samples[:, 1] >= self._opened_ns])

        if not self._is_open[0]:
            self._empty()

    def _empty(self) -> None:
        """Give the memory back. A worker may still append the end of the window."""
        self._num_read = 0
        if self._file.is_ours:
            os.ftruncate(self._file.fd, 0)

    def _bytes(self, length: int, after: int) -> bytes:
        return os.pread(self._file.fd, min(length, _MOST_BYTES), self._num_read + after)

    def _after_fork_in_child(self) -> None:
        if self._switch_s is not None:
            sys.setswitchinterval(self._switch_s)
        if _forks_worker(sys._getframe(1)):
            with suppress(RuntimeError):  # no more threads
                start_thread(self._sample_in_worker, "stacks of a worker")

    def _sample_in_worker(self) -> None:
        """Sample whenever a window is open, until this process ends."""
        while self._file.is_ours:
            if not self._is_open[0] or os.fstat(self._file.fd).st_size > _MOST_BYTES:
                time.sleep(_ASLEEP_SECONDS)
                continue
            stacks = self._sample(_PERIOD_SECONDS)
            if len(stacks.samples):
                content = encoded_stacks(stacks)
                # In one call, which appends as a whole: other workers append, too.
                os.write(self._file.fd, len(content).to_bytes(_LENGTH_BYTES, "little") + content)


def _forks_worker(frame: FrameType) -> bool:
    names = (each.f_globals.get("__name__") for each in stack_of(frame, _MOST_FRAMES))
    return any(type(name) is str and name.startswith(_LOADERS) for name in names)
