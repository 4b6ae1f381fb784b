"""Products with the number 0 in the graphs of gradients: a term of the loss whose weight is 0.

::

    call       pow    mean  0.0 * term   loss + ...   run_backward
    node       pow    mean  scale        add          add, scale (0), mean (0), pow (0), ...

The term, and the gradients of all that leads to it alone, are computed for nothing. If ``paddle.grad`` has returned what
the term is computed from, so are the gradients that it computed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ppprof.capture.recording.cleared_gradients import CallId
from ppprof.capture.recording.gradient_order import GraphNode, zero_gradients


class BackwardGraph(NamedTuple):
    """What a call that computes gradients runs."""

    nodes: list[GraphNode]
    created_by: list[CallId | None]
    is_of_inputs: bool
    """Whether the call is ``paddle.grad``, which returns the gradients: they are used."""
    roots: frozenset[int]
    """The addresses of the nodes at which it begins."""
    derived_by: Sequence[CallId | None]
    """Of the nodes of what ``paddle.grad`` has returned, the call of ``paddle.grad``."""


class ZeroNodes(NamedTuple):
    """What a Backward computes for nothing."""

    products: list[int]
    """`ppprof.rundir.operator_calls.Node.product` of each node."""
    multiplied: list[tuple[int, int]]
    """`ppprof.rundir.operator_calls.Backward.multiplied`."""


class ZeroProducts:
    """Finds the nodes whose gradients are 0 for a product with the number 0, and the calls that only they lead to."""

    def __init__(self) -> None:
        self._inputs: dict[CallId, int] = {}
        self._num_derived: dict[CallId, int] = {}
        self.misses_graphs = False
        """Whether the graphs of some calls of the first step are unknown: they may need what others do not."""

    def note(self, call: CallId, address: int) -> None:
        """Note the node of the first argument of a call that may be such a product.

        Nodes of gradients of gradients have no call, and may lie where the node of a product was. They lead elsewhere.
        """
        self._inputs[call] = address

    def note_derived(self, call: CallId, num: int) -> None:
        """Note how many gradients a call of ``paddle.grad`` has returned."""
        self._num_derived[call] = num

    def found(
        self,
        graphs: Mapping[CallId, BackwardGraph],
        row_of: Mapping[CallId | None, int],
        rows: frozenset[int],
    ) -> dict[CallId, ZeroNodes]:
        """Return what each Backward computes for nothing; those without such nodes are left out.

        Args:
            graphs: the calls that compute gradients, in their order.
            row_of: row of each call.
            rows: those of the products with 0.
        """
        marks: dict[CallId, list[int]] = {}
        uses: dict[CallId, int] = {}
        users: dict[CallId, CallId] = {}
        derived: defaultdict[CallId, set[int]] = defaultdict(set)
        # A call of paddle.grad comes before the Backwards that use its results.
        for call, graph in reversed(list(graphs.items()) if rows else []):
            is_derived = len(derived[call]) == self._num_derived.get(call)
            product = uses.get(call, -1) if is_derived else -1
            marks[call] = self._products(graph, row_of, rows)
            user = call if product < 0 else users[call]
            for node, created, by, mark in zip(
                graph.nodes, graph.created_by, graph.derived_by, marks[call]
            ):
                creator = created or by
                if creator is None:
                    continue
                if by is not None:
                    derived[by].add(node.address)
                use = mark if product < 0 else product
                users.setdefault(creator, user)
                # That of the last Backward, which is the user, if it is 0 in all of them.
                uses[creator] = uses.get(creator, use) if use >= 0 else -1
        multiplied: defaultdict[CallId, list[tuple[int, int]]] = defaultdict(list)
        for creator, use in uses.items():
            num = self._num_derived.get(creator)
            is_all = num in (None, len(derived[creator])) and not self.misses_graphs
            if use >= 0 and creator in row_of and is_all:
                multiplied[users[creator]].append((row_of[creator], use))
        return {
            call: ZeroNodes(own, sorted(multiplied[call]))
            for call, own in marks.items()
            if max(own, default=-1) >= 0
        }

    def _products(
        self,
        graph: BackwardGraph,
        row_of: Mapping[CallId | None, int],
        rows: frozenset[int],
    ) -> list[int]:
        products = {
            node.address: row_of[by]
            for node, by in zip(graph.nodes, graph.created_by)
            if row_of.get(by, -1) in rows
            and by in self._inputs
            and {*node.below} <= {self._inputs[by]}
        }
        return zero_gradients(graph.nodes, graph.roots, products)
