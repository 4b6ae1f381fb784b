"""Rows of spans, thinned out for drawing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ppprof.arrays import Bool, Int64

_PIECES = 8192
"""Pieces of time that a window is cut into at first: more than a screen has pixels."""


class Spans(NamedTuple):
    """Spans that each stand for one or more events, sorted by start; arrays of one length."""

    start: Int64
    dur: Int64
    """To the last end of its events."""
    depth: Int64
    longest: Int64
    """Index of its longest event."""
    num: Int64
    """Number of its events."""


def thinned(start: Int64, dur: Int64, depth: Int64, budget: int) -> Spans:
    """Return events as at most about ``budget`` spans.

    Neighbouring short events of a row become one span. Longer events stay::

        events   a=======  b c d   e==========     a row with room for three
        drawn    a=======  bcd===  e==========     num 1, 3, 1

    Args:
        start: ns, sorted within each row, shape (N,).
        dur: ns, shape (N,).
        depth: the row of each event, shape (N,).
        budget: the number of spans.
    """
    order = np.argsort(depth, kind="stable")
    start, dur, row = start[order], dur[order], depth[order]
    end = start + dur
    first = np.arange(len(start))
    whole = int(end.max() - start.min()) if len(start) else 0
    resolution = max(1, whole // _PIECES)
    while len(first) > budget:
        first = np.flatnonzero(_begins(start, dur, row, resolution))
        resolution += resolution // 2 + 1
        if resolution > 2 * whole:
            break
    if not len(first):
        return Spans(*[np.empty(0, np.int64)] * 5)
    num = np.diff(first, append=len(start))
    group = np.repeat(np.arange(len(first)), num)
    maximal = np.flatnonzero(dur == np.maximum.reduceat(dur, first)[group])
    longest = maximal[np.diff(group[maximal], prepend=-1) > 0]
    spans = Spans(
        start[first],
        np.maximum.reduceat(end, first) - start[first],
        row[first],
        order[longest],
        num,
    )
    by_start = np.lexsort((spans.depth, spans.start))
    return Spans(*(column[by_start] for column in spans))


def _begins(start: Int64, dur: Int64, row: Int64, resolution: int) -> Bool:
    """Return whether each event begins a span, shape (N,).

    Short events share a span if they begin in one piece of time of one row and no long event is
    between them. An event that is not shorter than ``resolution`` has a span of its own.
    """
    is_short = dur < resolution
    piece = start // resolution
    begins = np.ones(len(start), bool)
    begins[1:] = ~is_short[1:] | ~is_short[:-1] | (piece[1:] != piece[:-1]) | (row[1:] != row[:-1])
    return begins
