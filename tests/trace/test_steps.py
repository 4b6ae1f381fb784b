"""The step of each event."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from ppprof.trace.steps import step_spans, steps_at, steps_of


@given(
    spans=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=6),
    times=st.lists(st.integers(-2, 55), max_size=12),
)
def test_the_step_that_began_last_counts_while_it_lasts(
    spans: list[tuple[int, int]], times: list[int]
) -> None:
    spans = sorted(dict(spans).items())  # no two steps begin together
    rows = [(start, start + dur, 7 * number) for number, (start, dur) in enumerate(spans)]
    table = pl.DataFrame(rows, ["start_ns", "end_ns", "step"], orient="row").cast(pl.Int64)
    steps = steps_at(table, np.array(times, np.int64))
    begun = [[row for row in rows if row[0] <= time] for time in times]
    expected = [
        before[-1][2] if before and time < before[-1][1] else -1
        for before, time in zip(begun, times)
    ]
    assert steps.tolist() == expected


def test_a_device_event_has_the_step_of_its_launch() -> None:
    """
    ::

        host     |0   |1   |
        launch     ^  ^
        device         0  1   x     x: without a launch
    """
    events = pl.DataFrame(
        {
            "name": ["ProfileStep#0", "ProfileStep#1", "call", "call", "k", "k", "k"],
            "category": ["ProfileStep"] * 2 + ["CudaRuntime"] * 2 + ["Kernel"] * 3,
            "start_ns": [0, 50, 20, 49, 60, 70, 80],
            "dur_ns": [50, 50, 5, 5, 5, 5, 5],
            "device": [None] * 4 + [0] * 3,
            "parent": [None, None, 0, 1, 2, 3, None],
        }
    )
    assert step_spans(events).rows() == [(0, 50, 0), (50, 100, 1)]
    assert steps_of(events).to_list() == [0, 1, 0, 0, 0, 0, None]
