"""Bytes as little-endian words at every place, for questions about many places at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio


class Words:
    """A buffer; the last seven bytes of it begin no word."""

    def __init__(self, raw: bytes | bytearray) -> None:
        self.raw = raw
        self.bytes = np.frombuffer(raw, np.uint8)
        # An unaligned view: element i is the word of bytes i..i+7.
        self.words: UInt64 = np.ndarray(len(raw) - 7, np.dtype("<u8"), raw, strides=(1,))

    def hashes(self, first: Int64, end: Int64) -> UInt64:
        """A hash of the bytes of each range, shape (N,)."""
        length = end - first
        found: UInt64 = length.astype(np.uint64) * _MIX
        rows = np.flatnonzero(length > 0)
        for done in range(0, int(length.max(initial=0)), 8):
            rows = rows[length[rows] > done]
            word = self.words[first[rows] + done]
            num_past = np.clip(8 - (length[rows] - done), 0, 7).astype(np.uint64) << np.uint64(3)
            mixed = (found[rows] ^ (word << num_past)) * _MIX
            found[rows] = mixed ^ (mixed >> np.uint64(29))
        return found
