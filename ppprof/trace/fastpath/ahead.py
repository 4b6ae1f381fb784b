"""Begin to read a long file while the modules are imported that make its tables.

To import polars and what uses it takes as long as to read a hundred megabytes. A thread of the
compiled core does so meanwhile: it does not need the interpreter. The reader of JSON goes on from
there, with more threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ppprof.errors import TraceError
from ppprof.trace.fastpath.ranges import RangeScans, can_divide
from ppprof.trace.source import TraceStream

_begun: list[RangeScans[Any]] = []
"""The scans that context managers have begun and no reader has taken, the latest one last."""


@contextmanager
def scanned_ahead(
    path: str | Path, new_scans: Callable[[TraceStream], RangeScans[Any] | None]
) -> Iterator[None]:
    """Begin to read a file in a thread.

    The block imports what the reader needs, and reads the file. Without a compiled core, and for a
    file that is packed or unreadable, this does nothing.

    Args:
        path: the file.
        new_scans: returns the scans of a file that was just opened; None for another kind of file.
    """
    scans = _new_scans(str(path), new_scans)
    if scans is None:
        yield
        return
    scans.start(1)
    _begun.append(scans)
    try:
        yield
    finally:
        if scans in _begun:
            _begun.remove(scans)
        scans.close()


def take_begun_scans(source: TraceStream, writer: str) -> RangeScans[Any] | None:
    """Return the scans of a file if they have begun, and no reader has taken them; else None.

    Args:
        source: the file, at its list of events.
        writer: as in `RangeScans`.
    """
    scans: RangeScans[Any]
    for scans in reversed(_begun):
        place = scans.writer, scans.ranges[0][0], scans.identity
        if place == (writer, source.position, source.identity):
            _begun.remove(scans)
            return scans
    return None


def _new_scans(
    path: str, new_scans: Callable[[TraceStream], RangeScans[Any] | None]
) -> RangeScans[Any] | None:
    try:
        with TraceStream(path) as source:
            if not can_divide(source):
                return None
            return new_scans(source)
    except TraceError:  # the reader finds the same error
        return None
