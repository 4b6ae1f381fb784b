"""Read events from text that is exactly as its writer printed it, without decoding JSON.

There are two scanners with one interface: `NumpyScanner` here, and the compiled one in `native`.
`core` chooses. Their columns have the same values. They differ in the number of parts, the order of
rows and the numbers of texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from ppprof.arrays import Array, Int64
from ppprof.trace.fastpath import core
from ppprof.trace.fastpath.layouts import Dialect
from ppprof.trace.fastpath.scan import Text
from ppprof.trace.fastpath.string_table import StringTable
from ppprof.trace.source import BLOCK_BYTES, MARGIN, Block, TraceStream

Ranges = list[tuple[int, int]]

INPUTS = ("shapes", "dtypes", "attributes", "callstack")
"""Text columns of operators, see `ppprof.trace.operator_inputs`; most files have no such text."""
TEXTS = ("name", "cat", "place", "axis", "dtype", "peers", "phase", *INPUTS)
"""Text columns. They hold indices into a list of strings (`Scanned.texts`), -1 for no text."""
NARROW = frozenset(("pid", "tid", "dur", "device", "stream"))
"""Columns of integers that are int32 if all of their values fit, to save memory."""
MISSING = np.int64(np.iinfo(np.int64).min)
"""Stands for a missing value in a column of integers."""

_EMPTY_INPUT = len("{}")
_UNITS = tuple(np.uint64(int.from_bytes(unit, "little")) for unit in (b" ms]", b" us]", b" ns]"))
_SECONDS = np.uint64(int.from_bytes(b" s]", "little"))

Part = tuple[str, Mapping[str, Array]]
"""A kind of event, and its columns, each of shape (N,).

The columns are the named fields of the layout and ``position``, the byte offset of each event. A
part with events of several layouts has the columns of all of them: an event without a field has
`MISSING` there, NaN for a real number, and -1 for a text.
"""


class Scanned(NamedTuple):
    """The events of a byte range of a file."""

    parts: list[Part]
    """The events that match a layout. Several parts may be of one kind."""
    texts: list[bytes]
    """Strings as in the file; the columns `TEXTS` hold indices into this list."""
    unmatched: Ranges
    """Text in no known layout, as ascending byte ranges (first, end) of the file."""
    num_flows: int
    """Number of flow events, which are in no part."""


class Scanner(Protocol):
    """Reader of blocks of events in the layouts of one dialect."""

    block_bytes: int
    """Length of a block that is read fastest."""

    def add(self, block: Block) -> Ranges:
        """Add the events of a block, which begins and ends between two events.

        Returns:
            Text of the block in no known layout, as ascending byte ranges (first, end) of the file.
        """

    def scanned(self) -> Scanned:
        """Return the events of all blocks that were added. Called once, at the end."""


def new_scanner(dialect: Dialect) -> Scanner:
    """Return a scanner of the core that `core.choose` returns.

    Raises:
        UsageError: the environment asks for a core that does not exist or cannot be used.
    """
    library = core.choose().library
    if library is None:
        return NumpyScanner(dialect)
    from ppprof.trace.fastpath.native.scanner import NativeScanner  # imports this module

    return NativeScanner(dialect, library)


class NumpyScanner:
    """Scanner that matches one field of all events of a block at once, with numpy."""

    block_bytes = BLOCK_BYTES

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._texts = StringTable()
        self._parts: list[Part] = []
        self._unmatched: Ranges = []
        self._num_flows = 0

    def add(self, block: Block) -> Ranges:
        """Add the events of a block, which begins and ends between two events.

        Returns:
            Text of the block in no known layout, as ascending byte ranges (first, end) of the file.
        """
        text = Text(block)
        start = text.positions(self._dialect.start)
        end = np.append(start[1:], text.end)
        pending = np.arange(len(start))
        for layout in self._dialect.layouts:
            if not len(pending):
                break
            matches = layout.match(text, start[pending], end[pending], self._dialect.start)
            if not len(matches.rows):
                continue
            columns: dict[str, Array] = dict(matches.columns)
            for column in TEXTS:
                if column in columns:
                    first, last = matches.columns[column], matches.columns[f"{column}_end"]
                    del columns[f"{column}_end"]
                    if column in INPUTS:
                        columns[column] = self._inputs(text, first, last)
                        continue
                    if column == "name":
                        last = _without_duration(text, first, last)
                    columns[column] = self._texts.between(text, first, last)
            for column in NARROW & columns.keys():
                columns[column] = narrowed(columns[column])
            if columns:
                columns["position"] = start[pending[matches.rows]] - MARGIN + block.first
                self._parts.append((layout.kind, columns))
            else:
                self._num_flows += len(matches.rows)
            pending = np.delete(pending, matches.rows)
        first_start = int(start[0]) - MARGIN if len(start) else block.length
        ranges = ([(0, first_start)] if first_start else []) + _runs(pending, start, end)
        unmatched = [(first + block.first, end + block.first) for first, end in ranges]
        self._unmatched += unmatched
        return unmatched

    def _inputs(self, text: Text, first: Int64, end: Int64) -> Array:
        """Return the numbers of the texts in [first, end); -1 for ``{}`` and for no text."""
        numbers = np.full(len(first), -1, np.int32)
        present = np.flatnonzero(end - first > _EMPTY_INPUT)
        if len(present):
            numbers[present] = self._texts.between(text, first[present], end[present])
        return numbers

    def scanned(self) -> Scanned:
        """Return the events of all blocks that were added."""
        return Scanned(self._parts, self._texts.all(), self._unmatched, self._num_flows)


def scan(source: TraceStream, dialect: Dialect, end: int) -> Scanned:
    """Return the events from the stream's position to byte ``end`` of the file.

    At ``end``, an event begins or the file ends.
    """
    scanner = new_scanner(dialect)
    for block in source.blocks(dialect.last_start, end, num_bytes=scanner.block_bytes):
        scanner.add(block)
    return scanner.scanned()


def narrowed(values: Int64) -> Array:
    """Return the values as int32, to save memory; unchanged if one of them does not fit."""
    if len(values) and values.min() >= -(2**31) and values.max() < 2**31:
        return values.astype(np.int32)
    return values


def _without_duration(text: Text, first: Int64, end: Int64) -> Int64:
    """Return where each name ends without the duration, such as ``[1.2 ms]``.

    Paddle's writer and `write_paddle_json` append the duration to names.

    Args:
        text: the block.
        first: position of the first byte of each name, shape (N,).
        end: position after each name with its duration, shape (N,).
    """
    bracket = text.last_before(end, b"[")
    last = text.words[end - 4] & np.uint64(2**32 - 1)
    is_unit = last >> np.uint64(8) == _SECONDS
    for unit in _UNITS:
        is_unit |= last == unit
    digit = text.bytes[bracket + 1]
    return np.where(
        is_unit & (bracket >= first) & (digit >= ord("0")) & (digit <= ord("9")), bracket, end
    )


def _runs(rows: Int64, start: Int64, end: Int64) -> Ranges:
    """Return the byte ranges of the events ``rows``, relative to the block.

    The ranges of consecutive rows are joined. ``start`` and ``end`` are positions of all events.
    """
    breaks = np.flatnonzero(np.diff(rows) != 1)
    firsts = rows[np.append(0, breaks + 1)] if len(rows) else rows
    lasts = rows[np.append(breaks, len(rows) - 1)] if len(rows) else rows
    return list(zip((start[firsts] - MARGIN).tolist(), (end[lasts] - MARGIN).tolist()))
