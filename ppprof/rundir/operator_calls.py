r"""What operators were called with in a window: a file beside the raw capture.

The file is one line of JSON, then 5 little-endian int64 for each call of an operator from Python, then as
many for each call of a layer, whose signature is -2, once more for those that computed again what an earlier
call of the layer had computed in the step, -3, and for those whose gradients were cleared unused, -4::

    {"signatures": [["matmul", {"X0": [[4,128]], "X1": [[128,64]]}, {"X0": ["float32"], ...}, {},
                     "File \"train.py\", line 3, in log"]],
     "dtypes": ["float32", "bfloat16"],
     "backwards": [[7, [["MatmulGradNode", 3, 2, 0], ["GradNodeAccumulation", -1, 0, 0]]]],
     "layers": ["", "blocks.0", "blocks.0.mlp"], "not_updated": {"1": "File \"net.py\", line 8, in forward"},
     "repeats": [[1, "File \"net.py\", line 9, in forward", "", "File \"net.py\", line 8, in forward", ""]],
     "repeated_functions": [["File \"net.py\", line 4, in mask", "File \"net.py\", line 9, in forward", "", "", [3, 4]]],
     "cleared": [[2, "File \"train.py\", line 9, in sample", "File \"train.py\", line 5, in update"]],
     "lengths": {"7": [16, 12, 9]}}
    thread id | start_ns | end_ns | row of the signature or -1 | row of the result's dtype or -1
    thread id | start_ns | end_ns | -2                         | row of the layer
    thread id | start_ns | end_ns | -3                         | row of the repeat
    thread id | start_ns | end_ns | -4                         | row in "cleared"

The calls of a later segment begin with those of the window's first step. A call of `RUN_BACKWARD` computes gradients. Of that
step's ones, the nodes are known in the order in which Paddle runs them, each with the call that created it. If gradients are 0
since a tensor is multiplied by the number 0, as a term of the loss that is switched off, their nodes have the row of the product
in their last place::

    "backwards": [[9, [["ScaleGradNode", 8, 1, 0, false, 8], ...], [[6, 8], [7, 8]]]]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Union

import msgspec
import numpy as np

from ppprof.arrays import Int64
from ppprof.rundir.run_file import RunFile

_MOST_BYTES, _MOST_TEXT_BYTES, _MOST_BACKWARDS = 256 << 20, 32 << 20, 10_000
"""Limits of the whole file, some 6 million calls, of its line of JSON, and of what is in it."""
_MOST_NODES, _MOST_GRADIENTS = 200_000, 100_000
"""Limits of all nodes, and of the gradients of one."""
_COLUMNS = 5
_LAYER, _REPEATED, _CLEARED = -2, -3, -4
RUN_BACKWARD = "run_backward"
"""Name of the function that computes gradients."""
PRODUCTS_WITH_NUMBER = frozenset(("__mul__", "__rmul__", "scale", "scale_"))
"""Functions that may multiply a tensor by a number, their second argument. ``__add__`` calls the same operator as these."""
_NAME = re.compile(r"[A-Za-z_0-9]{1,100}")

Attribute = Union[bool, int, str, list[Union[bool, int, str]]]


class Signature(msgspec.Struct, array_like=True, frozen=True):
    """The inputs that many calls share. X0 is the first argument, X1 the second."""

    name: str
    """The function, such as ``matmul`` or ``__add__``."""
    shapes: Mapping[str, list[list[int]]]
    """Shape of each tensor, by argument; a list for an argument that is a list of tensors."""
    dtypes: Mapping[str, list[str]]
    """Element type of each tensor, likewise."""
    attributes: Mapping[str, Attribute]
    """Arguments that are neither tensors nor real numbers."""
    callstack: str = ""
    """The line of the training's code that called it: ``File "train.py", line 3, in log``; empty if
    unknown."""


def is_product_with_zero(signature: Signature) -> bool:
    """Return whether calls multiply a tensor by the number 0.

    >>> is_product_with_zero(Signature("__rmul__", {"X0": [[]]}, {"X0": ["float32"]}, {"X1": 0}))
    True
    >>> is_product_with_zero(Signature("__radd__", {"X0": [[]]}, {"X0": ["float32"]}, {"X1": 0}))
    False
    """
    factor = signature.attributes.get("X1")
    return signature.name in PRODUCTS_WITH_NUMBER and type(factor) is int and factor == 0


class Node(msgspec.Struct, array_like=True, frozen=True):
    """A node of the graph of gradients."""

    name: str
    """Its class, such as ``MatmulGradNode``."""
    call: int
    """Row of the call that created it; -1 if unknown."""
    num_gradients: int
    """How many gradients it computes: one for each input that needs one."""
    num_unused: int = 0
    """How many of them lead only to parameters that no optimizer updates, or not with these gradients."""
    is_of_one_leaf: bool = False
    """Whether it computes several, all of them for one leaf: a parameter that is multiplied by itself."""
    product: int = -1
    """Row of the call that multiplies by the number 0, if all gradients of the node are 0 for it; -1 for others."""


class Backward(msgspec.Struct, array_like=True, frozen=True):
    """A call that computed gradients."""

    call: int
    """Its row."""
    nodes: list[Node]
    """In the order in which they ran."""
    multiplied: list[tuple[int, int]] = []
    """Rows of calls, each with that of a product with the number 0: no gradient leads to what they returned but those that
    are 0 for the product. One of `RUN_BACKWARD` among them is ``paddle.grad``."""


class Repeat(msgspec.Struct, array_like=True, frozen=True):
    """A layer that is called again with equal arguments, so that it computes the same results."""

    layer: int
    """Row of the layer."""
    callstack: str
    """The line that calls it again, as `Signature.callstack`."""
    caller: str
    """The line that calls the function of that line; empty if unknown."""
    earlier: str
    """The line that called it first in the step."""
    earlier_caller: str
    """The line that called the function of that one."""


class RepeatedFunction(msgspec.Struct, array_like=True, frozen=True):
    """A function of the user's code whose operators compute again what the step has computed before."""

    callstack: str
    """A line of the function, as `Signature.callstack`."""
    caller: str
    """The line that calls the function."""
    earlier: str
    """A line of the function that computed it first in the step."""
    earlier_caller: str
    """The line that called that one."""
    calls: list[int]
    """Rows of the calls of the repeated operators."""


class Cleared(msgspec.Struct, array_like=True, frozen=True):
    """A layer whose parameters' gradients, of calls in one place, are cleared before an optimizer uses them."""

    layer: int
    """Row of the layer."""
    callstack: str
    """The line that calls it, as `Signature.callstack`."""
    caller: str
    """The line that calls the function of that line; empty if unknown."""


class _Header(msgspec.Struct):
    signatures: list[Signature]
    dtypes: list[str]
    backwards: list[Backward] = []
    layers: list[str] = []
    not_updated: dict[int, str] = {}
    repeats: list[Repeat] = []
    repeated_functions: list[RepeatedFunction] = []
    cleared: list[Cleared] = []
    lengths: dict[int, list[int]] = {}


@dataclass(frozen=True)
class OperatorCalls:
    """The calls of a window."""

    signatures: list[Signature]
    dtypes: list[str]
    """Names of element types."""
    calls: Int64
    """One row per call, columns as in the file; sorted by thread, then start."""
    backwards: Sequence[Backward] = ()
    """The calls of the window's first step that computed gradients, where that is known."""
    layers: Sequence[str] = ()
    """Names of layers: the attributes that lead to them from the outermost layer that calls them,
    ``blocks.0.mlp``; empty for the outermost one."""
    layer_calls: Int64 = field(default_factory=lambda: np.zeros((0, 4), np.int64))
    """One row per call of a layer: thread id, start_ns, end_ns, and row of the layer; sorted by thread,
    then start."""
    not_updated: Mapping[int, str] = field(default_factory=dict)
    """Rows of the layers with parameters that get gradients, and none of which an optimizer updates; with the
    line that calls the layer, as `Signature.callstack`."""
    repeats: Sequence[Repeat] = ()
    """Layers and lines of the repeated calls."""
    repeated_calls: Int64 = field(default_factory=lambda: np.zeros((0, 4), np.int64))
    """Those of ``layer_calls`` that computed again what an earlier call of the layer had computed in the step:
    columns likewise, but the last one is the row of the repeat."""
    repeated_functions: Sequence[RepeatedFunction] = ()
    """Functions whose operators, outside or inside of layers, compute again what is known."""
    cleared: Sequence[Cleared] = ()
    """Layers and lines of the cleared calls."""
    cleared_calls: Int64 = field(default_factory=lambda: np.zeros((0, 4), np.int64))
    """Those of ``layer_calls`` whose parameters' gradients were cleared unused: columns likewise, but the last one is the
    row in ``cleared``."""
    lengths: Mapping[int, list[int]] = field(default_factory=dict)
    """Rows of the calls that look up the words of padded samples, with the width of the batch, and the length of each
    sample without its padding; and of losses, with the number of labels, and of those that count."""


def write_operator_calls(file: RunFile, calls: OperatorCalls) -> None:
    """Write the calls of a window.

    Raises:
        OSError: the file cannot be written.
    """
    header = {name: getattr(calls, name) for name in _Header.__struct_fields__}
    of_layers = (
        (calls.layer_calls, _LAYER),
        (calls.repeated_calls, _REPEATED),
        (calls.cleared_calls, _CLEARED),
    )
    marked = [np.insert(rows, 3, number, axis=1) for rows, number in of_layers]
    numbers = np.concatenate([calls.calls, *marked]).astype("<i8")
    file.write(b"\n".join([msgspec.json.encode(header), numbers.tobytes()]))


def read_operator_calls(file: RunFile) -> OperatorCalls:
    """Read the calls of a window.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be read.
        ValueError: it is damaged.
    """
    text, _, numbers = file.read(_MOST_BYTES).partition(b"\n")
    if len(text) > _MOST_TEXT_BYTES:
        raise ValueError(f"a line of {len(text)} bytes")
    if text.count(b"GradNode") > _MOST_NODES:
        raise ValueError("more nodes than a window has time for")
    try:
        header = msgspec.json.decode(text, type=_Header)
    except msgspec.DecodeError as error:  # a ValueError in newer msgspec only
        raise ValueError(str(error)) from error
    if len(header.backwards) > _MOST_BACKWARDS:
        raise ValueError(f"{len(header.backwards)} backward passes in one step")
    calls: Int64 = np.frombuffer(numbers, "<i8").astype(np.int64).reshape(-1, _COLUMNS)
    kind = calls[:, 3]
    layer_calls, repeated_calls, cleared_calls = (
        _sorted(np.delete(calls[kind == number], 3, axis=1))
        for number in (_LAYER, _REPEATED, _CLEARED)
    )
    calls = calls[~np.isin(kind, (_LAYER, _REPEATED, _CLEARED))]
    names = [signature.name for signature in header.signatures]
    if not all(_NAME.fullmatch(name) for name in (*names, *header.dtypes)):
        raise ValueError("a name that no operator has")
    for column, rows in ((3, header.signatures), (4, header.dtypes)):
        if len(calls) and not -1 <= calls[:, column].min() <= calls[:, column].max() < len(rows):
            raise ValueError("a row that does not exist")
    named = [*(each.layer for each in header.repeats), *(each.layer for each in header.cleared)]
    for numbers_of, rows_of in (
        (layer_calls[:, 3], header.layers),
        (repeated_calls[:, 3], header.repeats),
        (cleared_calls[:, 3], header.cleared),
        (np.array(named, np.int64), header.layers),
    ):
        if len(numbers_of) and not 0 <= numbers_of.min() <= numbers_of.max() < len(rows_of):
            raise ValueError("a layer that does not exist")
    if not all(map(_is_consistent, header.signatures)):
        raise ValueError("shapes without dtypes")
    order = np.lexsort((calls[:, 1], calls[:, 0]))
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    backwards = [_moved(backward, position) for backward in header.backwards]
    return OperatorCalls(
        header.signatures,
        header.dtypes,
        calls[order],
        backwards,
        header.layers,
        layer_calls,
        header.not_updated,
        header.repeats,
        repeated_calls,
        [_with_rows(function, position) for function in header.repeated_functions],
        header.cleared,
        cleared_calls,
        dict(_moved_lengths(header.lengths, position)),
    )


def _moved_lengths(
    lengths: Mapping[int, list[int]], position: Int64
) -> Iterator[tuple[int, list[int]]]:
    """Yield the same with the rows to which the calls have moved."""
    for row, (width, *samples) in lengths.items():
        if not 0 <= row < len(position):
            raise ValueError("a call that does not exist")
        if not samples or not 0 <= min(samples) <= max(samples) <= width:
            raise ValueError("a sample that is longer than its batch")
        yield int(position[row]), [width, *samples]


def _with_rows(function: RepeatedFunction, position: Int64) -> RepeatedFunction:
    """Return the same with the rows to which the calls have moved."""
    if not all(0 <= row < len(position) for row in function.calls):
        raise ValueError("a call that does not exist")
    return msgspec.structs.replace(function, calls=position[function.calls].tolist())


def _sorted(calls: Int64) -> Int64:
    """Return calls sorted by thread, then start."""
    return calls[np.lexsort((calls[:, 1], calls[:, 0]))]


def _moved(backward: Backward, position: Int64) -> Backward:
    """Return the same with the rows to which the calls have moved."""
    if not all(0 <= node.num_gradients <= _MOST_GRADIENTS for node in backward.nodes):
        raise ValueError("a node with more gradients than an operator has inputs")
    if not all(0 <= node.num_unused <= node.num_gradients for node in backward.nodes):
        raise ValueError("a node with more unused gradients than it computes")
    multiplied = [row for pair in backward.multiplied for row in pair]
    of_nodes = (row for node in backward.nodes for row in (node.call, node.product))
    if not all(-1 <= row < len(position) for row in of_nodes) or not all(
        0 <= row < len(position) for row in (backward.call, *multiplied)
    ):
        raise ValueError("a call that does not exist")

    def moved(row: int) -> int:
        return int(position[row]) if row >= 0 else -1

    nodes = [
        msgspec.structs.replace(node, call=moved(node.call), product=moved(node.product))
        for node in backward.nodes
    ]
    pairs = [(moved(row), moved(product)) for row, product in backward.multiplied]
    return Backward(moved(backward.call), nodes, pairs)


def _is_consistent(signature: Signature) -> bool:
    """Return whether each argument has a shape and a dtype for each of its tensors, at least one."""
    shapes, dtypes = signature.shapes, signature.dtypes
    return shapes.keys() == dtypes.keys() and all(
        0 < len(shapes[argument]) == len(dtypes[argument]) for argument in shapes
    )
