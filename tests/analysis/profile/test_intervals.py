"""Interval arithmetic against counting ticks one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.analysis.profile import intervals as interval_sets
from ppprof.analysis.profile.intervals import (
    covered,
    covered_by_group,
    covered_within,
    difference,
    difference_by_group,
    extents_by_group,
    intersection,
    joined,
    maxima_by_group,
    overlap,
    together,
    union,
)

intervals = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair))),
    max_size=12,
)
Pairs = list  # of (start, end)


def _arrays(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))


def _pairs(intervals: tuple[np.ndarray, np.ndarray]) -> Pairs:
    return list(zip(intervals[0].tolist(), intervals[1].tolist()))


def _ticks(pairs: Pairs) -> set[int]:
    return {tick for start, end in pairs for tick in range(start, end)}


@given(intervals)
def test_union_covers_the_same_ticks_once(pairs: Pairs) -> None:
    merged = _pairs(union(*_arrays(pairs)))
    assert _ticks(merged) == _ticks(pairs)
    assert all(left[1] < right[0] for left, right in zip(merged, merged[1:]))


def test_union_sorts_many_runs() -> None:
    """Threads follow one another, each in the order of time: as many sorted runs as threads."""
    random = np.random.default_rng(5)
    for num_runs in (1, 2, 3, 7, 64, 1000):
        starts = np.sort(random.integers(0, 3000, (num_runs, 20)), axis=1).ravel()
        pairs = list(zip(starts.tolist(), (starts + random.integers(0, 9, len(starts))).tolist()))
        merged = _pairs(union(*_arrays(pairs)))
        assert _ticks(merged) == _ticks(pairs)
        assert all(left[1] < right[0] for left, right in zip(merged, merged[1:]))


@given(intervals, intervals)
def test_covered_and_overlap_count_ticks(left: Pairs, right: Pairs) -> None:
    assert covered(*_arrays(left)) == len(_ticks(left))
    assert overlap(_arrays(left), _arrays(right)) == len(_ticks(left) & _ticks(right))


@given(intervals, intervals)
def test_difference_covers_the_ticks_of_one_side_alone(left: Pairs, right: Pairs) -> None:
    kept = _pairs(difference(_arrays(left), _arrays(right)))
    assert _ticks(kept) == _ticks(left) - _ticks(right)
    assert all(start < end for start, end in kept)
    assert all(one[1] < other[0] for one, other in zip(kept, kept[1:]))


@given(st.lists(st.tuples(intervals, intervals), max_size=4))
def test_difference_by_group_is_the_difference_of_each_group(groups: list[tuple[Pairs, Pairs]]):
    left, right = ([pair for group in groups for pair in group[side]] for side in (0, 1))
    left_group, right_group = (
        np.repeat(np.arange(len(groups)), [len(group[side]) for group in groups]).astype(np.int64)
        for side in (0, 1)
    )
    kept = _pairs(difference_by_group(_arrays(left), left_group, _arrays(right), right_group))
    each = [_pairs(difference(*map(_arrays, group))) for group in groups]
    assert kept == [pair for pairs in each for pair in pairs]


@pytest.mark.parametrize("most", [0, 2, 32])
@given(groups=st.lists(st.tuples(st.integers(0, 4), intervals), max_size=5))
def test_covered_by_group_counts_the_ticks_of_each_group(
    most: int, groups: list[tuple[int, Pairs]]
) -> None:
    """One after another up to ``most`` groups, else all at once."""
    number = np.array([group for group, pairs in groups for _ in pairs], np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interval_sets, "_FEW_GROUPS", most)
        calls, time_ns = covered_by_group(number, joined(*(_arrays(pairs) for _, pairs in groups)))
    expected = [
        [pair for group, pairs in groups if group == wanted for pair in pairs]
        for wanted in range(number.max(initial=-1) + 1)
    ]
    assert calls.tolist() == [len(pairs) for pairs in expected]
    assert time_ns.tolist() == [len(_ticks(pairs)) for pairs in expected]


@given(st.lists(st.tuples(st.integers(-1, 3), intervals), max_size=5))
def test_extents_by_group_reach_from_the_first_start_to_the_last_end(
    groups: list[tuple[int, Pairs]],
) -> None:
    number = np.array([group for group, pairs in groups for _ in pairs], np.int64)
    found, extents = extents_by_group(number, joined(*(_arrays(pairs) for _, pairs in groups)))
    for group, (first, last) in zip(found.tolist(), _pairs(extents)):
        starts, ends = zip(*(pair for other, pairs in groups if other == group for pair in pairs))
        assert (first, last) == (min(starts), max(ends))
    assert found.tolist() == sorted({group for group, pairs in groups if pairs})


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-9, 9)), max_size=12))
def test_maxima_by_group_are_those_so_far_of_neighbours_of_one_group(items: Pairs) -> None:
    items = sorted(items, key=lambda item: item[0])
    expected = [
        max(value for other, value in items[: number + 1] if other == group)
        for number, (group, _) in enumerate(items)
    ]
    group, values = np.array(items, np.int64).reshape(-1, 2).T
    assert maxima_by_group(group, values).tolist() == expected


@given(intervals, intervals)
def test_intersection_and_together_cover_the_ticks_of_both_and_of_either(
    left: Pairs, right: Pairs
) -> None:
    both = _pairs(intersection(_arrays(left), _arrays(right)))
    either = _pairs(together(_arrays(left), _arrays(right)))
    assert _ticks(both) == _ticks(left) & _ticks(right)
    assert _ticks(either) == _ticks(left) | _ticks(right)
    assert _ticks(_pairs(together())) == set()


@given(intervals, intervals)
def test_covered_within_counts_the_ticks_of_each_window(pairs: Pairs, windows: Pairs) -> None:
    inside = covered_within(union(*_arrays(pairs)), *_arrays(windows))
    assert inside.tolist() == [len(_ticks(pairs) & _ticks([window])) for window in windows]
