"""Scan the beginning of a long file while the modules are imported that make its tables.

To import numpy and polars takes as long as to scan a hundred megabytes. A thread of the compiled core
does so meanwhile: it does not need the interpreter. The reader of JSON goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ppprof.errors import TraceError
from ppprof.trace.fastpath.layouts import dialect_of
from ppprof.trace.fastpath.ranges import MIN_RANGE_BYTES, RangeScan, can_divide, next_start
from ppprof.trace.fastpath.threads import num_processors
from ppprof.trace.json.recovery import HEAD_BYTES, start_of_events
from ppprof.trace.source import TraceStream

_FEWEST_BYTES = 4 << 20
"""A shorter file is scanned faster than a thread is started."""
_HEAD_START_BYTES = 96 << 20
"""Bytes that are scanned during the imports, about."""
_begun: list[RangeScan] = []
"""The scans that the context managers have begun and no reader has taken, the latest one last."""


@contextmanager
def scanned_ahead(path: str | Path) -> Iterator[None]:
    """Scan the beginning of a file in a thread, if it is the JSON of a known writer.

    The block imports what the reader of JSON needs, and reads the file. Without a compiled core, and
    for a file that is short, packed, in a store or unreadable, this does nothing.
    """
    scan = _new_scan(str(path))
    if scan is None:
        yield
        return
    scan.start()
    _begun.append(scan)
    try:
        yield
    finally:
        if scan in _begun:
            _begun.remove(scan)
        scan.cancel()
        scan.close()


def take_begun_scan(source: TraceStream, dialect: str) -> RangeScan | None:
    """Return the scan of a file's first range if it has begun; None if not, or if it was taken.

    Args:
        source: the file, at its list of events.
        dialect: key in `DIALECTS` of the file's writer.
    """
    for scan in reversed(_begun):
        place = scan.dialect, scan.first, scan.identity
        if place == (dialect, source.position, source.identity):
            _begun.remove(scan)
            return scan
    return None


def _new_scan(path: str) -> RangeScan | None:
    """Return the scan of a file's first range; None if the file is not to be scanned ahead."""
    try:
        with TraceStream(path) as source:
            if not can_divide(source) or source.size < _FEWEST_BYTES:
                return None
            head = source.peek(HEAD_BYTES)
            start = start_of_events(head)
            dialect = dialect_of(head[start:]) if start >= 0 else None
            if dialect is None:
                return None
            return RangeScan(path, dialect, source.position + start, _end(source, dialect))
    except TraceError:  # the reader finds the same error
        return None


def _end(source: TraceStream, dialect: str) -> int:
    """Return where the first range of a file ends: the other processors scan the rest."""
    num_others = num_processors() - 1
    rest = (source.size - _HEAD_START_BYTES) * num_others // (num_others + 1)
    if rest < MIN_RANGE_BYTES:
        return source.size
    return next_start(source, dialect, source.size - rest) or source.size
