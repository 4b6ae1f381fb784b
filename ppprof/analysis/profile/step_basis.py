"""Which steps the step time of a run is measured on: one choice for all commands.

A profiler slows the steps that it records. So the step time of a run is that of steps that were not
recorded, if there are enough of them; what only a trace can show, such as the parts of a step, is that
of recorded steps. Every time is labelled with one of the two. A run that recorded nothing has no window
that steps could be outside of: its steps are labelled so.

A trace that lacks the events of its device holds the host's steps, and a host that runs ahead ends
a step long before the device does. The time of such a step is the one that the capture measured by
events of the device beside the trace (`with_measured_times`).
"""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

RECORDED, NOT_RECORDED, NO_WINDOW = "recorded", "outside the window", "without a window"

WITH_PAUSES = "with pauses"
"""The time from a step to the next, with the pauses between them: `ppprof.analysis.advice.between_steps`."""


class StepSample(NamedTuple):
    """The steps that a step time is of."""

    times: pl.DataFrame
    """rank, step and step_ns."""
    basis: str
    """`RECORDED`, `NOT_RECORDED`, or `NO_WINDOW` if the run recorded no steps."""


SLOW = 1.5
"""A step that takes longer than this number of times the median step is slow. A checkpoint, an
evaluation or a pause takes several times as long; noise rarely does."""

LEAST_STEPS = 5
"""Least number of steps for an interval (`ppprof.analysis.diff.significance`)."""

_WARM_UP = 10
"""Most first steps of a run that are left out, as Paddle's Perf Summary does."""


def num_before(times: pl.DataFrame) -> pl.Expr:
    """Return the expression for how many steps of the training came before a step: its number, if that is unknown.

    A training that was resumed begins with another step than step 0, and warms up again.

    Args:
        times: has the column step, and may have num_before of `ppprof.rundir.step_times.STEP_TIMES`.
    """
    return pl.coalesce(name for name in ("num_before", "step") if name in times.columns)


def unrecorded_steps(times: pl.DataFrame) -> pl.DataFrame:
    """Return the steps outside windows, without first steps and steps that the profiler stalls.

    The first `num_first` steps are left out.

    Args:
        times: columns of `ppprof.rundir.step_times.STEP_TIMES`.

    Returns:
        rank, step, step_ns, reader_cost_ns (null if no batch was read) and num_before (`num_before`).
    """
    steps = sound_steps(times)
    first = num_first(steps["step"].n_unique())
    return steps.filter(pl.col("num_before") >= first)


def sound_steps(times: pl.DataFrame) -> pl.DataFrame:
    """Return `unrecorded_steps` with the first ones."""
    is_stalled = pl.col("excluded").fill_null(value=False)
    return times.filter(pl.col("window").is_null() & ~is_stalled).select(
        "rank",
        "step",
        "reader_cost_ns",
        step_ns=pl.col("batch_cost_ns"),
        num_before=num_before(times),
    )


def num_first(num_steps: int) -> int:
    """Return how many first steps are left out: 10 of at least 20 steps, else 1."""
    return _WARM_UP if num_steps >= 2 * _WARM_UP else 1


AHEAD_RATIO = 0.9
"""Share of the device's steps. If the host's steps are shorter, the host runs ahead of the device, so
that the device may work while the host waits for data."""


def with_measured_times(steps: pl.DataFrame, times: pl.DataFrame) -> pl.DataFrame:
    """Return the steps with the times of the device where their traces lack the device's events.

    ::

        host     |1|2|3|               the trace: steps of 2
        device    11111 22222 33333    events beside the trace: steps of 6

    Args:
        steps: the result of `ppprof.analysis.ranks.step_table.join_ranks`. A step whose trace lacks
            the events of its device has no rest_ns.
        times: the run's step times: columns of `ppprof.rundir.step_times.STEP_TIMES`.

    Returns:
        ``steps``, with other values where rest_ns is null. step_ns is the batch cost in ``times`` if
        events of the device measured it, and null if they did not, or if the profiler stalled the
        step. data_loading_ns is null where the host runs ahead of the device: where the median of
        the host's steps in a window is below `AHEAD_RATIO` of the device's median, or the latter
        is unknown.
    """
    keys = ["rank", "window", "step"]
    is_measured = pl.col("device_timed").eq_missing(True) & pl.col("excluded").ne_missing(True)
    measured = times.filter(is_measured).select(*keys, measured_ns="batch_cost_ns")
    joined = steps.join(
        measured.unique(keys, keep="last"), keys, "left", maintain_order="left"
    ).with_columns(host_ns=pl.when(pl.col("measured_ns").is_not_null()).then("step_ns"))
    medians = [pl.col(name).median().over("rank", "window") for name in ("host_ns", "measured_ns")]
    waits = (medians[0] >= AHEAD_RATIO * medians[1]).fill_null(value=False)
    is_of_device = pl.col("rest_ns").is_not_null()
    return joined.with_columns(
        step_ns=pl.when(is_of_device).then("step_ns").otherwise("measured_ns"),
        data_loading_ns=pl.when(is_of_device | waits).then("data_loading_ns"),
    ).select(steps.columns)


def is_enough(steps: pl.DataFrame) -> bool:
    """Return whether a table with a row per rank and step has `LEAST_STEPS` steps."""
    return steps["step"].n_unique() >= LEAST_STEPS
