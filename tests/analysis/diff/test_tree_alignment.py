from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.comparing import random_siblings, random_tree
from ppprof.analysis.diff import tree_alignment
from ppprof.analysis.diff.tree_alignment import Node, align_trees, walk


def tree(text):
    """``a(b c(d))`` as nodes."""
    root, at = Node("root"), [Node("")]
    at = [root]
    word = ""
    for char in text + " ":
        if char in "( )":
            if word:
                at[-1].children.append(Node(word))
                word = ""
            if char == "(":
                at.append(at[-1].children[-1])
            elif char == ")":
                at.pop()
        else:
            word += char
    return root


def shown(left, right, **options):
    """Each pair below the roots, a letter a side."""
    pairs = align_trees(tree(left), tree(right), **options)[1:]
    return [
        f"{'  ' * (depth - 1)}{one.name if one else '-'} {other.name if other else '-'}"
        for one, other, depth in pairs
    ]


def test_an_added_subtree_is_a_gap():
    assert shown("a(x y) b", "a(x n(m) y) b") == [
        "a a",
        "  x x",
        "  - n",
        "    - m",
        "  y y",
        "b b",
    ]


def test_a_lost_one_too_and_gaps_of_both_stand_side_by_side():
    assert shown("a b(x) c", "a d c") == ["a a", "b -", "  x -", "- d", "c c"]


def test_of_siblings_with_one_name_those_that_are_most_alike_match():
    assert shown("b(x y z) b(u v)", "b(n) b(x y) b(u v)") == [
        "- b",
        "  - n",
        "b b",
        "  x x",
        "  y y",
        "  z -",
        "b b",
        "  u u",
        "  v v",
    ]


def test_order_counts():
    assert shown("a b", "b a") in (["a -", "b b", "- a"], ["- b", "a a", "b -"])


def test_nothing_on_one_side():
    assert shown("", "a(b)") == ["- a", "  - b"]
    assert shown("a(b)", "") == ["a -", "  b -"]


def test_a_wrapper_is_new_and_what_it_wraps_is_not():
    wrapped = ["d d", "- w", "  g g", "    x x", "    - n", "    y y", "o o"]
    assert shown("d g(x y) o", "d w(g(x n y)) o", with_renamed=True) == wrapped
    unwrapped = ["d d", "w -", "  g g", "    x x", "    n -", "    y y", "o o"]
    assert shown("d w(g(x n y)) o", "d g(x y) o", with_renamed=True) == unwrapped


def test_a_renamed_node_has_equal_children():
    assert shown("d g(x y) o", "d m(x y) o", with_renamed=True) == [
        "d d",
        "g m",
        "  x x",
        "  y y",
        "o o",
    ]
    other = ["d d", "g -", "  x -", "  y -", "- m", "  - x", "o o"]
    assert shown("d g(x y) o", "d m(x) o", with_renamed=True) == other
    assert shown("d a o", "d b o", with_renamed=True) == ["d d", "a -", "- b", "o o"]
    assert shown("d g(x) o", "d n k m(x) l o", with_renamed=True) == [
        *("d d", "- n", "- k", "g m", "  x x", "- l", "o o")
    ]


names = st.sampled_from("abc")
trees = st.recursive(
    st.builds(lambda name: Node(name), names),
    lambda below: st.builds(
        lambda name, nodes: Node(name, nodes), names, st.lists(below, max_size=4)
    ),
    max_leaves=14,
)


def copied(node):
    return Node(node.name, [copied(child) for child in node.children])


@given(tree=trees, data=st.data())
def test_edit_scripts_are_recovered(tree, data):
    """Subtrees of other names put in and taken out: they are the gaps, and all the rest matches."""
    left, right = copied(tree), copied(tree)
    new, gone = set(), set()
    for side, name, names in ((right, "new", new), (left, "gone", gone)):
        for number in range(data.draw(st.integers(0, 3))):
            # Not into a subtree that was put in: that is a gap already.
            into = data.draw(st.sampled_from([n for n in walk(side) if n.name in "abc"]))
            index = data.draw(st.integers(0, len(into.children)))
            node = Node(f"{name}{number}", [Node("a"), Node("b", [Node("a")])])
            into.children.insert(index, node)
            names.update(id(below) for below in walk(node))
    pairs = align_trees(left, right)
    assert {id(one) for one, other, _ in pairs if other is None} == gone
    assert {id(other) for one, other, _ in pairs if one is None} == new
    matched = [(one, other) for one, other, _ in pairs if one and other]
    assert all(one.name == other.name for one, other in matched)
    assert len(matched) == len(list(walk(tree)))


def most(left, right):
    """How many nodes of two rows of siblings can match, by trying all."""
    if not left or not right:
        return 0
    best = max(most(left[1:], right), most(left, right[1:]))
    if left[0].name == right[0].name:
        below = most(left[0].children, right[0].children)
        best = max(best, 1 + below + most(left[1:], right[1:]))
    return best


small = st.recursive(
    st.builds(lambda name: Node(name), st.sampled_from("ab")),
    lambda below: st.builds(
        lambda name, nodes: Node(name, nodes), st.sampled_from("ab"), st.lists(below, max_size=3)
    ),
    max_leaves=6,
)


@given(left=small, right=small)
def test_no_other_alignment_matches_more(left, right):
    pairs = align_trees(left, right)
    assert sum(one is not None and other is not None for one, other, _ in pairs) == 1 + most(
        left.children, right.children
    )
    assert [one for one, _, _ in pairs if one] == list(walk(left))
    assert [other for _, other, _ in pairs if other] == list(walk(right))


@given(left=small, right=small)
def test_with_renamed_nodes_each_node_stands_once_in_its_order(left, right):
    pairs = align_trees(left, right, with_renamed=True)
    assert [one for one, _, _ in pairs if one] == list(walk(left))
    assert [other for _, other, _ in pairs if other] == list(walk(right))
    plain = align_trees(left, right)
    assert sum(bool(a and b) for a, b, _ in pairs) >= sum(bool(a and b) for a, b, _ in plain)


@given(left=small, right=small)
def test_cut_into_pieces_it_matches_as_many(left, right):
    whole = align_trees(left, right)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_alignment, "_LARGEST_MATRIX", 2)
        cut = align_trees(left, right)
    assert sum(bool(a and b) for a, b, _ in cut) == sum(bool(a and b) for a, b, _ in whole)


@pytest.mark.parametrize("make", [random_tree, random_siblings])
def test_large_trees_that_have_little_in_common_end(make):
    """How long it takes is measured in benchmarks; a minute would be a bug of another kind."""
    left, right = make(3000, 1), make(3000, 2)
    begin = time.monotonic()
    pairs = align_trees(left, right)
    assert time.monotonic() - begin < 60
    assert [one for one, _, _ in pairs if one] == list(walk(left))
    assert [other for _, other, _ in pairs if other] == list(walk(right))
    assert len(list(itertools.takewhile(lambda pair: pair[0], pairs))) >= 1
