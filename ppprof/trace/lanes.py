"""Lanes of a track: complete events that cross are drawn on different lanes.

Kernels of one stream overlap if the next one starts early (programmatic dependent launch), and
clocks of devices are read apart from each other. Viewers drop or misplace complete events that cross
on one track::

    stream 7      a |-------|     c |-----|       lane 0
                        b |-------|               lane 1
"""

from __future__ import annotations

import numpy as np
import polars as pl

from ppprof.arrays import Int64
from ppprof.trace.nesting import nest, order_of_calls


def lanes(track: Int64, start_ns: Int64, end_ns: Int64) -> Int64:
    """Return the lane of each event: the first in which it crosses no event that begins before it.

    Two events cross if the second begins inside the first and ends after it.

    Args:
        track: shape (N,), any numbers; events of different tracks never cross.
        start_ns: shape (N,), in any order.
        end_ns: shape (N,), not below ``start_ns``.

    Returns:
        Shape (N,), from 0. Takes O(N log N) time without crossings; of a track with crossings,
        each event also takes a look at each of its lanes.
    """
    lane = np.zeros(len(track), np.int64)
    order = order_of_calls(track, start_ns, end_ns)
    rows = np.arange(len(track)) if order is None else order
    tracks, starts, ends = track[rows], start_ns[rows], end_ns[rows]
    for each in _crossed(tracks, starts, ends).tolist():
        chosen = np.flatnonzero(tracks == each)
        lane[rows[chosen]] = _lanes_of_track(starts[chosen], ends[chosen])
    return lane


def with_tracks(devices: pl.DataFrame) -> pl.DataFrame:
    """Return device events with ``track``: the stream or, on a lane after the first, a new number.

    No stream has a new number. ``lane`` is the lane, from 0.

    Args:
        devices: reads device, stream, start_ns and dur_ns.
    """
    stream = devices["stream"].fill_null(0)
    start = devices["start_ns"].to_numpy()
    number = devices.select(pl.struct("device", stream).rank("dense")).to_series().cast(pl.Int64)
    lane = lanes(number.to_numpy(), start, start + devices["dur_ns"].to_numpy())
    first = int(stream.to_numpy().max(initial=0)) + 1
    new = pl.struct(pl.col("lane"), stream.alias("stream")).rank("dense").cast(pl.Int64)
    return devices.with_columns(lane=pl.Series(lane)).with_columns(
        track=pl.when(pl.col("lane") == 0).then(stream).otherwise(new + first)
    )


def track_name(stream: int, lane: int) -> str:
    """Return the name of a track: ``stream 7``, ``stream 7 (2)`` for its second lane."""
    return f"stream {stream} ({lane + 1})" if lane else f"stream {stream}"


def _crossed(track: Int64, start: Int64, end: Int64) -> Int64:
    """Return the tracks on which events cross; the order is that of `order_of_calls`.

    The parent is the last earlier event that ends no earlier. What crosses ends before the event
    does, so it lies between the two, in an elder sibling or as one. Siblings that follow one another
    without a crossing are disjoint. So the first crossing of siblings is one of neighbours.
    """
    parent = nest(track, start, end)
    by_parent = np.argsort(parent, kind="stable")
    before, after = by_parent[:-1], by_parent[1:]
    are_siblings = (parent[before] == parent[after]) & (track[before] == track[after])
    return np.unique(track[after[are_siblings & (end[before] > start[after])]])


def _lanes_of_track(start: Int64, end: Int64) -> list[int]:
    """Return the lanes of the events of one track, by start; of two that start together, the longer first."""
    open_ends: list[list[int]] = []
    result = []
    for begin, until in zip(start.tolist(), end.tolist()):
        lane = 0
        while lane < len(open_ends):
            ends = open_ends[lane]
            while ends and ends[-1] <= begin:
                ends.pop()
            if not ends or ends[-1] >= until:
                break
            lane += 1
        if lane == len(open_ends):
            open_ends.append([])
        open_ends[lane].append(until)
        result.append(lane)
    return result
