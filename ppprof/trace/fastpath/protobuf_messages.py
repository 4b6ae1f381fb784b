"""What the two readers of protobuf messages share: `protobuf_native` and `protobuf_decode`.

A file is one message. `MessageBuffer.fields` reads all messages of one type at once, given their byte
ranges; the messages inside them are byte ranges again::

    buffer = message_buffer(*padded(content), "window.pb")
    top = buffer.fields(buffer.whole(), {1: MESSAGES})
    people = buffer.fields(top.ranges(1), {1: TEXT, 2: NUMBER})
    people.number(2)                                            # field 2 of all people
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Union

import numpy as np

from ppprof.arrays import Array, Int32, Int64
from ppprof.errors import TraceError

NUMBER, TEXT, MESSAGE, MESSAGES = range(4)
"""What to read of a field: the last number, text or message with its number in each message; or the
byte ranges of all of them. The numbers are repeated in native/protobuf.c."""

PADDING = 32
"""Zero bytes after the end of the file, so that a field can be read without a check for the end."""

LONG_NUMBER = "a number of more than 10 bytes"
UNKNOWN_TYPE = "not a protobuf wire type"
BEYOND_FILE = "a length beyond the end of the file"
BEYOND_MESSAGE = "a field runs past its message"

Bytes = Union[bytes, bytearray, memoryview]


@dataclass(frozen=True)
class ByteRanges:
    """Byte ranges [start, end) of N messages inside one buffer."""

    start: Int64
    """First byte, shape (N,)."""
    end: Int64
    """One past the last byte, shape (N,)."""
    owner: Int32
    """Index of the message that contains the field, shape (N,)."""

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, chosen: Int64 | slice) -> ByteRanges:
        """Return the ranges at the indices ``chosen``, in that order."""
        return ByteRanges(self.start[chosen], self.end[chosen], self.owner[chosen])

    def last_of_each(self) -> ByteRanges:
        """Return the last range of each owner. The owners must be sorted."""
        is_last = np.append(np.diff(self.owner) > 0, True)[: len(self)]
        return self[np.flatnonzero(is_last)]


class Texts(NamedTuple):
    """The texts of one field of N messages."""

    distinct: list[bytes]
    """The different texts, each once, in any order."""
    ids: Int32
    """Index of each message's text in ``distinct``, shape (N,). A missing text is empty."""

    def decoded(self) -> list[str]:
        """Return the different texts. Invalid UTF-8 is replaced by U+FFFD."""
        return [text.decode("utf-8", "replace") for text in self.distinct]

    def each(self) -> list[str]:
        """Return the text of each message."""
        texts = self.decoded()
        return [texts[index] for index in self.ids.tolist()]


class Values(NamedTuple):
    """One field of N messages; which of the arrays it has depends on how the field is read."""

    numbers: Array
    rows: Int32
    """Index of the message of each range, or index in ``distinct`` of each message's text."""
    first: Int64
    end: Int64
    distinct: list[bytes]


class Fields:
    """The fields of N messages of one type. Each method returns one field, by its number.

    A field that has another wire type than expected counts as missing. If a message has a field
    several times, the last one counts, as protobuf demands. The file's bytes are not kept.

    Args:
        values: field number -> the field, as it was wanted.
    """

    def __init__(self, values: Mapping[int, Values]) -> None:
        self._values = values

    def number(self, field: int) -> Array:
        """Return a number, or 4 or 8 bytes as one, of each message, shape (N,); 0 if missing.

        The dtype is unsigned: uint64, or a smaller one that all values fit in. Negative int64 and
        int32 values are two's complement of 64 bits: read them with ``.astype(np.int64)``.
        """
        return self._values[field].numbers

    def texts(self, field: int) -> Texts:
        """Return a text of each message."""
        return Texts(self._values[field].distinct, self._values[field].rows)

    def range(self, field: int) -> ByteRanges:
        """Return a message inside each message: N ranges, empty if missing."""
        values = self._values[field]
        return ByteRanges(values.first, values.end, np.arange(len(values.first), dtype=np.int32))

    def ranges(self, field: int) -> ByteRanges:
        """Return a repeated message: one range for each occurrence, in the order of the messages."""
        values = self._values[field]
        return ByteRanges(values.first, values.end, values.rows)


class MessageBuffer(ABC):
    """The bytes of one protobuf file.

    Args:
        data: the file's bytes, and `PADDING` zero bytes.
        size: number of the file's bytes.
        name: the file's path, for error messages.
    """

    def __init__(self, data: Bytes, size: int, name: str) -> None:
        self._bytes = np.frombuffer(data, np.uint8)
        self._size = size
        self._name = name

    def whole(self) -> ByteRanges:
        """Return the range of the whole file, which is one message."""
        return ByteRanges(np.zeros(1, np.int64), np.full(1, self._size), np.zeros(1, np.int32))

    @abstractmethod
    def fields(self, ranges: ByteRanges, wanted: Mapping[int, int]) -> Fields:
        """Return the fields of the messages at ``ranges``.

        Args:
            ranges: N messages.
            wanted: field number -> `NUMBER`, `TEXT`, `MESSAGE` or `MESSAGES`; other fields are
                skipped.

        Raises:
            TraceError: a message is damaged; it says at which byte. With several damaged messages,
                the message is the first one in ``ranges``.
        """


class DamageError(ValueError):
    """A message is damaged."""


def varint_at(message: Bytes, position: int) -> tuple[int, int]:
    """Return the base-128 number at ``position``, cut to 64 bits, and the byte after it.

    Raises:
        DamageError: the number has more than 10 bytes, or the message ends before.
    """
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            break
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, position
    raise DamageError


def padded(data: bytes) -> tuple[bytes, int]:
    """Return the arguments of `message_buffer` for a file's bytes, which are copied."""
    return data + bytes(PADDING), len(data)


def damaged(name: str, size: int, offset: int, reason: str) -> TraceError:
    """Return the error for a file of ``size`` bytes that is damaged at the byte ``offset``."""
    return TraceError(
        f"{name}: byte {min(offset, size)} of {size}: {reason}; "
        "the file is truncated or is not a Paddle .pb trace"
    )
