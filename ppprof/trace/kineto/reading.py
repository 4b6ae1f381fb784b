"""Read the events of a Kineto file into columns, in the fastest way.

The compiled core reads blocks of valid JSON, and the decoder what the core leaves. A long file is
divided into parts, which threads scan. Without the core, the decoder reads everything. The result is
the same: the file is divided into the same parts and blocks, and a block that is not valid JSON is
read by the decoder alone.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from contextlib import nullcontext
from typing import Any

from ppprof.trace.fastpath import core
from ppprof.trace.fastpath.ahead import take_begun_scans
from ppprof.trace.fastpath.fixed_layout import Ranges
from ppprof.trace.fastpath.native.event_reader import EventReader
from ppprof.trace.fastpath.ranges import RangeScans
from ppprof.trace.fastpath.threads import num_processors
from ppprof.trace.json.batches import decoded_batches
from ppprof.trace.json.recovery import HEAD_BYTES, EventDecoder
from ppprof.trace.kineto.columns import KinetoColumns
from ppprof.trace.kineto.fields import KinetoEvent
from ppprof.trace.kineto.forms import KINETO, Scan, new_reader, new_scans, part_bounds
from ppprof.trace.kineto.other_writers import ROCPROF
from ppprof.trace.kineto.scanned import ScannedEvents
from ppprof.trace.source import Block, TraceStream


def read_kineto_columns(
    source: TraceStream, keys: dict[str, Any], skipped: Counter[str]
) -> KinetoColumns:
    """Return the events of a file.

    Args:
        source: the file, at the first event.
        keys: the keys before the list of events; those after it are added.
        skipped: counts the unreadable parts, by kind.

    Raises:
        TraceError: the file cannot be read.
        MemoryError: there is not enough memory.
    """
    columns = KinetoColumns()
    decoder = EventDecoder(KinetoEvent, source.path, skipped)
    bounds = part_bounds(source)
    # Only rocprof's arrows say which call launched which kernel; the core skips arrows.
    library = None if ROCPROF in source.peek(HEAD_BYTES) else core.library()
    if library is None:
        for first, events in decoded_batches(source, decoder, keys, None, bounds[1:]):
            columns.add_decoded(first, events)
        return columns
    threads = take_begun_scans(source, KINETO) or new_scans(source, bounds)
    with threads or nullcontext():
        scans = _Scans(source, library, threads)
        for first, events in decoded_batches(source, decoder, keys, scans, bounds[1:]):
            columns.add_decoded(first, events)
        scans.finish()
    columns.ignored += scans.events.ignored
    columns.add_tables(scans.events.tables())
    return columns


class _Scans:
    """Reads events with the compiled core; implements `Scans` of `decoded_batches`.

    Args:
        source: the file.
        library: the library of `core.choose`.
        threads: read the parts of the file; None if it is not divided.
    """

    def __init__(
        self, source: TraceStream, library: ctypes.CDLL, threads: RangeScans[Scan] | None
    ) -> None:
        self.events = ScannedEvents()
        self._source = source
        self._library = library
        self._threads = threads
        self._own: EventReader | None = None
        if threads:
            threads.start(num_processors())

    def part(self, number: int) -> Ranges | None:
        """Wait for a part that threads read, and add its events."""
        self.finish()
        scan = self._threads.take(number, self._source) if self._threads else None
        if scan is None:
            return None
        reader, ranges = scan
        self.events.add(reader)
        return ranges

    def add(self, block: Block) -> Ranges | None:
        """Add the events of a block.

        Raises:
            MemoryError: there is not enough memory.
        """
        if self._own is None:
            self._own = new_reader(self._library)
        return self._own.add(block)

    def finish(self) -> None:
        """Add the events of the blocks since the last part."""
        if self._own is not None:
            self.events.add(self._own)
            self._own = None
