"""The calls of Python functions in a trace, as nested rows of a timeline."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.arrays import Int64
from ppprof.trace.nesting import nest
from ppprof.trace.schema import Trace


class PythonFrames(NamedTuple):
    """Calls of Python functions, sorted by thread and start, callers before the called; N calls."""

    names: pl.Series
    """File, first line and name of each function."""
    thread: Int64
    start_ns: Int64
    dur_ns: Int64
    depth: Int64
    """0 for a call whose caller is not recorded."""
    size: Int64
    """Number of calls below each call."""


def python_frames(trace: Trace) -> PythonFrames:
    """Return the frames of the threads with events, cut to the time from the first event to the last.

    ::

        events         ===  ==== ==
        frames     main ...............        cut at both sides
                         step ..   log         log begins after the last event: left out
    """
    events, frames = trace.events, trace.frames
    if events.is_empty() or frames.is_empty():
        frames = frames.clear()
    start = events["start_ns"].to_numpy()
    end = start + events["dur_ns"].to_numpy()
    first, last = (int(start.min()), int(end.max())) if len(start) else (0, 0)
    cut = (
        frames.with_columns(end_ns=(pl.col("start_ns") + pl.col("dur_ns")).clip(upper_bound=last))
        .with_columns(pl.col("start_ns").clip(lower_bound=first))
        .filter(pl.col("end_ns") > pl.col("start_ns"))
        .filter(pl.col("thread").is_in(events["thread"].drop_nulls().unique().implode()))
        .sort("thread", "start_ns", "end_ns", descending=[False, False, True])
    )
    thread, start, end = (cut[name].to_numpy() for name in ("thread", "start_ns", "end_ns"))
    parent = nest(thread, start, end)
    depth = np.zeros(len(parent), np.int64)
    size = np.zeros(len(parent), np.int64)
    for row in range(len(parent)):  # a caller stands before what it calls
        if parent[row] >= 0:
            depth[row] = depth[parent[row]] + 1
    for row in range(len(parent) - 1, -1, -1):
        if parent[row] >= 0:
            size[parent[row]] += size[row] + 1
    return PythonFrames(
        cut["name"].cast(pl.String), thread, start.astype(np.int64), end - start, depth, size
    )
