"""Numbers for strings. A trace of a million events has a few hundred distinct names."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from ppprof.arrays import Int32, Int64, UInt64

_LONGEST_MIXED = (
    2048  # bytes; the few longer texts are hashed one by one, outside the loop over words
)
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio
_LAST = 2**64 - 1


class ByteView:
    """A buffer as bytes, and as 8-byte words that begin at every byte.

    ``words[i]`` holds the bytes i to i+7. So there are seven fewer words than bytes.
    """

    def __init__(self, raw: bytes | bytearray | memoryview) -> None:
        self.raw = raw
        self.bytes = np.frombuffer(raw, np.uint8)
        # An unaligned view: element i is the word of bytes i..i+7.
        self.words: UInt64 = np.ndarray(len(raw) - 7, np.dtype("<u8"), raw, strides=(1,))

    def hashes(self, first: Int64, end: Int64) -> UInt64:
        """Return a 64-bit hash of the bytes in each range [first, end), shape (N,)."""
        length = end - first
        hashed: UInt64 = length.astype(np.uint64) * _MIX
        for row in np.flatnonzero(length > _LONGEST_MIXED).tolist():
            digest = blake2b(self.raw[first[row] : end[row]], digest_size=8).digest()
            hashed[row] = int.from_bytes(digest, "little")
        rows = np.flatnonzero((length > 0) & (length <= _LONGEST_MIXED))
        for done in range(0, int(length[rows].max(initial=0)), 8):
            rows = rows[length[rows] > done]
            word = self.words[first[rows] + done]
            num_past = np.clip(8 - (length[rows] - done), 0, 7).astype(np.uint64) << np.uint64(3)
            mixed = (hashed[rows] ^ (word << num_past)) * _MIX
            hashed[rows] = mixed ^ (mixed >> np.uint64(29))
        return hashed


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
