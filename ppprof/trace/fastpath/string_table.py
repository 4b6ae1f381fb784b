"""Numbers for strings. A trace of a million events has a few hundred distinct names."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ppprof.arrays import Int32, Int64
from ppprof.trace.fastpath.byte_view import ByteView

_LAST = 2**64 - 1


class StringTable:
    """Distinct strings, numbered from 0 in the order in which they were added."""

    def __init__(self) -> None:
        self._number: dict[bytes, int] = {}
        # Ascending; the last one is a sentinel, so that every search ends at an entry.
        self._hashes = np.array([_LAST], np.uint64)
        self._of_hash = np.array([-1], np.int32)

    def __len__(self) -> int:
        return len(self._number)

    def numbers(self, texts: Iterable[bytes]) -> Int32:
        """Return the number of each text; new texts are added to the table."""
        table = self._number
        return np.fromiter((table.setdefault(text, len(table)) for text in texts), np.int32)

    def between(self, words: ByteView, first: Int64, end: Int64) -> Int32:
        """Return the number of the text in each byte range [first, end), shape (N,).

        New texts are added to the table.

        Texts are compared by 64-bit hashes. The probability that two of 10,000 texts share a hash
        is below 1 in 10**11.
        """
        hashes = words.hashes(first, end)
        index = np.searchsorted(self._hashes, hashes)
        is_new = self._hashes[index] != hashes
        if is_new.any():
            new, firsts = np.unique(hashes[is_new], return_index=True)
            rows = np.flatnonzero(is_new)[firsts]
            numbers = self.numbers(
                bytes(words.raw[a:b]) for a, b in zip(first[rows].tolist(), end[rows].tolist())
            )
            place = np.searchsorted(self._hashes, new)
            self._hashes = np.insert(self._hashes, place, new)
            self._of_hash = np.insert(self._of_hash, place, numbers)
            index = np.searchsorted(self._hashes, hashes)
        return self._of_hash[index]

    def all(self) -> list[bytes]:
        """Return all strings, sorted by number."""
        return list(self._number)
