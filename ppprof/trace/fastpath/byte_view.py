"""Bytes as little-endian words at every position, for queries about many positions at once."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from ppprof.arrays import Int64, UInt64

_LONGEST_MIXED = (
    2048  # bytes; the few longer texts are hashed one by one, outside the loop over words
)
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio


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
