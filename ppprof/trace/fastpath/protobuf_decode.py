"""Decode protobuf's wire format for many messages at once, with numpy.

`protobuf_native` is four times faster, and needs a compiled library.

A trace holds hundreds of thousands of small messages of a few types. Python needs about 10 us to
decode one. Here one numpy pass decodes the *k-th field of every message*, whatever the order of the
fields. So the interpreter's cost is paid once per field number, not once per message.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from ppprof.arrays import Int64, UInt64
from ppprof.trace.fastpath.protobuf_messages import (
    BEYOND_FILE,
    BEYOND_MESSAGE,
    LONG_NUMBER,
    UNKNOWN_TYPE,
    ByteRanges,
    Bytes,
    Texts,
    damaged,
)
from ppprof.trace.fastpath.string_table import ByteView, StringTable

VARINT, I64, LEN, I32 = 0, 1, 2, 5
"""Wire types: a number; 8 bytes; a length and that many bytes; 4 bytes."""

_FEW = 48  # with fewer messages, a Python loop is faster than numpy calls
_CHUNK = 8192  # messages at a time: their temporaries stay in the processor's cache


class FieldBatch(NamedTuple):
    """Fields of some messages: the k-th field of each, or all fields of a few messages.

    A file has many batches. To keep them small, an int or a slice stands for an array where
    possible.
    """

    message: Int64 | slice
    """Index of each field's message, ascending, shape (N,); a slice if consecutive."""
    number: Int64 | int
    """Field number of each field, shape (N,); an int if all fields have this number."""
    kind: Int64 | int
    """Wire type of each field, shape (N,); an int if all fields have this type."""
    low: npt.NDArray[np.integer[Any]]
    """Value of a number; first byte of a field with a length; shape (N,)."""
    end: npt.NDArray[np.integer[Any]] | None
    """Byte after the field, shape (N,); None if ``kind`` is an int other than `LEN`."""

    def values(self, field: int) -> tuple[Int64 | slice, npt.NDArray[np.integer[Any]]]:
        """Return the messages in which ``field`` is a number, and the numbers."""
        if isinstance(self.number, int):
            if self.number == field and self.kind != LEN:
                return self.message, self.low
            return _NO_MESSAGES, _NO_VALUES
        chosen = np.flatnonzero((self.number == field) & (self.kind != LEN))
        return self._messages()[chosen], self.low[chosen]

    def ranges(self, field: int) -> tuple[Int64 | slice, Any, Any]:
        """Return the messages in which ``field`` has a length, and its byte ranges there.

        Returns:
            Messages, first bytes, and the bytes after the last ones.
        """
        if self.end is None:
            return _NO_MESSAGES, _NO_VALUES, _NO_VALUES
        if isinstance(self.number, int):
            if self.number == field:
                return self.message, self.low, self.end
            return _NO_MESSAGES, _NO_VALUES, _NO_VALUES
        chosen = np.flatnonzero((self.number == field) & (self.kind == LEN))
        return self._messages()[chosen], self.low[chosen], self.end[chosen]

    def _messages(self) -> Int64:
        if isinstance(self.message, slice):
            return np.arange(self.message.start, self.message.stop)
        return self.message


_NO_MESSAGES, _NO_VALUES = slice(0, 0), np.zeros(0, np.int64)


class NumpyFields:
    """All fields of N messages of one type; implements `Fields`."""

    def __init__(self, text: ByteView, num_messages: int, batches: list[FieldBatch]) -> None:
        self._text = text
        self._num_messages = num_messages
        self._batches = batches

    def number(self, field: int) -> UInt64:
        """Return a number, or 4 or 8 bytes as one, of each message, shape (N,); 0 if missing."""
        values = np.zeros(self._num_messages, np.uint64)
        for batch in self._batches:
            message, numbers = batch.values(field)
            values[message] = numbers  # the last occurrence wins, as protobuf demands
        return values

    def texts(self, field: int) -> Texts:
        """Return a text of each message."""
        ranges = self.range(field)
        table = StringTable()
        numbers = np.concatenate(
            [
                table.between(
                    self._text,
                    ranges.start[first : first + _CHUNK],
                    ranges.end[first : first + _CHUNK],
                )
                for first in range(0, max(len(ranges), 1), _CHUNK)
            ]
        )
        return Texts(table.all(), numbers)

    def range(self, field: int) -> ByteRanges:
        """Return a message inside each message: N ranges, empty if missing."""
        start = np.zeros(self._num_messages, np.int64)
        end = np.zeros(self._num_messages, np.int64)
        for batch in self._batches:
            message, first, last = batch.ranges(field)
            start[message] = first
            end[message] = last
        return ByteRanges(start, end, np.arange(self._num_messages, dtype=np.int32))

    def ranges(self, field: int) -> ByteRanges:
        """Return a repeated message: one range for each occurrence, in the order of the messages."""
        parts: list[tuple[Any, Any, Any]] = [(_NO_VALUES, _NO_VALUES, _NO_VALUES)]
        for batch in self._batches:
            message, first, last = batch.ranges(field)
            if isinstance(message, slice):
                message = np.arange(message.start, message.stop)
            if len(message):
                parts.append((first.astype(np.int64), last.astype(np.int64), message))
        start, end, owner = (np.concatenate(part) for part in zip(*parts))
        if not (owner[1:] >= owner[:-1]).all():
            order = np.argsort(owner, kind="stable")
            start, end, owner = start[order], end[order], owner[order]
        return ByteRanges(start, end, owner.astype(np.int32))


class _DamageError(Exception):
    """A message in the chunk that is being decoded is damaged."""


class NumpyBuffer:
    """The bytes of one protobuf file; implements `MessageBuffer`.

    Args:
        data: the file's bytes, and `PADDING` zero bytes.
        size: number of the file's bytes.
        name: the file's path, for error messages.
    """

    def __init__(self, data: Bytes, size: int, name: str) -> None:
        self.name = name
        self.size = size
        self._text = ByteView(data)
        self._raw, self._bytes, self._words = self._text.raw, self._text.bytes, self._text.words

    def whole(self) -> ByteRanges:
        """Return the range of the whole file, which is one message."""
        return ByteRanges(np.zeros(1, np.int64), np.full(1, self.size), np.zeros(1, np.int32))

    def fields(self, ranges: ByteRanges, wanted: Mapping[int, int]) -> NumpyFields:
        """Return all fields of the messages at ``ranges``, also those that are not wanted.

        Raises:
            TraceError: a message is damaged.
        """
        batches: list[FieldBatch] = []
        for first in range(0, max(len(ranges), 1), _CHUNK):
            chunk = slice(first, first + _CHUNK)
            try:
                batches += self._chunk(first, ranges.start[chunk], ranges.end[chunk])
            except _DamageError:
                self._report_damage(ranges.start[chunk], ranges.end[chunk])
        return NumpyFields(self._text, len(ranges), batches)

    def _chunk(self, first: int, start: Int64, end: Int64) -> list[FieldBatch]:
        """Return the fields of the messages at [start, end); the first one has the index ``first``."""
        batches: list[FieldBatch] = []
        active = np.flatnonzero(start < end)
        cursor, limit = start[active], end[active]
        active += first
        while len(active) >= _FEW:
            number, kind, low, cursor = self._next_field(cursor)
            if (cursor > limit).any():
                raise _DamageError
            batches.append(self._batch(active, number, kind, low, cursor))
            more = cursor < limit
            if not more.all():
                active, cursor, limit = active[more], cursor[more], limit[more]
        return batches + self._fields_of_few(active, cursor, limit)

    def _batch(
        self,
        active: Int64,
        number: Int64 | int,
        kind: Int64 | int,
        low: npt.NDArray[np.integer[Any]],
        end: Int64,
    ) -> FieldBatch:
        message: Int64 | slice = active
        if len(active) == active[-1] - active[0] + 1 and (np.diff(active) == 1).all():
            message = slice(int(active[0]), int(active[-1]) + 1)
        if isinstance(kind, int):
            if kind != LEN:
                return FieldBatch(message, number, kind, low, None)
            if self.size < 2**31:
                return FieldBatch(message, number, kind, low.astype(np.int32), end.astype(np.int32))
        return FieldBatch(message, number, kind, low, end)

    def _next_field(self, cursor: Int64) -> tuple[Int64 | int, Int64 | int, UInt64 | Int64, Int64]:
        """Decode the field at each cursor.

        Returns:
            Field numbers and wire types (each an int if the fields agree); values, or first bytes
            of fields with a length; and the byte after each field.
        """
        tags, cursor = self._tags(cursor)
        if (tags == tags[0]).all():  # usual: messages have the same fields in the same order
            tag = int(tags[0])
            if tag & 7 == VARINT:
                return tag >> 3, VARINT, *self._varints(cursor)
            if tag & 7 == LEN:
                length = self._bytes[cursor]
                if (length < 0x80).all():
                    low = cursor + 1
                    return tag >> 3, LEN, low, low + length
        return self._any_field(tags >> 3, tags & 7, cursor)

    def _any_field(
        self, number: Int64, kind: Int64, cursor: Int64
    ) -> tuple[Int64, Int64, UInt64, Int64]:
        """Return what `_next_field` returns for fields with these numbers and types; ``cursor`` is behind each tag."""
        lengths = kind == LEN
        low, after = np.zeros(len(cursor), np.uint64), cursor.copy()
        rows = np.flatnonzero(lengths | (kind == VARINT))
        low[rows], after[rows] = self._varints(cursor[rows])
        if lengths.any():
            if (lengths & (low > np.uint64(self.size))).any():
                raise _DamageError
            end = np.where(lengths, after + low.astype(np.int64), after)
            low = np.where(lengths, after.astype(np.uint64), low)
            after = end
        for fixed, width in ((I64, 8), (I32, 4)):
            rows = np.flatnonzero(kind == fixed)
            if len(rows):
                low[rows] = self._words[cursor[rows]] & np.uint64((1 << 8 * width) - 1)
                after[rows] = cursor[rows] + width
        if not np.isin(kind, (VARINT, I64, LEN, I32)).all():
            raise _DamageError
        return number, kind, low, after

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
                raise _DamageError
            low[long] |= (ninth & np.uint64(0x7F)) << np.uint64(56) | tenth << np.uint64(63)
            after[long] = end + 1 + (ninth >= 0x80)
        return low, after

    def _fields_of_few(self, active: Int64, cursors: Int64, limits: Int64) -> list[FieldBatch]:
        """Return the fields of a few messages with many fields, such as a thread and all its nodes.

        A loop finds where each field begins, because that depends on the previous field. The
        contents of the fields are then decoded in arrays.
        """
        message: list[int] = []
        tags: list[int] = []
        for index, cursor, limit in zip(active.tolist(), cursors.tolist(), limits.tolist()):
            while cursor < limit:
                tags.append(cursor)
                tag, cursor = self._varint(cursor)
                if tag & 7 == LEN:
                    cursor = self._end_of_run(tags, limit)
                elif tag & 7 == VARINT:
                    _, cursor = self._varint(cursor)
                elif tag & 7 in (I64, I32):
                    cursor += 8 if tag & 7 == I64 else 4
                else:
                    raise _DamageError
                if cursor > limit:
                    raise _DamageError
            message += [index] * (len(tags) - len(message))
        batches = []
        for first in range(0, len(tags), _CHUNK):
            chunk = slice(first, first + _CHUNK)
            fields = self._next_field(np.array(tags[chunk], np.int64))
            batches.append(self._batch(np.array(message[chunk], np.int64), *fields))
        return batches

    def _end_of_run(self, tags: list[int], limit: int) -> int:
        """Return the end of a run of fields that have a length and the same tag.

        The last entry of ``tags`` is the start of the run's first field. The starts of the run's
        other fields are appended to ``tags``.
        """
        raw = self._raw
        cursor = tags.pop()
        _, after = self._varint(cursor)
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
                length, cursor = self._varint(cursor)
                cursor += length
        return cursor

    def _varint(self, cursor: int) -> tuple[int, int]:
        """Return the base-128 number at ``cursor``, cut to 64 bits, and the byte after it."""
        raw = self._raw
        value, byte = 0, raw[cursor]
        for shift in range(0, 70, 7):
            value |= (byte & 0x7F) << shift
            cursor += 1
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, cursor
            byte = raw[cursor] if cursor < len(raw) else 0
        raise _DamageError

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
                        if length > self.size:
                            raise damaged(self.name, self.size, begin, BEYOND_FILE)
                        end += length
                else:
                    raise damaged(self.name, self.size, cursor, UNKNOWN_TYPE)
                if end > limit:
                    raise damaged(self.name, self.size, end, BEYOND_MESSAGE)
                cursor = end
        raise AssertionError("no message is damaged")

    def _number_or_error(self, cursor: int) -> tuple[int, int]:
        try:
            return self._varint(cursor)
        except _DamageError:
            raise damaged(self.name, self.size, cursor + 10, LONG_NUMBER) from None
