from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.trace.nesting import nest

spans = st.lists(
    st.tuples(st.integers(-1, 1), st.integers(0, 12), st.integers(0, 12), st.booleans()),
    max_size=25,
)


def _nest(events: list[tuple[int, int, int]], **options: object) -> list[int]:
    thread, start, end = (np.array(column, np.int64) for column in zip(*events))
    return nest(thread, start, end, **options).tolist()  # type: ignore[arg-type]


def test_a_thread_and_its_calls() -> None:
    # a ─────────────
    #   b ────  d ──
    #     c ──        (and e, on another thread, around all of them)
    a, b, c, d, e = (1, 0, 15), (1, 2, 8), (1, 4, 8), (1, 9, 13), (2, 0, 20)
    assert _nest([d, a, e, c, b]) == [1, -1, -1, 4, 1]


def test_what_starts_where_another_ends_is_beside_it() -> None:
    assert _nest([(1, 0, 5), (1, 5, 9), (1, 5, 5), (1, 9, 9)]) == [-1, -1, 1, -1]


def test_of_equal_events_the_first_is_the_parent() -> None:
    assert _nest([(1, 0, 5), (1, 0, 5)]) == [-1, 0]


def test_events_that_cross_lie_side_by_side() -> None:
    assert _nest([(1, 0, 10), (1, 5, 15), (1, 6, 9)]) == [-1, -1, 1]


def _by_definition(
    events: list[tuple[int, int, int, bool]], slack: int, use_holds: bool
) -> list[int]:
    """Looks at every pair of events."""

    def place(at: int) -> tuple[int, int, int, int]:
        thread, start, end, _ = events[at]
        return thread, start, -end, at

    parents = []
    for at, (thread, start, end, _) in enumerate(events):
        around = [
            other
            for other in range(len(events))
            if events[other][0] == thread
            and place(other) < place(at)
            and events[other][2] > start
            and events[other][2] + slack >= end
            and (events[other][3] or not use_holds)
        ]
        parents.append(max(around, key=place, default=-1))
    return parents


@given(spans, st.integers(0, 3), st.booleans())
def test_any_intervals_equal_the_definition(
    events: list[tuple[int, int, int, bool]], slack: int, use_holds: bool
) -> None:
    events = [(thread, min(a, b), max(a, b), holds) for thread, a, b, holds in events]
    thread, start, end, holds = (
        np.array([event[at] for event in events], np.int64) for at in range(4)
    )
    parents = nest(
        thread, start, end, holds=holds.astype(bool) if use_holds else None, slack_ns=slack
    )
    assert parents.tolist() == _by_definition(events, slack, use_holds)


@given(st.lists(st.booleans(), max_size=60), st.randoms())
def test_a_stack_of_calls_is_found_again_from_its_times(
    pushes: list[bool], shuffled: random.Random
) -> None:
    starts: list[int] = []
    ends: list[int] = []
    parents: list[int] = []
    stack: list[int] = []
    for clock, push in enumerate(pushes + [False] * len(pushes)):
        if push:
            parents.append(stack[-1] if stack else -1)
            stack.append(len(starts))
            starts.append(clock)
            ends.append(-1)
        elif stack:
            ends[stack.pop()] = clock
    order = list(range(len(starts)))
    shuffled.shuffle(order)
    found = nest(
        np.zeros(len(order), np.int64),
        np.array([starts[at] for at in order], np.int64),
        np.array([ends[at] for at in order], np.int64),
    )
    expected = [order.index(parents[at]) if parents[at] >= 0 else -1 for at in order]
    assert found.tolist() == expected


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.randoms())
def test_slack_mends_what_cutting_to_microseconds_breaks(
    pushes: list[bool], clock: random.Random
) -> None:
    # Every call lasts at least 2 us in its caller, so that cutting leaves no two starts equal.
    starts: list[int] = []
    ends: list[int] = []
    parents: list[int] = []
    stack: list[int] = []
    now = 0
    for push in pushes + [False] * len(pushes):
        now += clock.randrange(2000, 5000)
        if push:
            parents.append(stack[-1] if stack else -1)
            stack.append(len(starts))
            starts.append(now)
            ends.append(-1)
        elif stack:
            ends[stack.pop()] = now
    start = np.array(starts, np.int64)
    dur = np.array(ends, np.int64) - start
    cut_start, cut_dur = start // 1000 * 1000, dur // 1000 * 1000
    found = nest(np.zeros_like(start), cut_start, cut_start + cut_dur, slack_ns=1000)
    assert found.tolist() == parents


@pytest.mark.parametrize("depth", [0, 1, 2, 1000, 200_000])
def test_depth_costs_no_more_than_width(depth: int) -> None:
    at = np.arange(depth)
    parents = nest(np.zeros_like(at), at, 2 * depth - at)
    assert (parents == at - 1).all()
