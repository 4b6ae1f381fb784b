"""Who uses this machine's processors: read from /proc, per step and at most twice a second."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from threading import get_ident
from typing import NamedTuple

from ppprof.capture.process import Descriptor

_UNREAD = None, None, None
_LEAST_STEP_NS = 2_000_000
"""Shortest time between two readings of the thread's wait, which take 1 to 2 us."""
_LEAST_NS = 500_000_000
"""Shortest time between two readings of all processors: 100 ticks of /proc/stat on two."""
_COST = 1000
"""Such a reading takes one part of the time in this many: the next one is as late as that needs. Its
processor time counts: on a loaded machine it may wait for a processor, and so be too rare to see the load."""
_MOST_CHILDREN = 1000


def _read_with_lock(fd: int) -> bytes:
    """Return the first 100 bytes of a file of /proc, without giving the interpreter's lock away.

    `os.pread` and `os.fstat` give it to any other thread that runs Python, such as a DataLoader's, and
    get it back after that thread's switch interval, 5 ms. Of a descriptor that the training has closed and
    reused, these bytes are no three numbers.
    """
    buffer = ctypes.create_string_buffer(100)
    size = ctypes.pythonapi.pread(fd, buffer, ctypes.c_size_t(100), ctypes.c_int64(0))
    return buffer.raw[: max(0, size)]


class _Reading(NamedTuple):
    total_ticks: int
    busy_ticks: int
    own_seconds: float


class Processors:
    """Reads the use of the processors at the end of each step; it never raises.

    Args:
        proc: the folder that Linux has at /proc. Without it, all values are None.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._thread = 0
        self._file: Descriptor | None = None
        self._waited_ns: int | None = None
        self._last: _Reading | None = None
        self._next_wait_ns = self._next_use_ns = 0
        self.step()

    def step(self) -> tuple[int | None, float | None, float | None]:
        """Return the use of the processors since earlier steps; the three may have other ones.

        Returns:
            processor_wait_ns, processors_busy_ratio and processors_own_ratio of
            `ppprof.capture.steps.step_log.StepRecord`.
        """
        now, used_ns = time.monotonic_ns(), time.thread_time_ns()
        if now < self._next_wait_ns:
            return _UNREAD
        self._next_wait_ns = now + _LEAST_STEP_NS
        try:
            waited_ns = self._wait_so_far()
        except (OSError, ValueError):
            waited_ns = None
        last_ns, self._waited_ns = self._waited_ns, waited_ns
        wait_ns = None if waited_ns is None or last_ns is None else max(0, waited_ns - last_ns)
        if now < self._next_use_ns:
            return wait_ns, None, None
        use = self._use()
        self._next_use_ns = now + max(_LEAST_NS, _COST * (time.thread_time_ns() - used_ns))
        return (wait_ns, *use)

    def close(self) -> None:
        """Close the open file."""
        file, self._file, self._thread = self._file, None, 0
        if file is not None:
            file.close()

    def _wait_so_far(self) -> int | None:
        """Return for how long the calling thread has waited for a processor; None if it is new."""
        thread = get_ident()
        if thread != self._thread:
            self.close()
            self._waited_ns = None
            path = self._proc / "thread-self/schedstat"
            self._file = Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            self._thread = thread
        if self._file is None:
            return None
        ran, waited, _ = _read_with_lock(self._file.fd).split()
        return int(waited) if ran != b"0" else None  # this kernel does not count

    def _use(self) -> tuple[float | None, float | None]:
        try:
            reading = self._read()
        except (OSError, ValueError, IndexError):
            return None, None
        last, self._last = self._last, reading
        if last is None or reading.total_ticks <= last.total_ticks:
            return None, None
        ticks = reading.total_ticks - last.total_ticks
        busy = min(1.0, max(0.0, (reading.busy_ticks - last.busy_ticks) / ticks))
        own_ticks = (reading.own_seconds - last.own_seconds) * os.sysconf("SC_CLK_TCK")
        return round(busy, 4), round(min(busy, max(0.0, own_ticks / ticks)), 4)

    def _read(self) -> _Reading:
        ticks = [int(text) for text in self._text("stat").split("\n", 1)[0].split()[1:9]]
        user, nice, system, idle, io_wait, *others = ticks
        busy = user + nice + system + sum(others)
        self._text("thread-self/children")  # a kernel without it does not say who a descendant is
        waited_for = getrusage(RUSAGE_CHILDREN)
        own = time.process_time() + waited_for.ru_utime + waited_for.ru_stime
        own += sum(self._seconds(child) for child in self._descendants())
        return _Reading(busy + idle + io_wait, busy, own)

    def _descendants(self) -> Iterator[str]:
        """Yield the process ids of this process's descendants that have not ended."""
        waiting, num = ["self"], 0
        while waiting:
            tasks = self._proc / waiting.pop() / "task"
            with suppress(OSError):
                for thread in tasks.iterdir():
                    for child in self._text(thread / "children").split():
                        num += 1
                        if num > _MOST_CHILDREN:
                            return
                        waiting.append(child)
                        yield child

    def _seconds(self, process: str) -> float:
        """Return the processor time of a process and of its children that it has waited for."""
        with suppress(OSError):  # it has just ended
            fields = self._text(f"{process}/stat").rpartition(")")[2].split()[11:15]
            return sum(map(int, fields)) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def _text(self, path: str | Path) -> str:
        return (self._proc / path).read_text(encoding="utf-8", errors="replace")
