"""The floating point operations (FLOPs) and bytes of an operator, from its inputs.

A multiplication and an addition are two FLOPs. Bytes are those of the inputs and of the result, each
read or written once: the least that an operator can move. A gradient reads the gradient of the result,
writes one for each input that needs it, and reads the inputs, unless it does not depend on them. Sources: `paddle.utils.flops` for the
formulas marked P; for the others the definition of the operator, counted by hand.

    ========================= ======================================== ======
    operator                  FLOPs
    ========================= ======================================== ======
    matmul, bmm, mv           2 b m n k                                P
    conv                      2 b (out channels) (out positions) (in channels / groups) (kernel)
    attention                 4 b h s s' d; half of it if causal       FlashAttention 2, section 3
    add, multiply, relu...    one per element of the result            P
    gelu                      5 per element                            P
    softmax                   3 per element                            P
    layer_norm                8 per element                            P
    rms_norm                  5 per element
    sum, mean, max            one per element of the input
    adamw                     14 per parameter
    embedding, reshape...     0
    ------------------------- ---------------------------------------- ------
    gradient of matmul, conv  those of the operator for each gradient  P
    gradient of attention     2.5 times those of the operator          FlashAttention 2, section 3
    other gradients           those of the operator for each gradient, twice at most
    ========================= ======================================== ======

Paddle's formula of a convolution with groups counts all input channels in each group; here they are
divided by the number of groups, as they are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import polars as pl

from ppprof.trace.operator_inputs import NUM_GRADIENTS, operator_of_gradient

Shape = Sequence[int]

MOST_WORK = 10**16
"""No operator has so many FLOPs or bytes: it would run for seconds on any device."""

MOST_DIMS = 16
"""Paddle's tensors have 9 dims at most, torch's 64 in theory."""

_ITEM_BYTES = {
    **dict.fromkeys(("bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "float32", "float"), 4),
    **dict.fromkeys(("int64", "float64", "double", "complex64"), 8),
    "complex128": 16,
}


_WITHOUT_GRADIENT = ("int", "uint", "bool")


def item_bytes(dtype: str | None) -> int | None:
    """Return the bytes of one element; None for an unknown dtype."""
    return _ITEM_BYTES.get(dtype or "")


class Work(NamedTuple):
    """What an operator computes and moves."""

    flops: int
    bytes: int | None
    """None if a dtype is unknown."""


class _UnknownError(Exception):
    """The inputs do not say how much work it is."""


@dataclass(frozen=True)
class _Inputs:
    """The inputs of an operator."""

    shapes: Mapping[str, Sequence[Shape]]
    dtypes: Mapping[str, Sequence[str]]
    attributes: Mapping[str, Any]

    def shape(self, place: int, *names: str) -> Shape:
        """Return the shape of an argument, by its place or one of its names."""
        for name in (f"X{place}", *names):
            if self.shapes.get(name):
                return self.shapes[name][0]
        raise _UnknownError

    def attribute(self, place: int, *names: str, default: Any = None) -> Any:
        """Return an argument that is no tensor."""
        for name in (f"X{place}", *names):
            if name in self.attributes:
                return self.attributes[name]
        return default

    def all_shapes(self) -> list[Shape]:
        """Return the shapes of all tensors."""
        return [shape for each in self.shapes.values() for shape in each]

    def num_bytes(self, result: Shape | None, is_read: bool, num_gradients: int) -> int | None:
        """Return the bytes that are read and written; None if a dtype or the result is unknown.

        Args:
            result: the shape of the result, whose dtype is that of the first tensor of real numbers.
            is_read: whether the tensors are read.
            num_gradients: number of tensors whose gradients are written.
        """
        tensors = [
            (math.prod(shape), dtype)
            for name, shapes in self.shapes.items()
            for shape, dtype in zip(shapes, self.dtypes.get(name, ()))
        ]
        is_known = len(tensors) == len(self.all_shapes()) > 0 and result is not None
        if not is_known or any(dtype not in _ITEM_BYTES for _, dtype in tensors):
            return None
        sizes = [size * _ITEM_BYTES[dtype] for size, dtype in tensors]
        reals = [
            size
            for size, (_, dtype) in zip(sizes, tensors)
            if not dtype.startswith(_WITHOUT_GRADIENT)
        ]
        first = next(
            (dtype for _, dtype in tensors if not dtype.startswith(_WITHOUT_GRADIENT)), None
        )
        total = math.prod(result or ()) * _ITEM_BYTES[first or tensors[0][1]]
        return total + (sum(sizes) if is_read else 0) + sum(reals[:num_gradients])


_Formula = Callable[[_Inputs], "tuple[int, Shape | None]"]
"""Returns the FLOPs and the shape of the result; None for a result that depends on more than the inputs."""


def _matmul(inputs: _Inputs) -> tuple[int, Shape]:
    return _product(*_matmul_shapes(inputs))


def _matmul_shapes(inputs: _Inputs) -> tuple[list[int], list[int]]:
    x, y = list(inputs.shape(0, "X", "x")), list(inputs.shape(1, "Y", "y"))
    if inputs.attribute(2, "transpose_x", "transpose_X", "trans_x", default=False) is True:
        x[-1:], x[-2:-1] = x[-2:-1], x[-1:]
    if inputs.attribute(3, "transpose_y", "transpose_Y", "trans_y", default=False) is True:
        y[-1:], y[-2:-1] = y[-2:-1], y[-1:]
    return x, y


def _addmm(inputs: _Inputs) -> tuple[int, Shape]:
    return _product(*_addmm_shapes(inputs))


def _addmm_shapes(inputs: _Inputs) -> tuple[list[int], list[int]]:
    return list(inputs.shape(1)), list(inputs.shape(2))


def _product(x: list[int], y: list[int]) -> tuple[int, Shape]:
    if len(x) == 1:
        x = [1, *x]
    if len(y) == 1:
        y = [*y, 1]
    if not x or not y or x[-1] != y[-2]:
        raise _UnknownError
    _check_broadcast([x[:-2], y[:-2]])
    result = [*_broadcast([x[:-2], y[:-2]]), x[-2], y[-1]]
    return 2 * math.prod(result) * x[-1], result


def _cudnn_conv(inputs: _Inputs) -> tuple[int, Shape]:
    """As torch orders the arguments: input, weight, padding, stride, dilation, groups."""
    places = {"X3": "strides", "X2": "paddings", "X4": "dilations", "X5": "groups"}
    attributes = {
        name: inputs.attributes[place]
        for place, name in places.items()
        if place in inputs.attributes
    }
    named = {"Input": [inputs.shape(0)], "Filter": [inputs.shape(1)]}
    return _conv(_Inputs(named, inputs.dtypes, attributes))


def _conv(inputs: _Inputs) -> tuple[int, Shape]:
    x, kernel = inputs.shape(0, "Input", "input"), inputs.shape(1, "Filter", "filter")
    num_dims = len(x) - 2
    strides, paddings, dilations = (
        _each(inputs.attribute(place, *names, default=default), num_dims)
        for place, names, default in (
            (2, ("strides", "stride"), 1),
            (3, ("paddings", "padding"), 0),
            (5, ("dilations", "dilation"), 1),
        )
    )
    algorithm = inputs.attribute(4, "padding_algorithm", default="EXPLICIT")
    groups = inputs.attribute(6, "groups", default=1)
    is_last = inputs.attribute(7, "data_format", default="NCHW") in ("NHWC", "NDHWC")
    dims = x[1:-1] if is_last else x[2:]
    channels = x[-1] if is_last else x[1]
    if len(kernel) != len(x) or num_dims < 1 or groups < 1 or kernel[1] * groups != channels:
        raise _UnknownError
    positions = []
    for place, size in enumerate(dims):
        span = dilations[place] * (kernel[2 + place] - 1) + 1
        pads = (
            paddings[2 * place : 2 * place + 2]
            if len(paddings) > num_dims
            else 2 * [paddings[place]]
        )
        if algorithm == "SAME":
            positions.append(-(-size // strides[place]))
        else:
            padded = size + (0 if algorithm == "VALID" else sum(pads))
            positions.append((padded - span) // strides[place] + 1)
    if min(positions) < 1:
        raise _UnknownError
    result = [x[0], *positions, kernel[0]] if is_last else [x[0], kernel[0], *positions]
    return 2 * math.prod(result) * math.prod(kernel[1:]), result


def _attention(inputs: _Inputs) -> tuple[int, Shape]:
    query, key = inputs.shape(0, "q"), inputs.shape(1, "k")
    if len(query) != 4 or len(key) != 4:
        raise _UnknownError
    batch, length, heads, width = query
    flops = 4 * batch * heads * length * key[1] * width
    is_causal = inputs.attribute(6, "causal") is True
    return (_causal(flops, length, key[1]) if is_causal else flops), query


def _causal(flops: int, queries: int, keys: int) -> int:
    """Return the FLOPs of attention in which a query sees no later key, from those of all pairs.

    The last query sees all keys, as in FlashAttention 2.

    >>> _causal(1000, 4, 4), _causal(1000, 1, 128), _causal(1000, 16, 32)
    (500, 1000, 750)
    """
    return flops * (2 * keys - queries) // (2 * keys) if 1 < queries <= keys else flops


def _torch_attention(first: int, causal: int, num_products: int) -> _Formula:
    """Return the formula of an operator of ``aten::_flash_attention_forward`` or ``_backward``.

    Args:
        first: place of the query, which the key follows; (batch, length, heads, width) each.
        causal: place of is_causal.
        num_products: number of matrix products: 2 forward, 5 backward.
    """

    def formula(inputs: _Inputs) -> tuple[int, Shape]:
        query, key = inputs.shape(first), inputs.shape(first + 1)
        if len(query) != 4 or len(key) != 4 or f"X{causal}" not in inputs.attributes:
            raise _UnknownError
        batch, length, heads, width = query
        flops = 2 * num_products * batch * heads * length * key[1] * width
        is_causal = inputs.attributes[f"X{causal}"] is True
        return (_causal(flops, length, key[1]) if is_causal else flops), query

    return formula


def _per_element(num_flops: int) -> _Formula:
    """Return the formula of an operator that computes each element of its result by itself."""

    def formula(inputs: _Inputs) -> tuple[int, Shape]:
        result = inputs.shape(0, "X", "x", "Input")
        return num_flops * math.prod(result), result

    return formula


def _elementwise(inputs: _Inputs) -> tuple[int, Shape]:
    shapes = inputs.all_shapes()[:2]
    if not shapes:
        raise _UnknownError
    _check_broadcast(shapes)
    result = _broadcast(shapes)
    return math.prod(result), result


def _comparison(inputs: _Inputs) -> tuple[int, Shape]:
    """The result has one byte an element, whatever the inputs have."""
    flops, result = _elementwise(inputs)
    dtype = next((dtypes[0] for dtypes in inputs.dtypes.values() if dtypes), "")
    return flops, [math.prod(result) // _ITEM_BYTES.get(dtype, 1)]


def _swiglu(inputs: _Inputs) -> tuple[int, Shape]:
    x = inputs.shape(0, "x")
    result = x if len(inputs.all_shapes()) > 1 else [*x[:-1], x[-1] // 2]
    return math.prod(result), result


def _reduction(inputs: _Inputs) -> tuple[int, Shape]:
    return math.prod(inputs.shape(0, "X", "x")), []


def _optimizer(num_flops: int) -> _Formula:
    def formula(inputs: _Inputs) -> tuple[int, Shape]:
        parameters = inputs.shapes.get("X0") or inputs.shapes.get("Param") or ()
        size = sum(math.prod(shape) for shape in parameters)
        # The parameter and both moments are written.
        return num_flops * size, [3 * size]

    return formula


def _rows(table: int, rows: int) -> _Formula:
    """Return the formula of an operator that takes rows of a table: it reads these alone.

    Args:
        table: place of the table.
        rows: place of the numbers of its rows.
    """

    def formula(inputs: _Inputs) -> tuple[int, Shape]:
        of_table, of_rows = inputs.shape(table, "W"), inputs.shape(rows, "Ids")
        taken = math.prod(of_rows) * math.prod(of_table[1:])
        # Read and written; the table, which counts as an input, is not read otherwise.
        return 0, [2 * taken - math.prod(of_table)]

    return formula


_EMBEDDING = _rows(1, 0)


def _movement(inputs: _Inputs) -> tuple[int, Shape]:
    return 0, [sum(math.prod(shape) for shape in inputs.all_shapes())]


def _unknown_result(inputs: _Inputs) -> tuple[int, None]:
    return 0, None


def _cast(inputs: _Inputs) -> tuple[int, Shape]:
    """The result has 2 bytes an element at least, as far as real numbers are cast."""
    dtype = next((dtypes[0] for dtypes in inputs.dtypes.values() if dtypes), "")
    item = _ITEM_BYTES.get(dtype, 2)
    return 0, [math.prod(inputs.shape(0, "X", "x")) * min(2, item) // item]


def _copy(inputs: _Inputs) -> tuple[int, Shape]:
    """The result is the first input, which is written and not read: it counts as an input already."""
    inputs.shape(1)
    return 0, [0]


_FORMULAS: dict[str, _Formula] = {
    **dict.fromkeys(("matmul", "matmul_v2", "bmm", "mv", "matmul_with_flatten"), _matmul),
    **dict.fromkeys(("conv2d", "conv3d", "depthwise_conv2d"), _conv),
    **dict.fromkeys(("flash_attn", "flash_attn_v3"), _attention),
    **dict.fromkeys(("add", "subtract", "multiply", "divide", "maximum", "minimum"), _elementwise),
    **dict.fromkeys(("elementwise_add", "elementwise_mul", "elementwise_div"), _elementwise),
    **dict.fromkeys(("equal", "not_equal", "greater_than", "less_than"), _comparison),
    **dict.fromkeys(("greater_equal", "less_equal", "logical_and", "logical_or"), _comparison),
    "where": _elementwise,
    **dict.fromkeys(("relu", "leaky_relu", "relu6", "silu", "abs", "square"), _per_element(1)),
    **dict.fromkeys(("scale", "pow", "clip", "sqrt", "rsqrt", "exp", "log"), _per_element(1)),
    **dict.fromkeys(("tanh", "sigmoid"), _per_element(1)),
    "gelu": _per_element(5),
    **dict.fromkeys(("softmax", "log_softmax"), _per_element(3)),
    "cross_entropy_with_softmax": _per_element(3),
    **dict.fromkeys(("layer_norm", "batch_norm", "batch_norm_"), _per_element(8)),
    **dict.fromkeys(("rms_norm", "fused_rms_norm"), _per_element(5)),
    "swiglu": _swiglu,
    **dict.fromkeys(
        ("sum", "mean", "mean_all", "max", "min", "argmax", "squared_l2_norm"), _reduction
    ),
    **dict.fromkeys(("adamw", "adam", "fused_adam"), _optimizer(14)),
    "sgd": _optimizer(2),
    "momentum": _optimizer(4),
    "embedding": _EMBEDDING,
    "gather": _rows(0, 1),
    "cast": _cast,
    **dict.fromkeys(("reshape", "transpose", "concat", "split", "stack", "flatten"), _movement),
    **dict.fromkeys(("unsqueeze", "squeeze", "assign", "dropout", "split_with_num"), _movement),
    **dict.fromkeys(("tril", "triu", "roll"), _movement),
    **dict.fromkeys(("slice", "strided_slice", "set_value", "scatter"), _unknown_result),
    **dict.fromkeys(("expand", "tile", "pad", "pad3d", "one_hot"), _unknown_result),
}


FAMILIES = ("product", "attention", "pointwise", "norm", "update", "other")
"""Families of operators: products and convolutions; attention; operators on each element; norms,
softmax and reductions; updates of parameters; the rest."""


def family_of(name: str) -> str:
    """Return the family of an operator, or of the operator of a gradient (``matmul_grad``).

    >>> family_of("matmul_grad"), family_of("layer_norm"), family_of("aten::add")
    ('product', 'norm', 'pointwise')
    """
    formula, listed = _formula_of(name.removesuffix("_grad"))
    if formula in (_matmul, _addmm, _conv, _cudnn_conv):
        return "product"
    if formula is _attention or listed.startswith("_flash_attention"):
        return "attention"
    if listed in ("adamw", "adam", "fused_adam", "sgd", "momentum"):
        return "update"
    if formula is _reduction or "norm" in listed or "softmax" in listed:
        return "norm"
    return "pointwise" if is_pointwise(listed) or formula is _elementwise else "other"


_POINTWISE = frozenset(
    (
        *("relu", "leaky_relu", "relu6", "silu", "abs", "square", "scale", "pow", "clip", "sqrt"),
        *("rsqrt", "exp", "log", "tanh", "sigmoid", "gelu", "swiglu", "dropout", "cast"),
        *("layer_norm", "rms_norm", "fused_rms_norm", "softmax"),
        *("neg", "clamp_min", "native_layer_norm", "_softmax"),
    )
)

_TORCH: dict[str, _Formula] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot"), _matmul),
    **dict.fromkeys(("addmm", "baddbmm"), _addmm),
    **dict.fromkeys(("add", "sub", "mul", "div", "maximum", "minimum", "where"), _elementwise),
    **dict.fromkeys(("relu", "silu", "abs", "pow", "sqrt", "rsqrt", "exp", "log"), _per_element(1)),
    **dict.fromkeys(("tanh", "sigmoid", "neg", "clamp_min"), _per_element(1)),
    "gelu": _per_element(5),
    **dict.fromkeys(("_softmax", "_log_softmax"), _per_element(3)),
    "native_layer_norm": _per_element(8),
    **dict.fromkeys(("sum", "mean", "max", "min", "argmax"), _reduction),
    **dict.fromkeys(("cat", "fill_", "zero_", "index_select"), _movement),
    "copy_": _copy,
    "cudnn_convolution": _cudnn_conv,
    "_flash_attention_forward": _torch_attention(0, 8, 2),
    "_flash_attention_backward": _torch_attention(1, 11, 5),
}
"""By the name after ``aten::``, only operators that call no other ones: those would count twice."""


_SUMS = frozenset(("add", "subtract", "scale", "sum", "mean", "mean_all", "elementwise_add"))
"""Operators whose gradient does not depend on their inputs, beside those that only move data."""


def _gradient_flops(operator: str, flops: int, num_gradients: int) -> int:
    if _FORMULAS[operator] is _attention:
        return flops * 5 // 2
    return flops * min(num_gradients, 2)


class Product(NamedTuple):
    """A matrix product: ``batch`` times (m, k) @ (k, n)."""

    batch: int
    m: int
    n: int
    k: int


def product_of(operator: str, shapes: str, attributes: str | None) -> Product | None:
    """Return the matrix product that an operator computes, or whose gradients it computes.

    None for other operators. A batch that is multiplied with one matrix counts as one product.

    Args:
        operator: as for `work_of`.
        shapes: likewise.
        attributes: likewise.

    >>> product_of("matmul", '{"X0":[[4,16,8]],"X1":[[8,32]]}', None)
    Product(batch=1, m=64, n=32, k=8)
    """
    formula, _ = _formula_of(operator)
    if formula not in (_matmul, _addmm):
        return None
    try:
        inputs = _inputs_of(shapes, None, attributes)
        x, y = _matmul_shapes(inputs) if formula is _matmul else _addmm_shapes(inputs)
        if len(x) < 2 or len(y) < 2 or max(len(x), len(y)) > MOST_DIMS or min(*x, *y) < 0:
            return None
        if len(y) == 2:
            return Product(1, math.prod(x[:-1]), y[-1], x[-1])
        return Product(math.prod(_broadcast([x[:-2], y[:-2]])), x[-2], y[-1], x[-1])
    except (_UnknownError, msgspec.DecodeError, TypeError, IndexError, ValueError):
        return None


def is_pointwise(operator: str) -> bool:
    """Return whether an operator passes over its input once, so that it can be fused with another.

    >>> is_pointwise("gelu"), is_pointwise("layer_norm"), is_pointwise("matmul")
    (True, True, False)
    """
    formula, name = _formula_of(operator)
    return formula is _elementwise or name in _POINTWISE


def _formula_of(operator: str) -> tuple[_Formula | None, str]:
    """Return an operator's formula, and the name that it is listed under."""
    formulas, name = _FORMULAS, operator_of_gradient(operator) or operator
    if operator.startswith("aten::"):
        formulas, name = _TORCH, operator[len("aten::") :]
    name = name if name in formulas else name.rstrip("_")
    return formulas.get(name), name


def _inputs_of(shapes: str, dtypes: str | None, attributes: str | None) -> _Inputs:
    return _Inputs(
        msgspec.json.decode(shapes, type=dict[str, list[list[int]]]),
        msgspec.json.decode(dtypes or "{}", type=dict[str, list[str]]),
        msgspec.json.decode(attributes or "{}", type=dict[str, Any]),
    )


def work_of(operator: str, shapes: str, dtypes: str | None, attributes: str | None) -> Work | None:
    """Return the work of an operator; None for an unknown operator, or if its inputs do not say.

    Args:
        operator: its name, such as ``matmul`` or ``adamw_``; torch's ``aten::mm``; for a gradient,
            ``Global_MatmulGradNode``, with the arguments of its operator.
        shapes: as in the column ``shapes`` of the events; dtypes and attributes likewise.
        dtypes: None if unknown.
        attributes: None if it has none.

    >>> work_of("matmul", '{"X0":[[4,128]],"X1":[[128,64]]}', '{"X0":["float32"],"X1":["float32"]}', None)
    Work(flops=65536, bytes=35840)
    >>> work_of("relu", "{}", None, None)
    """
    formula, name = _formula_of(operator)
    if formula is None:
        return None
    try:
        inputs = _inputs_of(shapes, dtypes, attributes)
        shapes_of_all = inputs.all_shapes()
        if any(len(shape) > MOST_DIMS for shape in shapes_of_all):
            return None  # a product of thousands of sizes takes minutes
        if any(size < 0 for shape in shapes_of_all for size in shape):
            return None  # unknown while a program was compiled
        flops, result = formula(inputs)
    except (_UnknownError, msgspec.DecodeError, TypeError, IndexError, ZeroDivisionError):
        return None
    if operator_of_gradient(operator) is None:
        return Work(flops, inputs.num_bytes(result, True, 0))
    num_gradients = inputs.attributes.get(NUM_GRADIENTS)
    if not isinstance(num_gradients, int) or num_gradients < 0:
        return None
    if formula is _EMBEDDING:
        tokens, weight = inputs.shape(0, "Ids"), inputs.shape(1, "W")
        result = [*tokens, *weight[1:]]
    is_read = formula not in (_movement, _EMBEDDING) and name not in _SUMS
    return Work(
        _gradient_flops(name, flops, num_gradients),
        inputs.num_bytes(result, is_read, num_gradients),
    )


def work_of_operators(events: pl.DataFrame) -> pl.DataFrame:
    """Return the work of each event that has shapes.

    Args:
        events: reads name, shapes, dtypes, attributes; see `ppprof.trace.schema.EVENTS`.

    Returns:
        row (of ``events``), flops int64, bytes int64; null where unknown. FLOPs or bytes from
        `MOST_WORK` on are null.
    """
    texts = pl.col("name", "shapes", "dtypes", "attributes").cast(pl.String)
    with_shapes = events.select("name", "shapes", "dtypes", "attributes").with_row_index("row")
    with_shapes = with_shapes.filter(pl.col("shapes").is_not_null())
    with_shapes = with_shapes.with_columns(texts, pl.col("row").cast(pl.Int64))
    key = ["name", "shapes", "dtypes", "attributes"]
    kinds = with_shapes.select(key).unique(maintain_order=True)
    works = [
        work_of(name.partition(" ")[0], *inputs) or (None, None) for name, *inputs in kinds.rows()
    ]
    bounded = [[None if n is None or n >= MOST_WORK else n for n in work] for work in works]
    schema = {"flops": pl.Int64(), "bytes": pl.Int64()}
    kinds = kinds.hstack(pl.DataFrame(bounded, schema, orient="row"))
    return with_shapes.join(kinds, on=key, nulls_equal=True, maintain_order="left").drop(key)


def _broadcast(shapes: Sequence[Shape]) -> list[int]:
    """Return the shape that shapes have together, dimension by dimension from the last.

    >>> _broadcast([[4, 1, 3], [2, 3]])
    [4, 2, 3]
    """
    result: list[int] = []
    for place in range(1, max(map(len, shapes)) + 1):
        sizes = [shape[-place] for shape in shapes if len(shape) >= place]
        result.insert(0, 0 if 0 in sizes else max(sizes))
    return result


def _check_broadcast(shapes: Sequence[Shape]) -> None:
    for place in range(1, max(map(len, shapes), default=0) + 1):
        if len({shape[-place] for shape in shapes if len(shape) >= place} - {1}) > 1:
            raise _UnknownError


def _each(value: Any, count: int) -> list[int]:
    """Return one number for each dimension."""
    numbers = [value] * count if isinstance(value, int) else list(value)
    if len(numbers) not in (count, 2 * count) or any(type(each) is not int for each in numbers):
        raise _UnknownError
    return numbers
