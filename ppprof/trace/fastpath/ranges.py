"""Divide a long file into ranges, and scan each in a thread of its own, in the compiled core.

A thread reads its range block by block into a buffer of its own. The file is not mapped into memory:
the blocks stay in the processor's cache, and no page has to be mapped.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from ppprof.errors import TraceError
from ppprof.paths import is_remote
from ppprof.trace.fastpath import core
from ppprof.trace.fastpath.fixed_layout import Scanned
from ppprof.trace.fastpath.layouts import DIALECTS
from ppprof.trace.fastpath.native.scanner import Control, Scanner
from ppprof.trace.fastpath.threads import num_processors
from ppprof.trace.source import TraceStream

MIN_RANGE_BYTES = 32 << 20
"""The file must have this many bytes for each range."""
_MOST_RANGES = 8
_REPORT_S = 0.1
"""Time between two reports of the progress."""


def can_divide(source: TraceStream) -> bool:
    """Return whether `RangeScans` can scan a file.

    It needs the compiled core. A file packed with gzip cannot be divided, nor one in a store: some
    stores have one position for all readers of a file.
    """
    return not (source.is_packed or is_remote(source.path) or core.library() is None)


def range_bounds(source: TraceStream, dialect: str, first: int, most: int) -> list[int]:
    """Return where the ranges of the rest of a file begin and end, ascending.

    Args:
        source: the file.
        dialect: key in `DIALECTS` of the file's writer.
        first: offset of the first range.
        most: most ranges.
    """
    num = min(most, (source.size - first) // MIN_RANGE_BYTES, _MOST_RANGES)
    length = (source.size - first) // max(num, 1)
    starts = (next_start(source, dialect, first + number * length) for number in range(1, num))
    return sorted({first, source.size, *(start for start in starts if start is not None)})


def next_start(source: TraceStream, dialect: str, position: int) -> int | None:
    """Return the offset of the first event that begins at or after ``position``.

    None if the file ends first, or if that event is far away.

    Args:
        source: the file.
        dialect: key in `DIALECTS` of the file's writer.
        position: offset in the file.
    """
    start = DIALECTS[dialect].start
    return source.find(position, lambda text: text.find(start) if start in text else None)


class RangeScan:
    """A scan of one range of a file, in a thread of its own if one can be started.

    Args:
        path: the file.
        dialect: key in `DIALECTS` of the file's writer.
        first: offset at which an event begins, or the list of events.
        end: offset at which an event begins, or the file ends.

    Raises:
        TraceError: the file cannot be opened.
    """

    def __init__(self, path: str, dialect: str, first: int, end: int) -> None:
        self.dialect, self.first, self.end = dialect, first, end
        self._source = TraceStream(path, first=first)
        self.identity = self._source.identity
        """`TraceStream.identity` of the file."""
        self.file_number = self._source.file_number
        """`TraceStream.file_number` of the file."""
        self._control = Control(first, 0)
        self._result: Scanned | None = None
        self._errors: list[BaseException] = []
        self._thread: threading.Thread | None = None

    @property
    def num_done(self) -> int:
        """Number of bytes that have been scanned."""
        return int(self._control.position) - self.first

    def start(self) -> None:
        """Begin the scan. If no thread can be started, `scanned` does the work."""
        thread = threading.Thread(target=self._run, name="ppprof scan", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the limit of threads is reached
            return
        self._thread = thread

    def cancel(self) -> None:
        """End the scan after the current block; `close` waits for that."""
        self._control.is_cancelled = 1

    def close(self) -> None:
        """Wait until the thread has ended, and close the file."""
        self.wait()
        self._source.close()

    def wait(self, seconds: float | None = None) -> bool:
        """Return whether the thread has ended, at most after some seconds."""
        if self._thread:
            self._thread.join(seconds)
        return not (self._thread and self._thread.is_alive())

    def scanned(self) -> Scanned:
        """Wait for the events of the range, and return them; this object keeps none.

        Raises:
            TraceError: the range cannot be read.
            MemoryError: there is not enough memory.
        """
        if not self._thread:
            self._run()
        self.wait()
        if self._errors:
            raise self._errors.pop()  # no name keeps it, with all that its traceback holds
        result, self._result = self._result, None
        assert result is not None
        return result

    def _run(self) -> None:
        dialect, library = DIALECTS[self.dialect], core.library()
        assert library is not None
        try:
            with self._source as source:
                scanner = Scanner(dialect, library)
                is_read = scanner.add_range(source, self.end, self._control)
                if not is_read and self._control.is_cancelled:
                    return
                if not is_read:  # block by block, the error is found and described
                    scanner = Scanner(dialect, library)
                    for block in source.blocks(dialect.last_start, self.end):
                        scanner.add(block)
                self._result = scanner.scanned()
        except BaseException as error:  # raised again by `scanned`
            self._errors.append(error)


class RangeScans:
    """Context manager for the scans of all ranges of a file from the stream's position on.

    At the end of the block, all threads have ended.

    Args:
        source: the file, at its list of events; `can_divide` is true.
        dialect: key in `DIALECTS` of the file's writer.
        begun: the scan of the first range, if it has begun.

    Raises:
        TraceError: the file cannot be opened, or another one has taken its place.
    """

    def __init__(self, source: TraceStream, dialect: str, begun: RangeScan | None) -> None:
        self._source = source
        first, most = source.position, num_processors()
        if begun:
            first, most = begun.end, max(most - 1, 1)
        bounds = range_bounds(source, dialect, first, most)
        self._new = [
            RangeScan(source.path, dialect, first, end) for first, end in zip(bounds, bounds[1:])
        ]
        self._scans = [begun, *self._new] if begun else self._new
        if any(scan.file_number != source.file_number for scan in self._scans):
            self.__exit__()
            raise TraceError(f"{source.path}: replaced while it was read; read it again")

    def __enter__(self) -> RangeScans:
        for scan in self._new:
            scan.start()
        return self

    def __exit__(self, *_: object) -> None:
        for scan in self._scans:
            scan.cancel()
        for scan in self._scans:
            scan.close()

    def scanned(self) -> Iterator[Scanned]:
        """Yield the events of each range, in the order of the file.

        Raises:
            TraceError: a range cannot be read.
            MemoryError: there is not enough memory.
        """
        first = self._source.position
        for scan in self._scans:
            while not scan.wait(_REPORT_S):
                self._source.report(first + sum(scan.num_done for scan in self._scans))
            yield scan.scanned()
