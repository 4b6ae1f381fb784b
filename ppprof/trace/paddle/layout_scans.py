"""Events of Paddle's JSON from threads that read ranges of a file by its fixed layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ppprof.trace.fastpath import core
from ppprof.trace.fastpath.ahead import take_begun_scans
from ppprof.trace.fastpath.fixed_layout import Scanned
from ppprof.trace.fastpath.layouts import DIALECTS, Dialect
from ppprof.trace.fastpath.native.scanner import Scanner
from ppprof.trace.fastpath.native.store import Control
from ppprof.trace.fastpath.ranges import RangeScans, range_bounds
from ppprof.trace.fastpath.threads import num_processors
from ppprof.trace.source import TraceStream


def new_scans(source: TraceStream, name: str) -> RangeScans[Scanned]:
    """Return scans of the ranges of a file from the stream's position on.

    Args:
        source: the file, at its list of events; `can_divide` is true.
        name: key in `DIALECTS` of the file's writer.
    """
    dialect = DIALECTS[name]
    bounds = range_bounds(source, source.position, _start_of_event(dialect))
    return RangeScans(source, name, [*bounds, source.size], _reader_of_ranges(dialect))


def _start_of_event(dialect: Dialect) -> Callable[[bytes], int | None]:
    return lambda text: text.find(dialect.start) if dialect.start in text else None


def _reader_of_ranges(
    dialect: Dialect,
) -> Callable[[TraceStream, int, int, Control], Scanned | None]:
    def read(source: TraceStream, first: int, end: int, control: Control) -> Scanned | None:
        library = core.library()
        assert library is not None
        scanner = Scanner(dialect, library)
        is_read = scanner.add_range(source, first, end, Scanner.block_bytes, control)
        return scanner.scanned() if is_read else None

    return read


def scanned_ranges(source: TraceStream, name: str) -> Iterator[Scanned]:
    """Yield the events of each range of a file from the stream's position on, in its order.

    Args:
        source: the file, at its list of events; `can_divide` is true.
        name: key in `DIALECTS` of the file's writer.

    Raises:
        TraceError: the file cannot be read, or another one has taken its place.
        MemoryError: there is not enough memory.
    """
    with take_begun_scans(source, name) or new_scans(source, name) as scans:
        scans.start(num_processors())
        for number, (first, end) in enumerate(scans.ranges):
            yield scans.take(number, source) or _scanned(source, DIALECTS[name], first, end)


def _scanned(source: TraceStream, dialect: Dialect, first: int, end: int) -> Scanned:
    """Return the events of a range that could not be read in a thread."""
    library = core.library()
    assert library is not None
    scanner = Scanner(dialect, library)
    source.skip_to(first)
    for block in source.blocks(dialect.last_start, end, num_bytes=scanner.block_bytes):
        scanner.add(block)
    return scanner.scanned()
