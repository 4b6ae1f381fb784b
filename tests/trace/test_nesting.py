from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ppprof.trace.fastpath import core
from ppprof.trace.nesting import nest, nest_by_depth, nest_by_level

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


def test_an_event_that_starts_where_another_ends_is_its_sibling() -> None:
    assert _nest([(1, 0, 5), (1, 5, 9), (1, 5, 5), (1, 9, 9)]) == [-1, -1, 1, -1]


def test_of_equal_events_the_first_is_the_parent() -> None:
    assert _nest([(1, 0, 5), (1, 0, 5)]) == [-1, 0]


def test_events_that_cross_are_siblings() -> None:
    assert _nest([(1, 0, 10), (1, 5, 15), (1, 6, 9)]) == [-1, -1, 1]


def _by_definition(
    events: list[tuple[int, int, int, bool]], slack: int, use_holds: bool
) -> list[int]:
    """Looks at every pair of events."""

    def place(row: int) -> tuple[int, int, int, int]:
        thread, start, end, _ = events[row]
        return thread, start, -end, row

    parents = []
    for row, (thread, start, end, _) in enumerate(events):
        around = [
            other
            for other in range(len(events))
            if events[other][0] == thread
            and place(other) < place(row)
            and events[other][2] > start
            and events[other][2] + slack >= end
            and (events[other][3] or not use_holds)
        ]
        parents.append(max(around, key=place, default=-1))
    return parents


@pytest.mark.parametrize("name", [core.NATIVE, core.PYTHON])
@given(spans, st.integers(0, 3), st.booleans(), st.sampled_from([1, 2**40, 2**61]))
@example([(0, 0, 9, True), (0, 0, 4, True), (0, 1, 9, False), (0, 2, 4, True)], 0, True, 1)
def test_any_intervals_equal_the_definition(
    name: str,
    events: list[tuple[int, int, int, bool]],
    slack: int,
    use_holds: bool,
    scale: int,
) -> None:
    """Far apart, threads and starts do not fit the one number by which near ones are sorted."""
    library = core.load(core.FOLDER)[0]
    if name == core.NATIVE and library is None:
        pytest.skip("needs the compiled core: run `python tools/build_core.py`")
    events = [(thread * scale, min(a, b), max(a, b), holds) for thread, a, b, holds in events]
    thread, start, end, holds = (
        np.array([event[column] for event in events], np.int64) for column in range(4)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "library", lambda: library if name == core.NATIVE else None)
        parents = nest(
            thread, start, end, holds=holds.astype(bool) if use_holds else None, slack_ns=slack
        )
    assert parents.tolist() == _by_definition(events, slack, use_holds)


@given(st.lists(st.booleans(), max_size=60), st.randoms())
def test_a_stack_of_calls_is_restored_from_its_times(
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
        np.array([starts[node] for node in order], np.int64),
        np.array([ends[node] for node in order], np.int64),
    )
    expected = [order.index(parents[node]) if parents[node] >= 0 else -1 for node in order]
    assert found.tolist() == expected


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.randoms())
def test_slack_undoes_cutting_to_microseconds(pushes: list[bool], clock: random.Random) -> None:
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
def test_deep_trees_cost_no_more_than_wide_ones(depth: int) -> None:
    at = np.arange(depth)
    parents = nest(np.zeros_like(at), at, 2 * depth - at)
    assert (parents == at - 1).all()


@st.composite
def _forests(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Parent, start and end of nodes in pre-order; no two ends or starts at one tick."""
    parents: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    open_nodes: list[int] = []
    tick = 0
    for opens in draw(st.lists(st.booleans(), max_size=60)):
        tick += draw(st.integers(1, 9))
        if opens:
            parents.append(open_nodes[-1] if open_nodes else -1)
            open_nodes.append(len(starts))
            starts.append(tick)
            ends.append(0)
        elif open_nodes:
            ends[open_nodes.pop()] = tick
    while open_nodes:
        tick += 1
        ends[open_nodes.pop()] = tick
    return parents, starts, ends


def _level_by_level(parents: list[int]) -> list[int]:
    """The nodes of each level, one level after the other, as Paddle's writer walks them."""
    found: list[int] = []
    level = [node for node, parent in enumerate(parents) if parent == -1]
    while level:
        found += level
        level = [node for above in level for node, parent in enumerate(parents) if parent == above]
    return found


@given(_forests(), st.integers(0, 2**32))
def test_parents_from_the_order_of_levels(forest, seed):
    parents, starts, ends = forest
    order = _level_by_level(parents)
    place = {node: index for index, node in enumerate(order)}
    start, end = (np.array([times[node] for node in order], np.int64) for times in (starts, ends))
    expected = [place.get(parents[node], -1) for node in order]
    slack = np.zeros(len(order), np.int64)
    found = nest_by_level(start, end, slack)
    assert found is not None
    assert found.tolist() == expected
    # Times that are off by less than their slack change nothing where ticks are far apart.
    rng = np.random.default_rng(seed)
    off = rng.integers(-20, 21, len(order))
    found = nest_by_level(start * 100 + off, end * 100 + off, slack + 20)
    assert found is not None
    assert found.tolist() == expected


def test_an_order_that_is_not_by_level_is_detected():
    start, end = np.array([0, 50, 60, 5]), np.array([10, 100, 70, 200])
    assert nest_by_level(start, end, np.zeros(4, np.int64)) is None


@given(_forests())
def test_parents_from_depths_in_pre_order(forest):
    parents, _, _ = forest
    depth: list[int] = []
    for parent in parents:
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
    found = nest_by_depth(np.array(depth, np.int64))
    assert found is not None
    assert found.tolist() == parents


@pytest.mark.parametrize("depth", [[1], [0, 2], [0, -1], [0, 1, 3]])
def test_depths_of_no_tree_are_detected(depth):
    assert nest_by_depth(np.array(depth, np.int64)) is None
