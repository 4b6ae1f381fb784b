"""What is read from text that is exactly as its writer printed it: columns and ranges of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ppprof.arrays import Array, Int64

Ranges = list[tuple[int, int]]

INPUTS = ("shapes", "dtypes", "attributes", "callstack")
"""Text columns of operators, see `ppprof.trace.operator_inputs`; most files have no such text."""
TEXTS = ("name", "cat", "place", "axis", "dtype", "peers", "phase", *INPUTS)
"""Text columns. They hold indices into a list of strings (`Scanned.texts`), -1 for no text."""
NARROW = frozenset(("pid", "tid", "dur", "device", "stream"))
"""Columns of integers that are int32 if all of their values fit, to save memory."""
MISSING = np.int64(np.iinfo(np.int64).min)
"""Stands for a missing value in a column of integers."""

EventsOfKind = tuple[str, Mapping[str, Array]]
"""A kind of event, and its columns, each of shape (N,).

The columns are the named fields of the layout and ``position``, the byte offset of each event. With
events of several layouts, they are the columns of all of them: an event without a field has
`MISSING` there, NaN for a real number, and -1 for a text.
"""


class Scanned(NamedTuple):
    """The events of a byte range of a file."""

    events: list[EventsOfKind]
    """The events that match a layout. Several items may be of one kind."""
    texts: list[bytes]
    """Strings as in the file; the columns `TEXTS` hold indices into this list."""
    unmatched: Ranges
    """Text in no known layout, as ascending byte ranges (first, end) of the file."""
    num_flows: int
    """Number of flow events, which are not in ``events``."""


def narrowed(values: Int64) -> Array:
    """Return the values as int32, to save memory; unchanged if one of them does not fit."""
    if len(values) and values.min() >= -(2**31) and values.max() < 2**31:
        return values.astype(np.int32)
    return values
