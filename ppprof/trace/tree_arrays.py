"""Trees as arrays: pre-order, depth and subtree sizes from the parent of each node.

Trees in pre-order, with the depth and the number of descendants of every node::

    a ┬ b ─ c          row      0  1  2  3  4
      └ d              node     a  b  c  d  e
    e                  depth    0  1  2  1  0
                       size     3  1  0  0  0

In pre-order the descendants of row i are the rows i+1 .. i+size, so the sum over a subtree is the
difference of two prefix sums.
"""

from __future__ import annotations

import numpy as np

from ppprof.arrays import Int64


def levels(parent: Int64) -> list[Int64]:
    """Return one array of nodes for each depth, roots (parent -1) first.

    Nodes of one depth are grouped by parent, siblings sorted by index. Unreachable nodes are left
    out.

    Args:
        parent: shape (N,), index of the parent, -1 for a root. A node with another value below 0,
            or not below N, is unreachable; so are the nodes of a cycle, and all descendants of
            unreachable nodes.
    """
    order = np.argsort(parent, kind="stable")
    sorted_parent = parent[order]
    by_level = []
    frontier = order[np.searchsorted(sorted_parent, -1) : np.searchsorted(sorted_parent, 0)]
    while len(frontier):
        by_level.append(frontier)
        first = np.searchsorted(sorted_parent, frontier)
        last = np.searchsorted(sorted_parent, frontier, side="right")
        counts = last - first
        inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        frontier = order[np.repeat(first, counts) + inside]
    return by_level


def pre_order(parent: Int64) -> tuple[Int64, Int64]:
    """Return the nodes of all trees in pre-order, siblings sorted by index.

    ``parent`` is as in `levels`.

    Returns:
        order: shape (M,), M <= N, the nodes in pre-order, without unreachable nodes.
        depth: shape (M,), the depth of each node of ``order``, 0 for a root.
    """
    by_level = levels(parent)
    size = np.ones(len(parent), np.int64)
    for nodes in reversed(by_level[1:]):
        np.add.at(size, parent[nodes], size[nodes])
    position = np.zeros(len(parent), np.int64)
    depth = np.zeros(len(parent), np.int64)
    for level, nodes in enumerate(by_level):
        # Nodes of one level are grouped by parent: a node comes after its elder siblings.
        before = np.cumsum(size[nodes]) - size[nodes]
        if level:
            above = parent[nodes]
            first = np.concatenate(([True], above[1:] != above[:-1]))
            group = np.cumsum(first) - 1
            before = before - before[first][group] + position[above] + 1
        position[nodes] = before
        depth[nodes] = level
    reached = np.concatenate(by_level) if by_level else np.zeros(0, np.int64)
    order = reached[np.argsort(position[reached])]
    return order, depth[order]


def subtree_sizes(parent: Int64, depth: Int64) -> Int64:
    """Return the number of descendants of each node, shape (N,).

    ``parent`` is -1 for a root. ``depth`` is the depth of each node, 0 for a root.
    """
    size = np.zeros(len(parent), np.int64)
    by_depth = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[by_depth], np.arange(1, depth.max(initial=0) + 2))
    for first, last in zip(bounds[-2::-1], bounds[:0:-1]):
        nodes = by_depth[first:last]
        np.add.at(size, parent[nodes], size[nodes] + 1)
    return size


def subtree_sums(values: Int64, size: Int64) -> Int64:
    """Return the sum of ``values`` over each node and its descendants, shape (N,).

    Args:
        values: shape (N,), in pre-order.
        size: the number of descendants of each node, shape (N,), see `subtree_sizes`.
    """
    total = np.concatenate(([0], np.cumsum(values)))
    rows = np.arange(len(values))
    sums: Int64 = total[rows + size + 1] - total[rows]
    return sums
