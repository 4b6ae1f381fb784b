"""The calls of operators in a window, as numbers, and the graphs of gradients that they made."""

from __future__ import annotations

import itertools
import logging
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from ppprof.arrays import Int64
from ppprof.capture.recording.dtypes import dtype_key
from ppprof.capture.recording.gradient_order import ACCUMULATION, TooLongError, gradient_order
from ppprof.capture.signals import pass_interruption
from ppprof.rundir.operator_calls import Backward, Node

log = logging.getLogger("ppprof")

Key = tuple[Any, ...]
"""A function and what it is called with: `OperatorCallRecorder` makes and reads it."""
CallId = tuple[int, int]
"""Thread and start of a call."""

_MOST_SIGNATURES = 100_000
"""Limit of memory, some 50 MB, if each call has other arguments. Later ones are not kept."""
_MOST_NODES = 100_000
"""Limit of the nodes that wait for their backward pass, some 10 MB."""
_MOST_FREED = 1000
"""Limit of the freed tensors that wait for their backward pass."""
_MOST_WALK_NS = 50_000_000
"""How long a window may look at graphs of gradients, in all."""


class WindowCalls:
    """The calls of a window, and the graphs of gradients that they made.

    Args:
        node_of: returns the node of a tensor; None if graphs of gradients cannot be looked at.
    """

    def __init__(self, node_of: Callable[..., Any] | None) -> None:
        self._node_of = node_of
        self.signatures: dict[Key, int] = {}
        self.calls = array("q")
        self.add = self.calls.extend
        self.parameters: dict[int, tuple[int, ...]] = {}
        """Dtype and shape of each parameter, by its identity: reading them takes half a microsecond."""
        self.rows_of_updates: dict[int, int] = {}
        """Row of the signature of the operator that updates a parameter, by its identity."""
        self.calls_of_nodes: dict[int, CallId] | None = None if node_of is None else {}
        """The call that created a node of the graph of gradients, by the node's address; None once
        graphs are no longer looked at."""
        self._freed: dict[int, tuple[Any, Any]] = {}
        """A tensor whose memory was freed, and its node, by the tensor's identity."""
        self.backwards: dict[CallId, list[tuple[str, CallId | None, int]]] = {}
        """The nodes of each graph, with the call that created them: see `Node`."""
        self._walked_ns = 0
        self._kept: list[Any] = []
        self._num_kept = 0
        """The most parameters that were kept at the end of a step."""
        self._rows = itertools.count()

    def keep(self, tensor: Any) -> tuple[int, ...]:
        """Note dtype and shape of a parameter, and keep it, so that its identity stays its own."""
        self._kept.append(tensor)
        self.parameters[id(tensor)] = part = (dtype_key(tensor.dtype), *tensor.shape)
        return part

    def row(self, key: Key) -> int:
        """Return the number of a signature; -1 if there are too many."""
        row = self.signatures.get(key)
        if row is None:
            if len(self.signatures) >= _MOST_SIGNATURES:
                return -1
            row = self.signatures.setdefault(key, next(self._rows))
        return row

    def address_of(self, args: Sequence[Any]) -> int:
        """Return the address of the node of the first argument; 0 without one."""
        try:
            node = self._node_of(args[0]) if args and self._node_of is not None else None
            return 0 if node is None else int(node.node_ptr())
        except Exception as error:  # no tensor
            pass_interruption(error)
            return 0

    def note_node(self, name: str, result: Any, call: CallId, before: int) -> None:
        """Note the nodes that will compute the gradients of a call of a function.

        Args:
            name: name of the function.
            result: what it has returned.
            call: the call.
            before: address of the node of its first argument before the call. A result with this
                node has no node of its own: ``contiguous`` may return its argument.
        """
        try:
            calls, node_of = self.calls_of_nodes, self._node_of
            tensor = result[0] if isinstance(result, (list, tuple)) else result
            node = node_of(tensor) if node_of is not None else None
            if node is not None and calls is not None and node.node_ptr() != before:
                calls[node.node_ptr()] = call
                if len(calls) > _MOST_NODES:  # a window without a step, and without a backward
                    self.stop_looking_at_graphs()
                if name == "linear" and node.name() == "AddGradNode":
                    for product in node.next_functions[:1]:  # it made two nodes
                        calls[product.node_ptr()] = call
        except Exception as error:  # no tensor
            pass_interruption(error)

    def note_freed(self, tensor: Any) -> None:
        """Note the node of a tensor whose memory is about to be freed, which hides the node.

        Fleet frees the results that it sends to the next stage of a pipeline, and later computes
        their gradients.
        """
        try:
            node = self._node_of(tensor) if self._node_of is not None else None
            if node is not None and len(self._freed) < _MOST_FREED:
                self._freed[id(tensor)] = tensor, node
        except Exception as error:  # no tensor
            pass_interruption(error)

    def forget_parameters(self) -> None:
        """Keep no parameter alive, if there are new ones after the first step."""
        if 0 < self._num_kept < len(self._kept):
            self.parameters.clear()
            self.rows_of_updates.clear()
            self._kept.clear()
        self._num_kept = max(self._num_kept, len(self._kept), 1)

    def stop_looking_at_graphs(self) -> None:
        """Keep nothing of the graphs of gradients that are not yet computed."""
        self.calls_of_nodes = None
        self._freed.clear()

    def nodes_of(self, tensors: Any) -> list[tuple[str, CallId | None, int]]:
        """Return the nodes that compute the gradients of tensors; empty if that is unknown."""
        calls, node_of = self.calls_of_nodes, self._node_of
        if calls is None or node_of is None:
            return []
        begin = time.monotonic_ns()
        try:
            freed = [self._freed.pop(id(tensor), None) for tensor in tensors]
            roots = [pair[1] if pair else node_of(tensor) for tensor, pair in zip(tensors, freed)]
            order = gradient_order(roots, begin + _MOST_WALK_NS - self._walked_ns)
        except Exception as error:
            pass_interruption(error)
            if not isinstance(error, (TooLongError, AttributeError)):
                log.debug("the graph of gradients is not recorded", exc_info=True)
            self.stop_looking_at_graphs()
            return []
        self._walked_ns += time.monotonic_ns() - begin
        # Once it has run, another node may lie there.
        return [
            (
                node.name,
                None if node.name == ACCUMULATION else calls.pop(node.address, None),
                node.num_gradients,
            )
            for node in order
        ]

    def backwards_of(self, rows: Int64) -> list[Backward]:
        """Return the calls that computed gradients, with rows of calls in place of their starts."""
        if not self.backwards:
            return []
        row_of: dict[CallId | None, int] = {
            (thread, start): row for row, (thread, start) in enumerate(rows[:, :2].tolist())
        }
        return [
            Backward(row_of[call], [Node(name, row_of.get(by, -1), n) for name, by, n in nodes])
            for call, nodes in list(self.backwards.items())
            if call in row_of
        ]
