"""Threads that scan the parts of a Kineto file, each part with a compiled reader of its own.

The parts are scanned in their order, each by the next free thread. The calls of the library release
the interpreter's lock. A part that is not valid JSON, or cannot be read, is left to the caller, who
then finds the same error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from ppprof.errors import TraceError
from ppprof.trace.fastpath.native.event_reader import EventReader
from ppprof.trace.json.batches import Ranges, ScannedPart
from ppprof.trace.json.recovery import last_event_start
from ppprof.trace.source import Block, TraceStream

_Scan = tuple[EventReader, ScannedPart]


class PartScans:
    """Context manager for the scans of a file; at the end of the block, all threads have ended.

    Args:
        path: the file.
        bounds: from `part_bounds`.
        first: offset of the first event.
        new_reader: returns a new reader of events.
        take: called in the caller's thread with the reader of each part that is complete, in the
            order of the file. So at most a few parts are held twice.
        num_threads: most threads to start; with fewer than two, the caller scans all parts.
    """

    def __init__(
        self,
        path: str,
        first: int,
        bounds: Sequence[int],
        new_reader: Callable[[], EventReader],
        take: Callable[[EventReader], object],
        num_threads: int,
    ) -> None:
        self._path = path
        self._new_reader = new_reader
        self._take = take
        self._own: EventReader | None = None
        self._parts = list(zip([first, *bounds], [*bounds, None]))
        self._scans: list[Future[_Scan | None]] = [Future() for _ in self._parts]
        self._waiting = iter(range(len(self._parts)))
        self._lock = threading.Lock()
        num_threads = min(num_threads, len(self._parts))
        self._threads = [
            threading.Thread(target=self._run, name="ppprof scan", daemon=True)
            for _ in range(num_threads if num_threads > 1 else 0)
        ]
        self._is_cancelled = False

    def __enter__(self) -> PartScans:
        started = []
        for thread in self._threads:
            try:
                thread.start()
            except RuntimeError:  # the limit of threads is reached
                break
            started.append(thread)
        self._threads = started
        return self

    def __exit__(self, *_: object) -> None:
        self._is_cancelled = True
        for thread in self._threads:
            thread.join()

    def part(self, number: int) -> ScannedPart | None:
        """Wait for the scan of a part and take its events, as `Scans.part`."""
        self.finish()
        scan = self._scans[number].result() if self._threads else None
        self._scans[number] = Future()  # keeps no reader
        if scan is None:
            return None
        reader, part = scan
        self._take(reader)
        return part

    def add(self, block: Block) -> Ranges | None:
        """Scan a block of a part that was not taken, as `Scans.add`.

        Raises:
            MemoryError: there is not enough memory.
        """
        if self._own is None:
            self._own = self._new_reader()
        return self._own.add(block)

    def finish(self) -> None:
        """Take the events that the caller's thread has scanned."""
        if self._own is not None:
            self._take(self._own)
            self._own = None

    def _run(self) -> None:
        """Scan one part after another, while any waits: the program of a thread."""
        while not self._is_cancelled:
            with self._lock:
                number = next(self._waiting, None)
            if number is None:
                return
            try:
                self._scans[number].set_result(self._scan(*self._parts[number]))
            except (TraceError, OSError, MemoryError):  # the caller tries again
                self._scans[number].set_result(None)
            except BaseException as error:
                self._scans[number].set_exception(error)

    def _scan(self, first: int, end: int | None) -> _Scan | None:
        """Return the scan of a part, None if a block is not valid JSON."""
        reader = self._new_reader()
        ranges: Ranges = []
        with TraceStream(self._path, first=first) as source:
            for block in source.blocks(last_event_start, end):
                if self._is_cancelled:
                    return None
                if block.is_last and block.end != end:
                    return reader, ScannedPart(ranges, block.first)
                odd = reader.add(block)
                if odd is None:
                    return None
                ranges += odd
        assert end is not None
        return reader, ScannedPart(ranges, end)
