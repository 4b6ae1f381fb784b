"""The inputs of operators: shapes, dtypes, attributes, call stacks, in JSON and Paddle's protobuf.

In the events table, all but call stacks are JSON texts without white space, their keys sorted::

    {"X":[[4,128,256]],"Y":[[256,1024]]}        name of the input -> shape of each of its tensors
    {"X":["bfloat16"],"Y":["bfloat16"]}         name of the input -> dtype of each of its tensors
    {"transpose_y":true}                        other arguments; ppprof records them, Paddle does not

ppprof names an argument by its keyword, or X0, X1... by its place. A gradient has the inputs of its
operator, and the attribute `NUM_GRADIENTS`. The protobuf has no attributes of operators, but
those of copies, `SOURCE` and `TARGET`.

Sources: OperatorSupplementEventProto of paddle/fluid/platform/profiler/dump/nodetree.proto, and
``input_shapes``, ``input_dtypes`` and ``callstack`` in chrometracing_logger.cc.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import polars as pl

from ppprof.trace.labels import map_texts

Shape = tuple[int, ...]
"""The sizes of a tensor's dims."""

INPUT_KEYS = {
    **{"shapes": "input_shapes", "dtypes": "input_dtypes", "attributes": "attributes"},
    "callstack": "callstack",
}
"""Column of `ppprof.trace.schema.EVENTS` -> key in the ``args`` of Paddle's JSON."""


LAYER = "layer"
"""The attribute of a layer's Forward event that says which layer it is: ``blocks.0.mlp``, the names from
the outermost layer on, which has none."""

NUM_GRADIENTS = "gradients"
"""The attribute of a gradient that says for how many inputs of its operator it is computed."""

UNUSED_GRADIENTS = "unused_gradients"
"""The attribute of a gradient that says how many of these lead only to parameters that no optimizer updates, or not
with these gradients."""

OF_ONE_LEAF = "of_one_leaf"
"""The attribute of a gradient that is true if it is for one parameter alone, maybe as several inputs."""

NOT_UPDATED = "not_updated"
"""The attribute of the Forward event of a layer none of whose parameters an optimizer updates, though they get
gradients: the line that calls the layer, as a call stack; empty if unknown."""

CLEARED = "cleared"
"""The attribute of the Forward event of a layer whose parameters' gradients, of this call, are cleared before an optimizer
uses them: call stacks of the line that calls the layer, and of the line that calls the function of that line; empty if
unknown."""

REPEATED = "repeated"
"""The attribute of the Forward event of a layer that computes again what an earlier call of it has computed in the
step: call stacks of the line that calls it, of the line that calls the function of that line, and both of the
earlier call; empty if unknown. An operator that computes again what is known has it, too, if its function mostly does:
call stacks of a line of the function, of the line that calls the function, and likewise of the earlier call."""

ZERO = "zero"
"""The attribute of a gradient that is 0 since a tensor is multiplied by the number 0: call stacks of the line of the
product, and of the line that computes what is multiplied; the latter empty if unknown."""

MULTIPLIED = "multiplied_by_zero"
"""Likewise of an operator to whose result no gradient leads but those that are 0, and of a gradient that ``paddle.grad``
computes for such a result: the same lines."""

LENGTHS = "lengths_of_samples"
"""The attribute of an operator that looks up the words of padded samples, of a window's first batches: the width of the
batch, then the length of each sample without its padding. Of a loss: the number of labels, and of those that count."""

OWN_ATTRIBUTES = frozenset(
    (
        *(LAYER, NUM_GRADIENTS, UNUSED_GRADIENTS, OF_ONE_LEAF, NOT_UPDATED, CLEARED, REPEATED),
        *(ZERO, MULTIPLIED, LENGTHS),
    )
)
"""Attributes that ppprof has added: no argument of an operator has their names."""


def attributes_of(text: str | None) -> Mapping[str, Any]:
    """Return the attributes of an event; {} without any, or for a text of another program.

    >>> attributes_of('{"layer":"encoder"}'), attributes_of(None)
    ({'layer': 'encoder'}, {})
    """
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def shapes_by_input(text: str | None) -> Mapping[str, Sequence[Shape]] | None:
    """Return name of the input -> shapes of its tensors, by a text of the column ``shapes``.

    {} without a text; None for a text of another program.

    >>> shapes_by_input('{"X0":[[4,128]],"X1":[[128]]}')
    {'X0': [(4, 128)], 'X1': [(128,)]}
    """
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, list[Shape]])
    except msgspec.DecodeError:
        return None


def shapes_in(text: str | None) -> list[Shape]:
    """Return the shapes of all tensors in a text of the column ``shapes``, by input; [] if unknown.

    >>> shapes_in('{"X0":[[4,128]],"X1":[[128]]}'), shapes_in(None)
    ([(4, 128), (128,)], [])
    """
    return [shape for tensors in (shapes_by_input(text) or {}).values() for shape in tensors]


def dtypes_in(text: str | None) -> list[str]:
    """Return the dtypes of all tensors in a text of the column ``dtypes``, by input; [] if unknown.

    >>> dtypes_in('{"Ids":["int64"],"W":["float32"]}')
    ['int64', 'float32']
    """
    try:
        inputs = msgspec.json.decode(text or "{}", type=dict[str, list[str]])
    except msgspec.DecodeError:  # of another program
        return []
    return [dtype for dtypes in inputs.values() for dtype in dtypes]


_GRADIENT = re.compile(r"(Global_)?(\w+?)GradNode(Final)?")


def operator_of_gradient(name: str) -> str | None:
    """Return the operator of a gradient, by the name of its event or node; None for other names.

    >>> operator_of_gradient("Global_CrossEntropyWithSoftmaxGradNode")
    'cross_entropy_with_softmax'
    >>> operator_of_gradient("Conv2dGradNodeFinal")
    'conv2d'
    >>> operator_of_gradient("matmul dygraph"), operator_of_gradient("Global_GradNodeAccumulation")
    (None, None)
    """
    match = _GRADIENT.fullmatch(name)
    return re.sub(r"(?<!^)(?<![_A-Z])(?=[A-Z])", "_", match[2]).lower() if match else None


SOURCE, TARGET = "source", "target"
"""The attributes of a copy of the device: the kinds of its two memories, such as Pageable and Device."""


_MEMORIES = {
    "MEMCPY_HtoD": "Pageable",
    "MEMCPY_DtoH": "Pinned",
    "MEMCPY_HtoA": "Device",
    "MEMCPY_AtoH": "Array",
    "MEMCPY_AtoA": "Managed",
    "MEMCPY_AtoD": "Device Static",
    "MEMCPY_DtoA": "Managed Static",
}
"""Text of Paddle for a kind of memory -> CUPTI's name of it.

Paddle looks the number of a memory, 1 to 7 in ``CUpti_ActivityMemoryKind``, up among the kinds of copies,
``CUpti_ActivityMemcpyKind``. Seen with 2.6.2 on an H100: a copy from pageable memory of the host to the
device has the memories MEMCPY_HtoD and MEMCPY_HtoA.
"""


def memories_of_copies(copies: pl.DataFrame, num_events: int) -> pl.Series:
    """Return the column ``attributes`` of the device events.

    Args:
        copies: event (row of the device event), and the texts `SOURCE` and `TARGET`, "" if unknown.
        num_events: number of device events.

    Returns:
        Categorical of length ``num_events``: JSON with both, null where one is unknown.
    """
    is_known = (copies[SOURCE] != "") & (copies[TARGET] != "")
    attributes = pl.Series([None], dtype=pl.String).new_from_index(0, num_events)
    if is_known.any():
        rows = copies.filter(is_known)
        rows = rows.with_columns(pl.col(SOURCE, TARGET).cast(pl.String).replace(_MEMORIES))
        texts = rows.select(pl.struct(SOURCE, TARGET).struct.json_encode()).to_series()
        attributes = attributes.scatter(rows["event"], texts)
    column: pl.Series = attributes.cast(pl.Categorical())
    return column


def memory_of_copy(attributes: pl.Series, side: str) -> pl.Series:
    """Return `SOURCE` or `TARGET` of each value of the column ``attributes``, String; null without."""
    kinds: pl.Series = attributes.cast(pl.String).str.json_path_match(f"$.{side}")
    return kinds


def name_of_layer(attributes: str) -> str | None:
    """Return the attribute `LAYER` of the attributes of an event; None without it.

    >>> name_of_layer('{"layer":"blocks.0.mlp"}'), name_of_layer('{"axis":-1}')
    ('blocks.0.mlp', None)
    """
    name = attributes_of(attributes).get(LAYER)
    return name if isinstance(name, str) else None


def names_of_layers(attributes: pl.Series) -> pl.Series:
    """Return `name_of_layer` of each value of the column ``attributes``, String; null without."""
    return map_texts(attributes, name_of_layer)


def shapes_as_shown(shapes: str) -> str:
    """Return the text of the column ``shapes`` as a person reads it; other text unchanged.

    >>> shapes_as_shown('{"X0":[[4,128]],"X1":[[128,64]]}')
    '[4,128] [128,64]'
    """
    inputs = shapes_by_input(shapes)
    if inputs is None:  # of another program
        return shapes
    each = (shape for tensors in inputs.values() for shape in tensors)
    return " ".join(f"[{','.join(map(str, shape))}]" for shape in each)


def dtype_as_shown(dtypes: str | None) -> str | None:
    """Return the first dtype of real numbers in the column ``dtypes``, else the first one.

    >>> dtype_as_shown('{"Ids":["int64"],"W":["float32"]}')
    'float32'
    """
    each = dtypes_in(dtypes)
    return next(iter((*(dtype for dtype in each if "float" in dtype), *each)), None)


def compact(text: bytes) -> str | None:
    r"""Return a JSON object without white space, its keys sorted; None for any other text.

    None for an empty object, too.

    >>> compact(b'{"X": [[4,\n 128]]}')
    '{"X":[[4,128]]}'
    """
    if len(text) <= len("{}"):
        return None
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return to_json(value) if isinstance(value, dict) else None


def input_args() -> pl.Expr:
    """Return an expression of the text to append to the ``args`` of an event.

    An example is ``,"input_shapes":{"X":[[4]]}``; the text is empty for an event without inputs.
    Reads the columns of `INPUT_KEYS`, with the call stack as JSON text (`with_json_callstack`).
    """
    return pl.concat_str(
        pl.concat_str(pl.lit(f',"{key}":'), pl.col(column).cast(pl.String)).fill_null("")
        for column, key in INPUT_KEYS.items()
    )


def with_json_callstack(events: pl.DataFrame) -> pl.DataFrame:
    """Return the events with each call stack as a JSON string, in quotation marks."""
    stacks = events["callstack"]
    if stacks.null_count() == len(stacks):
        return events
    return events.with_columns(map_texts(stacks, lambda stack: msgspec.json.encode(stack).decode()))


def to_json(inputs: Mapping[str, Any]) -> str | None:
    """Return inputs as JSON without white space, the keys sorted; None without inputs."""
    return msgspec.json.encode(inputs, order="sorted").decode() if inputs else None
