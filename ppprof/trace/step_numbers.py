"""The step that each event belongs to."""

from __future__ import annotations

import numpy as np
import polars as pl

from ppprof.arrays import Int64
from ppprof.trace.schema import nullable


def steps_of(events: pl.DataFrame) -> pl.Series:
    """Return the N of the ProfileStep#N in which each event began.

    A device event has the step of its launch.

    Args:
        events: host events, launches and device events; reads name, category, start_ns, end_ns,
            device and parent.

    Returns:
        int64, as long as ``events``; null outside of steps and for a device event without a launch.
    """
    of_launch = events["device"].is_not_null().to_numpy()
    step = np.full(events.height, -1, np.int64)
    step[~of_launch] = steps_at(step_spans(events), events["start_ns"].to_numpy()[~of_launch])
    launch = events["parent"].fill_null(-1).to_numpy()[of_launch]
    step[of_launch] = np.where(launch >= 0, step[launch], -1)
    return nullable(step)


def step_spans(events: pl.DataFrame) -> pl.DataFrame:
    """Return start_ns, end_ns and step, all int64, of each ProfileStep#N, sorted by start_ns.

    Args:
        events: reads name, category, start_ns and end_ns.
    """
    is_step = events["category"] == "ProfileStep"
    return (
        events[["name", "start_ns", "end_ns"]]
        .filter(is_step)
        .select(
            "start_ns",
            "end_ns",
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
    last = np.searchsorted(first, start, side="right") - 1
    # The last item is for events before the first step: index -1.
    end, step = np.append(end, np.iinfo(np.int64).min), np.append(step, -1)
    return np.where(start < end[last], step[last], -1)
