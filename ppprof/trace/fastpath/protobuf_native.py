"""Decode protobuf's wire format with native/protobuf.c, or with numpy where it is not compiled.

The C function reads all messages of one type in one call, without Python's lock. So threads divide
many messages.
"""

from __future__ import annotations

import contextlib
import ctypes
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import numpy as np

from ppprof.arrays import Array, Int32, Int64, UInt64
from ppprof.errors import TraceError
from ppprof.trace.fastpath import core
from ppprof.trace.fastpath.protobuf_decode import NumpyBuffer
from ppprof.trace.fastpath.protobuf_messages import (
    BEYOND_FILE,
    BEYOND_MESSAGE,
    LONG_NUMBER,
    MESSAGE,
    MESSAGES,
    NUMBER,
    PADDING,
    TEXT,
    UNKNOWN_TYPE,
    ByteRanges,
    Bytes,
    Fields,
    MessageBuffer,
    Values,
    damaged,
)
from ppprof.trace.fastpath.string_table import StringTable
from ppprof.trace.fastpath.threads import num_processors

_DONE, _FULL = 0, 1
_REASONS = {2: LONG_NUMBER, 3: UNKNOWN_TYPE, 4: BEYOND_FILE, 5: BEYOND_MESSAGE}
"""Outcome of the C function -> reason of the error."""
_MOST_MESSAGES = 2**31 - 1
"""Indices of messages have 32 bits. A file with more of them has at least 4 GiB."""
_FEWEST_MESSAGES = 1 << 16
"""Fewest messages for each thread."""
_FEWEST_ROWS = 1024
_SLOTS_PER_TEXT = 4
"""Slots of the hash table of texts: so many are free that a search seldom takes a second step."""


def message_buffer(data: Bytes, size: int, name: str) -> MessageBuffer:
    """Return the reader of a protobuf file: the compiled one, or numpy's where it is not there.

    Args:
        data: the file's bytes, and `PADDING` zero bytes.
        size: number of the file's bytes.
        name: the file's path, for error messages.
    """
    library = core.library()
    return NativeBuffer(library, data, size, name) if library else NumpyBuffer(data, size, name)


class _Column(ctypes.Structure):
    """``Column`` of native/protobuf.c."""

    _fields_ = (
        ("field", ctypes.c_int32),
        ("kind", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("wanted_width", ctypes.c_int32),
        ("values", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("end", ctypes.c_void_p),
        ("capacity", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("slots", ctypes.c_void_p),
        ("num_slots", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("text_first", ctypes.c_int64),
        ("text_end", ctypes.c_int64),
    )


class _State(ctypes.Structure):
    """``State`` of native/protobuf.c."""

    _fields_ = (
        ("message", ctypes.c_int64),
        ("cursor", ctypes.c_int64),
        ("error", ctypes.c_int64),
    )


class _ColumnArrays:
    """The arrays of one wanted field, which the C function fills."""

    def __init__(self, column: _Column, field: int, kind: int, num_messages: int) -> None:
        self._column = column
        self.kind = kind
        column.field, column.kind = field, kind
        column.width = 1
        self.values: Array = np.zeros(num_messages if kind == NUMBER else 0, np.uint8)
        self.rows: Int32 = np.zeros(num_messages if kind == TEXT else 0, np.int32)
        num_ranges = num_messages if kind == MESSAGE else 0
        self.first: Int64 = np.zeros(num_ranges, np.int64)
        self.end: Int64 = np.zeros(num_ranges, np.int64)
        self._slots: UInt64 = np.zeros(0, np.uint64)
        if kind == TEXT:
            column.seed = secrets.randbits(64)
        self._connect()

    def enlarge_if_full(self, library: ctypes.CDLL, data: Array, num_begun: int) -> None:
        """Give more room to a column that has none left, or too few bytes for a number.

        ``num_begun`` is the number of messages with values.
        """
        column = self._column
        if column.wanted_width:
            values = np.zeros(len(self.values), f"u{column.wanted_width}")
            values[:num_begun] = self.values[:num_begun]
            self.values = values
            column.width, column.wanted_width = column.wanted_width, 0
        elif self.kind == MESSAGES and column.count == column.capacity:
            column.capacity += max(_FEWEST_ROWS, column.capacity // 4)
            self._resize(column.capacity)
        elif self.kind == TEXT and column.count == column.capacity:
            column.capacity = max(_FEWEST_ROWS, 2 * column.capacity)
            self._resize(column.capacity)
            self._slots = np.zeros(_SLOTS_PER_TEXT * column.capacity, np.uint64)
            column.num_slots = len(self._slots)
        else:
            return
        self._connect()
        if self.kind == TEXT:
            library.ppprof_protobuf_rehash(ctypes.c_void_p(data.ctypes.data), ctypes.byref(column))

    def finished(self, data: Array) -> Values:
        """Free the room that is not used, and return the values."""
        distinct: list[bytes] = []
        if self.kind in (TEXT, MESSAGES):
            self._resize(self._column.count)
        if self.kind == TEXT:
            sides = self.first.tolist(), self.end.tolist()
            distinct = [data[first:end].tobytes() for first, end in zip(*sides)]
        return Values(self.values, self.rows, self.first, self.end, distinct)

    def _resize(self, num_rows: int) -> None:
        # In place: a copy of the ranges of a million messages would be a large part of the memory.
        self.first.resize(num_rows, refcheck=False)
        self.end.resize(num_rows, refcheck=False)
        if self.kind == MESSAGES:
            self.rows.resize(num_rows, refcheck=False)

    def _connect(self) -> None:
        column = self._column
        if self.kind == NUMBER:
            column.values = self.values.ctypes.data
            return
        column.first, column.end = self.first.ctypes.data, self.end.ctypes.data
        if self.kind in (TEXT, MESSAGES):
            column.rows = self.rows.ctypes.data
        if self.kind == TEXT:
            column.slots = self._slots.ctypes.data


def _joined(
    parts: Sequence[dict[int, Values]], firsts: Sequence[int], wanted: Mapping[int, int]
) -> dict[int, Values]:
    """Return the fields of the messages of all parts, one after another; empties ``parts``.

    ``firsts`` holds the index of each part's first message.
    """
    values = {}
    for field, kind in wanted.items():
        # The parts are freed field by field.
        pieces = [part.pop(field) for part in parts]
        rows, distinct = [piece.rows for piece in pieces], list[bytes]()
        if kind == TEXT:
            table = StringTable()
            rows = [table.numbers(piece.distinct)[piece.rows] for piece in pieces]
            distinct = table.all()
        elif kind == MESSAGES:
            rows = [piece.rows + np.int32(first) for piece, first in zip(pieces, firsts)]
        values[field] = Values(
            np.concatenate([piece.numbers for piece in pieces]),
            np.concatenate(rows),
            np.concatenate([piece.first for piece in pieces]),
            np.concatenate([piece.end for piece in pieces]),
            distinct,
        )
    return values


class NativeBuffer(MessageBuffer):
    """The bytes of one protobuf file, read by the compiled ``library``."""

    def __init__(self, library: ctypes.CDLL, data: Bytes, size: int, name: str) -> None:
        super().__init__(data, size, name)
        self._library = library
        if len(data) < size + PADDING:
            raise ValueError(f"{len(data)} bytes: expected {size} and a padding of {PADDING}")

    def fields(self, ranges: ByteRanges, wanted: Mapping[int, int]) -> Fields:
        """Return the fields of the messages at ``ranges``; see `MessageBuffer`.

        Raises:
            TraceError: a message is damaged, or there are more than 2**31 - 1 messages.
        """
        start, end = (np.ascontiguousarray(side, np.int64) for side in (ranges.start, ranges.end))
        if len(start) > _MOST_MESSAGES:
            raise TraceError(
                f"{self._name}: {len(start)} messages of one type; at most {_MOST_MESSAGES} can be "
                "read: record a shorter window"
            )
        num_threads = max(min(num_processors(), len(start) // _FEWEST_MESSAGES), 1)
        bounds = [len(start) * number // num_threads for number in range(num_threads + 1)]
        parts = [(start[first:last], end[first:last]) for first, last in zip(bounds, bounds[1:])]
        if num_threads > 1:
            with contextlib.suppress(RuntimeError):  # the limit of threads is reached
                with ThreadPoolExecutor(num_threads, "ppprof decode") as executor:
                    read = list(executor.map(self._read, *zip(*parts), repeat(wanted)))
                return Fields(_joined(read, bounds, wanted))
        return Fields(self._read(start, end, wanted))

    def _read(self, start: Int64, end: Int64, wanted: Mapping[int, int]) -> dict[int, Values]:
        structures = (_Column * len(wanted))()
        columns = {
            field: _ColumnArrays(structure, field, kind, len(start))
            for structure, (field, kind) in zip(structures, wanted.items())
        }
        state = _State(0, -1, 0)
        while True:
            outcome = self._library.ppprof_protobuf_read(
                ctypes.c_void_p(self._bytes.ctypes.data),
                ctypes.c_int64(self._size),
                ctypes.c_void_p(start.ctypes.data),
                ctypes.c_void_p(end.ctypes.data),
                ctypes.c_int64(len(start)),
                structures,
                ctypes.c_int32(len(structures)),
                ctypes.byref(state),
            )
            if outcome != _FULL:
                break
            for column in columns.values():
                column.enlarge_if_full(self._library, self._bytes, state.message + 1)
        if outcome in _REASONS:
            raise damaged(self._name, self._size, state.error, _REASONS[outcome])
        assert outcome == _DONE, outcome
        return {field: column.finished(self._bytes) for field, column in columns.items()}
