"""Find the parent of each event in a thread: from times, from the file's order, or from depths.

The calls of a thread nest, so start and end show which call made which::

    a ─────────────          a  parent -1
      b ────  d ──           b  parent a
        c ──                 c  parent b
                             d  parent a

Times alone cannot distinguish a child from a younger sibling if both begin within one tick of the
clock. The order of the file can: Paddle's JSON writer walks each thread's tree level by level;
`write_paddle_json` writes parents first, with their depth.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ppprof.arrays import Array, Bool, Int32, Int64
from ppprof.trace.fastpath import core

_MOST_BITS = 63
_NEVER = np.iinfo(np.int64).min


def nest(
    thread: Int64,
    start_ns: Int64,
    end_ns: Int64,
    *,
    holds: Bool | None = None,
    slack_ns: int = 0,
) -> Int32:
    """Return the parent of each event: the last earlier event of its thread that ends no earlier.

    An event comes before another one if it starts earlier. At the same start the longer event comes
    first, and of two equal events the one with the lower index. Intervals are half open: an event
    that starts where another ends is its sibling, and so are two events of zero length at one
    instant. If two events cross, the second is a sibling of the first. Sorted by thread and then in
    this order, the events are in pre-order.

    Args:
        thread: shape (N,), any numbers; events of different threads never nest.
        start_ns: shape (N,), in any order.
        end_ns: shape (N,), not below ``start_ns``.
        holds: shape (N,), whether an event may be a parent; None if every event may.
        slack_ns: the most by which an event may end after its parent. It is 1000 if both start and
            length were cut to whole microseconds, which can put an end that far past the parent's.

    Returns:
        Shape (N,), the index of the parent, -1 for an outermost event. Takes O(N log N) time for
        any depth.
    """
    order = order_of_calls(thread, start_ns, end_ns)
    if order is None:
        return _nest_sorted(thread, start_ns, end_ns, holds, slack_ns)
    before = _nest_sorted(
        thread[order],
        start_ns[order],
        end_ns[order],
        None if holds is None else holds[order],
        slack_ns,
    )
    parent = np.empty_like(before)
    parent[order] = np.where(before >= 0, order[before], -1)
    return parent


def innermost(hosts: Sequence[Int64], inner: Sequence[Int64]) -> Int32:
    """Return the index of the innermost host event around each inner event; -1 for none.

    The inner events hold nothing, not even each other.

    Args:
        hosts: thread, start_ns and end_ns of the host events, as in `nest`.
        inner: those of N inner events.

    Returns:
        Shape (N,).
    """
    columns = [np.concatenate(sides) for sides in zip(hosts, inner)]
    num_hosts = len(hosts[0])
    return nest(*columns, holds=np.arange(len(columns[0])) < num_hosts)[num_hosts:]


def runs_of_threads(thread: Array, process: Array) -> Int64:
    """Return the first row of each run: of rows of one thread that follow one another."""
    changes: Bool = (thread[1:] != thread[:-1]) | (process[1:] != process[:-1])
    return np.flatnonzero(np.append(len(thread) > 0, changes))


def numbered_threads(*tables: tuple[Array, Array]) -> list[Int32]:
    """Return the number of each row's thread, for each of ``tables``; equal threads have one number.

    The numbers ascend by thread id, then by process id. A file lists many events of one thread after
    another, so that only each run needs a search.

    Args:
        tables: thread id and process id of each row.
    """
    runs = [runs_of_threads(*table) for table in tables]
    thread, process = (
        _numbered([ids[first] for ids, first in zip(column, runs)]) for column in zip(*tables)
    )
    numbers = _numbered([thread * (process.max(initial=0) + 1) + process]).astype(np.int32)
    parts = np.split(numbers, np.cumsum([len(first) for first in runs])[:-1])
    return [
        np.repeat(part, np.diff(np.append(first, len(ids))))
        for (ids, _), first, part in zip(tables, runs, parts)
    ]


def _numbered(parts: Sequence[Array]) -> Int64:
    """Return the rank of each value of all parts among their distinct values, from 0."""
    values = np.concatenate([part.astype(np.int64) for part in parts])
    return np.unique(values, return_inverse=True)[1]


def order_of_calls(thread: Int64, start_ns: Int64, end_ns: Int64) -> Int64 | None:
    """Return the events sorted by thread, then start; the longer of two that start together first.

    Of equal events, the one with the lower index comes first. None if they are in this order.

    Args:
        thread: shape (N,), any numbers.
        start_ns: shape (N,).
        end_ns: shape (N,).
    """
    if _are_sorted(thread, start_ns, end_ns):
        return None
    first, last = start_ns.min(), start_ns.max()
    shift = int(last - first).bit_length() if first >= 0 else _MOST_BITS
    lowest = thread.min()
    if shift + int(thread.max() - lowest).bit_length() < _MOST_BITS and lowest >= 0:
        # One sort of nearly sorted numbers: each thread's events come almost in order.
        order = np.argsort((thread - lowest << shift) + (start_ns - first), kind="stable")
        if _are_sorted(thread[order], start_ns[order], end_ns[order]):
            return order
    return np.lexsort((-end_ns, start_ns, thread))


def _are_sorted(thread: Int64, start_ns: Int64, end_ns: Int64) -> bool:
    is_same = thread[1:] == thread[:-1]
    is_sorted = start_ns[1:] > start_ns[:-1]
    is_sorted |= (start_ns[1:] == start_ns[:-1]) & (end_ns[1:] <= end_ns[:-1])
    is_sorted &= is_same
    is_sorted |= thread[1:] > thread[:-1]
    return bool(is_sorted.all())


def _nest_sorted(
    thread: Int64, start_ns: Int64, end_ns: Int64, holds: Bool | None, slack_ns: int
) -> Int32:
    """Return the parents as `nest`, of events in the order of `order_of_calls`."""
    columns = [np.ascontiguousarray(column, np.int64) for column in (thread, start_ns, end_ns)]
    holders = None if holds is None else np.ascontiguousarray(holds, np.bool_)
    open_events, parent = np.empty((2, len(thread)), np.int32)
    done = core.call("nest", *columns, holders, len(thread), slack_ns, open_events, parent)
    if done is None:
        least = np.maximum(end_ns - slack_ns, start_ns + 1)
        values = end_ns if holds is None else np.where(holds, end_ns, _NEVER)
        parent = _last_reaching(values, least)
        parent[parent < np.searchsorted(thread, thread)] = -1
    return parent


def _last_reaching(values: Int64, least: Int64) -> Int32:
    """Return the largest j < i with ``values[j] >= least[i]`` for each i, else -1; shapes (N,).

    Uses a tree of maxima over pairs: climbs from i to the first elder sibling that holds such a j,
    then descends to the last one in it.
    """
    levels = [values]
    while len(levels[-1]) > 1:
        if len(levels[-1]) % 2:
            levels[-1] = np.append(levels[-1], _NEVER)
        levels.append(np.maximum(levels[-1][::2], levels[-1][1::2]))
    rows = np.arange(len(values))
    hits = []
    for height, level in enumerate(levels):
        node = rows >> height
        hit = (node % 2 == 1) & (level[node - 1] >= least[rows])
        hits.append((rows[hit], node[hit] - 1))
        rows = rows[~hit]
    last = np.full(len(values), -1, np.int32)
    rows = node = np.zeros(0, np.int64)
    for level, (new_rows, new_nodes) in zip(levels[::-1], hits[::-1]):
        node = 2 * node
        node += level[node + 1] >= least[rows]
        rows = np.concatenate((rows, new_rows))
        node = np.concatenate((node, new_nodes))
    last[rows] = node
    return last


def nest_by_level(start_ns: Int64, end_ns: Int64, slack_ns: Int64) -> Int32 | None:
    """Return the parents in a thread whose events come level by level, siblings sorted by time.

    ::

        a ┬ b ─ d      order    a  e  b  c  d
          └ c          parent  -1 -1  0  0  2
        e

    Within a level, events follow one another. So a level ends where an event begins before the
    previous one has ended. The parent is the event of the level above that overlaps the most.

    Args:
        start_ns: shape (N,), in the order of the file.
        end_ns: shape (N,).
        slack_ns: the possible error of ``start_ns`` and ``end_ns``, shape (N,).

    Returns:
        Shape (N,), the index of the parent, -1 for an outermost event. None if an event does not
        lie inside its parent, even with the slack: the events are not in this order.
    """
    num_events = len(start_ns)
    ends_level = end_ns[:-1] - start_ns[1:] > slack_ns[:-1] + slack_ns[1:]
    bounds = [*(np.flatnonzero(ends_level) + 1).tolist(), num_events]
    parent = np.full(num_events, -1, np.int32)
    for above, here, after in zip([0, *bounds], bounds, bounds[1:]):
        starts, ends = start_ns[here:after], end_ns[here:after]
        best = np.searchsorted(start_ns[above:here], starts, side="right") - 1
        np.maximum(best, 0, out=best)
        best += above
        # Most events lie in the last one that begins before them.
        rows = np.flatnonzero((start_ns[best] > starts) | (end_ns[best] < ends))
        if len(rows):
            start, end, nearby = starts[rows], ends[rows], best[rows]
            outer, inside = nearby, _overlap(start_ns, end_ns, nearby, start, end)
            for other in (nearby - 1, nearby + 1):
                candidate = np.clip(other, above, here - 1)
                fit = _overlap(start_ns, end_ns, candidate, start, end)
                outer = np.where(fit > inside, candidate, outer)
                inside = np.maximum(fit, inside)
            off = slack_ns[here:after][rows] + slack_ns[outer]
            if ((start_ns[outer] - start > off) | (end - end_ns[outer] > off)).any():
                return None
            best[rows] = outer
        parent[here:after] = best
    return parent


def _overlap(
    starts: Int64, ends: Int64, candidate: Int64, child_start: Int64, child_end: Int64
) -> Int64:
    """Return the overlap of each child with its candidate parent in ns; negative for a gap."""
    return np.minimum(ends[candidate], child_end) - np.maximum(starts[candidate], child_start)


def nest_by_depth(depth: Array) -> Int32 | None:
    """Return the row of each event's parent, from depths in pre-order, shape (N,); -1 at depth 0.

    The parent of an event is the nearest row before it with a smaller depth. Return None if
    ``depth`` does not describe trees in pre-order.
    """
    if len(depth) and (depth[0] != 0 or (np.diff(depth) > 1).any() or depth.min() < 0):
        return None
    parent = np.full(len(depth), -1, np.int32)
    deepest = depth.max(initial=-1)
    # NumPy sorts integers of 16 bits in linear time.
    sortable = depth.astype(np.int16) if deepest < 2**15 else depth
    by_depth = np.argsort(sortable, kind="stable")
    bounds = np.searchsorted(depth[by_depth], np.arange(deepest + 2))
    for above, here, after in zip(bounds, bounds[1:], bounds[2:]):
        rows, candidates = by_depth[here:after], by_depth[above:here]
        parent[rows] = candidates[np.searchsorted(candidates, rows) - 1]
    return parent
