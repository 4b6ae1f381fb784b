"""Sets of half-open time intervals [start, end), as arrays.

A set is a pair of int64 arrays of equal length: starts and ends, in any order, and intervals may
overlap. A *union* is a set whose intervals are sorted by start and disjoint, with touching
intervals merged.
"""

from __future__ import annotations

import numpy as np

from ppprof.arrays import Array, Bool, Int64

Intervals = tuple[Int64, Int64]

_FEW_GROUPS = 32
"""So many groups are handled one after another, which takes less memory than all at once."""


def union(start: Int64, end: Int64) -> Intervals:
    """Return the instants of a set as a union: sorted, disjoint intervals.

        in      ###   ##
                  ####
        out     ########

    Args:
        start: shape (N,).
        end: shape (N,), at least start.

    Returns:
        Starts and ends of M <= N disjoint intervals, ascending.
    """
    if not len(start):
        return start, end
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    end = np.maximum.accumulate(end)
    opens = np.concatenate(([True], start[1:] > end[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return start[opens], end[closes]


def covered(start: Int64, end: Int64) -> int:
    """Return the number of nanoseconds that lie in at least one interval."""
    first, last = union(start, end)
    return int((last - first).sum())


def overlap(left: Intervals, right: Intervals) -> int:
    """Return the number of nanoseconds that two sets share: |left| + |right| - |left or right|."""
    return covered(*left) + covered(*right) - covered(*joined(left, right))


def difference(left: Intervals, right: Intervals) -> Intervals:
    """Return the instants in ``left`` but not in ``right``, as a union.

    left    ######  ##
    right     ##     ##
    out     ##  ##  #
    """
    bounds = np.sort(np.concatenate((*left, *right)), kind="stable")  # merges sorted runs fast
    first, last = bounds[:-1], bounds[1:]
    is_kept = contains(left, first) & ~contains(right, first)
    return union(first[is_kept], last[is_kept])


def pieces_inside(intervals: Intervals, frame: Intervals) -> tuple[Int64, Intervals]:
    """Return the parts of intervals that lie in ``frame``.

        intervals   ########
        frame         ##  ####
        out           ##  ##

    Args:
        intervals: N intervals, in any order, overlaps allowed.
        frame: a union.

    Returns:
        For each part the number of its interval, ascending, and its start and end.
    """
    start, end = intervals
    first = np.searchsorted(frame[1], start, side="right")
    num = np.maximum(np.searchsorted(frame[0], end, side="left") - first, 0)
    row = np.repeat(np.arange(len(start)), num)
    own = first[row] + np.arange(len(row)) - np.repeat(np.cumsum(num) - num, num)
    return row, (np.maximum(start[row], frame[0][own]), np.minimum(end[row], frame[1][own]))


def difference_by_group(
    left: Intervals, left_group: Int64, right: Intervals, right_group: Int64
) -> Intervals:
    """Return the `difference` of the intervals of each group, one group after the other.

        group 1   left    ######
                  right     ##
        group 2   left      ####
        out               ##  ##, ####

    Takes O(N log N) time for any number of groups.

    Args:
        left: N intervals, in any order, overlaps allowed.
        left_group: the group of each of them, shape (N,), any numbers.
        right: M intervals, in any order, overlaps allowed.
        right_group: the group of each of them, shape (M,).
    """
    time = np.concatenate((*left, *right))
    group = np.concatenate((left_group, left_group, right_group, right_group))
    begin_or_end = [np.full(len(side), change) for side, change in zip(left, (1, -1))]
    num_left = np.concatenate((*begin_or_end, np.zeros(2 * len(right[0]), np.int64)))
    begin_or_end = [np.full(len(side), change) for side, change in zip(right, (1, -1))]
    num_right = np.concatenate((np.zeros(2 * len(left[0]), np.int64), *begin_or_end))
    order = np.lexsort((time, group))
    time, group = time[order], group[order]
    # At the end of a group, as many intervals have ended as have begun.
    inside = (np.cumsum(num_left[order]) > 0) & (np.cumsum(num_right[order]) == 0)
    kept = np.flatnonzero(inside[:-1] & (time[1:] > time[:-1]))
    first, last, group = time[kept], time[kept + 1], group[kept]
    is_new = (first[1:] != last[:-1]) | (group[1:] != group[:-1])
    opens = np.concatenate((np.ones(min(len(kept), 1), np.bool_), is_new))
    return first[opens], last[np.append(opens[1:], np.ones(min(len(kept), 1), np.bool_))]


def covered_by_group(group: Array, intervals: Intervals) -> tuple[Int64, Int64]:
    """Return how many intervals each group has, and how many nanoseconds lie in at least one of them.

    Takes O(N log N) time for any number of groups.

    Args:
        group: the group of each interval, integers from 0, shape (N,).
        intervals: N intervals, in any order.

    Returns:
        Two int64 arrays with an item for each group from 0 to the largest one; 0 for a group without
        intervals.
    """
    start, end = intervals
    num_groups = int(group.max(initial=-1)) + 1
    calls, times = np.bincount(group, minlength=num_groups), np.zeros(num_groups, np.int64)
    length = int(end.max()) - int(start.min()) + 1 if len(group) else 1
    if _FEW_GROUPS < num_groups < 2**63 // length:
        # One union serves all groups if each is moved to a separate range of time.
        move = group.astype(np.int64) * length - start.min()
        first, last = union(start + move, end + move)
        np.add.at(times, first // length, last - first)
        return calls, times
    for number in np.flatnonzero(calls).tolist():
        rows = np.flatnonzero(group == number)
        times[number] = covered(start[rows], end[rows])
    return calls, times


def extents_by_group(group: Int64, intervals: Intervals) -> tuple[Int64, Intervals]:
    """Return the first start and the last end of the intervals of each group.

        group 1   ##  ####      out   ########
        group 2     ##                  ##

    Args:
        group: the group of each interval, shape (N,), any numbers.
        intervals: N intervals, in any order.

    Returns:
        The M groups, ascending, and an interval for each of them.
    """
    groups, position = np.unique(group, return_inverse=True)
    first = np.full(len(groups), np.iinfo(np.int64).max)
    last = np.full(len(groups), np.iinfo(np.int64).min)
    np.minimum.at(first, position, intervals[0])
    np.maximum.at(last, position, intervals[1])
    return groups, (first, last)


def maxima_by_group(group: Array, values: Int64) -> Int64:
    """Return the largest of the values so far of each group, shape (N,).

    Args:
        group: the group of each value, any numbers; equal ones follow one another.
        values: shape (N,).
    """
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values))
    first = np.cumsum(np.diff(group, prepend=group[:1]) != 0) * len(values)
    so_far: Int64 = values[order[np.maximum.accumulate(first + rank) - first]]
    return so_far


def intersection(left: Intervals, right: Intervals) -> Intervals:
    """Return the instants in both sets, as a union."""
    return difference(left, difference(left, right))


def joined(*sets: Intervals) -> Intervals:
    """Return all intervals of ``sets``, one set after the other."""
    nothing = np.empty(0, np.int64)
    return (
        np.concatenate((nothing, *(start for start, _ in sets))),
        np.concatenate((nothing, *(end for _, end in sets))),
    )


def together(*sets: Intervals) -> Intervals:
    """Return the instants that lie in at least one of ``sets``, as a union; empty without sets."""
    return union(*joined(*sets))


def covered_within(disjoint: Intervals, start: Int64, end: Int64) -> Int64:
    """Return how many nanoseconds of a union lie in each of several time ranges.

        union     ####  ##   ###
        ranges      |----||----|        6 ticks each
        out         ##  ##    ##        4 and 2

    Args:
        disjoint: a `union`.
        start: starts of the ranges, shape (N,).
        end: ends of the ranges, shape (N,), at least start; ranges may overlap.

    Returns:
        Nanoseconds, int64, shape (N,).
    """
    first, last = disjoint
    total = np.concatenate(([0], np.cumsum(last - first)))
    ends = np.concatenate(([np.iinfo(np.int64).min], last))

    def until(time: Int64) -> Int64:
        begun = np.searchsorted(first, time, side="right")
        so_far: Int64 = total[begun] - np.maximum(ends[begun], time) + time
        return so_far

    return until(end) - until(start)


def contains(intervals: Intervals, time: Int64) -> Bool:
    """Return whether each instant of ``time`` lies in an interval.

    An instant lies in an interval if more intervals have begun by then than have ended.
    """
    start, end = (np.sort(side, kind="stable") for side in intervals)
    is_inside: Bool = np.searchsorted(start, time, side="right") > np.searchsorted(
        end, time, side="right"
    )
    return is_inside
