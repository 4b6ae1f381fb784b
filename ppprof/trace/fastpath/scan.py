r"""Match text of a known layout backwards and column-wise: ``scanf`` for all events at once.

A writer that prints every event with the same format string leaves text that needs no parser. Read
from the end of an event to its start, every number has a known neighbour on its right. So the place
of its last digit is known, and one numpy pass reads that field of all events::

    ..., "ts": 1795214805084966, "dur": 12.345,\n    "ph": "X", ...
                              ^            ^ the literals to the right begin here

Only the name has free content. It is the leftmost field and takes the rest, so quotes and
backslashes in it do no harm. An event that differs from the format in any byte does not match; the
JSON decoder reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ppprof.arrays import Array, Bool, Float64, Int64, UInt64
from ppprof.trace.fastpath.byte_view import ByteView
from ppprof.trace.source import MARGIN, Block

Column = Array

_BYTES = 0x0101010101010101  # times a byte: that byte, eight times
_MAX_DIGITS = 18  # any 18 digits fit an int64
_MAX_WORD = 64  # bytes of a %w
_MAX_LINE = 1 << 16  # bytes of a %l or %o
_MAX_THOUSANDTHS = (2**63 - 1) // 1000 - 1  # times 1000, plus 999, fits an int64
_TENS = np.array([float(f"1e{power}") for power in range(_MAX_DIGITS + 1)])  # exact


class Text(ByteView):
    """A block of text, with queries about many positions at once.

    Positions count from the start of the block's buffer: byte k of the text is at ``MARGIN + k``.
    """

    raw: bytearray

    def __init__(self, block: Block) -> None:
        self.raw = block.buffer
        self.end = MARGIN + block.length
        self.bytes = np.frombuffer(self.raw, np.uint8)
        # An unaligned view: element i is the little-endian word of bytes i..i+7.
        self.words: UInt64 = np.ndarray(len(self.raw) - 7, np.dtype("<u8"), self.raw, strides=(1,))

    def positions(self, literal: bytes) -> Int64:
        """Return the ascending positions of ``literal``, which must contain a ``{``."""
        braces = np.flatnonzero(self.bytes[MARGIN : self.end] == ord("{"))
        starts = braces + (MARGIN - literal.index(b"{"))
        starts = starts[(starts >= MARGIN) & (starts + len(literal) <= self.end)]
        return starts[self.equals(starts, literal)]

    def equals(self, positions: Int64, literal: bytes) -> Bool:
        """Return whether ``literal`` (not empty) stands at each position, shape (N,).

        Comparing 60 bytes at a position takes hardly longer than comparing one.
        """
        kind = np.dtype((np.bytes_, len(literal)))
        runs = np.ndarray(len(self.raw) - len(literal) + 1, kind, self.raw, strides=(1,))
        same: Bool = runs[positions] == literal
        return same

    def digits_before(self, end: Int64) -> tuple[Int64, Int64]:
        """Return the number that ends before each position: its value and its count of digits.

        Both are 0 if the byte before the position is no digit. If the count exceeds 18, the value
        is meaningless.
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
        """Return the number that ends before each position, as `digits_before`, up to eight digits.

        Of a longer number, only the last eight digits count.
        """
        digits = self.words[end - 8] ^ np.uint64(0x30 * _BYTES)
        other = (digits & np.uint64(0x7F * _BYTES)) + np.uint64(0x76 * _BYTES)
        other |= digits
        other &= np.uint64(0x80 * _BYTES)
        # Drop all bytes up to the highest one that is not a digit; 0 bits if all are digits.
        num_other = (_num_bits(other) + 7) >> 3
        shift = (num_other << 3).astype(np.uint64)
        digits = digits >> shift << shift
        # The first digit lies in the lowest byte. Join pairs, then fours, then all eight.
        digits = (digits * np.uint64(10 << 8 | 1) >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
        digits = (digits * np.uint64(100 << 16 | 1) >> np.uint64(16)) & np.uint64(0xFFFF0000FFFF)
        digits = digits * np.uint64(10000 << 32 | 1) >> np.uint64(32)
        return digits.astype(np.int64), 8 - num_other

    def last_before(self, end: Int64, byte: bytes, reach: int = _MAX_WORD) -> Int64:
        """Return the position of the last ``byte`` before each position in ``end``.

        It is -1 if no such byte is within ``reach`` bytes.
        """
        position = np.full(len(end), -1, np.int64)
        pending = np.arange(len(end))
        for back in range(8, min(reach, _MAX_WORD) + 8, 8):
            first = end[pending] - back
            zero = self.words[np.maximum(first, 0)] ^ np.uint64(byte[0] * _BYTES)
            zero = ~(((zero & np.uint64(0x7F * _BYTES)) + np.uint64(0x7F * _BYTES)) | zero)
            num_bits = _num_bits(zero & np.uint64(0x80 * _BYTES))
            hit = (num_bits > 0) & (first >= 0)
            position[pending[hit]] = first[hit] + ((num_bits[hit] - 1) >> 3)
            pending = pending[~hit & (first > 0)]
            if not len(pending):
                return position
        if reach > _MAX_WORD:  # so few are this far away that a loop is fast
            stops = end[pending].tolist()
            position[pending] = [self.raw.rfind(byte, max(stop - reach, 0), stop) for stop in stops]
        return position


def _num_bits(words: UInt64) -> Int64:
    """Return the number of bits up to the highest set bit of each word; 0 for a word of 0.

    Only the top bit of each byte may be set: with other bits, the conversion to float64 could round
    up to one bit more.
    """
    return np.frexp(words.astype(np.float64))[1].astype(np.int64)


class Matches(NamedTuple):
    """The events that match one layout."""

    rows: Int64
    """Indices of the matching events among the candidates, ascending, shape (M,)."""
    columns: Mapping[str, Column]
    """Name of a field -> its values, shape (M,).

    A text field has two columns: ``NAME``, its first byte, and ``NAME_end``, the byte after it.
    """


class EventPattern:
    """The text layout of one kind of event, as a format string.

    ============  ====================================================================
    ``%d{name}``  an integer
    ``%f{name}``  a number with exactly three decimals; "1.250" becomes 1250
    ``%g{name}``  a number with decimals; inf and nan become NaN
    ``%w{name}``  text right after a quotation mark; contains no quotation mark
    ``%l{name}``  any text; no other field may precede it on its line
    ``%o{name}``  a JSON object without braces inside
    ``%s{name}``  any text; only as the first field
    ============  ====================================================================

    Fields are read from the last to the first. A field without a name must match, but its value is
    dropped.

    Args:
        kind: the kind of event, such as ``host``.
        form: the format string.
    """

    def __init__(self, kind: str, form: str) -> None:
        self.kind = kind
        self.form = form

    @cached_property
    def prefix(self) -> bytes:
        """The literal text before the first field."""
        return _FIELD.split(self.form, 1)[0].encode()

    @cached_property
    def fields(self) -> list[Field]:
        """The fields, from the first to the last: a file needs those of one writer's patterns."""
        parts = _FIELD.split(self.form)
        return [
            Field(spec, name, before.encode(), after.encode())
            for before, spec, name, after in zip(parts[0::3], parts[1::3], parts[2::3], parts[3::3])
        ]

    def match(self, text: Text, start: Int64, end: Int64, prefix: bytes = b"") -> Matches:
        """Return the events among N candidates that have this layout.

        Args:
            text: the block that holds the candidates.
            start: first byte of each candidate, shape (N,), ascending.
            end: byte after each candidate, shape (N,).
            prefix: bytes with which every candidate is known to begin; they are not compared again.
        """
        rows = np.arange(len(start))
        cursor = end
        columns: dict[str, Column] = {}
        for field in reversed(self.fields):
            if field.after:
                cursor = cursor - len(field.after)
                is_equal = text.equals(cursor, field.after)
                rows, cursor, columns = _select(is_equal, rows, cursor, columns)
            if not len(rows):
                break
            if field.spec == "s":
                first = start[rows] + len(self.prefix)
                columns[field.name], columns[f"{field.name}_end"] = first, cursor
                valid = first <= cursor
            elif field.spec == "l":
                line = text.last_before(cursor, b"\n", _MAX_LINE) + 1
                first = line + field.indent
                columns[field.name], columns[f"{field.name}_end"] = first, cursor
                valid = (line > start[rows]) & (first <= cursor)
                cursor = first
            elif field.spec == "o":
                first = text.last_before(cursor, b"{", _MAX_LINE)
                inner = text.last_before(cursor - 1, b"}", _MAX_LINE)
                columns[field.name], columns[f"{field.name}_end"] = first, cursor
                valid = (text.bytes[cursor - 1] == _CLOSED) & (first > inner)
                valid &= first >= start[rows] + len(self.prefix)
                cursor = first
            elif field.spec == "w":
                quote = text.last_before(cursor, b'"')
                columns[field.name], columns[f"{field.name}_end"] = quote + 1, cursor
                cursor, valid = quote + 1, quote >= 0
            else:
                cursor, columns[field.name], valid = _NUMBERS[field.spec](text, cursor)
            rows, cursor, columns = _select(valid, rows, cursor, columns)
        for unnamed in ("", "_end"):
            columns.pop(unnamed, None)
        if self.fields and self.fields[0].spec != "s":  # a %s begins where the prefix ends
            is_first = cursor == start[rows] + len(self.prefix)
            rows, cursor, columns = _select(is_first, rows, cursor, columns)
        known = len(prefix) if self.prefix.startswith(prefix) else 0
        if self.prefix[known:]:
            is_equal = text.equals(start[rows] + known, self.prefix[known:])
            rows, _, columns = _select(is_equal, rows, cursor, columns)
        return Matches(rows, columns)


_FIELD = re.compile(r"%(\w)\{(\w*)\}")


class Field(NamedTuple):
    """A field of an `EventPattern`."""

    spec: str
    """The letter after the percent sign."""
    name: str
    """Empty if the value is dropped."""
    before: bytes
    """The literal text between the field before and this one."""
    after: bytes
    """The literal text between this field and the next one."""

    @property
    def indent(self) -> int:
        """Number of bytes before a ``%l`` on its line."""
        return len(self.before.rpartition(b"\n")[2])


def _select(
    chosen: Bool, rows: Int64, cursor: Int64, columns: dict[str, Column]
) -> tuple[Int64, Int64, dict[str, Column]]:
    if chosen.all():
        return rows, cursor, columns
    kept = np.flatnonzero(chosen)
    return rows[kept], cursor[kept], {name: column[kept] for name, column in columns.items()}


def _parse_integers(text: Text, end: Int64) -> tuple[Int64, Int64, Bool]:
    """Parse the integer that ends before each position in ``end``.

    Returns:
        The integers' first bytes, their values, and whether each is valid.
    """
    value, count = text.digits_before(end)
    start, value = _with_sign(text, end - count, value)
    return start, value, (count > 0) & (count <= _MAX_DIGITS)


def _parse_thousandths(text: Text, end: Int64) -> tuple[Int64, Int64, Bool]:
    point = end - 4
    low, num_low = text.digits_before(end)
    high, num_high = text.digits_before(point)
    valid = (num_low == 3) & (text.bytes[point] == _POINT)
    valid &= (num_high > 0) & (num_high <= _MAX_DIGITS - 2) & (high <= _MAX_THOUSANDTHS)
    start, value = _with_sign(text, point - num_high, high * 1000 + low)
    return start, value, valid


def _parse_reals(text: Text, end: Int64) -> tuple[Int64, Float64, Bool]:
    low, num_low = text.digits_before(end)
    point = end - num_low - 1
    high, num_high = text.digits_before(point)
    valid = (num_low > 0) & (num_low <= _MAX_DIGITS) & (text.bytes[point] == _POINT)
    valid &= (num_high > 0) & (num_high <= _MAX_DIGITS)
    start, value = _with_sign(
        text, point - num_high, high + low / _TENS[np.minimum(num_low, _MAX_DIGITS)]
    )
    for word in (b"inf", b"nan"):
        is_word = ~valid & text.equals(end - 3, word)
        if is_word.any():
            minus = text.bytes[end - 4] == _MINUS
            start = np.where(is_word, end - 3 - minus, start)
            value = np.where(is_word, np.nan, value)
            valid |= is_word
    return start, value, valid


def _with_sign(text: Text, start: Int64, value: Column) -> tuple[Int64, Column]:
    """Return the start and the value of each number, including a minus sign before it."""
    minus = text.bytes[start - 1] == _MINUS
    if minus.any():
        value = np.where(minus, -value, value)
        start = start - minus
    return start, value


_POINT, _MINUS, _CLOSED = b".-}"
_NUMBERS = {"d": _parse_integers, "f": _parse_thousandths, "g": _parse_reals}
