"""The order in which Paddle computes gradients.

Events of gradients say nothing of the operators whose gradients they are, so an event is joined to its
operator by its place in this order. Paddle runs a node of the graph once all nodes that lead to it have
run, the longest waiting one first, but nodes that add to the gradient of a parameter at once (Paddle 3.3,
paddle/fluid/eager/backward.cc). A trace shows whether that holds: its events must have the names of the
nodes.
"""

from __future__ import annotations

import ctypes
import operator
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import paddle

ACCUMULATION = "GradNodeAccumulation"
"""Name of a node that adds to the gradient of a leaf, such as a parameter; no call creates it."""


class GraphNode(NamedTuple):
    """A node of the graph of gradients."""

    name: str
    """Its class, such as ``MatmulGradNode``."""
    address: int
    """Where it lies in memory as long as the graph exists."""
    num_gradients: int
    """How many gradients it passes on."""
    below: Sequence[int] = ()
    """The addresses of the nodes to which it passes them on."""


def node_reader() -> Callable[[Any], Any]:
    """Return a function that returns the node that computes the gradient of a tensor, or None.

    Paddle 3.3's ``Tensor.grad_fn`` forgets to release one reference, so that each use keeps the
    graph with its tensors forever. The function releases it. Whether this Paddle needs that shows in
    the references of a new node, which no other code can hold.

    Raises:
        RuntimeError: this Paddle counts neither right nor one too many.
    """
    with paddle.enable_grad():
        x = paddle.to_tensor(1.0, place=paddle.CPUPlace(), stop_gradient=False)
        node = (x * x).grad_fn
    num_references = sys.getrefcount(node) - 1  # an argument is one, too
    if num_references == 1:
        return operator.attrgetter("grad_fn")
    if node is None or num_references != 2:
        raise RuntimeError(f"a node of the graph of gradients has {num_references} references")
    release = ctypes.pythonapi.Py_DecRef
    release.argtypes, release.restype = [ctypes.py_object], None

    def read(tensor: Any) -> Any:
        node = tensor.grad_fn
        if node is not None:
            release(node)
        return node

    release(node)
    return read


class TooLongError(Exception):
    """There was not enough time to look at the graph."""


_Graph = Mapping[int, tuple[str, int, list[int]]]
"""By the address of a node: its name, how many gradients it passes on, and the nodes to which it does."""


def gradient_order(
    roots: Iterable[Any], deadline_ns: int, inputs: Iterable[Any] | None = None
) -> list[GraphNode]:
    """Return the nodes that compute the gradients of tensors, in the order in which they will run.

    Takes some 5 us a node. The graph is not changed, and not kept.

    Args:
        roots: the nodes of the tensors that ``run_backward`` is called with; None for a tensor
            without one.
        deadline_ns: when to give up, on the clock of ``time.thread_time_ns``: waits for a processor do not
            count.
        inputs: the nodes of the tensors whose gradients ``paddle.grad`` returns: nodes that do not lead to
            them do not run, and in place of theirs, one that accumulates.

    Raises:
        TooLongError: it is later than ``deadline_ns``.
        AttributeError: this Paddle does not show the graph.
    """
    ends = {node.node_ptr() for node in inputs or () if node is not None}
    graph: dict[int, tuple[str, int, list[int]]] = {}
    unseen = deque((node.node_ptr(), node) for node in roots if node is not None)
    starts = [address for address, _ in unseen]
    while unseen:
        address, node = unseen.popleft()
        if address in graph:
            continue
        if time.thread_time_ns() > deadline_ns:
            raise TooLongError
        if address in ends:
            graph[address] = (ACCUMULATION, 0, [])
            continue
        below = [(each.node_ptr(), each) for each in node.next_functions if each is not None]
        graph[address] = (node.name(), len(below), [each[0] for each in below])
        unseen.extend(below)
    return _order(starts, graph if inputs is None else _leading_to(ends, graph))


def _leading_to(ends: Iterable[int], graph: _Graph) -> _Graph:
    """Return the part of a graph that leads to some of its nodes."""
    above = defaultdict(list)
    for address, (_, _, below) in graph.items():
        for other in below:
            above[other].append(address)
    leading: set[int] = set()
    unseen = list(ends)
    while unseen:
        address = unseen.pop()
        if address in graph and address not in leading:
            leading.add(address)
            unseen.extend(above[address])
    return {
        address: (name, num, [other for other in below if other in leading])
        for address, (name, num, below) in graph.items()
        if address in leading
    }


def _order(starts: Collection[int], graph: _Graph) -> list[GraphNode]:
    """Return the nodes of a graph in the order in which they will run."""
    num_waited_for = Counter(other for _, _, below in graph.values() for other in below)
    order: list[GraphNode] = []
    ready = deque(address for address in starts if address in graph)
    while ready:
        address = ready.popleft()
        if ready and num_waited_for[address]:
            continue
        name, num_gradients, below_it = graph[address]
        order.append(GraphNode(name, address, num_gradients, below_it))
        for other in below_it:
            num_waited_for[other] -= 1
            if num_waited_for[other] == 0:
                (ready.appendleft if graph[other][0] == ACCUMULATION else ready.append)(other)
    return order


def of_one_leaf(order: Sequence[GraphNode]) -> list[bool]:
    """Return whether each node computes gradients for one leaf alone, as those of ``p * p`` and ``p.abs()``.

    Args:
        order: from `gradient_order`.
    """
    leaves = {node.address for node in order if node.name == ACCUMULATION}
    return [len(set(node.below)) == 1 and node.below[0] in leaves for node in order]


def unused_gradients(order: Sequence[GraphNode], unused: Set[int]) -> list[int]:
    """Return how many of its gradients each node computes only for some leaves.

    ::

        loss ─ a ┬ b ─ c ─ w        w, u: unused; v: used
                 └ d ┬ v            a: 1 of 2, b: 1 of 1, c: 1 of 1, d: 1 of 2
                     └ u

    A node that may hide parameters (`leaves_below_functions`) leads to used ones.

    Args:
        order: from `gradient_order`: a node comes after those that lead to it.
        unused: the addresses of the leaves.
    """
    leading = _leading_only_to(unused, order)
    return [sum(address in leading for address in node.below) for node in order]


def zero_gradients(
    order: Sequence[GraphNode], roots: Set[int], products: Mapping[int, int]
) -> list[int]:
    """Return by which product with 0 all gradients of each node are 0; -1 if they may be others.

    ::

        loss ─ add ┬ mean ─ a ┬ b ─ w        x0: the node of term * 0
                   └ x0 ─ c ─ d ┘            x0, c and d: zero; b is not, since a leads to it, too

    What a function of Python returns for gradients that are 0 may be anything: an auxiliary loss is added
    to the graph in this way. So nothing below its node is zero by those above.

    Args:
        order: from `gradient_order`: a node comes after those that lead to it.
        roots: the addresses of the nodes of the tensors that ``run_backward`` is called with.
        products: number of the product, from 0, by the address of its node.
    """
    above: dict[int, int] = dict.fromkeys(roots, -1)
    marks: list[int] = []
    for node in order:
        mark = above.get(node.address, -1)
        if _may_hide_parameters(node.name):
            mark = -1
        elif mark < 0:
            mark = products.get(node.address, -1)
        marks.append(-1 if node.name == ACCUMULATION else mark)
        for other in node.below:
            above[other] = min(above.get(other, mark), mark) if mark >= 0 else -1
    return marks


def leaves_below_functions(order: Sequence[GraphNode], leaves: Set[int]) -> set[int]:
    """Return those of some leaves whose gradients may let a function run that trains hidden parameters.

    ``recompute`` is such a function: its node passes on the gradients of its inputs, and trains the
    parameters of its layers meanwhile. If none of its inputs needs a gradient, the node does not exist, and
    they are not trained.

    ::

        loss ─ recompute ┬ a ─ u        u: in the result
                         └ b ┬ v        v: a leaf that is not among ``leaves``
                             └ w        w: not in the result, since b needs a gradient for v anyway

    Args:
        order: from `gradient_order`.
        leaves: the addresses of the leaves.
    """
    leading = _leading_only_to(leaves, order)
    below = {node.address: node.below for node in order}
    functions = (node for node in order if _may_hide_parameters(node.name))
    unseen = [other for node in functions for other in node.below if other in leading]
    seen: set[int] = set()
    while unseen:
        address = unseen.pop()
        if address not in seen:
            seen.add(address)
            unseen.extend(below.get(address, ()))
    return seen & leaves


def _leading_only_to(leaves: Set[int], order: Sequence[GraphNode]) -> set[int]:
    """Return the addresses of some leaves, and of the nodes that lead to no others."""
    leading = set(leaves)
    for node in reversed(order):
        hides = not node.below or _may_hide_parameters(node.name)
        if not hides and leading.issuperset(node.below):
            leading.add(node.address)
    return leading


def _may_hide_parameters(name: str) -> bool:
    """Return whether a node may do more than to compute the gradients of one operator of Paddle."""
    return name != ACCUMULATION and not name.partition("GradNode")[0]
