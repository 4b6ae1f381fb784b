"""Steps of traces without device events have the times that were measured beside the trace."""

from __future__ import annotations

import polars as pl

from ppprof.analysis.profile.step_basis import unrecorded_steps, with_measured_times
from ppprof.rundir.step_times import STEP_TIMES

STEPS = ("rank", "window", "step", "step_ns", "data_loading_ns", "rest_ns")


def table(*rows: tuple[int | None, ...]) -> pl.DataFrame:
    return pl.DataFrame(rows, dict.fromkeys(STEPS, pl.Int64), orient="row")


def times(*rows: tuple[object, ...]) -> pl.DataFrame:
    names = ("rank", "window", "step", "batch_cost_ns", "device_timed", "excluded")
    return pl.DataFrame([dict(zip(names, row)) for row in rows], STEP_TIMES, orient="row")


def test_a_host_that_runs_ahead():
    """
    ::

        host     |0|1|2|                 2 each, 1 of it data loading
        device    00000 111111 222222    the first with a stall of the profiler
    """
    steps = table(*((0, 0, step, 2, 1, None) for step in range(3)))
    log = times((0, 0, 0, 5, True, True), *((0, 0, step, 6, True, False) for step in (1, 2)))
    expected = [(0, 0, 0, None, None, None), *((0, 0, step, 6, None, None) for step in (1, 2))]
    assert with_measured_times(steps, log).rows() == expected


def test_a_host_that_waits_for_the_device():
    """The host reads a result in each step, so its data loading is a part of the device's step."""
    steps = table(*((0, 0, step, 59, 30, None) for step in range(3)))
    log = times(*((0, 0, step, 60, True, None) for step in range(3)))
    assert with_measured_times(steps, log).rows() == [
        (0, 0, step, 60, 30, None) for step in range(3)
    ]


def test_each_rank_and_window_has_its_own_host():
    """Rank 1 is on a device whose events are in the trace; window 1 of rank 0 runs ahead."""
    steps = table((0, 0, 0, 9, 3, None), (0, 1, 1, 2, 2, None), (1, 0, 0, 8, 3, 5))
    log = times(*((rank, step, step, 10, True, False) for rank, step in ((0, 0), (0, 1), (1, 0))))
    expected = [(0, 0, 0, 10, 3, None), (0, 1, 1, 10, None, None), (1, 0, 0, 8, 3, 5)]
    assert with_measured_times(steps, log).rows() == expected


def test_what_the_device_did_not_time_is_unknown():
    """Steps that the host timed, of another window, of another rank, or of an old log."""
    steps = table(*((0, 0, step, 2, 1, None) for step in range(4)))
    log = times(
        (0, 0, 0, 7, False, False),
        (0, 0, 1, 7, None, None),
        (0, 1, 2, 7, True, False),
        (1, 0, 3, 7, True, False),
    )
    expected = [(0, 0, step, None, None, None) for step in range(4)]
    assert with_measured_times(steps, log).rows() == expected


def test_the_first_steps_of_a_resumed_training_are_left_out():
    """Of 20 steps the first ten, of fewer the first one; without num_before, the number of the step counts."""
    rows = [(0, None, step, 10, None, False) for step in range(700, 720)]
    log = times(*rows)
    resumed = log.with_columns(num_before=pl.col("step") - 700)
    assert unrecorded_steps(resumed)["step"].to_list() == list(range(710, 720))
    assert unrecorded_steps(resumed.head(19))["step"].to_list() == list(range(701, 719))
    for each in (log, log.drop("num_before")):
        assert unrecorded_steps(each)["step"].to_list() == list(range(700, 720))
