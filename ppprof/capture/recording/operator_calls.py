"""Record what operators are called with, while a window is open.

Paddle records no shapes of dynamic graphs. So the functions through which Python calls operators are
wrapped: those of ``paddle._C_ops``, also under the names by which other modules have imported them,
and the methods of tensors in C++, such as ``x @ y``. A wrapper notes when the call began and ended, and
the shapes, dtypes and whole numbers among its arguments. `ppprof.trace.join_operator_calls` joins the calls
to the events that Paddle records within them.

Calls of one step repeat in the next one. So each combination of function, line of the training's code
and arguments is kept once, and a call takes 40 bytes. In the first step of a window, the order of gradients is kept as well
(`gradient_order`); the later steps have the same one as long as they call the same functions. Later segments of the window
begin with the calls of that step once more.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import random
import sys
import threading
import time
import types
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import _C_ops
from paddle.base import core
from paddle.base.framework import EagerParamBase
from paddle.tensor import creation

from ppprof.arrays import Int64
from ppprof.capture.recording.cleared_gradients import CallId, ClearedGradients
from ppprof.capture.recording.gradient_order import (
    ACCUMULATION,
    TooLongError,
    gradient_order,
    leaves_below_functions,
    node_reader,
    of_one_leaf,
    unused_gradients,
)
from ppprof.capture.recording.observers import FileObserver
from ppprof.capture.recording.padded_batches import LOSSES, TABLES, CountedLabels, PaddedBatches
from ppprof.capture.recording.patches import ModuleWrappers, Patches, dtype_key
from ppprof.capture.recording.repeated_calls import LayerCall, Place, Repeated, RepeatedCalls
from ppprof.capture.recording.repeated_operators import RepeatedGroup, RepeatedOperators
from ppprof.capture.recording.updated_parameters import (
    ParameterStates,
    has_only,
    may_split,
)
from ppprof.capture.recording.user_files import OwnLines, UserFiles
from ppprof.capture.recording.value_numbers import Value, ValueNumbers
from ppprof.capture.recording.zero_products import BackwardGraph, ZeroProducts
from ppprof.capture.signals import pass_interruption
from ppprof.rundir import TraceName
from ppprof.rundir.operator_calls import (
    PRODUCTS_WITH_NUMBER,
    RUN_BACKWARD,
    Backward,
    Cleared,
    Node,
    OperatorCalls,
    Repeat,
    RepeatedFunction,
    Signature,
    is_product_with_zero,
    write_operator_calls,
)
from ppprof.rundir.run_file import RunFile

log = logging.getLogger("ppprof")

Key = tuple[Any, ...]
"""A function, the line that calls it, and what it is called with: `OperatorCallRecorder` makes and reads it."""

_MOST_SIGNATURES = 100_000
"""Limit of memory, some 50 MB, if each call has other arguments. Later ones are not kept."""
_MOST_NODES = 100_000
"""Limit of the nodes that wait for their backward pass, some 10 MB."""
_MOST_LAYERS = 100_000
"""Limit of the layers that have names."""
_MOST_FREED = 1000
"""Limit of the freed tensors that wait for their backward pass."""
_COMPARED_STEPS = 2
"""First steps of a segment, after which parameters are looked at: the training may change them itself."""
_MOST_WALK_NS = 50_000_000
"""How long a window may look at graphs of gradients, in all."""


class WindowCalls:
    """The calls of a window, and the graphs of gradients that they made.

    Args:
        node_of: returns the node of a tensor; None if graphs of gradients cannot be looked at.
        num_communications: returns how many communication operations there have been.
        is_constant: as for `ValueNumbers`.
    """

    def __init__(
        self,
        node_of: Callable[..., Any] | None,
        num_communications: Callable[[], int] = int,
        is_constant: Callable[[], bool] = bool,
    ) -> None:
        self._node_of = node_of
        self.signatures: dict[Key, int] = {}
        self.calls = array("q")
        self.add: Callable[[tuple[int, ...]], None] = self.calls.extend
        self.may_split = may_split()
        self.parameters: dict[int, tuple[int, ...]] = {}
        """Dtype and shape of each parameter, by its identity: reading them takes half a microsecond."""
        self.rows_of_updates: dict[int, int] = {}
        """Row of the signature of the operator that updates a parameter, by its identity."""
        self.calls_of_nodes: dict[int, CallId] | None = None if node_of is None else {}
        """The call that created a node of the graph of gradients, by the node's address; None once
        graphs are no longer looked at."""
        self._freed: dict[int, tuple[Any, Any]] = {}
        """A tensor whose memory was freed, and its node, by the tensor's identity."""
        self.backwards: dict[CallId, BackwardGraph] = {}
        self.states = ParameterStates()
        self.cleared = ClearedGradients()
        self._zero_products = ZeroProducts()
        self._walked_ns = 0
        self._kept: list[Any] = []
        self._num_kept = 0
        """The most parameters that were kept at the end of a step."""
        self._rows = itertools.count()
        self.layers: dict[int, tuple[int, str, Any]] = {}
        """Row and name of each layer, by its identity, which the layer keeps."""
        self.layer_calls = array("q")
        self.layer_lines: dict[int, int] = {}
        """Number of the line that first calls a layer, by the layer's row."""
        self.places: dict[CallId, tuple[int, int]] = {}
        """Numbers of the user's two lines that make a call of a layer, in the first step."""
        self.repeated = RepeatedCalls(
            None if self.may_split else ValueNumbers(num_communications, is_constant)
        )
        self.operators = RepeatedOperators()
        self.batches = PaddedBatches()
        self.labels = CountedLabels()
        self.changed: set[int] = (
            set() if self.repeated.values is None else self.repeated.values.changed
        )
        """`ValueNumbers.changed` of the first step."""
        self.is_examined = True
        """Whether this is the first step: nodes of graphs and numbers of values are noted."""
        self.has_programs = False
        """Whether a program of ``to_static`` has run: one call for all its operators."""
        self.num_before = 0
        """Numbers in ``calls`` that are of the window's first step, ahead of those of the segment."""
        self._num_of_first_step = 0, 0
        """Numbers of the first step in ``calls`` and ``layer_calls``."""

    def keep(self, tensor: Any) -> tuple[int, ...]:
        """Note dtype and shape of a parameter, and keep it, so that its identity stays its own."""
        self._kept.append(tensor)
        self.parameters[id(tensor)] = part = (dtype_key(tensor.dtype), *local_shape(tensor))
        return part

    def row(self, key: Key) -> int:
        """Return the number of a signature; -1 if there are too many."""
        row = self.signatures.get(key)
        if row is None:
            self.has_programs |= key[0] == _PROGRAM
            if len(self.signatures) >= _MOST_SIGNATURES:
                return -1
            row = self.signatures.setdefault(key, next(self._rows))
        return row

    def address_of(self, args: Sequence[Any]) -> int:
        """Return the address of the node of the first argument; 0 without one."""
        if not args or isinstance(args[0], (list, tuple)):
            return 0
        try:
            node = self._node_of(args[0]) if self._node_of is not None else None
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
                node has no new node: ``contiguous`` may return its argument.
        """
        try:
            calls, node_of = self.calls_of_nodes, self._node_of
            tensor = result[0] if isinstance(result, (list, tuple)) else result
            node = node_of(tensor) if node_of is not None else None
            if node is not None and calls is not None and node.node_ptr() != before:
                calls[node.node_ptr()] = call
                if name in PRODUCTS_WITH_NUMBER:
                    self._zero_products.note(call, before)
                if len(calls) > _MOST_NODES:  # a window without a step, and without a backward
                    self._zero_products.misses_graphs = True
                    self.stop_looking_at_graphs()
                if name == "linear" and node.name() == "AddGradNode":
                    for product in node.next_functions[:1]:  # it made two nodes
                        calls[product.node_ptr()] = call
        except Exception as error:  # no tensor
            pass_interruption(error)

    def note_derived(self, results: Sequence[Any], call: CallId) -> None:
        """Note the nodes of the gradients that ``paddle.grad`` has returned, if others can be computed through them."""
        calls, node_of = self.calls_of_nodes, self._node_of
        if calls is None or node_of is None:
            return
        try:
            nodes = [node_of(each) for each in results if each is not None]
            addresses = {0 if node is None else int(node.node_ptr()) for node in nodes}
            # A result may be an argument, whose node another call has created.
            self._zero_products.note_derived(call, len(addresses))
            calls.update((each, call) for each in addresses - calls.keys() - {0})
        except Exception as error:  # no tensors
            pass_interruption(error)

    def before_call(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[int, Value | None]:
        """Return the address of the node of a call's first argument, and what the call computes; 0 and None if unknown."""
        address = self.address_of(args) if self.calls_of_nodes is not None else 0
        values = self.repeated.values
        try:
            value = None if values is None else values.value_of_call(name, args, kwargs)
        except Exception as error:  # an argument may do anything
            pass_interruption(error)
            self._stop_numbering()
            value = None
        return address, value

    def after_call(
        self,
        name: str,
        args: Sequence[Any],
        result: Any,
        call: CallId,
        before: tuple[int, Value | None],
    ) -> int | None:
        """Note what a call has returned, and return the number of that (`ValueNumbers.note`).

        ``before`` is from `before_call`.
        """
        address, value = before
        if self.calls_of_nodes is not None:
            self.note_node(name, result, call, address)
        values = self.repeated.values
        if values is None:
            return None
        try:
            number = values.note(value, name, args, result)
            if values.is_full:
                self._stop_numbering()
        except Exception as error:  # a result may do anything
            pass_interruption(error)
            self._stop_numbering()
            return None
        return number

    def note_numbers(self, name: str, args: Sequence[Any], call: CallId) -> None:
        """Note what a call looks up in a table, or the labels of a loss, if Paddle passes both arguments by their places."""
        try:
            is_loss = name in LOSSES
            numbers, other = (args[place] for place in (LOSSES if is_loss else TABLES)[name])
            # Of a tensor of semi-automatic parallelism, all ranks would have to take part in the read.
            if isinstance(numbers, core.eager.Tensor) and not numbers.is_dist():
                note = self.labels.note if is_loss else self.batches.note
                note(call, numbers, other)
        except Exception as error:  # no tensors
            pass_interruption(error)

    def note_constant(self, data: Any, tensor: Any) -> None:
        """Note a tensor that is made of data (`ValueNumbers.note_constant`)."""
        values = self.repeated.values
        if values is None:
            return
        try:
            values.note_constant(data, tensor)
        except Exception as error:  # data may be anything
            pass_interruption(error)
            self._stop_numbering()

    def _stop_numbering(self) -> None:
        """Know no more repeated calls of layers, and no operators."""
        self.repeated.stop()
        self.operators.forget()

    def begin_backward(self, *, retains: bool) -> None:
        """Note that a call begins to compute gradients, and whether it retains the graph."""
        self.repeated.begin_backward(retains=retains)
        if not retains:
            self.operators.note(None)

    def end_step(self) -> None:
        """Note that a step ends: later ones have the same values where they make the same calls."""
        if self.is_examined:
            self._num_of_first_step = len(self.calls), len(self.layer_calls)
        self.is_examined = False
        self.repeated.end_step(len(self.layer_calls) // 4)
        self.operators.end_step(len(self.calls) // _COLUMNS)

    def begin_segment(self) -> None:
        """Keep what is known of the window's first step, with its calls, and forget the calls of later steps."""
        num, num_of_layers = self._num_of_first_step
        self.num_before, self.calls = num, self.calls[:num]
        self.add, self.layer_calls = self.calls.extend, self.layer_calls[:num_of_layers]
        known = set(self.calls[_ROW::_COLUMNS])
        self.signatures = {key: row for key, row in self.signatures.items() if row in known}
        self.has_programs = any(key[0] == _PROGRAM for key in self.signatures)
        updates = self.rows_of_updates.items()
        self.rows_of_updates = {number: row for number, row in updates if row in known}
        self.repeated.begin_segment()
        self.operators.begin_segment()
        self.batches, self.labels = PaddedBatches(), CountedLabels()

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

    def layer_row(self, layer: Any, *, is_outermost: bool) -> int:
        """Return the number of a layer; -1 if its name is unknown."""
        known = self.layers.get(id(layer))
        if known is None and is_outermost:
            for name, inner in layer.named_sublayers(include_self=True):
                if len(self.layers) < _MOST_LAYERS:
                    self.layers.setdefault(id(inner), (len(self.layers), str(name), inner))
                    self.states.note(inner)
            known = self.layers.get(id(layer))
        return -1 if known is None else known[0]

    def note_results(
        self, call: LayerCall, around: LayerCall | None, results: Any, lines: tuple[int, int]
    ) -> None:
        """Note what a call of a layer has returned (`RepeatedCalls.note`), and the user's two lines that called it."""
        self.places[call[:2]] = lines
        try:
            self.repeated.note(call, around, results, Place(*lines))
        except Exception as error:  # a result may do anything
            pass_interruption(error)
            self._stop_numbering()

    def stop_looking_at_graphs(self) -> None:
        """Keep nothing of the graphs of gradients that are not yet computed."""
        self.calls_of_nodes = None
        self._freed.clear()

    def graph_of(self, tensors: Any, inputs: Any, *, retains: bool) -> BackwardGraph | None:
        """Return the nodes that compute the gradients of tensors; None if that is unknown.

        Args:
            tensors: what ``run_backward`` is called with.
            inputs: the tensors whose gradients ``paddle.grad`` returns; None for ``run_backward``.
            retains: whether it retains the graph, so that a later call may run its nodes again.
        """
        calls, node_of = self.calls_of_nodes, self._node_of
        if calls is None or node_of is None:
            return None
        begin = time.thread_time_ns()
        try:
            freed = [self._freed.pop(id(tensor), None) for tensor in tensors]
            roots = [pair[1] if pair else node_of(tensor) for tensor, pair in zip(tensors, freed)]
            ends = None if inputs is None else [node_of(tensor) for tensor in inputs]
            order = gradient_order(roots, begin + _MOST_WALK_NS - self._walked_ns, ends)
        except Exception as error:
            pass_interruption(error)
            if not isinstance(error, (TooLongError, AttributeError)):
                log.debug("the graph of gradients is not recorded", exc_info=True)
            self._zero_products.misses_graphs = True
            self.stop_looking_at_graphs()
            return None
        self._walked_ns += time.thread_time_ns() - begin
        noted = [None if node.name == ACCUMULATION else calls.get(node.address) for node in order]
        created_by = [None if call in self.backwards else call for call in noted]
        derived_by = [call if call in self.backwards else None for call in noted]
        if not retains:  # another node may lie there soon
            for node in order:
                calls.pop(node.address, None)
        starts = frozenset(int(root.node_ptr()) for root in roots if root is not None)
        return BackwardGraph(order, created_by, inputs is not None, starts, derived_by)

    def _called_layers(self) -> list[Any]:
        return [layer for _, _, layer in list(self.layers.values())]

    def compare_parameters(self) -> None:
        """Note which parameters of the layers a step has changed (`ParameterStates.compare`)."""
        if not self.backwards:
            return
        try:
            self.states.compare(self._called_layers())
        except Exception as error:  # a layer of the training's may do anything
            pass_interruption(error)
            log.debug("the parameters of a step are not compared", exc_info=True)

    def unused_parameters(self) -> Mapping[int, Any]:
        """Return `ParameterStates.unused` of the layers, but those that let a function such as ``recompute`` run.

        Empty without the graphs of gradients.
        """
        if not self.backwards:
            return {}
        try:
            unused = self.states.unused(self._called_layers())
            leaves = {number: self.address_of([each]) for number, each in unused.items()}
            addresses = frozenset(leaves.values()) - {0}
            needed: set[int] = set()
            for graph in list(self.backwards.values()):
                needed |= leaves_below_functions(graph.nodes, addresses)
            return {number: each for number, each in unused.items() if leaves[number] not in needed}
        except Exception as error:  # a layer of the training's may do anything
            pass_interruption(error)
            log.debug("parameters without an optimizer are not recorded", exc_info=True)
            return {}

    def cleared_leaves(self) -> dict[CallId, set[int]]:
        """Return `ClearedGradients.found`, but leaves that let a function such as ``recompute`` run."""
        found = self.cleared.found()
        graphs = {call: self.backwards[call] for call in found if call in self.backwards}
        return {
            call: found[call] - leaves_below_functions(graph.nodes, found[call])
            for call, graph in graphs.items()
        }

    def calls_with_cleared(
        self, cleared: Mapping[CallId, Set[int]], calls: Int64
    ) -> dict[int, tuple[int, int]]:
        """Return the user's two lines of calls of layers whose gradients are cleared, by their rows.

        Args:
            cleared: from `cleared_leaves`.
            calls: thread, start, end and layer of the calls of layers, in the order in which they ended.
        """
        found: dict[int, tuple[int, int]] = {}
        first = self.repeated.of_first_step(calls)
        try:
            leaves = self._leaves() if cleared else {}
            for addresses in set(map(frozenset, cleared.values())):
                numbers = {number for number, address in leaves.items() if address in addresses}
                known = list(self.layers.values())
                layers = [row for row, _, layer in known if has_only(layer, numbers)]
                backwards = [call for call, each in cleared.items() if each == addresses]
                made = (each for call in backwards for each in self.backwards[call].created_by)
                starts = _starts_by_thread(made)
                rows = np.flatnonzero(np.isin(first[:, 3], layers))
                for row, (thread, start, end) in zip(rows.tolist(), first[rows, :3].tolist()):
                    own = starts.get(thread, ())
                    if bisect_right(own, end) > bisect_left(own, start):
                        found[row] = self.places[thread, start]
        except Exception as error:  # a layer of the training's may do anything
            pass_interruption(error)
            log.debug("cleared gradients are not recorded", exc_info=True)
        return self.repeated.in_all_steps(calls, found)

    def lengths_of_samples(self, rows: Int64) -> dict[int, list[int]]:
        """Return `OperatorCalls.lengths`; ``rows`` are the calls."""
        try:
            lengths = {**self.batches.lengths(), **self.labels.counts()}
        except Exception as error:  # a device may do anything
            pass_interruption(error)
            log.debug("the lengths of samples are not recorded", exc_info=True)
            return {}
        calls = map(tuple, rows[:, :2].tolist()) if lengths else ()
        return {row: lengths[call] for row, call in enumerate(calls) if call in lengths}

    def _leaves(self) -> dict[int, int]:
        """Return the addresses of the nodes of all parameters, by their identities."""
        layers = self._called_layers()
        parameters = (
            each for layer in layers for each in layer.parameters(include_sublayers=False)
        )
        return {id(each): self.address_of([each]) for each in parameters}

    def backwards_of(
        self,
        rows: Int64,
        signatures: Sequence[Signature],
        unused: Iterable[Any],
        cleared: Mapping[CallId, Set[int]],
    ) -> list[Backward]:
        """Return the calls that computed gradients, with rows of calls in place of their starts.

        Args:
            rows: the calls.
            signatures: their signatures.
            unused: parameters whose gradients are unused.
            cleared: from `cleared_leaves`.
        """
        if not self.backwards:
            return []
        row_of: dict[CallId | None, int] = {
            (thread, start): row for row, (thread, start) in enumerate(rows[:, :2].tolist())
        }
        leaves = frozenset(self.address_of([parameter]) for parameter in unused) - {0}
        by_zero = [row for row, each in enumerate(signatures) if is_product_with_zero(each)]
        products = frozenset(np.flatnonzero(np.isin(rows[:, 3], by_zero)).tolist())
        zero = self._zero_products.found(self.backwards, row_of, products)

        def nodes_of(call: CallId, graph: BackwardGraph) -> list[Node]:
            of_none = frozenset() if graph.is_of_inputs else leaves | cleared.get(call, set())
            counts = unused_gradients(graph.nodes, of_none)
            # The inputs of paddle.grad may be no leaves: several results of one operator have one node.
            of_one = [not graph.is_of_inputs and each for each in of_one_leaf(graph.nodes)]
            by_products = zero[call].products if call in zero else [-1] * len(graph.nodes)
            columns = zip(graph.nodes, graph.created_by, counts, of_one, by_products)
            return [
                Node(node.name, row_of.get(by, -1), node.num_gradients, num, is_of_one, product)
                for node, by, num, is_of_one, product in columns
            ]

        return [
            Backward(
                row_of[call],
                nodes_of(call, graph),
                zero[call].multiplied if call in zero else [],
            )
            for call, graph in list(self.backwards.items())
            if call in row_of
        ]


def _starts_by_thread(calls: Iterable[CallId | None]) -> dict[int, list[int]]:
    """Return the starts of calls, in order, by thread."""
    starts: dict[int, list[int]] = {}
    for thread, start in sorted(each for each in set(calls) if each is not None):
        starts.setdefault(thread, []).append(start)
    return starts


_Call = Callable[..., Any]
_KEYWORD, _LIST = object(), object()
"""Marks in a key, ahead of the name of a keyword argument, and of the items of a list."""
_TRUE, _FALSE = object(), object()
"""True and False in a key, which would equal 1 and 0."""

_METHODS = ("_getitem_dygraph", "_setitem_dygraph", "clone", "contiguous")
_OPERATORS = (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "div", "truediv", "rdiv", "rtruediv"),
    *("floordiv", "rfloordiv", "pow", "rpow", "mod", "rmod", "matmul", "rmatmul"),
    *("gt", "ge", "lt", "le", "eq", "ne"),
)
_DTYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32"),
    *("float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
)
_COLUMNS, _ROW = 5, 3
"""Numbers of a call, and the place of its signature's row among them."""
_MOST_NUMBERS = 30_000_000
"""Limit of the numbers that calls take, `_COLUMNS` each, so that the file can be read: 240 MB."""
_NO_DTYPE = -1
"""Stands for the key of a dtype; 0 is one."""
_MOST_WHOLE = 1000
"""Larger real numbers are no exponents, and may differ in each step."""
_MOST_ITEMS = 1000
"""Longest list of tensors or numbers to keep; of a longer one, nothing is known."""
_UPDATES = frozenset(("adamw_", "adam_", "momentum_", "sgd_", "lamb_", "adagrad_", "rmsprop_"))
"""Operators whose first argument is a parameter, and gives the shapes of all others."""
_CAST_BY_AMP = frozenset(
    (
        *("matmul", "linear", "conv2d", "conv3d", "einsum", "bmm", "flash_attn", "__matmul__"),
        *("fused_gemm_epilogue", "softmax", "log_softmax", "layer_norm", "rms_norm", "group_norm"),
        *("cross_entropy_with_softmax", "mean", "sum", "mean_all", "pow", "exp", "log", "square"),
    )
)
"""Functions to note the result's dtype of, in which `auto_cast` makes them compute."""
_ARGUMENTS = {"x": "X0", "y": "X1"}
_PROGRAM = "run_program"
_CALL = "_dygraph_call_func"
"""Method of layers that records their event."""
_SETTERS = ("set_value", "copy_")
"""Methods of tensors by which a training changes parameters itself."""
_READS = ("numpy", "_getitem_from_offset")
"""Methods of tensors in C++ that copy values to Python."""
_TO_TENSOR = "_to_tensor_non_static"
"""Function of Paddle that makes a tensor of numbers of Python or NumPy, in which it calls no operator."""
_NO_DATA = (type(None), bool, int, float, str, list, tuple)
"""Types of a layer's arguments that hold no data of Python or NumPy; of lists, the items decide."""
_CLEAR, _GRADIENT = "clear_gradient", "grad"
"""Method and attribute of tensors by which a training clears and reads a gradient. Paddle's optimizers read it in another
way."""
_FREE = "_clear_dataptr"
"""Method of tensors that frees their memory."""

_active: OperatorCallRecorder | None = None


class OperatorCallRecorder(FileObserver[OperatorCalls]):
    """Wrappers of the functions that call operators; writes the calls of each saved window."""

    what = "shapes"

    def __init__(self, run: Path, num_communications: Callable[[], int] = int) -> None:
        super().__init__()
        self._run = run
        self._num_communications = num_communications
        self._tensor: Any = core.eager.Tensor
        self._node_of: _Call | None = None
        self._knows_graphs = False
        """Whether `_node_of` is determined: at the first window, since that computes a product, which a
        profiler of the training would record."""
        self._functions = ModuleWrappers(vars(core.eager.ops))
        self._patches = Patches()
        self._parameter: Any = EagerParamBase
        self._window: WindowCalls | None = None
        self._recorded = WindowCalls(None)
        """The calls until `take`, also those of a window that is over."""
        self._local = threading.local()
        self._num_reads = 0
        """How often values of tensors were copied to Python."""
        self._lines = OwnLines(UserFiles(Path.cwd()))
        self._dtypes = {
            dtype_key(getattr(paddle, name)): row
            for row, name in enumerate(_DTYPES)
            if hasattr(paddle, name)
        }
        """Row in `_DTYPES` by the key of a dtype."""
        for name, function in vars(_C_ops).items():
            if isinstance(function, types.BuiltinFunctionType):
                self._functions.add(function, self._wrapped(name, function))
        self._methods = {
            name: (method, self._wrapped(name, method))
            for name in (*(f"__{operator}__" for operator in _OPERATORS), *_METHODS)
            if (method := vars(self._tensor).get(name)) is not None
        }
        self._functions.search()

    def install(self) -> None:
        """Wrap all functions, in all modules that are loaded now."""
        global _active
        _active = self
        if not self._knows_graphs:
            self._node_of, self._knows_graphs = _node_reader(), True
        self._window = self._recorded = self._new_window()
        self._functions.install()
        for name, (method, wrapper) in self._methods.items():
            if vars(self._tensor).get(name) is method:
                self._patches.put(self._tensor, name, wrapper)
        self._patches.replace(self._tensor, _FREE, self._free_wrapper)
        self._patches.replace(self._tensor, _CLEAR, self._clear_wrapper)
        self._patches.put(self._tensor, _GRADIENT, self._gradient_property())
        for name in _READS:
            self._patches.replace(self._tensor, name, self._read_wrapper)
        self._patches.replace(creation, _TO_TENSOR, self._to_tensor_wrapper)
        for name in _SETTERS:
            self._patches.replace(self._tensor, name, self._set_wrapper)
        self._patches.replace(paddle.nn.Layer, _CALL, self._layer_wrapper)
        self._patches.replace(core.eager, RUN_BACKWARD, self._backward_wrapper)
        of_inputs = functools.partial(self._backward_wrapper, is_of_inputs=True)
        self._patches.replace(core.eager, "run_partial_grad", of_inputs)

    def dropped(self, name: TraceName) -> None:
        """Forget the calls of a window that is not saved, and so its layers and parameters."""
        super().dropped(name)
        if self._window is None:
            self._recorded = WindowCalls(None)

    def started(self) -> None:
        """Begin to note the calls of a window, or of its next segment."""
        if self._window is not self._recorded and self._patches.is_installed:
            if self._window is None or self._window.is_examined:
                self._window = self._new_window()
            else:
                self._window.begin_segment()
            self._recorded = self._window

    def _new_window(self) -> WindowCalls:
        return WindowCalls(self._node_of, self._num_communications, self._is_constant)

    def _is_constant(self) -> bool:
        """Return whether this thread's numbers of Python and NumPy are constants of the code.

        They are in a layer, if no layer around was called with such numbers alone or in lists, such as a simulator's
        observation, and if since the outermost layer was called no values of tensors were copied to Python, and
        nothing was drawn at random.
        """
        origin = getattr(self._local, "origin", None)
        return origin is not None and origin == self._origin()

    def _origin(self) -> tuple[object, ...]:
        """Return what changes with a copy of values to Python, and with a number that Python or NumPy draws."""
        _, numbers, gauss = random.getstate()
        of_numpy = np.random.get_state(legacy=False)
        place = of_numpy["state"].get("pos", of_numpy["state"].get("state"))
        return self._num_reads, numbers[-1], gauss, place, of_numpy.get("has_gauss")

    def num_operators(self) -> int | None:
        """Return the number of calls that are noted; None if programs call operators, too."""
        if self._recorded.has_programs or not paddle.in_dynamic_mode():
            return None
        return (len(self._recorded.calls) - self._recorded.num_before) // _COLUMNS

    def call_at_next(self, action: Callable[[], bool]) -> None:
        """Call a function after each operator, in its thread, until it returns True."""
        recorded = self._recorded

        def add(call: tuple[int, ...]) -> None:
            recorded.calls.extend(call)
            recorded.add = recorded.calls.extend  # not while it runs: it may call operators
            if not action():
                recorded.add = add

        recorded.add = add

    def step(self, num_steps: int) -> None:
        """Look at graphs of gradients no longer: those of the window's first step are enough; compare parameters."""
        self._recorded.stop_looking_at_graphs()
        self._recorded.end_step()
        self._recorded.forget_parameters()
        if num_steps <= _COMPARED_STEPS:  # it takes 1 us a parameter
            self._recorded.compare_parameters()
        self._recorded.cleared.end_step()
        if len(self._recorded.calls) + len(self._recorded.layer_calls) > _MOST_NUMBERS:
            self._window = None

    def uninstall(self) -> None:
        """Restore all functions, also in modules that have imported a wrapper meanwhile."""
        if not self._patches.is_installed:
            return
        self._window = None
        self._patches.uninstall()
        self._functions.uninstall()

    def file(self, name: TraceName) -> RunFile:
        """Return the file of calls."""
        return RunFile(self._run, name.operator_calls)

    def write(self, data: OperatorCalls, file: RunFile) -> None:
        """Write the calls."""
        write_operator_calls(file, data)

    def take(self) -> OperatorCalls:
        """Return the calls since the last `take`, and forget them."""
        window, self._recorded = self._recorded, WindowCalls(None)
        signatures = dict(window.signatures)
        rows = np.frombuffer(window.calls.tobytes(), np.int64).reshape(-1, 5).copy()
        position = {row: index for index, row in enumerate(signatures.values())}
        rows[:, 3] = [position.get(row, -1) for row in rows[:, 3].tolist()]
        rows[:, 4] = [self._dtypes.get(dtype, -1) for dtype in rows[:, 4].tolist()]
        signatures_of_calls = [self._signature(key) for key in signatures]
        unused = window.unused_parameters()
        leaves = window.cleared_leaves()
        layer_calls = np.frombuffer(window.layer_calls.tobytes(), np.int64).reshape(-1, 4)
        repeats, repeated_calls = self._repeats(window.repeated.found(layer_calls), layer_calls)
        functions = window.operators.found(
            *(rows, list(signatures), window.repeated.alike(layer_calls)),
            *(window.changed, self._lines.code),
        )
        return OperatorCalls(
            signatures_of_calls,
            list(_DTYPES),
            rows,
            window.backwards_of(rows, signatures_of_calls, unused.values(), leaves),
            [_encodable(name) for _, name, _ in window.layers.values()],
            layer_calls,
            self._not_updated(window, unused),
            repeats,
            repeated_calls,
            list(map(self._repeated_function, functions)),
            *self._cleared(window.calls_with_cleared(leaves, layer_calls), layer_calls),
            window.lengths_of_samples(rows),
        )

    def _cleared(
        self, places: Mapping[int, tuple[int, int]], calls: Int64
    ) -> tuple[list[Cleared], Int64]:
        """Return `OperatorCalls.cleared` and `OperatorCalls.cleared_calls`."""
        of_calls = [(int(calls[row, 3]), *place) for row, place in places.items()]
        kinds = {kind: row for row, kind in enumerate(dict.fromkeys(of_calls))}
        rows = calls[list(places)].copy()
        rows[:, 3] = [kinds[kind] for kind in of_calls]
        stack = self._lines.call_stack
        return [Cleared(layer, *map(stack, place)) for layer, *place in kinds], rows

    def _repeated_function(self, group: RepeatedGroup) -> RepeatedFunction:
        line, caller, earlier, earlier_caller = map(
            self._lines.call_stack, (*group.place, *group.earlier)
        )
        return RepeatedFunction(line, caller, earlier, earlier_caller, group.rows)

    def _repeats(
        self, repeated: Mapping[int, Repeated], calls: Int64
    ) -> tuple[list[Repeat], Int64]:
        """Return `OperatorCalls.repeats` and `OperatorCalls.repeated_calls`."""
        kinds = {kind: row for row, kind in enumerate(dict.fromkeys(repeated.values()))}
        rows = calls[list(repeated)].copy()
        rows[:, 3] = [kinds[kind] for kind in repeated.values()]
        stack = self._lines.call_stack
        repeats = [
            Repeat(layer, *map(stack, place), *map(stack, earlier))
            for layer, place, earlier in kinds
        ]
        return repeats, rows

    def _not_updated(self, window: WindowCalls, unused: Mapping[int, Any]) -> dict[int, str]:
        """Return `OperatorCalls.not_updated`."""
        try:
            layers = list(window.layers.values()) if unused else []
            rows = [row for row, _, layer in layers if has_only(layer, unused)]
        except Exception as error:  # a layer of the training's may do anything
            pass_interruption(error)
            return {}
        return {row: self._lines.call_stack(window.layer_lines.get(row, -1)) for row in rows}

    def _wrapped(self, name: str, function: _Call) -> _Call:  # noqa: C901 (each call would cost)
        now, local, tensor, parameter = time.time_ns, self._local, self._tensor, self._parameter
        described, line_around, caller = self._described, self._lines.around, sys._getframe
        dtype_of, two_around, note_operator = (
            *(self._dtype_of, self._lines.two_around),
            self._note_operator,
        )
        is_update, has_numbers = name in _UPDATES, name in TABLES or name in LOSSES
        is_cast_by_amp = name in _CAST_BY_AMP
        called = self._update_wrapper(function) if is_update else function

        @functools.wraps(function)  # so that it can be pickled, by its name
        def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: C901 (likewise)
            window = self._window
            if window is None:
                return function(*args, **kwargs)
            lines = None
            try:
                row = window.rows_of_updates.get(id(args[0])) if is_update else None
                if row is None:
                    frame = caller(1)
                    lines = two_around(frame) if window.is_examined else None
                    key: list[Any] = [name, lines[0] if lines else line_around(frame)]
                    known, may_split = window.parameters, window.may_split
                    for arg in args:
                        kind = type(arg)
                        if kind is tensor:
                            shape = local_shape(arg) if may_split else arg.shape
                            key.append((dtype_key(arg.dtype), *shape))
                        elif kind is parameter:
                            key.append(known.get(id(arg)) or window.keep(arg))
                        elif kind is bool:
                            key.append(_TRUE if arg else _FALSE)
                        else:
                            key.append(described(arg))
                    for keyword, arg in kwargs.items():
                        key += (_KEYWORD, keyword, described(arg))
                    row = window.row(tuple(key))
                    if is_update:
                        window.states.changed.add(id(args[0]))
                        window.keep(args[0])
                        window.rows_of_updates[id(args[0])] = row
            except Exception as error:  # an argument that is no usual one must not fail here
                pass_interruption(error)
                log.debug("%s: its arguments are not recorded", name, exc_info=True)
                row = -1
            before = window.before_call(name, args, kwargs) if window.is_examined else None
            start = now()
            result = called(*args, **kwargs)
            end = now()
            try:
                thread = local.id
            except AttributeError:
                thread = local.id = threading.get_native_id()
            dtype = dtype_of(result) if is_cast_by_amp else _NO_DTYPE
            window.add((thread, start, end, row, dtype))
            if has_numbers:
                window.note_numbers(name, args, (thread, start))
            if before is not None:
                number = window.after_call(name, args, result, (thread, start), before)
                note_operator(window, (thread, start), lines, number)
            return result

        return wrapper

    def _note_operator(
        self, window: WindowCalls, call: CallId, lines: tuple[int, int] | None, number: int | None
    ) -> None:
        """Note an operator of the first step, but not of what a Backward computes again."""
        values = window.repeated.values
        if values is not None and lines is not None and not values.num_backwards:
            layer = getattr(self._local, "layer_call", None)
            window.operators.note((call, lines, layer, number))

    def _backward_wrapper(self, function: _Call, *, is_of_inputs: bool = False) -> _Call:
        now = time.time_ns

        def wrapper(tensors: Any, /, *args: Any, **kwargs: Any) -> Any:
            window = self._window
            if window is None:
                return function(tensors, *args, **kwargs)
            # ([inputs], grad_tensors, retain_graph, ...): Paddle passes no keywords.
            inputs, others = (args[0], args[1:]) if is_of_inputs else (None, args)
            retains = others[1:2] == (True,)
            graph = window.graph_of(tensors, inputs, retains=retains)
            window.begin_backward(retains=retains)
            start = now()
            if graph is not None and not is_of_inputs:
                leaves = (node.address for node in graph.nodes if node.name == ACCUMULATION)
                window.cleared.note_backward((threading.get_native_id(), start), leaves)
            try:
                result = function(tensors, *args, **kwargs)
            finally:
                window.repeated.end_backward()
            end = now()
            thread = threading.get_native_id()
            window.add((thread, start, end, window.row((RUN_BACKWARD, -1)), _NO_DTYPE))
            if graph is not None and graph.nodes:
                window.backwards[thread, start] = graph
                if is_of_inputs:
                    window.note_derived(result, (thread, start))
            return result

        return wrapper

    def _layer_wrapper(self, function: _Call) -> _Call:
        now, local = time.time_ns, self._local
        lines, caller = self._lines, sys._getframe

        def wrapper(layer: Any, /, *args: Any, **kwargs: Any) -> Any:
            window = self._window
            if window is None:
                return function(layer, *args, **kwargs)
            around = getattr(local, "layer_call", None)
            try:
                row = window.layer_row(layer, is_outermost=around is None)
                if row not in window.layer_lines:
                    window.layer_lines[row] = lines.around(caller(1))
            except Exception as error:  # a layer of the training's may do anything
                pass_interruption(error)
                row = -1
            results, thread = None, threading.get_native_id()
            origin = getattr(local, "origin", None)
            if window.is_examined:
                before = self._origin() if around is None else origin
                local.origin = before if _has_no_data(args, kwargs) else None
            start = now()
            local.layer_call = call = thread, start, row
            try:
                results = function(layer, *args, **kwargs)
                return results
            finally:
                local.layer_call, local.origin = around, origin
                if row >= 0:
                    window.layer_calls.extend((thread, start, now(), row))
                    if window.is_examined:
                        window.note_results(call, around, results, lines.two_around(caller(1)))

        return wrapper

    def _read_wrapper(self, function: _Call) -> _Call:
        def wrapper(tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
            self._num_reads += 1
            return function(tensor, *args, **kwargs)

        return wrapper

    def _to_tensor_wrapper(self, function: _Call) -> _Call:
        def wrapper(data: Any, /, *args: Any, **kwargs: Any) -> Any:
            result = function(data, *args, **kwargs)
            window = self._window
            if window is not None and window.is_examined:
                window.note_constant(data, result)
            return result

        return wrapper

    def _set_wrapper(self, function: _Call) -> _Call:
        def wrapper(tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
            window = self._window
            if window is not None and isinstance(tensor, self._parameter):
                window.states.changed.add(id(tensor))
            try:
                return function(tensor, *args, **kwargs)
            finally:
                values = None if window is None else window.repeated.values
                if values is not None:
                    values.forget()

        return wrapper

    def _free_wrapper(self, function: _Call) -> _Call:
        def wrapper(tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
            window = self._window
            if window is not None and window.calls_of_nodes is not None:
                window.note_freed(tensor)
            return function(tensor, *args, **kwargs)

        return wrapper

    def _update_wrapper(self, function: _Call) -> _Call:
        def wrapper(parameter: Any, /, *args: Any, **kwargs: Any) -> Any:
            window = self._window
            if window is not None and window.cleared.waiting:
                window.cleared.note_use(window.address_of([parameter]), is_update=True)
            return function(parameter, *args, **kwargs)

        return wrapper

    def _clear_wrapper(self, function: _Call) -> _Call:
        def wrapper(tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
            window = self._window
            if window is not None and window.cleared.waiting:
                window.cleared.note_clear(window.address_of([tensor]))
            return function(tensor, *args, **kwargs)

        return wrapper

    def _gradient_property(self) -> property:
        """Return what reads and sets the gradient of a tensor, and notes that it is read."""
        original = vars(self._tensor)[_GRADIENT]

        def read(tensor: Any) -> Any:
            window = self._window
            if window is not None and window.cleared.waiting:
                window.cleared.note_use(window.address_of([tensor]), is_update=False)
            return original.__get__(tensor)

        return property(read, original.__set__, doc=original.__doc__)

    def _dtype_of(self, result: Any) -> int:
        first = result[0] if isinstance(result, tuple) and result else result
        return dtype_key(first.dtype) if isinstance(first, self._tensor) else _NO_DTYPE

    def _described(self, arg: Any, is_item: bool = False) -> Any:
        """Return what to keep of an argument, or of an item of a list, as a part of a key."""
        if isinstance(arg, self._tensor):
            return (dtype_key(arg.dtype), *local_shape(arg))
        if isinstance(arg, bool):
            return _TRUE if arg else _FALSE
        if isinstance(arg, int):
            return int.__int__(arg)  # of an enumeration, too
        if isinstance(arg, float) and arg.is_integer() and abs(arg) < _MOST_WHOLE:
            return int(arg)  # x ** 2.0
        if isinstance(arg, str):
            return _encodable(arg)
        if isinstance(arg, (list, tuple)) and not is_item:
            if len(arg) > _MOST_ITEMS:
                return None
            return (_LIST, *(self._described(item, is_item=True) for item in arg))
        return None

    def _signature(self, key: Key) -> Signature:
        name, line, *parts = key
        arguments: list[tuple[str, Any]] = []
        items = iter(parts)
        for part in items:
            if part is _KEYWORD:
                keyword = next(items)
                arguments.append((_ARGUMENTS.get(keyword, keyword), next(items)))
            else:
                arguments.append((f"X{len(arguments)}", part))
        shapes, dtypes, attributes = {}, {}, {}
        for argument, value in arguments:
            tensors = _tensors(value)
            if tensors:
                shapes[argument] = [list(shape) for _, *shape in tensors]
                dtypes[argument] = [
                    _DTYPES[self._dtypes[dtype]] if dtype in self._dtypes else "unknown"
                    for dtype, *_ in tensors
                ]
            elif isinstance(value, tuple):
                plain = map(_plain, value[1:])
                attributes[argument] = [item for item in plain if isinstance(item, (int, str))]
            elif value is not None:
                attributes[argument] = _plain(value)
        return Signature(name, shapes, dtypes, attributes, self._lines.call_stack(line))


def _has_no_data(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a layer is called with tensors, and beside them with flags, single numbers and lists of tensors alone."""
    tensor: Any = core.eager.Tensor
    several = [*args, *kwargs.values()]
    lists = [each for each in several if type(each) in (list, tuple)]
    items = [item for each in lists for item in each]
    are_known = all(isinstance(each, tensor) or type(each) in _NO_DATA for each in several)
    are_tensors = all(isinstance(each, tensor) or each is None for each in items)
    return (
        are_known and are_tensors and any(isinstance(each, tensor) for each in (*several, *items))
    )


def local_shape(tensor: Any) -> Sequence[int]:
    """Return the shape of this rank's part of a tensor of semi-automatic parallelism; of others, the shape."""
    shape: Sequence[int] = tensor._local_shape if tensor.is_dist() else tensor.shape
    return shape


def _encodable(text: str) -> str:
    return str.__str__(text).encode(errors="backslashreplace").decode()


def _node_reader() -> _Call | None:
    try:
        return node_reader()
    except Exception as error:
        pass_interruption(error)
        log.debug("gradients have no shapes", exc_info=True)
        return None


def _plain(part: Any) -> Any:
    """Return True and False for their marks; any other part as it is."""
    return True if part is _TRUE else False if part is _FALSE else part


def _tensors(part: Any) -> list[tuple[int, ...]]:
    """Return the tensors in a part of a key, which is a tensor or a list; empty for another list."""
    if not isinstance(part, tuple):
        return []
    items = part[1:] if part[0] is _LIST else (part,)
    are_tensors = all(isinstance(item, tuple) and item[0] is not _LIST for item in items)
    return list(items) if are_tensors else []


def _after_fork_in_child() -> None:
    """Record nothing in a worker that is forked within a window: its calls would never be taken."""
    if _active is not None:
        _active._window = None


os.register_at_fork(after_in_child=_after_fork_in_child)
