"""Columns of whole numbers as compressed bytes that the page's scripts unpack.

A blob is deflated (zlib). Unpacked, it holds column after column::

    width       1 byte: bytes per value, 0 to 7
    is_delta    1 byte: 1 if the values are differences to the value before, zigzag coded
    length      4 bytes, little endian
    planes      the lowest byte of all values, then the next byte of all values, ...

Neighbouring times differ little, so that their higher bytes are nearly constant, and deflate makes
almost nothing of them. Source of zigzag: protobuf's encoding of sint64.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ppprof.arrays import Int64

_LEVEL = 6


def pack(columns: Sequence[Int64], deltas: Sequence[bool]) -> bytes:
    """Return columns as one blob.

    Args:
        columns: int64, each of any length; below 2**55, and from 0 on where it is not a delta.
        deltas: for each column, whether to store differences.
    """
    return zlib.compress(b"".join(map(_column, columns, deltas)), _LEVEL)


def pack_text(text: str) -> bytes:
    """Return a text, deflated."""
    return zlib.compress(text.encode("utf-8", "replace"), _LEVEL)


def _column(values: Int64, is_delta: bool) -> bytes:
    if is_delta:
        steps = np.diff(values, prepend=0)
        values = (steps << 1) ^ (steps >> 63)
    largest = int(values.max()) if len(values) else 0
    width = (largest.bit_length() + 7) // 8
    octets: npt.NDArray[np.uint8] = values.astype("<i8").view(np.uint8).reshape(-1, 8)
    header = bytes((width, is_delta)) + len(values).to_bytes(4, "little")
    planes: bytes = octets[:, :width].T.tobytes()
    return header + planes
