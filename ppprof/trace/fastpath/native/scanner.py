"""Read events by the fixed layouts of `layouts` with the compiled core (scan.c, range.c), in threads for a long file."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from ppprof.trace.fastpath import core
from ppprof.trace.fastpath.ahead import take_begun_scans
from ppprof.trace.fastpath.fixed_layout import INPUTS, NARROW, TEXTS, Scanned
from ppprof.trace.fastpath.layouts import DIALECTS, Dialect, EventPattern, Field
from ppprof.trace.fastpath.native.store import Control, NativeStore, literal, numbers
from ppprof.trace.fastpath.ranges import RangeScans, range_bounds
from ppprof.trace.fastpath.threads import num_processors
from ppprof.trace.source import TraceStream

_WHOLE, _WITHOUT_DURATION, _INPUT = range(3)


class _Program(NamedTuple):
    """What `ppprof_scanner_new` of scan.c reads, and the names of its columns."""

    code: bytes
    columns: list[tuple[str, str]]
    """Kind and name of each column."""


class Scanner(NativeStore):
    """Reader of events in the layouts of one dialect.

    Args:
        dialect: the writer of the file.
        library: the library of `core.choose`.

    Raises:
        MemoryError: there is not enough memory.
    """

    block_bytes = 1 << 20
    """Length of a block that is read fastest: with its columns, it stays in a processor's cache."""

    def __init__(self, dialect: Dialect, library: ctypes.CDLL) -> None:
        self._program = _program_of(dialect)
        start = dialect.start, len(dialect.start)
        super().__init__(library, "scanner", self._program.code, start)

    def scanned(self) -> Scanned:
        """Return the events of all blocks that were added. Called once, at the end.

        The events of a kind are one part, in the order of the file.

        Raises:
            MemoryError: there is not enough memory.
        """
        parts = self.columns(self._program.columns)
        num_flows = self.library.ppprof_scanner_flows(self.address)
        return Scanned(list(parts.items()), self.texts(), self.ranges(), num_flows)


@cache
def _program_of(dialect: Dialect) -> _Program:
    """Return the program of a dialect.

    All numbers are unsigned 32-bit integers, little-endian. A literal is its length and its bytes.
    """
    columns: dict[tuple[str, str], str] = {}
    for layout in dialect.layouts:
        named = [field for field in layout.fields if field.name]
        for field in named:
            storage = _storage(field)
            if columns.setdefault((layout.kind, field.name), storage) != storage:
                raise ValueError(f"{layout.form!r}: {field.name} has another type elsewhere")
        if named:
            columns[layout.kind, "position"] = "q"
    kinds = list(dict.fromkeys(kind for kind, _ in columns))
    number = {column: index for index, column in enumerate(columns)}
    num_fields = sum(len(layout.fields) for layout in dialect.layouts)
    code = [
        numbers(len(kinds), len(columns), len(dialect.layouts), num_fields),
        literal(dialect.start),
        *(numbers(ord(storage), kinds.index(kind)) for (kind, _), storage in columns.items()),
        *(numbers(number[kind, "position"]) for kind in kinds),
    ]
    for layout in dialect.layouts:
        has_columns = any(field.name for field in layout.fields)
        code += [
            numbers(kinds.index(layout.kind) + 1 if has_columns else 0),
            literal(layout.prefix),
            numbers(len(layout.fields)),
            *_fields(layout, number),
        ]
    return _Program(b"".join(code), list(columns))


def _storage(field: Field) -> str:
    """Return the letter of a column's `Storage` in columns.h."""
    if field.spec in "wlos":
        return "t"
    if field.spec == "g":
        return "d"
    return "i" if field.name in NARROW else "q"


def _fields(layout: EventPattern, number: dict[tuple[str, str], int]) -> Iterator[bytes]:
    """Yield the code of each field of a layout, from the last to the first."""
    for field in reversed(layout.fields):
        treatment = _WHOLE
        if field.name in TEXTS:
            treatment = _INPUT if field.name in INPUTS else _WHOLE
            treatment = _WITHOUT_DURATION if field.name == "name" else treatment
        column = number[layout.kind, field.name] + 1 if field.name else 0
        yield numbers(ord(field.spec), column, treatment)
        yield literal(field.after)
        yield numbers(field.indent)


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
