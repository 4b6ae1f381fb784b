from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ppprof.trace.tree_arrays import pre_order, subtree_sizes, subtree_sums

parents = st.lists(st.integers(-1, 30), max_size=30)


def _walk(parent: list[int]) -> list[tuple[int, int]]:
    """(node, depth) by recursion: what the arrays must equal."""
    found: list[tuple[int, int]] = []

    def visit(node: int, depth: int) -> None:
        found.append((node, depth))
        for child, above in enumerate(parent):
            if above == node:
                visit(child, depth + 1)

    for root, above in enumerate(parent):
        if above == -1:
            visit(root, 0)
    return found


@given(parents)
def test_pre_order_equals_a_recursive_walk(parent: list[int]) -> None:
    # Any numbers at all: cycles, parents that do not exist and self-parents are never reached.
    order, depth = pre_order(np.array(parent, np.int64))
    assert list(zip(order.tolist(), depth.tolist())) == _walk(parent)


@given(parents)
def test_sizes_and_sums_equal_counting_descendants(parent: list[int]) -> None:
    order, depth = pre_order(np.array(parent, np.int64))
    row = {node: row for row, node in enumerate(order.tolist())}
    above = np.array([row.get(parent[node], -1) for node in order.tolist()], np.int64)
    below = {node: [child for child, _ in _walk_from(parent, node)] for node in order.tolist()}
    size = subtree_sizes(above, depth)
    assert size.tolist() == [len(below[node]) - 1 for node in order.tolist()]
    values = np.arange(1, len(order) + 1) ** 2
    by_node = dict(zip(order.tolist(), values.tolist()))
    expected = [sum(by_node[child] for child in below[node]) for node in order.tolist()]
    assert subtree_sums(values, size).tolist() == expected


def _walk_from(parent: list[int], node: int) -> list[tuple[int, int]]:
    return _walk(
        [
            -1 if index == node else (-2 if above == -1 else above)
            for index, above in enumerate(parent)
        ]
    )
