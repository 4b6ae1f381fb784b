"""Strings as numbers: a trace of a million events has a few hundred names."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ppprof.arrays import Int32, Int64
from ppprof.trace.fastpath.byte_view import ByteView

_LAST = 2**64 - 1


class StringTable:
    """Strings by number, in the order of first meeting."""

    def __init__(self) -> None:
        self._number: dict[bytes, int] = {}
        # Ascending; the last one, which no text has a number for, is there to be found.
        self._hashes = np.array([_LAST], np.uint64)
        self._of_hash = np.array([-1], np.int32)

    def __len__(self) -> int:
        return len(self._number)

    def numbers(self, texts: Iterable[bytes]) -> Int32:
        """The number of each text."""
        known = self._number
        return np.fromiter((known.setdefault(text, len(known)) for text in texts), np.int32)

    def between(self, words: ByteView, first: Int64, end: Int64) -> Int32:
        """The number of the text in each range of bytes, shape (N,).

        Texts are told apart by hashes of 64 bits: that two among 10,000 share one has a chance of
        1 in 10**11.
        """
        hashes = words.hashes(first, end)
        at = np.searchsorted(self._hashes, hashes)
        is_new = self._hashes[at] != hashes
        if is_new.any():
            new, firsts = np.unique(hashes[is_new], return_index=True)
            rows = np.flatnonzero(is_new)[firsts]
            numbers = self.numbers(
                bytes(words.raw[a:b]) for a, b in zip(first[rows].tolist(), end[rows].tolist())
            )
            place = np.searchsorted(self._hashes, new)
            self._hashes = np.insert(self._hashes, place, new)
            self._of_hash = np.insert(self._of_hash, place, numbers)
            at = np.searchsorted(self._hashes, hashes)
        return self._of_hash[at]

    def all(self) -> list[bytes]:
        """The strings by their number."""
        return list(self._number)
