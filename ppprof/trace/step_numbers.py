"""The step that each event belongs to."""

from __future__ import annotations

import numpy as np
import polars as pl

from ppprof.arrays import Int64
from ppprof.trace.schema import nullable

_CHUNK = 1 << 14  # events at a time: few temporaries


def steps_of(events: pl.DataFrame) -> pl.Series:
    """Return the N of the ProfileStep#N in which each event began.

    A device event has the step of its launch.

    Args:
        events: host events, then launches, then device events; reads name, category, start_ns,
            dur_ns, device and parent.

    Returns:
        int64, as long as ``events``; null outside of steps and for a device event without a launch.
    """
    first_device = events.height - events["device"].count()
    begun = events.slice(0, first_device)
    step = np.full(events.height + 1, -1)
    step[:first_device] = steps_at(step_spans(begun), begun["start_ns"].to_numpy())
    launch = events["parent"].slice(first_device).fill_null(events.height).to_numpy()
    step[first_device:-1] = step[launch]  # the last item is for no launch
    return nullable(step[:-1])


def step_spans(events: pl.DataFrame) -> pl.DataFrame:
    """Return start_ns, end_ns and step, all int64, of each ProfileStep#N, sorted by start_ns.

    Args:
        events: reads name, category, start_ns and dur_ns.
    """
    rows = (events["category"] == "ProfileStep").arg_true()
    steps = pl.DataFrame([events[name].gather(rows) for name in ("name", "start_ns", "dur_ns")])
    return (
        steps.select(
            "start_ns",
            end_ns=pl.col("start_ns") + pl.col("dur_ns"),
            step=pl.col("name")
            .cast(pl.String)
            .str.extract(r"#(\d+)$")
            .cast(pl.Int64, strict=False),
        )
        .drop_nulls()
        .sort("start_ns")
    )


def steps_at(spans: pl.DataFrame, start: Int64) -> Int64:
    """Return the step in which each event began, shape (N,); -1 outside.

    Args:
        spans: see `step_spans`.
        start: the time at which each event began, shape (N,).
    """
    if spans.is_empty():
        return np.full(len(start), -1)
    first, end, step = (spans[column].to_numpy() for column in ("start_ns", "end_ns", "step"))
    # The last item is for events before the first step: index -1.
    end, step = np.append(end, np.iinfo(np.int64).min), np.append(step, -1)
    steps: Int64 = np.empty(len(start), np.int64)
    for row in range(0, len(start), _CHUNK):
        times = start[row : row + _CHUNK]
        last = np.searchsorted(first, times, side="right") - 1
        steps[row : row + _CHUNK] = np.where(times < end[last], step[last], -1)
    return steps
