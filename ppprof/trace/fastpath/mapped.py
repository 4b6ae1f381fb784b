"""Map a file into memory: its bytes are read where the operating system keeps them, without copies.

Memory for a copy of a long file takes longer to get than the file to decode. The compiled core keeps
a file that becomes shorter from ending the process (``native/mapping.c``).
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import IO

import numpy as np

from ppprof.trace.fastpath import core

_lock = threading.RLock()
"""The garbage collector may run `_unmap` for another file while `MappedFile.of` holds it."""


class MappedFile:
    """The bytes of a file, with zeros behind them. The memory is freed with the last view of it.

    Args:
        data: the bytes and the zeros, read-only.
        number: the number of the mapping in the core.
    """

    def __init__(self, data: memoryview, number: int) -> None:
        self.data = data
        self._number = number

    @classmethod
    def of(cls, file: IO[bytes], num_bytes: int, padding: int) -> MappedFile | None:
        """Map the beginning of an open file; return None if the core or the system cannot.

        Args:
            file: may be closed afterwards.
            num_bytes: length of the file.
            padding: number of zeros behind it, at most 4096.
        """
        library = core.library()
        if library is None:
            return None
        address = np.zeros(1, np.int64)
        with _lock:
            number = core.call("map", file.fileno(), num_bytes, padding, address)
        if number is None or number < 0:
            return None
        memory = (ctypes.c_char * (num_bytes + padding)).from_address(int(address[0]))
        # At the end of the program views may still be in use.
        weakref.finalize(memory, _unmap, library, number).atexit = False
        return cls(memoryview(memory).cast("B").toreadonly(), number)

    @property
    def is_cut(self) -> bool:
        """Whether a part of the file could not be read, and was taken for zeros."""
        return bool(core.call("is_cut", self._number))


def _unmap(library: ctypes.CDLL, number: int) -> None:
    with _lock:
        library.ppprof_unmap(ctypes.c_int64(number))
