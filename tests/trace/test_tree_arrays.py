from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.trace.fastpath import core
from ppprof.trace.tree_arrays import (
    enclosing,
    parents_by_id,
    pre_order,
    pre_order_of_groups,
    subtree_sizes,
    subtree_sums,
)

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
    assert subtree_sums(values / 2, size).tolist() == [total / 2 for total in expected]


@given(parent=parents, chosen=st.sets(st.integers(0, 30)), is_in_pre_order=st.booleans())
def test_the_enclosing_node_is_the_first_chosen_one_above(
    parent: list[int], chosen: set[int], is_in_pre_order: bool
) -> None:
    order, _ = pre_order(np.array(parent, np.int64))
    nodes = order.tolist() if is_in_pre_order else sorted(order.tolist())
    row = {node: row for row, node in enumerate(nodes)}
    above = [row.get(parent[node], -1) for node in nodes]

    def expected(node: int) -> int:
        outer = above[node]
        return outer if outer < 0 or outer in chosen else expected(outer)

    nearest = enclosing(
        np.array(above, np.int64), np.array([row in chosen for row in range(len(nodes))], bool)
    )
    assert nearest.tolist() == [expected(node) for node in range(len(nodes))]


def _walk_from(parent: list[int], node: int) -> list[tuple[int, int]]:
    return _walk(
        [
            -1 if index == node else (-2 if above == -1 else above)
            for index, above in enumerate(parent)
        ]
    )


def test_a_deep_tree_needs_no_recursion() -> None:
    order, depth = pre_order(np.arange(-1, 100_000))
    assert (order == np.arange(100_001)).all()
    assert (depth == order).all()


@given(parents)
def test_both_ways_to_pre_order_agree(parent: list[int]) -> None:
    array = np.array(parent, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "library", lambda: None)
        plain = pre_order(array)
    for one, other in zip(pre_order(array), plain):
        assert one.tolist() == other.tolist()


nodes = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-2, 9), st.integers(-2, 9)), max_size=30
).map(lambda rows: sorted(rows, key=lambda row: row[0]))


def _arrays(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    group, ids, parent_ids = np.array(rows, np.int64).reshape(-1, 3).T
    return group.astype(np.int32), np.ascontiguousarray(ids), np.ascontiguousarray(parent_ids)


def _parents(rows: list[tuple[int, int, int]]) -> list[int]:
    first: dict[tuple[int, int], int] = {}
    for index, (group, id, _) in enumerate(rows):
        first.setdefault((group, id), index)
    return [
        -1 if parent_id == -1 else first.get((group, parent_id), -2) for group, _, parent_id in rows
    ]


@given(nodes)
def test_parents_by_id_equal_a_dictionary(rows: list[tuple[int, int, int]]) -> None:
    assert parents_by_id(*_arrays(rows)).tolist() == _parents(rows)


@given(st.lists(st.lists(st.integers(-2, 6), max_size=5), max_size=4))
def test_parents_of_nodes_numbered_from_0(groups: list[list[int]]) -> None:
    rows = [
        (group, id, parent_id)
        for group, parent_ids in enumerate(groups)
        for id, parent_id in enumerate(parent_ids)
    ]
    assert parents_by_id(*_arrays(rows)).tolist() == _parents(rows)


@given(nodes, st.permutations([5, 7, 9]))
def test_pre_order_of_groups_sorts_groups_and_siblings(
    rows: list[tuple[int, int, int]], group_ids: list[int]
) -> None:
    group, ids, _ = _arrays(rows)
    parent = np.array(_parents(rows), np.int64)
    order, depth = pre_order_of_groups(np.array(group_ids), group, ids, parent)
    by_id = sorted(range(len(rows)), key=lambda node: (group_ids[rows[node][0]], rows[node][1]))
    position = {node: place for place, node in enumerate(by_id)}
    above = [position.get(parent[node], parent[node]) for node in by_id]
    expected = [(by_id[node], depth) for node, depth in _walk(above)]
    assert list(zip(order.tolist(), depth.tolist())) == expected
