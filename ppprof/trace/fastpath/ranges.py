"""Divide a long file into ranges, which threads read with readers of the compiled core.

A thread reads its range block by block into a buffer of its own. The file is not mapped into memory:
the blocks stay in the processor's cache, and no page has to be mapped. The ranges are read in their
order, each by the next free thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from typing import Generic, Optional, TypeVar

from ppprof.errors import TraceError
from ppprof.paths import is_remote
from ppprof.trace.fastpath import core
from ppprof.trace.fastpath.native.store import Control
from ppprof.trace.source import TraceStream

T = TypeVar("T")
RangeReader = Callable[[TraceStream, int, int, Control], Optional[T]]
"""Returns the events in the bytes [first, end) of a file; None if it cannot read all of them."""

RANGE_BYTES = 64 << 20
"""Bytes of each range but the last one, about."""
_REPORT_S = 0.1
"""Time between two reports of the progress."""


def can_divide(source: TraceStream) -> bool:
    """Return whether threads can read ranges of a file.

    They need the compiled core. A file packed with gzip cannot be divided, nor one in a store: some
    stores have one position for all readers of a file.
    """
    return not (source.is_packed or is_remote(source.path) or core.library() is None)


def range_bounds(
    source: TraceStream, first: int, start_of_event: Callable[[bytes], int | None]
) -> list[int]:
    """Return where the ranges of the rest of a file begin, ascending.

    They follow from the file alone, so that any number of threads reads the same ranges.

    Args:
        source: the file.
        first: offset of the first range.
        start_of_event: returns the offset of an event in a text that begins anywhere in the file;
            None without one.
    """
    bounds = [first]
    for number in range(1, round((source.size - first) / RANGE_BYTES)):
        position = first + number * RANGE_BYTES
        bound = source.find(position, start_of_event) if position > bounds[-1] else bounds[-1]
        if bound is None:
            break
        if bound > bounds[-1]:
            bounds.append(bound)
    return bounds


def replaced(path: str) -> TraceError:
    """Return the error for a file whose ranges would be of two files."""
    return TraceError(f"{path}: replaced while it was read; read it again")


class RangeScans(Generic[T]):
    """Reads the ranges of a file in threads; a context manager at whose end all of them have ended.

    Args:
        source: the file that ``bounds`` are of.
        writer: the program that wrote it, for `ppprof.trace.fastpath.ahead`.
        bounds: the offsets at which the ranges begin, and the end of the last one, ascending.
        read: reads a range, in a thread.

    Raises:
        TraceError: the file cannot be opened, or another one has taken its place.
    """

    def __init__(
        self, source: TraceStream, writer: str, bounds: Sequence[int], read: RangeReader[T]
    ) -> None:
        self.writer = writer
        self.ranges = list(zip(bounds, bounds[1:]))
        """First byte and end of each range."""
        self._read = read
        self.identity = source.identity
        """`TraceStream.identity` of the file."""
        self._source = TraceStream(source.path, first=bounds[0])
        if self._source.file_number != source.file_number:
            self._source.close()
            raise replaced(source.path)
        self._controls = [Control(first, 0) for first, _ in self.ranges]
        self._results: list[Future[T | None]] = [Future() for _ in self.ranges]
        self._waiting = iter(range(len(self.ranges)))
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._is_cancelled = False

    def __enter__(self) -> RangeScans[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, num_threads: int) -> None:
        """Read in at most ``num_threads`` threads, those counted that were started before."""
        while len(self._threads) < min(num_threads, len(self.ranges)):
            thread = threading.Thread(target=self._run, name="ppprof scan", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the limit of threads is reached
                return
            self._threads.append(thread)

    def close(self) -> None:
        """End all threads after their current blocks, wait for that, and close the file."""
        self._is_cancelled = True
        for control in self._controls:
            control.is_cancelled = 1
        for thread in self._threads:
            thread.join()
        self._results.clear()
        self._source.close()

    def take(self, number: int, source: TraceStream) -> T | None:
        """Wait for the events of a range, and return them; this object keeps none.

        None if the caller has to read the range, and will find out why it could not be read here.

        Args:
            number: the number of the range. Without threads, it is read now.
            source: reports the progress.

        Raises:
            TraceError: another file has taken the place of the one that is read.
        """
        if source.file_number != self._source.file_number:
            raise replaced(source.path)
        if not self._threads:
            self._read_range(number)
        try:
            while True:
                try:
                    return self._results[number].result(_REPORT_S)
                except NotDone:
                    source.report(self.ranges[0][0] + self._num_done())
        finally:  # this object must not keep events, nor an error with all that its traceback holds
            self._results[number] = Future()

    def _num_done(self) -> int:
        """Return the number of bytes that have been read."""
        return sum(
            int(control.position) - first
            for control, (first, _) in zip(self._controls, self.ranges)
        )

    def _run(self) -> None:
        """Read one range after another, while any waits: the program of a thread."""
        while not self._is_cancelled:
            with self._lock:
                number = next(self._waiting, None)
            if number is None:
                return
            self._read_range(number)

    def _read_range(self, number: int) -> None:
        try:
            events = self._read(self._source, *self.ranges[number], self._controls[number])
            self._results[number].set_result(events)
        except (TraceError, OSError, MemoryError):  # the caller tries again
            self._results[number].set_result(None)
        except BaseException as error:
            self._results[number].set_exception(error)
