"""Nesting by time: which event of a thread ran inside which.

The calls of a thread lie inside one another, so start and end say who called whom::

    a ─────────────          a  parent -1
      b ────  d ──           b  parent a
        c ──                 c  parent b
                             d  parent a
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

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
