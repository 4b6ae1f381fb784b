"""Protobuf's wire format, decoded for many messages at once.

A trace holds hundreds of thousands of small messages of the same few types. Decoding them one by
one costs Python about 10 us each; here one numpy pass decodes the *k-th field of every message* at
a time, whatever the order of the fields, so the cost of the interpreter is paid once a field
number and not once a message.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ppprof.errors import TraceError

VARINT, I64, LEN, I32 = 0, 1, 2, 5
"""Wire types: a number, 8 bytes, a length and so many bytes, 4 bytes."""

_PADDING = 16  # a 10-byte varint at the very end may be read as two 8-byte words
_LAST_FIELD = 2**29 - 1  # the highest field number there is; one above it is nobody's
_FEW = 48  # below so many messages a Python loop beats numpy's cost per call
_CHUNK = 8192  # messages at a time: their temporaries stay in the processor's cache

UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Round = tuple[Int32, Int32, npt.NDArray[np.uint8], UInt64, Int64]
"""Fields as arrays: message, number, wire type, value or first byte, one past the last byte."""


@dataclass(frozen=True)
class Spans:
    """Byte ranges [start, end) of N strings or messages inside one buffer."""

    start: Int64
    """First byte, shape (N,)."""
    end: Int64
    """One past the last byte, shape (N,)."""
    owner: Int64
    """Index of the message that each one is a field of, shape (N,)."""

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, chosen: Int64) -> Spans:
        """Those at the indices ``chosen``, in that order."""
        return Spans(self.start[chosen], self.end[chosen], self.owner[chosen])


class Fields:
    """Every field of N messages of one type, as flat arrays; ask for them by field number."""

    def __init__(
        self,
        num_messages: int,
        message: Int32,
        number: Int32,
        kind: npt.NDArray[np.uint8],
        low: UInt64,
        end: Int64,
    ) -> None:
        self.num_messages = num_messages
        self._message = message
        self._number = number
        self._kind = kind
        self._low = low
        self._end = end

    def number(self, field: int, default: int = 0) -> UInt64:
        """The value of a scalar field, shape (N,), ``default`` where a message lacks it.

        int64 and int32 values below zero arrive as two's complement: ``.view(np.int64)``.
        """
        values = np.full(self.num_messages, default, np.uint64)
        chosen = np.flatnonzero((self._number == field) & (self._kind != LEN))
        values[self._message[chosen]] = self._low[chosen]  # the last one wins, as protobuf says
        return values

    def span(self, field: int) -> Spans:
        """Where the bytes of a string or message field lie that occurs once; N entries.

        An empty one where a message lacks it; the last where it has several, as protobuf says.
        """
        found = self.spans(field)
        start = np.zeros(self.num_messages, np.int64)
        end = np.zeros(self.num_messages, np.int64)
        start[found.owner] = found.start
        end[found.owner] = found.end
        return Spans(start, end, np.arange(self.num_messages))

    def spans(self, field: int) -> Spans:
        """Where the bytes of a repeated field lie: an entry an occurrence, message by message."""
        chosen = np.flatnonzero((self._number == field) & (self._kind == LEN))
        chosen = chosen[np.argsort(self._message[chosen], kind="stable")]
        return Spans(
            self._low[chosen].astype(np.int64),
            self._end[chosen],
            self._message[chosen].astype(np.int64),
        )


class Buffer:
    """The bytes of one protobuf file.

    Args:
        data: the file's bytes.
        name: what errors call it, a path.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self.name = name
        self.size = len(data)
        self._raw = data + bytes(_PADDING)
        self._bytes = np.frombuffer(self._raw, np.uint8)
        # An unaligned view: element i is the little-endian word of bytes i..i+7.
        self._words: UInt64 = np.ndarray(
            len(self._raw) - 7, np.dtype("<u8"), self._raw, strides=(1,)
        )

    def whole(self) -> Spans:
        """The file as one message."""
        return Spans(np.zeros(1, np.int64), np.full(1, self.size), np.zeros(1, np.int64))

    def strings(self, spans: Spans) -> tuple[list[str], Int64]:
        """Distinct strings and, for each span, the index of its string; invalid UTF-8 is replaced."""
        index: dict[bytes, int] = {}
        raw = self._raw
        ids = [
            index.setdefault(raw[start:end], len(index))
            for start, end in zip(spans.start.tolist(), spans.end.tolist())
        ]
        return [text.decode("utf-8", "replace") for text in index], np.array(ids, np.int64)

    def fields(self, spans: Spans) -> Fields:
        """All fields of the messages at ``spans``.

        Raises:
            TraceError: a field runs past its message, or has a wire type that does not exist.
        """
        rounds: list[Round] = []
        for first in range(0, max(len(spans), 1), _CHUNK):
            chunk = slice(first, first + _CHUNK)
            active = first + np.flatnonzero(spans.start[chunk] < spans.end[chunk])
            cursor, limit = spans.start[active], spans.end[active]
            while len(active) >= _FEW:
                number, kind, low, cursor = self._next_field(cursor)
                if (cursor > limit).any():
                    beyond = int(cursor[np.argmax(cursor > limit)])
                    self._fail(beyond, "a field runs past its message")
                rounds.append(_narrow(active, number, kind, low, cursor))
                more = cursor < limit
                if not more.all():
                    active, cursor, limit = active[more], cursor[more], limit[more]
            rounds.append(self._few(active, cursor, limit))
        return Fields(len(spans), *(np.concatenate(part) for part in zip(*rounds)))

    def _next_field(self, cursor: Int64) -> tuple[Int64, Int64, UInt64, Int64]:
        """One field at each cursor: number, wire type, value (or first byte), and where it ends."""
        tag, cursor = self._tags(cursor)
        number, kind = tag >> 3, tag & 7
        low, after = self._varints(cursor)
        lengths = kind == LEN
        if lengths.any():
            huge = lengths & (low > np.uint64(self.size))
            if huge.any():
                self._fail(int(cursor[np.argmax(huge)]), "a length beyond the end of the file")
            end = np.where(lengths, after + low.astype(np.int64), after)
            low = np.where(lengths, after.astype(np.uint64), low)
            after = end
        for fixed, width in ((I64, 8), (I32, 4)):
            at = np.flatnonzero(kind == fixed)
            if len(at):
                low[at] = self._words[cursor[at]] & np.uint64((1 << 8 * width) - 1)
                after[at] = cursor[at] + width
        unknown = ~np.isin(kind, (VARINT, I64, LEN, I32))
        if unknown.any():
            self._fail(int(cursor[np.argmax(unknown)]), "not a protobuf wire type")
        return number, kind, low, after

    def _tags(self, cursor: Int64) -> tuple[Int64, Int64]:
        """Field tags are one byte up to field 15 and two up to 2047, which is all we know of."""
        first = self._bytes[cursor].astype(np.int64)
        long = first >= 0x80
        if not long.any():
            return first, cursor + 1
        second = np.where(long, self._bytes[cursor + 1].astype(np.int64), 0)
        return (first & 0x7F) | (second << 7), cursor + 1 + long

    def _varints(self, cursor: Int64) -> tuple[UInt64, Int64]:
        """Base-128 numbers, least significant group first, and the byte after each."""
        words = self._words[cursor]
        stops = ~words & np.uint64(0x8080808080808080)  # bytes without the continuation bit
        stop = stops & (~stops + np.uint64(1))  # the first of them; 0 if none in 8 bytes
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
            at = cursor[long] + 8
            ninth = self._bytes[at].astype(np.uint64)
            tenth = np.where(ninth >= 0x80, self._bytes[at + 1], 0).astype(np.uint64)
            low[long] |= (ninth & np.uint64(0x7F)) << np.uint64(56) | tenth << np.uint64(63)
            after[long] = at + 1 + (ninth >= 0x80)
        return low, after

    def _few(self, active: Int64, cursors: Int64, limits: Int64) -> Round:
        """The same as a loop, for few messages of many fields (a thread with all its nodes)."""
        message: list[int] = []
        numbers: list[int] = []
        kinds: list[int] = []
        lows: list[int] = []
        ends: list[int] = []
        for index, cursor, limit in zip(active.tolist(), cursors.tolist(), limits.tolist()):
            while cursor < limit:
                tag, after = self._varint(cursor)
                kind = tag & 7
                if kind == LEN:
                    self._run(cursor, limit, lows, ends)
                elif kind == VARINT:
                    low, after = self._varint(after)
                    lows.append(low)
                    ends.append(after)
                elif kind in (I64, I32):
                    width = 8 if kind == I64 else 4
                    lows.append(int.from_bytes(self._raw[after : after + width], "little"))
                    ends.append(after + width)
                else:
                    self._fail(cursor, "not a protobuf wire type")
                cursor = ends[-1]
                if cursor > limit:
                    self._fail(cursor, "a field runs past its message")
                met = len(ends) - len(message)
                message += [index] * met
                numbers += [min(tag >> 3, _LAST_FIELD)] * met
                kinds += [kind] * met
        return _narrow(message, numbers, kinds, np.array(lows, np.uint64), ends)

    def _run(self, cursor: int, limit: int, lows: list[int], ends: list[int]) -> None:
        """Fields with a length from ``cursor`` on, as long as they repeat one tag."""
        raw, varint = self._raw, self._varint
        _, after = varint(cursor)
        width = after - cursor
        key = raw[cursor:after]
        while True:
            low = cursor + width + 1
            length = raw[low - 1]
            if length >= 0x80:
                length, low = varint(low - 1)
            cursor = low + length
            lows.append(low)
            ends.append(cursor)
            if cursor >= limit or raw[cursor : cursor + width] != key:
                return

    def _varint(self, at: int) -> tuple[int, int]:
        """A base-128 number and the byte after it."""
        raw = self._raw
        value, byte = 0, raw[at]
        for shift in range(0, 70, 7):
            value |= (byte & 0x7F) << shift
            at += 1
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, at
            byte = raw[at] if at < len(raw) else 0
        return self._fail(at, "a number of more than 10 bytes")

    def _fail(self, offset: int, reason: str) -> NoReturn:
        raise TraceError(
            f"{self.name}: byte {min(offset, self.size)} of {self.size}: {reason}; "
            "the file is cut short or is not a Paddle .pb trace"
        )


def _narrow(message: Any, number: Any, kind: Any, low: UInt64, end: Any) -> Round:
    """A round in as few bytes as hold it: there are as many rows as fields in the file."""
    return (
        np.asarray(message, np.int32),
        np.asarray(number, np.int32),
        np.asarray(kind, np.uint8),
        low,
        np.asarray(end, np.int64),
    )
