"""Starts are as exact as Paddle's three roundings allow; errors are never above the reported one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ppprof.trace.fastpath.fixed_layout import MISSING
from ppprof.trace.paddle.json_events import TimestampEstimator

ZERO_NS = 1_795_214_805_084_966_791


def as_paddle_prints(start_ns: np.ndarray, dur_ns: np.ndarray) -> tuple[np.ndarray, ...]:
    """ts, start_time and end_time in nanoseconds, as they come back from Paddle's JSON."""
    begin, end = (
        np.rint((ns.astype(np.float32) / np.float32(1000)).astype(np.float64) * 1000).astype(
            np.int64
        )
        for ns in (start_ns - ZERO_NS, start_ns + dur_ns - ZERO_NS)
    )
    return start_ns // 1000 * 1000, begin, end


def arrays(spans: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    start, dur = np.array(spans, np.int64).T
    return start + ZERO_NS, dur


@given(st.lists(st.tuples(st.integers(0, 30 * 10**9), st.integers(0, 10**7)), min_size=1))
def test_starts_are_within_the_slack(spans):
    start, dur = arrays([(0, 1), *spans])
    ts, begin, end = as_paddle_prints(start, dur)
    found, slack = TimestampEstimator([(ts, begin)]).starts(ts, dur, begin, end)
    shift = found[0] - start[0]  # of all alike: what the first event's microsecond leaves open
    assert abs(shift) < 1000
    assert (np.abs(found - start) <= slack + 1000).all()
    assert (slack <= 500).all()


def test_early_starts_are_exact_if_the_zero_is():
    start, dur = arrays([(time, 10) for time in range(0, 16_000_000, 99_991)])
    ts, begin, end = as_paddle_prints(start, dur)
    found, slack = TimestampEstimator([(ts, begin)]).starts(ts, dur, begin, end)
    assert np.abs(found - start).max() <= 5
    assert np.ptp(found - start) == 0
    assert not slack.any()


def test_an_event_without_a_start_time_does_not_cost_the_others_theirs():
    start, dur = arrays([(123, 5), (4567, 6), (8000, 7)])
    ts, begin, _ = as_paddle_prints(start, dur)
    alone = TimestampEstimator([(ts[:2], begin[:2])])
    begin[2] = MISSING
    assert TimestampEstimator([(ts, begin)]).zero_ns == alone.zero_ns is not None


def test_without_start_times_the_error_is_half_a_microsecond():
    start, dur = arrays([(123, 5), (4567, 6)])
    ts = start // 1000 * 1000
    none = np.full(2, MISSING)
    found, slack = TimestampEstimator([(ts, none)]).starts(ts, dur, none, none)
    assert (found - ts).tolist() == [499, 499]
    assert slack.tolist() == [500, 500]


def test_events_that_disagree_on_the_zero_have_none():
    ts = np.array([1_000_000, 9_000_000])
    begin = np.array([0, 0])
    assert TimestampEstimator([(ts, begin)]).zero_ns is None
