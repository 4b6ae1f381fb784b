"""The step that each event belongs to."""

from __future__ import annotations

import numpy as np
import polars as pl

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
    steps = (
        events.filter(pl.col("category") == "ProfileStep")
        .select(
            "start_ns",
            "end_ns",
            step=pl.col("name").cast(pl.String).str.extract(r"#(\d+)$").cast(pl.Int64),
        )
        .drop_nulls()
        .sort("start_ns")
    )
    if steps.is_empty():
        return pl.Series([None] * events.height, dtype=pl.Int64)
    start = events["start_ns"].to_numpy()
    last = np.searchsorted(steps["start_ns"].to_numpy(), start, side="right") - 1
    inside = (last >= 0) & (start < steps["end_ns"].to_numpy()[last])
    step = np.where(inside, steps["step"].to_numpy()[last], -1)
    of_launch = events["device"].is_not_null().to_numpy()
    launch = events["parent"].fill_null(-1).to_numpy()[of_launch]
    step[of_launch] = np.where(launch >= 0, step[launch], -1)
    return nullable(step)
