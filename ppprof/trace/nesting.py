"""Which event of a thread ran inside which: from times, from a writer's order, from depths.

The calls of a thread lie inside one another, so start and end say who called whom::

    a ─────────────          a  parent -1
      b ────  d ──           b  parent a
        c ──                 c  parent b
                             d  parent a

Times alone cannot tell a child from a younger sibling where both begin within one tick of the
clock. A writer's order can: Paddle's JSON writer walks each thread's tree level by level, ours
walks it parent first and writes the depth.
"""

from __future__ import annotations

import numpy as np

from ppprof.arrays import Bool, Int64

_NEVER = np.iinfo(np.int64).min


def nest(
    thread: Int64,
    start_ns: Int64,
    end_ns: Int64,
    *,
    holds: Bool | None = None,
    slack_ns: int = 0,
) -> Int64:
    """The parent of each event: of its thread's events before it, the last that ends no earlier.

    An event comes before another if it starts earlier; at the same start the longer one does, and
    of two that are equal the one with the lower index. Intervals are half open: what starts where
    another ends is beside it, and so are two events of no length at one instant. Of two that cross,
    the second is beside the first. Sorted by thread and by what comes before, the events are in
    pre-order of the forest.

    Args:
        thread: shape (N,), any numbers; events of different threads never nest.
        start_ns: shape (N,), in any order.
        end_ns: shape (N,), not below ``start_ns``.
        holds: shape (N,), which events may be parents; all where it is None.
        slack_ns: by how much an event may outlast its parent: 1000 where both start and length
            were cut to whole microseconds, which can put an end that far past the parent's.

    Returns:
        Shape (N,), the index of the parent, -1 for none. O(N log N) whatever the depth.
    """
    order = np.lexsort((-end_ns, start_ns, thread))
    end = end_ns[order]
    least = np.maximum(end - slack_ns, start_ns[order] + 1)
    before = _last_reaching(end if holds is None else np.where(holds[order], end, _NEVER), least)
    sorted_thread = thread[order]
    before[before < np.searchsorted(sorted_thread, sorted_thread)] = -1
    parent = np.empty_like(before)
    parent[order] = np.where(before >= 0, order[before], -1)
    return parent


def _last_reaching(values: Int64, least: Int64) -> Int64:
    """For each i the largest j < i with ``values[j] >= least[i]``, -1 for none; shapes (N,).

    A tree of maxima over pairs: from i up to the first elder sibling that holds such a j, then down
    to the last one in it.
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
    found = np.full(len(values), -1, np.int64)
    rows = node = np.zeros(0, np.int64)
    for level, (new_rows, new_nodes) in zip(levels[::-1], hits[::-1]):
        node = 2 * node
        node += level[node + 1] >= least[rows]
        rows = np.concatenate((rows, new_rows))
        node = np.concatenate((node, new_nodes))
    found[rows] = node
    return found


def nest_by_level(start_ns: Int64, end_ns: Int64, slack_ns: Int64) -> Int64 | None:
    """Parents in a thread whose events come level by level, siblings by time.

    ::

        a ┬ b ─ d      order    a  e  b  c  d
          └ c          parent  -1 -1  0  0  2
        e

    Within a level events follow one another; so a level ends where an event begins before the one
    in front of it has ended. The parent is the event of the level above that overlaps the most.

    Args:
        start_ns: shape (N,), in the order of the file.
        end_ns: shape (N,).
        slack_ns: how far ``start_ns`` and ``end_ns`` may be off, shape (N,).

    Returns:
        Index of each parent, shape (N,), -1 where there is none; None where the events are in no
        such order, whatever the slack.
    """
    parent = np.full(len(start_ns), -1, np.int64)
    overlap = end_ns[:-1] - start_ns[1:]
    first = np.flatnonzero(overlap > slack_ns[:-1] + slack_ns[1:]) + 1
    bounds = [0, *first.tolist(), len(start_ns)]
    for above, here, after in zip(bounds, bounds[1:], bounds[2:]):
        outer = slice(above, here)
        starts, ends = start_ns[outer], end_ns[outer]
        child_start, child_end = start_ns[here:after], end_ns[here:after]
        last = here - above - 1
        best = np.clip(np.searchsorted(starts, child_start, side="right") - 1, 0, last)
        inside = _overlap(starts, ends, best, child_start, child_end)
        nearby = best
        for other in (nearby - 1, nearby + 1):
            candidate = np.clip(other, 0, last)
            fit = _overlap(starts, ends, candidate, child_start, child_end)
            best, inside = np.where(fit > inside, candidate, best), np.maximum(fit, inside)
        parent[here:after] = above + best
        off = slack_ns[here:after] + slack_ns[outer][best]
        if ((starts[best] - child_start > off) | (child_end - ends[best] > off)).any():
            return None
    return parent


def _overlap(starts: Int64, ends: Int64, at: Int64, child_start: Int64, child_end: Int64) -> Int64:
    """How much of each child lies in its candidate; below 0 the distance to it."""
    return np.minimum(ends[at], child_end) - np.maximum(starts[at], child_start)


def nest_by_depth(depth: Int64) -> Int64 | None:
    """Parents in pre-order from depths, shape (N,): the nearest event above that is less deep.

    None where the depths are not those of a forest in pre-order.
    """
    if len(depth) and (depth[0] != 0 or (np.diff(depth) > 1).any() or depth.min() < 0):
        return None
    parent = np.full(len(depth), -1, np.int64)
    by_depth = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[by_depth], np.arange(depth.max(initial=-1) + 2))
    for above, here, after in zip(bounds, bounds[1:], bounds[2:]):
        rows, candidates = by_depth[here:after], by_depth[above:here]
        parent[rows] = candidates[np.searchsorted(candidates, rows) - 1]
    return parent
