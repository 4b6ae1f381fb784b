r"""Text in a known layout, read backwards and column-wise: ``scanf`` for all events at once.

A writer that prints every event with the same format string leaves text that needs no parser. From
the end of an event towards its start every number has a known neighbour on its right, so the place
of its last digit is known, and one numpy pass reads that field of all events::

    ..., "ts": 1795214805084966, "dur": 12.345,\n    "ph": "X", ...
                              ^            ^ the literals to the right begin here

The one field whose content is free, the name, is the leftmost and takes what is left: quotes and
backslashes in it do no harm. An event that differs from its format in any byte does not match, and
is somebody else's to read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ppprof.arrays import Bool, Float64, Int64, UInt64
from ppprof.trace.fastpath.byte_view import ByteView
from ppprof.trace.source import MARGIN, Block

Column = npt.NDArray[Any]

_BYTES = 0x0101010101010101  # times a byte: that byte, eight times
_MOST_DIGITS = 18  # what fits an int64 whatever the digits are
_LONGEST_WORD = 64  # bytes of a %w
_LONGEST_LINE = 1 << 16  # bytes of a %l


class Text(ByteView):
    """A block of text, and questions about many places in it at once.

    Places count from the start of the block's buffer: byte k of the text is at ``MARGIN + k``.
    """

    def __init__(self, block: Block) -> None:
        self.raw = block.buffer
        self.end = MARGIN + block.length
        self.bytes = np.frombuffer(self.raw, np.uint8)
        # An unaligned view: element i is the little-endian word of bytes i..i+7.
        self.words: UInt64 = np.ndarray(len(self.raw) - 7, np.dtype("<u8"), self.raw, strides=(1,))

    def places(self, literal: bytes) -> Int64:
        """Where ``literal``, which holds one brace or more, stands, ascending."""
        braces = np.flatnonzero(self.bytes[MARGIN : self.end] == ord("{"))
        at = braces + (MARGIN - literal.index(b"{"))
        at = at[(at >= MARGIN) & (at + len(literal) <= self.end)]
        return at[self.equals(at, literal)]

    def equals(self, at: Int64, literal: bytes) -> Bool:
        """Whether ``literal`` (not empty) stands at each place, shape (N,).

        Looking up 60 bytes at a place takes hardly longer than looking up one.
        """
        kind = np.dtype((np.bytes_, len(literal)))
        runs = np.ndarray(len(self.raw) - len(literal) + 1, kind, self.raw, strides=(1,))
        same: Bool = runs[at] == literal
        return same

    def digits_before(self, end: Int64) -> tuple[Int64, Int64]:
        """The number that ends before each place: its value and how many digits it has.

        Value 0 and 0 digits where there is none; a value of more than 18 digits is nonsense.
        """
        value, count = self._eight_digits(end)
        more = np.flatnonzero(count == 8)
        for done in (8, 16):
            if not len(more):
                break
            high, num_high = self._eight_digits(end[more] - done)
            value[more] += high * 10**done if done == 8 else high % 1000 * 10**done
            count[more] += num_high
            more = more[num_high == 8]
        return value, count

    def _eight_digits(self, end: Int64) -> tuple[Int64, Int64]:
        """The last eight digits at the most."""
        digits = self.words[end - 8] ^ np.uint64(0x30 * _BYTES)
        other = (digits & np.uint64(0x7F * _BYTES)) + np.uint64(0x76 * _BYTES)
        other |= digits
        other &= np.uint64(0x80 * _BYTES)
        # Up to the highest byte that is no digit nothing counts; 0 bits where all eight are.
        num_other = (_num_bits(other) + 7) >> 3
        shift = (num_other << 3).astype(np.uint64)
        digits = digits >> shift << shift
        # The first digit lies in the lowest byte: join pairs, then fours, then all eight.
        digits = (digits * np.uint64(10 << 8 | 1) >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
        digits = (digits * np.uint64(100 << 16 | 1) >> np.uint64(16)) & np.uint64(0xFFFF0000FFFF)
        digits = digits * np.uint64(10000 << 32 | 1) >> np.uint64(32)
        return digits.astype(np.int64), 8 - num_other

    def last_before(self, end: Int64, byte: bytes, reach: int = _LONGEST_WORD) -> Int64:
        """Place of the last ``byte`` before each place; -1 where it is farther than ``reach``."""
        found = np.full(len(end), -1, np.int64)
        pending = np.arange(len(end))
        for back in range(8, min(reach, _LONGEST_WORD) + 8, 8):
            first = end[pending] - back
            zero = self.words[np.maximum(first, 0)] ^ np.uint64(byte[0] * _BYTES)
            zero = ~(((zero & np.uint64(0x7F * _BYTES)) + np.uint64(0x7F * _BYTES)) | zero)
            num_bits = _num_bits(zero & np.uint64(0x80 * _BYTES))
            hit = (num_bits > 0) & (first >= 0)
            found[pending[hit]] = first[hit] + ((num_bits[hit] - 1) >> 3)
            pending = pending[~hit & (first > 0)]
            if not len(pending):
                return found
        if reach > _LONGEST_WORD:  # few are so far away: one by one
            stops = end[pending].tolist()
            found[pending] = [self.raw.rfind(byte, max(stop - reach, 0), stop) for stop in stops]
        return found


def _num_bits(words: UInt64) -> Int64:
    """Bits up to the highest one that is set, which must be a byte's highest; 0 for 0."""
    return np.frexp(words.astype(np.float64))[1].astype(np.int64)


@dataclass(frozen=True)
class Matches:
    """The events of one layout."""

    rows: Int64
    """Which of the events that were offered, ascending, shape (M,)."""
    columns: Mapping[str, Column]
    """Each named field, shape (M,); of a text field ``NAME`` and ``NAME_end``, its bytes' range."""


class EventPattern:
    r"""One kind of event as a format string.

    ============  ====================================================================
    ``%d{name}``  a whole number
    ``%f{name}``  a number with exactly three decimals, in thousandths
    ``%g{name}``  a number with decimals, or inf or nan (NaN)
    ``%w{name}``  text after the nearest quotation mark
    ``%l{}``      any text, the only field of its line up to there; its name is not kept
    ``%s{name}``  any text; only as the first field
    ============  ====================================================================

    A field without a name is read and dropped.

    Args:
        kind: what such an event is.
        form: the format string.
    """

    def __init__(self, kind: str, form: str) -> None:
        self.kind = kind
        self.form = form
        parts = _FIELD.split(form)
        self._prefix = parts[0].encode()
        self._fields = [
            _Field(parts[at], parts[at + 1], parts[at - 1].encode(), parts[at + 2].encode())
            for at in range(1, len(parts), 3)
        ]

    def match(self, text: Text, start: Int64, end: Int64, known: bytes = b"") -> Matches:
        """Those of N events that have this layout.

        Args:
            text: what they lie in.
            start: first byte of each, shape (N,), ascending.
            end: one past the last byte of each, shape (N,).
            known: what all of them are known to begin with.
        """
        rows = np.arange(len(start))
        at = end
        columns: dict[str, Column] = {}
        for field in reversed(self._fields):
            if field.after:
                at = at - len(field.after)
                rows, at, columns = _only(text.equals(at, field.after), rows, at, columns)
            if not len(rows):
                break
            if field.spec == "s":
                first = start[rows] + len(self._prefix)
                columns[field.name], columns[f"{field.name}_end"] = first, at
                sound = first <= at
            elif field.spec == "l":
                at = text.last_before(at, b"\n", _LONGEST_LINE) + 1
                sound = at > start[rows]
                at += len(field.before.rpartition(b"\n")[2])
            elif field.spec == "w":
                quote = text.last_before(at, b'"')
                columns[field.name], columns[f"{field.name}_end"] = quote + 1, at
                at, sound = quote + 1, quote >= 0
            else:
                at, columns[field.name], sound = _NUMBERS[field.spec](text, at)
            rows, at, columns = _only(sound, rows, at, columns)
        for unnamed in ("", "_end"):
            columns.pop(unnamed, None)
        prefix = self._prefix[len(known) :] if self._prefix.startswith(known) else self._prefix
        if prefix:
            skipped = len(self._prefix) - len(prefix)
            rows, _, columns = _only(text.equals(start[rows] + skipped, prefix), rows, at, columns)
        return Matches(rows, columns)


_FIELD = re.compile(r"%(\w)\{(\w*)\}")


@dataclass(frozen=True)
class _Field:
    spec: str
    name: str
    before: bytes
    after: bytes


def _only(
    sound: Bool, rows: Int64, at: Int64, columns: dict[str, Column]
) -> tuple[Int64, Int64, dict[str, Column]]:
    if sound.all():
        return rows, at, columns
    kept = np.flatnonzero(sound)
    return rows[kept], at[kept], {name: column[kept] for name, column in columns.items()}


def _whole(text: Text, end: Int64) -> tuple[Int64, Int64, Bool]:
    """Whole numbers before ``end``: where they begin, their values, and which are sound."""
    value, count = text.digits_before(end)
    at, value = _signed(text, end - count, value)
    return at, value, (count > 0) & (count <= _MOST_DIGITS)


def _thousandths(text: Text, end: Int64) -> tuple[Int64, Int64, Bool]:
    point = end - 4
    low, num_low = text.digits_before(end)
    high, num_high = text.digits_before(point)
    sound = (num_low == 3) & (text.bytes[point] == _POINT)
    sound &= (num_high > 0) & (num_high <= _MOST_DIGITS - 2)
    at, value = _signed(text, point - num_high, high * 1000 + low)
    return at, value, sound


def _real(text: Text, end: Int64) -> tuple[Int64, Float64, Bool]:
    low, num_low = text.digits_before(end)
    point = end - num_low - 1
    high, num_high = text.digits_before(point)
    sound = (num_low > 0) & (num_low <= _MOST_DIGITS) & (text.bytes[point] == _POINT)
    sound &= (num_high > 0) & (num_high <= _MOST_DIGITS)
    at, value = _signed(text, point - num_high, high + low / 10.0**num_low)
    for word in (b"inf", b"nan"):
        odd = ~sound & text.equals(end - 3, word)
        if odd.any():
            minus = text.bytes[end - 4] == _MINUS
            at = np.where(odd, end - 3 - minus, at)
            value = np.where(odd, np.nan, value)
            sound |= odd
    return at, value, sound


def _signed(text: Text, at: Int64, value: Column) -> tuple[Int64, Column]:
    """Where a number begins with its minus sign, and its value with it."""
    minus = text.bytes[at - 1] == _MINUS
    if minus.any():
        value = np.where(minus, -value, value)
        at = at - minus
    return at, value


_POINT, _MINUS = b".-"
_NUMBERS = {"d": _whole, "f": _thousandths, "g": _real}
