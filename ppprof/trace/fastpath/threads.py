"""Threads: for the byte ranges of one long file, and for work on arrays that divides in two.

Each thread of a file reads it block by block into a buffer of its own, in the compiled core. The file
is not mapped into memory: the blocks stay in the processor's cache, and no page has to be mapped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from ppprof.trace.fastpath import fixed_layout
from ppprof.trace.fastpath.fixed_layout import Scanned, new_scanner
from ppprof.trace.fastpath.layouts import DIALECTS
from ppprof.trace.fastpath.native.scanner import Control, NativeScanner
from ppprof.trace.source import TraceStream

T = TypeVar("T")
U = TypeVar("U")

_REPORT_S = 0.1
"""Time between two reports of the progress."""


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


def results_of(tasks: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """Return the result of each task, by name; see `at_once`.

    The tasks begin in their order, each in the next free thread: begin with the longest ones.
    """
    waiting = iter(tasks.items())
    lock = threading.Lock()

    def work() -> dict[str, T]:
        results: dict[str, T] = {}
        while True:
            with lock:
                following = next(waiting, None)
            if following is None:
                return results
            name, task = following
            results[name] = task()

    one, other = at_once(work, work)
    return one | other


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
        self._control = Control(first, 0)
        self._result: Scanned | None = None
        self._error: BaseException | None = None
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
        """End the scan after the current block."""
        self._control.is_cancelled = 1

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
        if self._error:
            raise self._error
        result, self._result = self._result, None
        assert result is not None
        return result

    def _run(self) -> None:
        try:
            with self._source as source:
                scanner = new_scanner(DIALECTS[self.dialect])
                assert isinstance(scanner, NativeScanner)
                if scanner.add_range(source, self.end, self._control):
                    self._result = scanner.scanned()
                else:
                    self._result = fixed_layout.scan(source, DIALECTS[self.dialect], self.end)
        except BaseException as error:  # raised again by `scanned`
            self._error = error


class ScanThreads:
    """Context manager for threads that each scan the range between two neighbouring bounds.

    At the end of the block, all threads have ended.

    Args:
        source: the file.
        dialect: key in `DIALECTS` of the file's writer.
        bounds: offsets from `split_positions`.
        begun: the scan of the first range, if it has begun.
    """

    def __init__(
        self, source: TraceStream, dialect: str, bounds: Sequence[int], begun: RangeScan | None
    ) -> None:
        self._source = source
        ranges = zip(bounds, bounds[1:])
        self._scans = [] if begun is None else [begun]
        self._new = [
            RangeScan(source.path, dialect, first, end)
            for first, end in ranges
            if begun is None or first >= begun.end
        ]
        self._scans += self._new

    def __enter__(self) -> ScanThreads:
        for scan in self._new:
            scan.start()
        return self

    def __exit__(self, *_: object) -> None:
        for scan in self._scans:
            scan.cancel()
        for scan in self._scans:
            scan.wait()

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
