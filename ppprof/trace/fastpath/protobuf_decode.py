"""Decode protobuf's wire format for many messages at once, with numpy.

`protobuf_native` is four times faster, and needs a compiled library.

A trace holds hundreds of thousands of small messages of a few types. Python needs about 10 us to
decode one. Here one numpy pass decodes the *k-th field of every message*, whatever the order of the
fields. So the interpreter's cost is paid once per field number, not once per message.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NoReturn, Union

import numpy as np

from ppprof.arrays import Int64, UInt64
from ppprof.trace.fastpath.protobuf_messages import (
    BEYOND_FILE,
    BEYOND_MESSAGE,
    LONG_NUMBER,
    MESSAGE,
    MESSAGES,
    NUMBER,
    TEXT,
    UNKNOWN_TYPE,
    ByteRanges,
    Bytes,
    DamageError,
    Fields,
    MessageBuffer,
    Values,
    damaged,
    varint_at,
)
from ppprof.trace.fastpath.string_table import ByteView, StringTable

VARINT, I64, LEN, I32 = 0, 1, 2, 5
"""Wire types: a number; 8 bytes; a length and that many bytes; 4 bytes."""

_FEW = 48  # with fewer messages, a Python loop is faster than numpy calls
_CHUNK = 8192  # messages at a time: their temporaries stay in the processor's cache

_Decoded = tuple[Union[Int64, int], Union[UInt64, Int64], Int64]
"""Some fields: twice their numbers, plus 1 for a field with a length (an int if the fields agree);
values, or first bytes of fields with a length; and the byte after each field."""


class _Column:
    """One wanted field of N messages, which is filled chunk by chunk."""

    def __init__(self, kind: int, num_messages: int) -> None:
        self._kind = kind
        num_ranges = num_messages if kind in (TEXT, MESSAGE) else 0
        self._numbers = np.zeros(num_messages if kind == NUMBER else 0, np.uint64)
        self._first, self._end = np.zeros(num_ranges, np.int64), np.zeros(num_ranges, np.int64)
        self._parts = [(np.zeros(0, np.int32), self._first[:0], self._end[:0])]

    def add(self, message: Int64, low: UInt64 | Int64, end: Int64) -> None:
        """Add fields of the messages with these indices; ``low`` and ``end`` as in `_Decoded`."""
        if self._kind == NUMBER:
            self._numbers[message] = low  # the last occurrence wins, as protobuf demands
        elif self._kind == MESSAGES:
            self._parts.append((message.astype(np.int32), low.astype(np.int64), end))
        else:
            self._first[message], self._end[message] = low, end

    def values(self, text: ByteView) -> Values:
        """Return the values of all messages, whose bytes are in ``text``."""
        table, rows = StringTable(), np.zeros(0, np.int32)
        first, end = self._first, self._end
        if self._kind == TEXT:
            rows = np.empty(len(first), np.int32)
            for chunk in _chunks(len(first)):
                rows[chunk] = table.between(text, first[chunk], end[chunk])
        elif self._kind == MESSAGES:
            rows, first, end = (np.concatenate(sides) for sides in zip(*self._parts))
            if not (rows[1:] >= rows[:-1]).all():
                order = np.argsort(rows, kind="stable")
                rows, first, end = rows[order], first[order], end[order]
        return Values(self._numbers, rows, first, end, table.all())


def _add(columns: Mapping[int, _Column], message: Int64, fields: _Decoded) -> None:
    """Add fields of the messages with these indices to the columns of their kinds."""
    kind, low, end = fields
    if isinstance(kind, int):
        if kind in columns:
            columns[kind].add(message, low, end)
        return
    for wanted, column in columns.items():
        rows = np.flatnonzero(kind == wanted)
        if len(rows):
            column.add(message[rows], low[rows], end[rows])


def _chunks(num_items: int) -> Iterator[slice]:
    return (slice(first, first + _CHUNK) for first in range(0, num_items, _CHUNK))


class NumpyBuffer(MessageBuffer):
    """The bytes of one protobuf file, read by numpy."""

    def __init__(self, data: Bytes, size: int, name: str) -> None:
        super().__init__(data, size, name)
        self._text = ByteView(data)
        self._raw, self._words = self._text.raw, self._text.words

    def fields(self, ranges: ByteRanges, wanted: Mapping[int, int]) -> Fields:
        """Return the fields of the messages at ``ranges``; see `MessageBuffer`.

        Raises:
            TraceError: a message is damaged.
        """
        columns = {
            2 * field + (kind != NUMBER): _Column(kind, len(ranges))
            for field, kind in wanted.items()
        }
        for chunk in _chunks(len(ranges)):
            start, end = ranges.start[chunk], ranges.end[chunk]
            try:
                for message, fields in self._chunk(start, end):
                    _add(columns, message + chunk.start, fields)
            except DamageError:
                self._report_damage(start, end)
        return Fields(
            {field: column.values(self._text) for field, column in zip(wanted, columns.values())}
        )

    def _chunk(self, start: Int64, end: Int64) -> Iterator[tuple[Int64, _Decoded]]:
        """Yield some fields of the messages at [start, end), and the index of each one's message.

        They are the k-th field of each message, or all fields of a few messages.
        """
        active = np.flatnonzero(start < end)
        cursor, limit = start[active], end[active]
        while len(active) >= _FEW:
            fields = self._next_field(cursor)
            cursor = fields[2]
            if (cursor > limit).any():
                raise DamageError
            yield active, fields
            more = cursor < limit
            if not more.all():
                active, cursor, limit = active[more], cursor[more], limit[more]
        yield from self._fields_of_few(active, cursor, limit)

    def _next_field(self, cursor: Int64) -> _Decoded:
        """Decode the field at each cursor."""
        tags, cursor = self._tags(cursor)
        if (tags == tags[0]).all():  # usual: messages have the same fields in the same order
            tag = int(tags[0])
            if tag & 7 == VARINT:
                return 2 * (tag >> 3), *self._varints(cursor)
            if tag & 7 == LEN:
                length = self._bytes[cursor]
                if (length < 0x80).all():
                    low = cursor + 1
                    return 2 * (tag >> 3) + 1, low, low + length
        return self._any_field(tags >> 3, tags & 7, cursor)

    def _any_field(self, number: Int64, kind: Int64, cursor: Int64) -> _Decoded:
        """Return what `_next_field` returns for fields with these numbers and types; ``cursor`` is behind each tag."""
        lengths = kind == LEN
        low, after = np.zeros(len(cursor), np.uint64), cursor.copy()
        rows = np.flatnonzero(lengths | (kind == VARINT))
        low[rows], after[rows] = self._varints(cursor[rows])
        if lengths.any():
            if (lengths & (low > np.uint64(self._size))).any():
                raise DamageError
            end = np.where(lengths, after + low.astype(np.int64), after)
            low = np.where(lengths, after.astype(np.uint64), low)
            after = end
        for fixed, width in ((I64, 8), (I32, 4)):
            rows = np.flatnonzero(kind == fixed)
            if len(rows):
                low[rows] = self._words[cursor[rows]] & np.uint64((1 << 8 * width) - 1)
                after[rows] = cursor[rows] + width
        if not np.isin(kind, (VARINT, I64, LEN, I32)).all():
            raise DamageError
        return 2 * number + lengths, low, after

    def _tags(self, cursor: Int64) -> tuple[Int64, Int64]:
        """Return the field tag at each cursor, and the byte after it.

        Tags take one byte up to field 15 and two up to 2047.
        """
        first = self._bytes[cursor].astype(np.int64)
        long = first >= 0x80
        if not long.any():
            return first, cursor + 1
        second = np.where(long, self._bytes[cursor + 1].astype(np.int64), 0)
        if (second >= 0x80).any():
            tag, after = self._varints(cursor)
            return tag.view(np.int64), after
        return (first & 0x7F) | (second << 7), cursor + 1 + long

    def _varints(self, cursor: Int64) -> tuple[UInt64, Int64]:
        """Return the base-128 number at each cursor, and the byte after each number.

        The group of 7 bits in the first byte is the least significant.
        """
        first = self._bytes[cursor]
        if (first < 0x80).all():
            return first.astype(np.uint64), cursor + 1
        words = self._words[cursor]
        stops = ~words & np.uint64(0x8080808080808080)  # bytes without the continuation bit
        stop = stops & (~stops + np.uint64(1))  # the first one; 0 if 8 bytes hold no stop
        low = words & (stop | (stop - np.uint64(1))) & np.uint64(0x7F7F7F7F7F7F7F7F)
        # Close the gaps: 8 groups of 7 bits in 8 bytes each -> 4 of 14 in 16 -> 2 of 28 -> 56.
        low = (low & np.uint64(0x007F007F007F007F)) | (
            (low & np.uint64(0x7F007F007F007F00)) >> np.uint64(1)
        )
        low = (low & np.uint64(0x00003FFF00003FFF)) | (
            (low & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2)
        )
        low = (low & np.uint64(0x000000000FFFFFFF)) | (
            (low & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4)
        )
        after = cursor + np.frexp(stop.astype(np.float64))[1] // 8
        long = np.flatnonzero(stop == 0)
        if len(long):
            end = cursor[long] + 8
            ninth = self._bytes[end].astype(np.uint64)
            tenth = np.where(ninth >= 0x80, self._bytes[end + 1], 0).astype(np.uint64)
            if (tenth >= 0x80).any():
                raise DamageError
            low[long] |= (ninth & np.uint64(0x7F)) << np.uint64(56) | tenth << np.uint64(63)
            after[long] = end + 1 + (ninth >= 0x80)
        return low, after

    def _fields_of_few(
        self, active: Int64, cursors: Int64, limits: Int64
    ) -> Iterator[tuple[Int64, _Decoded]]:
        """Yield the fields of a few messages with many fields, such as a thread and all its nodes.

        A loop finds where each field begins, because that depends on the previous field. The
        contents of the fields are then decoded in arrays.
        """
        message: list[int] = []
        tags: list[int] = []
        for index, cursor, limit in zip(active.tolist(), cursors.tolist(), limits.tolist()):
            while cursor < limit:
                tags.append(cursor)
                tag, cursor = varint_at(self._raw, cursor)
                if tag & 7 == LEN:
                    cursor = self._end_of_run(tags, limit)
                elif tag & 7 == VARINT:
                    _, cursor = varint_at(self._raw, cursor)
                elif tag & 7 in (I64, I32):
                    cursor += 8 if tag & 7 == I64 else 4
                else:
                    raise DamageError
                if cursor > limit:
                    raise DamageError
            message += [index] * (len(tags) - len(message))
        for chunk in _chunks(len(tags)):
            fields = self._next_field(np.array(tags[chunk], np.int64))
            yield np.array(message[chunk], np.int64), fields

    def _end_of_run(self, tags: list[int], limit: int) -> int:
        """Return the end of a run of fields that have a length and the same tag.

        The last entry of ``tags`` is the start of the run's first field. The starts of the run's
        other fields are appended to ``tags``.
        """
        raw = self._raw
        cursor = tags.pop()
        _, after = varint_at(self._raw, cursor)
        width = after - cursor
        key = raw[cursor:after]
        while cursor < limit and raw[cursor : cursor + width] == key:
            tags.append(cursor)
            cursor += width
            length = raw[cursor]
            if length < 0x80:
                cursor += length + 1
            elif raw[cursor + 1] < 0x80:
                cursor += (length & 0x7F | raw[cursor + 1] << 7) + 2
            else:
                length, cursor = varint_at(self._raw, cursor)
                cursor += length
        return cursor

    def _report_damage(self, starts: Int64, ends: Int64) -> NoReturn:
        """Raise the error of the first damaged message, field by field as native/protobuf.c."""
        for cursor, limit in zip(starts.tolist(), ends.tolist()):
            while cursor < limit:
                tag, begin = self._number_or_error(cursor)
                if tag & 7 in (I64, I32):
                    end = begin + (8 if tag & 7 == I64 else 4)
                elif tag & 7 in (VARINT, LEN):
                    length, end = self._number_or_error(begin)
                    if tag & 7 == LEN:
                        if length > self._size:
                            raise damaged(self._name, self._size, begin, BEYOND_FILE)
                        end += length
                else:
                    raise damaged(self._name, self._size, cursor, UNKNOWN_TYPE)
                if end > limit:
                    raise damaged(self._name, self._size, end, BEYOND_MESSAGE)
                cursor = end
        raise AssertionError("no message is damaged")

    def _number_or_error(self, cursor: int) -> tuple[int, int]:
        try:
            return varint_at(self._raw, cursor)
        except DamageError:
            raise damaged(self._name, self._size, cursor + 10, LONG_NUMBER) from None
