"""Align two trees: match the nodes of one with those of the other.

::

    left            right           aligned
    GPT             GPT             GPT      GPT
      Block           Block           Block    Block
        Linear          Linear          Linear   Linear
      Norm              GELU            -        GELU        new
                      Norm            Norm     Norm

Two nodes match if they have the same name and their parents match. The order of siblings is kept.
Of all alignments, the result is one with the most matching nodes. Among the nodes without a match at one
place, a wrapper and a renamed node can match, too (`align_trees`).

Source: S. M. Selkow, "The tree-to-tree editing problem" (1977), with insertion and deletion of
whole subtrees; siblings as in D. S. Hirschberg, "A linear space algorithm for computing maximal
common subsequences" (1975).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ppprof.arrays import Int32, Int64

_LARGEST_MATRIX = 1 << 22
"""Maximum number of cells of a score matrix; larger matrices are split in two recursively
(Hirschberg)."""

_MOST_PAIRS = 100_000
"""Maximum number of pairs of different subtrees that are compared node by node. In further pairs,
only the roots count, so the alignment may match fewer nodes than possible."""


@dataclass(eq=False)
class Node:
    """A node of a tree, with its descendants."""

    name: str
    children: list[Node] = field(default_factory=list)
    key: int = -1
    """A number for the caller's use, such as an index into its own data. It does not affect
    matching."""


Pair = tuple["Node | None", "Node | None", int]
"""A node of the left tree, the matching node of the right tree, and their depth. If a node has no
match, None stands for the other node."""


def align_trees(left: Node, right: Node, *, with_renamed: bool = False) -> list[Pair]:
    """Return the matching and unmatched nodes of two trees as one tree of pairs, in pre-order.

    ::

        left            right               with_renamed
        GPT             DataParallel        -        DataParallel
          Block           GPT                 GPT      GPT
            Linear          MyBlock             Block    MyBlock
                              Linear              Linear   Linear

    The roots match, whatever their names. Between two matching siblings, unmatched siblings of
    ``left`` come before those of ``right``.

    Args:
        left: the root of one tree.
        right: the root of the other.
        with_renamed: whether of the nodes without a match at one place, a node also matches the only child
            of another one, which wraps it, or a node of another name with equal children.
    """
    return list(_Alignment(left, right, with_renamed=with_renamed).pairs(left, right, 0))


class _Alignment:
    """The shapes, sizes and scores of all subtrees of two trees.

    Subtrees of equal names and structure have the same shape, a number. The size is the number of
    nodes.
    """

    def __init__(self, left: Node, right: Node, *, with_renamed: bool) -> None:
        self._with_renamed = with_renamed
        self._shape: dict[int, int] = {}
        self._size: dict[int, int] = {}
        self._name: dict[str, int] = {}
        shapes: dict[tuple[int, ...], int] = {}
        for root in (left, right):
            for node in reversed(list(walk(root))):  # children before their parents
                name = self._name.setdefault(node.name, len(self._name))
                shape = (name, *(self._shape[id(child)] for child in node.children))
                self._shape[id(node)] = shapes.setdefault(shape, len(shapes))
                self._size[id(node)] = 1 + sum(self._size[id(child)] for child in node.children)
        self._scores: dict[tuple[int, int], int] = {}
        self._num_compared = 0

    def pairs(self, left: Node, right: Node, depth: int) -> Iterator[Pair]:
        """Yield the pair of two matching nodes at ``depth``, then the pairs of their descendants.

        The pairs are in pre-order.
        """
        if self._shape[id(left)] == self._shape[id(right)]:
            for one, other, below in _zip_equal(left, right):
                yield one, other, depth + below
            return
        yield left, right, depth
        inner = depth + 1
        ends = (len(left.children), len(right.children))
        past = (0, 0)
        for i, j in [*self._siblings(left.children, right.children), ends]:
            yield from self._unmatched(
                left.children[past[0] : i], right.children[past[1] : j], inner
            )
            if (i, j) != ends:
                yield from self.pairs(left.children[i], right.children[j], inner)
            past = (i + 1, j + 1)

    def _unmatched(self, left: Sequence[Node], right: Sequence[Node], depth: int) -> Iterator[Pair]:
        """Yield the pairs of siblings between two matches, of which none have the same name."""
        rest = list(right)
        for node in left:
            alike = (other for other in rest if self._with_renamed and self._is_alike(node, other))
            partner = next(alike, None)
            if partner is None:
                yield from ((below, None, depth + deep) for below, deep in levels(node))
                continue
            while (other := rest.pop(0)) is not partner:
                yield from ((None, below, depth + deep) for below, deep in levels(other))
            if _is_around(partner, node):
                yield None, partner, depth
                yield from self.pairs(node, partner.children[0], depth + 1)
            elif _is_around(node, partner):
                yield node, None, depth
                yield from self.pairs(node.children[0], partner, depth + 1)
            else:
                yield from self.pairs(node, partner, depth)
        for other in rest:
            yield from ((None, below, depth + deep) for below, deep in levels(other))

    def _is_alike(self, left: Node, right: Node) -> bool:
        if _is_around(left, right) or _is_around(right, left):
            return True
        shapes = [[self._shape[id(child)] for child in node.children] for node in (left, right)]
        return bool(left.children) and shapes[0] == shapes[1]

    def _siblings(self, left: Sequence[Node], right: Sequence[Node]) -> list[tuple[int, int]]:
        """Return the index pairs of matching nodes in two rows of siblings, ascending."""
        shapes = [[self._shape[id(node)] for node in nodes] for nodes in (left, right)]
        first = 0
        while first < min(len(left), len(right)) and shapes[0][first] == shapes[1][first]:
            first += 1
        last = 0
        while (
            last < min(len(left), len(right)) - first
            and shapes[0][-1 - last] == shapes[1][-1 - last]
        ):
            last += 1
        inner = self._best(left[first : len(left) - last], right[first : len(right) - last])
        return [
            *((index, index) for index in range(first)),
            *((first + i, first + j) for i, j in inner),
            *((len(left) - back, len(right) - back) for back in range(last, 0, -1)),
        ]

    def _best(self, left: Sequence[Node], right: Sequence[Node]) -> list[tuple[int, int]]:
        if not left or not right:
            return []
        rows = _Scores(self._siblings_of(left), self._siblings_of(right))
        same_name: dict[str, dict[int, Node]] = {}
        for node in right:
            same_name.setdefault(node.name, {})[self._shape[id(node)]] = node
        for shape, node in {self._shape[id(node)]: node for node in left}.items():
            for other_shape, other in same_name.get(node.name, {}).items():
                if shape != other_shape and self._num_compared < _MOST_PAIRS:
                    rows.exact[shape, other_shape] = self._score(node, other)
        return _longest(rows, 0, len(left), 0, len(right))

    def _score(self, left: Node, right: Node) -> int:
        """Return the number of matching nodes of two subtrees whose roots match."""
        key = (self._shape[id(left)], self._shape[id(right)])
        if key[0] == key[1]:
            return self._size[id(left)]
        if key not in self._scores:
            self._num_compared += 1
            self._scores[key] = 1 + sum(
                self._score(left.children[i], right.children[j])
                for i, j in self._siblings(left.children, right.children)
            )
        return self._scores[key]

    def _siblings_of(self, nodes: Sequence[Node]) -> _Siblings:
        return _Siblings(
            np.array([self._shape[id(node)] for node in nodes], np.int64),
            np.array([self._name[node.name] for node in nodes], np.int64),
            np.array([self._size[id(node)] for node in nodes], np.int64),
        )


def _is_around(node: Node, inner: Node) -> bool:
    """Return whether ``node`` has a single child, which has the name of ``inner``."""
    return len(node.children) == 1 and node.children[0].name == inner.name


class _Siblings(NamedTuple):
    """A row of siblings, one number per node: equal numbers mean equal shapes, names or sizes."""

    shape: Int64
    name: Int64
    size: Int64


@dataclass
class _Scores:
    """Two rows of siblings, and the scores of matching a node on the left with one on the right."""

    left: _Siblings
    right: _Siblings
    exact: dict[tuple[int, int], int] = field(default_factory=dict)
    """Scores of two different shapes whose roots have one name, keyed by both shapes; 1 if
    missing."""
    _cache: dict[int, Int32] = field(default_factory=dict)

    def row(self, i: int, first: int, last: int) -> Int32:
        """Return the scores of node ``i`` on the left with each node on the right; 0 for no match."""
        shape = int(self.left.shape[i])
        if shape not in self._cache:
            is_same = self.right.name == self.left.name[i]
            scores = is_same.astype(np.int32)
            scores[self.right.shape == shape] = self.left.size[i]
            for j in np.flatnonzero(is_same) if self.exact else ():
                scores[j] = self.exact.get((shape, int(self.right.shape[j])), scores[j])
            self._cache[shape] = scores
        return self._cache[shape][first:last]


def _longest(
    scores: _Scores, top: int, bottom: int, first: int, last: int
) -> list[tuple[int, int]]:
    """Return the index pairs with the highest total score, ascending."""
    if top == bottom or first == last:
        return []
    if (bottom - top) * (last - first) > _LARGEST_MATRIX and bottom - top > 1:
        middle = (top + bottom) // 2
        before = _best_scores(scores, range(top, middle), first, last)
        after = _best_scores(scores, range(bottom - 1, middle - 1, -1), first, last, backwards=True)
        cut = first + int((before + after[::-1]).argmax())
        return [
            *_longest(scores, top, middle, first, cut),
            *_longest(scores, middle, bottom, cut, last),
        ]
    best = np.zeros((bottom - top + 1, last - first + 1), np.int32)
    for row, i in enumerate(range(top, bottom), 1):
        best[row] = _next_row(best[row - 1], scores.row(i, first, last))
    pairs = []
    row, column = bottom - top, last - first
    while row and column:
        if best[row, column] == best[row, column - 1]:
            column -= 1
        elif best[row, column] == best[row - 1, column]:
            row -= 1
        else:
            row, column = row - 1, column - 1
            pairs.append((top + row, first + column))
    return pairs[::-1]


def _best_scores(
    scores: _Scores, rows: range, first: int, last: int, *, backwards: bool = False
) -> Int32:
    """Return the best total score of matching ``rows`` with the first 0, 1, ... nodes on the right.

    ``rows`` are indices on the left; the indices on the right go from ``first`` to ``last - 1``. If
    ``backwards``, with the last 0, 1, ... nodes on the right. Shape (last - first + 1,).
    """
    best = np.zeros(last - first + 1, np.int32)
    for i in rows:
        values = scores.row(i, first, last)
        best = _next_row(best, values[::-1] if backwards else values)
    return best


def _next_row(above: Int32, scores: Int32) -> Int32:
    row: Int32 = above.copy()
    np.maximum(row[1:], above[:-1] + scores, out=row[1:])
    np.maximum.accumulate(row, out=row)
    return row


def walk(root: Node) -> Iterator[Node]:
    """Yield the nodes of a tree in pre-order."""
    return (node for node, _ in levels(root))


def levels(root: Node) -> Iterator[tuple[Node, int]]:
    """Yield the nodes of a tree in pre-order, each with its depth; 0 is the root."""
    stack = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        yield node, depth
        stack += [(child, depth + 1) for child in reversed(node.children)]


def _zip_equal(left: Node, right: Node) -> Iterator[tuple[Node, Node, int]]:
    """Yield the pairs of nodes of two equal trees, in pre-order, each with its depth; 0 is the root."""
    for (one, depth), (other, _) in zip(levels(left), levels(right)):
        yield one, other, depth
