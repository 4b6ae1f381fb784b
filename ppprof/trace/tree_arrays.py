"""Trees as arrays: pre-order, depth and subtree sizes from the parent of each node.

Trees in pre-order, with the depth and the number of descendants of every node::

    a ┬ b ─ c          row      0  1  2  3  4
      └ d              node     a  b  c  d  e
    e                  depth    0  1  2  1  0
                       size     3  1  0  0  0

In pre-order the descendants of row i are the rows i+1 .. i+size, so the sum over a subtree is the
difference of two prefix sums.

Nodes are numbered by int32.
"""

from __future__ import annotations

import numpy as np

from ppprof.arrays import Array, Bool, Int32, Int64
from ppprof.trace.fastpath import core


def levels(parent: Int32) -> list[Int64]:
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


def pre_order(parent: Int32) -> tuple[Int32, Int32]:
    """Return the nodes of all trees in pre-order, siblings sorted by index.

    ``parent`` is as in `levels`. Takes O(N) time for any depth.

    Returns:
        order: shape (M,), M <= N, the nodes in pre-order, without unreachable nodes.
        depth: shape (M,), the depth of each node of ``order``, 0 for a root.
    """
    parent = np.ascontiguousarray(parent, np.int32)
    first_child, next_sibling = np.empty((2, len(parent) + 1), np.int32)
    order, depth = np.empty((2, len(parent)), np.int32)
    num_reached = core.call(
        "pre_order", parent, len(parent), first_child, next_sibling, order, depth
    )
    if num_reached is None:
        return _pre_order_by_stack(parent)
    return order[:num_reached], depth[:num_reached]


def _pre_order_by_stack(parent: Int32) -> tuple[Int32, Int32]:
    """Return the same as `pre_order`, without the compiled core."""
    children: dict[int, list[int]] = {}
    for node, above in zip(range(len(parent) - 1, -1, -1), parent[::-1].tolist()):
        children.setdefault(above, []).append(node)
    order, depth = [], []
    waiting = [(node, 0) for node in children.get(-1, ())]
    while waiting:
        node, level = waiting.pop()
        order.append(node)
        depth.append(level)
        waiting += [(child, level + 1) for child in children.get(node, ())]
    return np.array(order, np.int32), np.array(depth, np.int32)


def pre_order_of_groups(
    group_ids: Int64, group: Int32, ids: Array, parent: Int32
) -> tuple[Array, Int32]:
    """Return the nodes of all trees in pre-order, groups and siblings sorted by id.

    Args:
        group_ids: id of each group.
        group: index of each node's group, shape (N,), ascending.
        ids: id of each node in its group, shape (N,).
        parent: as in `levels`; in the same group.

    Returns:
        Order and depth, as `pre_order`.
    """
    in_order = (ids[1:] >= ids[:-1]) | (group[1:] != group[:-1])
    if in_order.all() and (group_ids[1:] > group_ids[:-1]).all():
        return pre_order(parent)
    by_id = np.lexsort((ids, group_ids[group]))
    rank = np.empty(len(by_id), np.int32)
    rank[by_id] = np.arange(len(by_id))
    sorted_parent = parent[by_id]
    has_parent = sorted_parent >= 0
    sorted_parent[has_parent] = rank[sorted_parent[has_parent]]
    order, depth = pre_order(sorted_parent)
    return by_id[order], depth


def parents_by_id(group: Int32, ids: Array, parent_ids: Int64) -> Int32:
    """Return the index of each node's parent: -1 for a root, -2 if there is no such node.

    If several nodes of a group have the same id, the first one is the parent.

    Args:
        group: index of each node's group, shape (N,), ascending.
        ids: id of each node in its group, any integers, shape (N,).
        parent_ids: id of each node's parent, in the same group, shape (N,); -1 for a root.
    """
    num_nodes = len(ids)
    starts = np.flatnonzero(np.append(num_nodes > 0, group[1:] != group[:-1]))
    sizes = np.diff(np.append(starts, num_nodes))
    first = np.repeat(starts.astype(group.dtype), sizes)
    if (ids == np.arange(num_nodes, dtype=group.dtype) - first).all():
        # This is usual: nodes are numbered from 0 in each group.
        exists = parent_ids < np.repeat(sizes.astype(group.dtype), sizes)
        exists &= parent_ids >= 0
        parent = np.where(exists, parent_ids + first, -2).astype(np.int32)
    else:
        distinct = np.unique(ids)
        nearest = np.minimum(np.searchsorted(distinct, parent_ids), len(distinct) - 1)
        keys = group * np.int64(len(distinct)) + np.searchsorted(distinct, ids)
        by_key = np.argsort(keys, kind="stable")
        wanted = group * np.int64(len(distinct)) + nearest
        position = np.minimum(np.searchsorted(keys[by_key], wanted), num_nodes - 1)
        candidates = by_key[position]
        exists = (distinct[nearest] == parent_ids) & (keys[candidates] == wanted)
        parent = np.where(exists, candidates, -2).astype(np.int32)
    parent[parent_ids == -1] = -1
    return parent


def subtree_sizes(parent: Int32, depth: Array) -> Int32:
    """Return the number of descendants of each node, shape (N,).

    Args:
        parent: shape (N,), -1 for a root. A parent comes before its children.
        depth: the depth of each node, 0 for a root, integers of shape (N,).
    """
    size = np.zeros(len(parent), np.int32)
    by_depth = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[by_depth], np.arange(1, depth.max(initial=0) + 2))
    for first, last in zip(bounds[-2::-1], bounds[:0:-1]):
        nodes = by_depth[first:last]
        np.add.at(size, parent[nodes], size[nodes] + 1)
    return size


def subtree_sums(values: Array, size: Int32) -> Array:
    """Return the sum of ``values`` over each node and its descendants, shape (N,).

    Args:
        values: numbers of shape (N,), in pre-order.
        size: the number of descendants of each node, shape (N,), see `subtree_sizes`.
    """
    total = np.concatenate(([0], np.cumsum(values)))
    inside: Array = total[np.arange(1, len(values) + 1) + size]
    inside -= total[:-1]
    return inside


def enclosing(parent: Int32, chosen: Bool) -> Int32:
    """Return, for each node, the nearest chosen node above it.

    Args:
        parent: index of the parent, -1 for a root, shape (N,). There are no cycles.
        chosen: whether each node is chosen, shape (N,).

    Returns:
        Shape (N,); -1 if no chosen node is above.
    """
    # A chosen node leads to itself, any other one upwards; the last element is "none".
    rows = np.arange(len(parent), dtype=np.int32)
    leads_to = np.append(np.where(chosen, rows, parent), np.int32(-1))
    while True:  # each turn doubles the number of levels climbed
        further = leads_to[leads_to]
        if np.array_equal(further, leads_to):
            break
        leads_to = further
    nearest: Int32 = leads_to[parent]
    return nearest
