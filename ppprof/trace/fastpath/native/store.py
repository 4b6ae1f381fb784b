"""The results of a compiled reader (store.h), as arrays and texts, without copies.

The library has no global state and is called without the interpreter's lock. So several threads can
read at the same time, each with a reader of its own.
"""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from collections.abc import Sequence

import numpy as np

from ppprof.arrays import Array
from ppprof.trace.fastpath.fixed_layout import Ranges
from ppprof.trace.source import MARGIN, MAX_EVENT_BYTES, Block, TraceStream

_DTYPES = {"i": "int32", "q": "int64", "d": "float64", "t": "int32"}
"""`Storage` in columns.h -> dtype."""
_SECRET_BYTES = 16
_NO_MEMORY, _NOT_VALID = -1, -2


class _Memory:
    """Memory of the library, as an array; an array of ctypes needs a new type for each length."""

    def __init__(self, address: int, num_rows: int, dtype: str) -> None:
        self.__array_interface__ = {
            **{"version": 3, "data": (address, False), "shape": (num_rows,)},
            "typestr": np.dtype(dtype).str,
        }


class Control(ctypes.Structure):
    """What other threads see and set while a range is scanned: ``Control`` of range.c."""

    _fields_ = (
        ("position", ctypes.c_int64),  # offset up to which the file is scanned
        ("is_cancelled", ctypes.c_int32),  # set to end the scan after the current block
    )


class NativeStore:
    """A reader of the compiled core that was created from a program.

    Args:
        library: the library of `core.choose`.
        kind: ``scanner`` or ``reader``: the library's functions begin with it.
        program: what the reader has to do.
        start: the text with which every event begins, and its length, if the functions take them.

    Raises:
        MemoryError: there is not enough memory.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        kind: str,
        program: bytes,
        start: tuple[bytes, int] | tuple[()] = (),
    ) -> None:
        new, free, self._add, self._read_range = (
            getattr(library, f"ppprof_{kind}_{name}")
            for name in ("new", "free", "add", "add_range")
        )
        self._start = start
        self.library = library
        # A file that is made to slow down the table of texts would have to know this number.
        self.address = new(program, len(program), os.urandom(_SECRET_BYTES))
        if not self.address:
            raise MemoryError("no memory for a reader of events")
        weakref.finalize(self, free, self.address).atexit = False

    def add(self, block: Block) -> Ranges | None:
        """Add the events of a block, which begins and ends between two events.

        Returns:
            Text of the block that the caller has to decode, as ascending byte ranges (first, end) of
            the file. None if a ``reader`` finds that the block is not valid JSON: then none of its
            events is added.

        Raises:
            MemoryError: there is not enough memory. The reader cannot be used any more.
        """
        text = ctypes.c_char.from_buffer(block.buffer, MARGIN)
        num_new = self._add(self.address, ctypes.addressof(text), block.length, block.first)
        if num_new == _NOT_VALID:
            return None
        if num_new < 0:
            raise MemoryError("no memory for the events of a block")
        return self.ranges(num_new) if num_new else []

    def add_range(
        self, source: TraceStream, first: int, end: int, block_bytes: int, control: Control
    ) -> bool:
        """Add the events in the bytes [first, end) of a file; an event begins there, or the file ends.

        That needs the interpreter's lock only at the beginning and the end.

        Args:
            source: the file. Its position does not matter and stays.
            first: offset in the file.
            end: likewise.
            block_bytes: bytes that are read at a time.
            control: what other threads see and set meanwhile.

        Returns:
            Whether all events were added; else the reader cannot be used any more.

        Raises:
            MemoryError: there is not enough memory. The reader cannot be used any more.
        """
        outcome = self._read_range(
            *(self.address, *self._start, source.descriptor, first, end),
            *(block_bytes, MAX_EVENT_BYTES, ctypes.addressof(control)),
        )
        if outcome == _NO_MEMORY:
            raise MemoryError("no memory for the events of a file")
        return bool(outcome == 0)

    def columns(self, names: Sequence[tuple[str, str]]) -> dict[str, dict[str, Array]]:
        """Return table -> column -> values, without columns that no event has. Called once.

        Args:
            names: table and name of each column of the program.

        Raises:
            MemoryError: there is not enough memory.
        """
        if self.library.ppprof_store_finish(self.address):
            raise MemoryError("no memory for the columns of events")
        tables: dict[str, dict[str, Array]] = {}
        for number, (table, name) in enumerate(names):
            values = self._column(number)
            if values is not None:
                tables.setdefault(table, {})[name] = values
        return tables

    def _column(self, number: int) -> Array | None:
        """Return the values of a column, which are not copied; None if no event has the column."""
        num_rows, storage = ctypes.c_int64(), ctypes.c_int32()
        address = self.library.ppprof_store_take(
            self.address, number, ctypes.byref(num_rows), ctypes.byref(storage)
        )
        if not address:
            return None
        memory = _Memory(address, num_rows.value, _DTYPES[chr(storage.value)])
        # The memory belongs to the array. At the end of the program arrays may still be in use.
        weakref.finalize(memory, self.library.ppprof_free, address).atexit = False
        return np.asarray(memory)

    def texts(self) -> list[bytes]:
        """Return the texts; columns of texts hold indices into this list, -1 for no text."""
        ends_at, num_texts = ctypes.c_void_p(), ctypes.c_int64()
        bytes_at = self.library.ppprof_store_texts(
            self.address, ctypes.byref(ends_at), ctypes.byref(num_texts)
        )
        if not num_texts.value or not ends_at.value:
            return []
        ends = (ctypes.c_int64 * num_texts.value).from_address(ends_at.value)[:]
        whole = ctypes.string_at(bytes_at, ends[-1]) if ends[-1] else b""
        return [whole[first:end] for first, end in zip([0, *ends], ends)]

    def ranges(self, num_last: int | None = None) -> Ranges:
        """Return the last ``num_last`` ranges, or all of them."""
        total = ctypes.c_int64()
        address = self.library.ppprof_store_ranges(self.address, ctypes.byref(total))
        num = total.value if num_last is None else num_last
        if not num:
            return []
        first = address + 16 * (total.value - num)
        offsets = (ctypes.c_int64 * (2 * num)).from_address(first)[:]
        return list(zip(offsets[0::2], offsets[1::2]))


def numbers(*values: int) -> bytes:
    """Return the code of numbers in a program: unsigned 32-bit integers, little-endian."""
    return struct.pack(f"<{len(values)}I", *values)


def literal(text: bytes) -> bytes:
    """Return the code of a literal in a program: its length and its bytes."""
    return numbers(len(text)) + text
