"""Threads: for the byte ranges of one long file, and for work on arrays that divides in two.

Each thread of a file reads it block by block into a buffer of its own. The file is not mapped into
memory: the blocks stay in the processor's cache, and no page has to be mapped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ppprof.trace.fastpath.fixed_layout import Scanned, Scanner, new_scanner
from ppprof.trace.fastpath.layouts import DIALECTS
from ppprof.trace.source import TraceStream

T = TypeVar("T")
U = TypeVar("U")


def at_once(one: Callable[[], T], other: Callable[[], U]) -> tuple[T, U]:
    """Return the results of two functions that run at the same time.

    That takes less time if both mostly call numpy, polars or the compiled core, which work without
    the interpreter's lock. If no thread can be started, one function runs after the other.

    Raises:
        BaseException: what a function raised.
    """
    results: list[U] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(other())
        except BaseException as error:  # raised again below
            errors.append(error)

    thread = threading.Thread(target=run, name="ppprof tables", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the limit of threads is reached
        return one(), other()
    try:
        result = one()
    finally:
        thread.join()
    if errors:
        raise errors[0]
    return result, results[0]


class ScanThreads:
    """Context manager for threads that each scan the range between two neighbouring bounds.

    At the end of the block, all threads have ended.

    Args:
        path: the file.
        dialect: key in `DIALECTS` of the file's writer.
        bounds: offsets from `split_positions`.
    """

    def __init__(self, path: str, dialect: str, bounds: Sequence[int]) -> None:
        self._scans = [
            _RangeScan(path, dialect, first, end) for first, end in zip(bounds, bounds[1:])
        ]

    def __enter__(self) -> ScanThreads:
        for scan in self._scans:
            scan.start()
        return self

    def __exit__(self, *_: object) -> None:
        for scan in self._scans:
            scan.is_cancelled = True
        for scan in self._scans:
            scan.wait()

    def scanned(self) -> Iterator[Scanned]:
        """Yield the events of each range, in the order of the file.

        Raises:
            TraceError: a range cannot be read.
            MemoryError: there is not enough memory.
        """
        for scan in self._scans:
            yield scan.scanned()


class _RangeScan:
    """A scan of one range of a file, in a thread of its own if possible."""

    def __init__(self, path: str, dialect: str, first: int, end: int) -> None:
        self.is_cancelled = False
        """Set to end the scan after the current block."""
        self._path, self._dialect, self._first, self._end = path, dialect, first, end
        self._scanner: Scanner | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin the scan. If no thread can be started, `scanned` does the work."""
        thread = threading.Thread(target=self._run, name="ppprof scan", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the limit of threads is reached
            return
        self._thread = thread

    def wait(self) -> None:
        """Return when the thread has ended."""
        if self._thread:
            self._thread.join()

    def scanned(self) -> Scanned:
        """Wait for the events of the range, and return them; this object keeps none."""
        if self._thread:
            self._thread.join()
        else:
            self._run()
        if self._error:
            raise self._error
        scanner, self._scanner = self._scanner, None
        assert scanner is not None
        return scanner.scanned()

    def _run(self) -> None:
        dialect = DIALECTS[self._dialect]
        try:
            self._scanner = scanner = new_scanner(dialect)
            with TraceStream(self._path, first=self._first) as source:
                for block in source.blocks(
                    dialect.last_start, self._end, num_bytes=scanner.block_bytes
                ):
                    scanner.add(block)
                    if self.is_cancelled:
                        return
        except BaseException as error:  # raised again by `scanned`
            self._error = error
