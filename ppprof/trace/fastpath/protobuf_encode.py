"""Encode many messages in protobuf's wire format at once: the reverse of `protobuf_decode`.

Messages are given field by field: one array holds the values of a field for all messages. The
length of every field is known before a byte is written, so the position of every byte is known too.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ppprof.arrays import Int64, UInt64
from ppprof.trace.fastpath.protobuf_decode import I32, LEN, VARINT

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ByteStrings:
    """N byte strings in one buffer: texts, or encoded messages."""

    buffer: Bytes
    start: Int64
    """First byte of each string, shape (N,)."""
    length: Int64
    """Number of bytes of each string, shape (N,)."""

    def __getitem__(self, chosen: Int64) -> ByteStrings:
        """Return the strings at the indices ``chosen``, in that order."""
        return ByteStrings(self.buffer, self.start[chosen], self.length[chosen])

    @classmethod
    def of(cls, texts: Sequence[str | bytes]) -> ByteStrings:
        """Return byte strings; texts in UTF-8, with a question mark for an unpaired surrogate."""
        encoded = [
            text if isinstance(text, bytes) else text.encode("utf-8", "replace") for text in texts
        ]
        length = np.array([len(text) for text in encoded], np.int64)
        return cls(np.frombuffer(b"".join(encoded), np.uint8), np.cumsum(length) - length, length)


class Field:
    """Values of one field of some messages.

    Args:
        number: the field number.
        values: integers of any dtype (negative: two's complement), float32 numbers, or byte
            strings; shape (M,).
        owner: index of each value's message, ascending, shape (M,); if None, message i has value i.
    """

    def __init__(
        self, number: int, values: npt.NDArray[np.generic] | ByteStrings, owner: Int64 | None = None
    ) -> None:
        self.owner = np.arange(_num(values)) if owner is None else owner
        self.strings = values if isinstance(values, ByteStrings) else None
        self.reals = None
        if isinstance(values, ByteStrings):
            self.kind, head = LEN, values.length.astype(np.uint64)
        elif values.dtype == np.float32:
            self.kind, head = I32, np.zeros(0, np.uint64)
            self.reals = values.view(np.uint32)
        else:
            self.kind, head = VARINT, values.astype(np.int64).view(np.uint64)
            if values.dtype == np.uint64:
                head = values.view(np.uint64)
        self.tag = number << 3 | self.kind
        self.head = head
        self.head_length = _varint_length(head)
        self.size: Int64 = (
            1
            + (self.tag >= 0x80)
            + (np.full(_num(values), 4) if self.kind == I32 else self.head_length)
        )
        if self.strings is not None:
            self.size = self.size + self.strings.length


def encode(num_messages: int, fields: Sequence[Field]) -> ByteStrings:
    """Return ``num_messages`` encoded messages, each with its fields in the order of ``fields``."""
    sizes = [
        np.bincount(field.owner, field.size, num_messages).astype(np.int64) for field in fields
    ]
    length: Int64 = np.sum(sizes, axis=0) if sizes else np.zeros(num_messages, np.int64)
    start = np.cumsum(length) - length
    buffer = np.zeros(int(length.sum()), np.uint8)
    place = start.copy()
    for field, size in zip(fields, sizes):
        if len(field.owner):
            before = np.cumsum(field.size) - field.size
            first = np.searchsorted(field.owner, field.owner)
            _write(buffer, place[field.owner] + before - before[first], field)
        place += size
    return ByteStrings(buffer, start, length)


def header(number: int, length: int) -> bytes:
    r"""Return the tag and the length that precede a field's content of ``length`` bytes.

    ``number`` is the field number.

    >>> header(3, 300)
    b'\x1a\xac\x02'
    """
    return varint(number << 3 | LEN) + varint(length)


def varint(value: int) -> bytes:
    r"""Return an integer as a varint; a negative one as its two's complement of 64 bits.

    >>> varint(300)
    b'\xac\x02'

    Raises:
        OverflowError: the integer has more than 64 bits.
    """
    if not -(1 << 63) <= value < 1 << 64:
        raise OverflowError(value)
    value &= (1 << 64) - 1
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def _write(buffer: Bytes, position: Int64, field: Field) -> None:
    for shift in range(0, 7 * (1 + (field.tag >= 0x80)), 7):
        more = 0x80 if field.tag >> shift + 7 else 0
        buffer[position] = (field.tag >> shift & 0x7F) | more
        position = position + 1
    if field.reals is not None:
        for byte in range(4):
            buffer[position + byte] = field.reals >> np.uint32(8 * byte) & np.uint32(0xFF)
        return
    for byte in range(int(field.head_length.max())):
        rows = np.flatnonzero(field.head_length > byte)
        group = field.head[rows] >> np.uint64(7 * byte) & np.uint64(0x7F)
        more = (field.head_length[rows] > byte + 1).astype(np.uint64) << np.uint64(7)
        buffer[position[rows] + byte] = group | more
    if field.strings is not None:
        _copy(buffer, position + field.head_length, field.strings)


def _copy(buffer: Bytes, position: Int64, strings: ByteStrings) -> None:
    length = strings.length
    before = np.cumsum(length) - length
    inside = np.arange(int(length.sum()))
    is_in_order = bool((strings.start == before).all()) and len(strings.buffer) == len(inside)
    source = slice(None) if is_in_order else inside + np.repeat(strings.start - before, length)
    buffer[inside + np.repeat(position - before, length)] = strings.buffer[source]


def _varint_length(values: UInt64) -> Int64:
    """Return the number of bytes that each value needs, at 7 bits per byte."""
    length = np.ones(len(values), np.int64)
    for bits in range(7, 64, 7):
        length += values >= np.uint64(1 << bits)
    return length


def _num(values: npt.NDArray[np.generic] | ByteStrings) -> int:
    return len(values.length if isinstance(values, ByteStrings) else values)
