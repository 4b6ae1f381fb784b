"""Which steps the step time of a run is measured on: one choice for all commands.

A profiler slows the steps that it records. So the step time of a run is that of steps that were not
recorded, if there are enough of them; what only a trace can show, such as the parts of a step, is that
of recorded steps. Every time is labelled with one of the two.
"""

from __future__ import annotations

import polars as pl

RECORDED, NOT_RECORDED = "recorded", "not recorded"

LEAST_STEPS = 5
"""Least number of steps for an interval (`ppprof.analysis.diff.significance`)."""

_WARM_UP = 10
"""Number of first steps of a run that are left out, as Paddle's Perf Summary does."""


def unrecorded_steps(times: pl.DataFrame) -> pl.DataFrame:
    """Return the steps outside windows, without first steps and steps that the profiler stalls.

    The first 10 steps are left out if the run has at least 20 such steps, else only step 0.

    Args:
        times: columns of `ppprof.rundir.step_times.STEP_TIMES`.

    Returns:
        rank, step, step_ns and reader_cost_ns (null if no batch was read).
    """
    sound = times.filter(
        pl.col("window").is_null() & pl.col("excluded").not_().fill_null(value=True)
    )
    first = _WARM_UP if sound["step"].n_unique() >= 2 * _WARM_UP else 1
    return sound.filter(pl.col("step") >= first).select(
        "rank", "step", "reader_cost_ns", step_ns=pl.col("batch_cost_ns")
    )


def is_enough(steps: pl.DataFrame) -> bool:
    """Return whether a table with a row per rank and step has `LEAST_STEPS` steps."""
    return steps["step"].n_unique() >= LEAST_STEPS
