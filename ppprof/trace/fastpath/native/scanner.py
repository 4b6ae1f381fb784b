"""Scan blocks with the compiled core: make its program of format strings, and wrap its columns.

The library has no global state and is called without the interpreter's lock. So several threads can
scan at the same time, each with a scanner of its own.
"""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ppprof.arrays import Array
from ppprof.trace.fastpath.fixed_layout import INPUTS, NARROW, TEXTS, Ranges, Scanned
from ppprof.trace.fastpath.layouts import Dialect
from ppprof.trace.fastpath.scan import EventPattern, Field
from ppprof.trace.source import MARGIN, Block

_DTYPES = {"i": "int32", "q": "int64", "d": "float64", "t": "int32"}
"""`Storage` in columns.h -> dtype."""
_WHOLE, _WITHOUT_DURATION, _INPUT = range(3)
_SECRET_BYTES = 16


class _Program(NamedTuple):
    """What `ppprof_scanner_new` of scan.c reads, and the names of its columns."""

    code: bytes
    columns: list[tuple[str, str]]
    """Kind and name of each column."""


class NativeScanner:
    """Scanner that reads one event after another, in C.

    The events of a kind are one part, in the order of the file.

    Args:
        dialect: the writer of the file.
        library: the library of `core.choose`.

    Raises:
        MemoryError: there is not enough memory.
    """

    block_bytes = 1 << 20  # with its columns, it stays in the cache of one processor

    def __init__(self, dialect: Dialect, library: ctypes.CDLL) -> None:
        self._library = library
        self._program = _program_of(dialect)
        # A file that is made to slow down the table of texts would have to know this number.
        secret = os.urandom(_SECRET_BYTES)
        self._scanner = library.ppprof_scanner_new(
            self._program.code, len(self._program.code), secret
        )
        if not self._scanner:
            raise MemoryError("no memory for a scanner")
        weakref.finalize(self, library.ppprof_scanner_free, self._scanner).atexit = False

    def add(self, block: Block) -> Ranges:
        """Add the events of a block, as `Scanner.add`.

        Raises:
            MemoryError: there is not enough memory. The scanner cannot be used any more.
        """
        text = ctypes.c_char.from_buffer(block.buffer, MARGIN)
        num_new = self._library.ppprof_scanner_add(
            self._scanner, ctypes.addressof(text), block.length, block.first
        )
        if num_new < 0:
            raise MemoryError("no memory for the events of a block")
        return self._ranges(num_new) if num_new else []

    def scanned(self) -> Scanned:
        """Return the events of all blocks, as `Scanner.scanned`.

        Raises:
            MemoryError: there is not enough memory.
        """
        if self._library.ppprof_scanner_finish(self._scanner):
            raise MemoryError("no memory for the columns of events")
        parts: dict[str, dict[str, Array]] = {}
        for number, (kind, name) in enumerate(self._program.columns):
            values = self._column(number)
            if values is not None:
                parts.setdefault(kind, {})[name] = values
        num_flows = self._library.ppprof_scanner_flows(self._scanner)
        return Scanned(list(parts.items()), self._texts(), self._ranges(), num_flows)

    def _column(self, number: int) -> Array | None:
        """Return the values of a column, which are not copied; None if no event has the column."""
        num_rows, storage = ctypes.c_int64(), ctypes.c_int32()
        address = self._library.ppprof_scanner_take(
            self._scanner, number, ctypes.byref(num_rows), ctypes.byref(storage)
        )
        if not address:
            return None
        dtype: np.dtype[Any] = np.dtype(_DTYPES[chr(storage.value)])
        memory = (ctypes.c_char * (num_rows.value * dtype.itemsize)).from_address(address)
        # The memory belongs to the array. At the end of the program arrays may still be in use.
        weakref.finalize(memory, self._library.ppprof_free, address).atexit = False
        return np.frombuffer(memoryview(memory), dtype)

    def _texts(self) -> list[bytes]:
        ends_at, num_texts = ctypes.c_void_p(), ctypes.c_int64()
        bytes_at = self._library.ppprof_scanner_texts(
            self._scanner, ctypes.byref(ends_at), ctypes.byref(num_texts)
        )
        if not num_texts.value or not ends_at.value:
            return []
        ends = (ctypes.c_int64 * num_texts.value).from_address(ends_at.value)[:]
        whole = ctypes.string_at(bytes_at, ends[-1]) if ends[-1] else b""
        return [whole[first:end] for first, end in zip([0, *ends], ends)]

    def _ranges(self, num_last: int | None = None) -> Ranges:
        """Return the last ``num_last`` ranges, or all of them."""
        total = ctypes.c_int64()
        address = self._library.ppprof_scanner_ranges(self._scanner, ctypes.byref(total))
        num = total.value if num_last is None else num_last
        if not num:
            return []
        first = address + 16 * (total.value - num)
        numbers = (ctypes.c_int64 * (2 * num)).from_address(first)[:]
        return list(zip(numbers[0::2], numbers[1::2]))


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
        _numbers(len(kinds), len(columns), len(dialect.layouts), num_fields),
        _literal(dialect.start),
        *(_numbers(ord(storage), kinds.index(kind)) for (kind, _), storage in columns.items()),
        *(_numbers(number[kind, "position"]) for kind in kinds),
    ]
    for layout in dialect.layouts:
        has_columns = any(field.name for field in layout.fields)
        code += [
            _numbers(kinds.index(layout.kind) + 1 if has_columns else 0),
            _literal(layout.prefix),
            _numbers(len(layout.fields)),
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
    """Yield the code of each field of a layout, from the last to the first.

    Args:
        layout: the layout.
        number: kind and name of a column -> its number.
    """
    for field in reversed(layout.fields):
        treatment = _WHOLE
        if field.name in TEXTS:
            treatment = _INPUT if field.name in INPUTS else _WHOLE
            treatment = _WITHOUT_DURATION if field.name == "name" else treatment
        column = number[layout.kind, field.name] + 1 if field.name else 0
        yield _numbers(ord(field.spec), column, treatment)
        yield _literal(field.after)
        yield _numbers(field.indent)


def _numbers(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def _literal(text: bytes) -> bytes:
    return _numbers(len(text)) + text
