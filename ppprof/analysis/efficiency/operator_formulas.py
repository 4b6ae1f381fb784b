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
    all_reduce, reduce        one per element: the sum of two ranks
    other collectives         0
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
from functools import partial
from typing import Any, NamedTuple

from ppprof.trace.operator_inputs import operator_of_gradient

Shape = Sequence[int]

MOST_DIMS = 16
"""Paddle's tensors have 9 dims at most, torch's 64 in theory."""

ITEM_BYTES = {
    **dict.fromkeys(("bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "float32", "float"), 4),
    **dict.fromkeys(("int64", "float64", "double", "complex64"), 8),
    "complex128": 16,
}

_WITHOUT_GRADIENT = ("int", "uint", "bool")


class UnknownError(Exception):
    """The inputs do not say how much work it is."""


class Inputs(NamedTuple):
    """The inputs of an operator."""

    shapes: Mapping[str, Sequence[Shape]]
    dtypes: Mapping[str, Sequence[str]]
    attributes: Mapping[str, Any]

    def shape(self, index: int, *names: str) -> Shape:
        """Return the shape of an argument, by its index or one of its names."""
        for name in (f"X{index}", *names):
            if self.shapes.get(name):
                return self.shapes[name][0]
        raise UnknownError

    def attribute(self, index: int, *names: str, default: Any = None) -> Any:
        """Return an argument that is no tensor."""
        for name in (f"X{index}", *names):
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
        if not is_known or any(dtype not in ITEM_BYTES for _, dtype in tensors):
            return None
        sizes = [size * ITEM_BYTES[dtype] for size, dtype in tensors]
        reals = [
            size
            for size, (_, dtype) in zip(sizes, tensors)
            if not dtype.startswith(_WITHOUT_GRADIENT)
        ]
        first = next(
            (dtype for _, dtype in tensors if not dtype.startswith(_WITHOUT_GRADIENT)), None
        )
        total = math.prod(result or ()) * ITEM_BYTES[first or tensors[0][1]]
        return total + (sum(sizes) if is_read else 0) + sum(reals[:num_gradients])


Formula = Callable[[Inputs], "tuple[int, Shape | None]"]
"""Returns the FLOPs and the shape of the result; None for a result that depends on more than the inputs."""


def _matmul(inputs: Inputs) -> tuple[int, Shape]:
    return _product(*_matmul_shapes(inputs))


def _matmul_shapes(inputs: Inputs, first: int = 2) -> tuple[list[int], list[int]]:
    """Return the shapes of both matrices; ``first`` is the index of the argument that transposes the first."""
    x, y = list(inputs.shape(0, "X", "x")), list(inputs.shape(1, "Y", "y"))
    if inputs.attribute(first, "transpose_x", "transpose_X", "trans_x", default=False) is True:
        x[-1:], x[-2:-1] = x[-2:-1], x[-1:]
    if inputs.attribute(first + 1, "transpose_y", "transpose_Y", "trans_y", default=False) is True:
        y[-1:], y[-2:-1] = y[-2:-1], y[-1:]
    return x, y


def _matmul_bias(inputs: Inputs) -> tuple[int, Shape]:
    """Count a product to which a bias is added; the addition counts as part of the product."""
    return _product(*_matmul_bias_shapes(inputs))


_matmul_bias_shapes = partial(_matmul_shapes, first=3)


def _addmm(inputs: Inputs) -> tuple[int, Shape]:
    return _product(*_addmm_shapes(inputs))


def _addmm_shapes(inputs: Inputs) -> tuple[list[int], list[int]]:
    return list(inputs.shape(1)), list(inputs.shape(2))


def _product(x: list[int], y: list[int]) -> tuple[int, Shape]:
    if len(x) == 1:
        x = [1, *x]
    if len(y) == 1:
        y = [*y, 1]
    if not x or not y or x[-1] != y[-2]:
        raise UnknownError
    _check_broadcast([x[:-2], y[:-2]])
    result = [*broadcast([x[:-2], y[:-2]]), x[-2], y[-1]]
    return 2 * math.prod(result) * x[-1], result


def _cudnn_conv(inputs: Inputs) -> tuple[int, Shape]:
    """As torch orders the arguments: input, weight, padding, stride, dilation, groups."""
    indices = {"X3": "strides", "X2": "paddings", "X4": "dilations", "X5": "groups"}
    attributes = {
        name: inputs.attributes[index]
        for index, name in indices.items()
        if index in inputs.attributes
    }
    named = {"Input": [inputs.shape(0)], "Filter": [inputs.shape(1)]}
    return _conv(Inputs(named, inputs.dtypes, attributes))


def _conv(inputs: Inputs) -> tuple[int, Shape]:
    x, kernel = inputs.shape(0, "Input", "input"), inputs.shape(1, "Filter", "filter")
    num_dims = len(x) - 2
    # conv2d has its dilations ahead of its groups, conv3d and depthwise_conv2d have them after.
    indices = (5, 6) if isinstance(inputs.attributes.get("X5"), list) else (6, 5)
    strides, paddings, dilations = (
        _each(inputs.attribute(index, *names, default=default), num_dims)
        for index, names, default in (
            (2, ("strides", "stride"), 1),
            (3, ("paddings", "padding"), 0),
            (indices[0], ("dilations", "dilation"), 1),
        )
    )
    algorithm = inputs.attribute(4, "padding_algorithm", default="EXPLICIT")
    groups = inputs.attribute(indices[1], "groups", default=1)
    is_last = inputs.attribute(7, "data_format", default="NCHW") in ("NHWC", "NDHWC")
    dims = x[1:-1] if is_last else x[2:]
    channels = x[-1] if is_last else x[1]
    if len(kernel) != len(x) or num_dims < 1 or groups < 1 or kernel[1] * groups != channels:
        raise UnknownError
    positions = []
    for index, size in enumerate(dims):
        span = dilations[index] * (kernel[2 + index] - 1) + 1
        pads = (
            paddings[2 * index : 2 * index + 2]
            if len(paddings) > num_dims
            else 2 * [paddings[index]]
        )
        if algorithm == "SAME":
            positions.append(-(-size // strides[index]))
        else:
            padded = size + (0 if algorithm == "VALID" else sum(pads))
            positions.append((padded - span) // strides[index] + 1)
    if min(positions) < 1:
        raise UnknownError
    result = [x[0], *positions, kernel[0]] if is_last else [x[0], kernel[0], *positions]
    return 2 * math.prod(result) * math.prod(kernel[1:]), result


def attention(inputs: Inputs, causal: int = 6) -> tuple[int, Shape]:
    """Count scaled dot-product attention of query and key: (batch, length, heads, width) each."""
    is_causal = inputs.attribute(causal, "causal") is True
    return _attended(inputs.shape(0, "q"), inputs.shape(1, "k"), 2, is_causal)


def _attended(query: Shape, key: Shape, num_products: int, is_causal: bool) -> tuple[int, Shape]:
    if len(query) != 4 or len(key) != 4:
        raise UnknownError
    batch, length, heads, width = query
    flops = 2 * num_products * batch * heads * length * key[1] * width
    return (_causal(flops, length, key[1]) if is_causal else flops), query


def _causal(flops: int, queries: int, keys: int) -> int:
    """Return the FLOPs of attention in which a query sees no later key, from those of all pairs.

    The last query sees all keys, as in FlashAttention 2.

    >>> _causal(1000, 4, 4), _causal(1000, 1, 128), _causal(1000, 16, 32)
    (500, 1000, 750)
    """
    return flops * (2 * keys - queries) // (2 * keys) if 1 < queries <= keys else flops


def _torch_attention(first: int, causal: int, num_products: int) -> Formula:
    """Return the formula of an operator of ``aten::_flash_attention_forward`` or ``_backward``."""

    def formula(inputs: Inputs) -> tuple[int, Shape]:
        if f"X{causal}" not in inputs.attributes:
            raise UnknownError
        is_causal = inputs.attributes[f"X{causal}"] is True
        return _attended(inputs.shape(first), inputs.shape(first + 1), num_products, is_causal)

    return formula


def _per_element(num_flops: int) -> Formula:
    """Return the formula of an operator that computes each element of its result by itself."""

    def formula(inputs: Inputs) -> tuple[int, Shape]:
        result = inputs.shape(0, "X", "x", "Input")
        return num_flops * math.prod(result), result

    return formula


def elementwise(inputs: Inputs) -> tuple[int, Shape]:
    """Count an operator that computes each element from one of each of its two tensors."""
    shapes = inputs.all_shapes()[:2]
    if not shapes:
        raise UnknownError
    _check_broadcast(shapes)
    result = broadcast(shapes)
    return math.prod(result), result


def _comparison(inputs: Inputs) -> tuple[int, Shape]:
    """The result has one byte an element, whatever the inputs have."""
    flops, result = elementwise(inputs)
    dtype = next((dtypes[0] for dtypes in inputs.dtypes.values() if dtypes), "")
    return flops, [math.prod(result) // ITEM_BYTES.get(dtype, 1)]


def _swiglu(inputs: Inputs) -> tuple[int, Shape]:
    x = inputs.shape(0, "x")
    result = x if len(inputs.all_shapes()) > 1 else [*x[:-1], x[-1] // 2]
    return math.prod(result), result


def reduction(inputs: Inputs) -> tuple[int, Shape]:
    """Count an operator that passes once over its input, and returns few numbers."""
    return math.prod(inputs.shape(0, "X", "x")), []


def _optimizer(num_flops: int, gradient: int = 1) -> Formula:
    """Return the formula of an operator that updates a parameter.

    It reads all its tensors, and writes all but the gradient.
    """

    def formula(inputs: Inputs) -> tuple[int, Shape]:
        parameters = inputs.shapes.get("X0") or inputs.shapes.get("Param") or ()
        size = sum(math.prod(shape) for shape in parameters)
        written = [
            math.prod(shape) * ITEM_BYTES.get(dtype, 0)
            for name, shapes in inputs.shapes.items()
            for shape, dtype in zip(shapes, inputs.dtypes.get(name, ()))
            if name not in (f"X{gradient}", "Grad") and math.prod(shape) > 1  # the learning rate
        ]
        first = next(iter(inputs.dtypes.get("X0") or inputs.dtypes.get("Param") or ()), "")
        return num_flops * size, [sum(written) // ITEM_BYTES.get(first, 1)]

    return formula


def _rows(table: int, rows: int, axis: int | None = None) -> Formula:
    """Return the formula of an operator that takes rows of a table: it reads these alone."""

    def formula(inputs: Inputs) -> tuple[int, Shape]:
        of_table, of_rows = inputs.shape(table, "W"), inputs.shape(rows, "Ids")
        number = 0 if axis is None else inputs.attribute(axis, "axis", default=0)
        size = math.prod(of_table)
        taken = math.prod(of_rows) * (size // of_table[number])
        # Read and written; the table, which counts as an input, is not read otherwise.
        return 0, [2 * taken - size]

    return formula


EMBEDDING = _rows(1, 0)


def movement(inputs: Inputs) -> tuple[int, Shape]:
    """Count an operator that moves its inputs elsewhere."""
    return 0, [sum(math.prod(shape) for shape in inputs.all_shapes())]


def _unknown_result(inputs: Inputs) -> tuple[int, None]:
    return 0, None


def _cast(inputs: Inputs) -> tuple[int, Shape]:
    """The result has 2 bytes an element at least, as far as real numbers are cast."""
    dtype = next((dtypes[0] for dtypes in inputs.dtypes.values() if dtypes), "")
    item = ITEM_BYTES.get(dtype, 2)
    return 0, [math.prod(inputs.shape(0, "X", "x")) * min(2, item) // item]


def _writing(inputs: Inputs) -> tuple[int, Shape]:
    """The first input is written and not read: it counts as an input already."""
    return 0, [0]


def _copy(inputs: Inputs) -> tuple[int, Shape]:
    """The result is the first input, which is written and not read: it counts as an input already."""
    inputs.shape(1)
    return 0, [0]


def _by_name(*rows: tuple[Formula, str]) -> dict[str, Formula]:
    return {name: formula for formula, names in rows for name in names.split()}


_FORMULAS = _by_name(
    (_matmul, "matmul matmul_v2 bmm mv matmul_with_flatten"),
    (_matmul_bias, "fused_gemm_epilogue"),
    (_conv, "conv2d conv3d depthwise_conv2d"),
    (attention, "flash_attn"),
    (partial(attention, causal=8), "flash_attn_v3"),
    (elementwise, "add subtract multiply divide maximum minimum where"),
    (elementwise, "elementwise_add elementwise_mul elementwise_div"),
    # The operators of collectives. A reduction adds once for each element of a rank's tensor.
    (_per_element(1), "all_reduce c_allreduce_sum mp_allreduce_sum reduce"),
    (movement, "broadcast c_identity all_to_all"),
    (_unknown_result, "all_gather c_concat c_split c_scatter"),
    (_rows(0, 1), "c_embedding"),
    (_comparison, "equal not_equal greater_than less_than greater_equal less_equal"),
    (_comparison, "logical_and logical_or"),
    (_per_element(1), "relu leaky_relu relu6 silu abs square scale pow clip sqrt rsqrt exp log"),
    (_per_element(1), "tanh sigmoid"),
    (_per_element(5), "gelu rms_norm fused_rms_norm"),
    (_per_element(3), "softmax log_softmax"),
    (_per_element(3), "cross_entropy_with_softmax c_softmax_with_cross_entropy"),
    (_per_element(8), "layer_norm batch_norm batch_norm_"),
    (_swiglu, "swiglu"),
    (reduction, "sum mean mean_all max min argmax squared_l2_norm"),
    (_optimizer(14), "adamw adam fused_adam"),
    (_optimizer(2, gradient=2), "sgd"),
    (_optimizer(4), "momentum"),
    (EMBEDDING, "embedding"),
    (_rows(0, 1, axis=2), "gather"),
    (_cast, "cast"),
    (movement, "reshape transpose concat split stack flatten unsqueeze squeeze assign dropout"),
    (movement, "split_with_num tril triu roll"),
    (_unknown_result, "slice strided_slice set_value scatter expand tile pad pad3d one_hot"),
)

_TORCH = _by_name(
    (_matmul, "mm bmm mv dot"),
    (_addmm, "addmm baddbmm"),
    (elementwise, "add sub mul div maximum minimum where"),
    (_per_element(1), "relu silu abs pow sqrt rsqrt exp log tanh sigmoid neg clamp_min"),
    (_per_element(5), "gelu"),
    (_per_element(3), "_softmax _log_softmax"),
    (_per_element(8), "native_layer_norm"),
    (reduction, "sum mean max min argmax"),
    (movement, "cat"),
    (_writing, "fill_ zero_"),
    (_rows(0, 2, axis=1), "index_select"),
    (_copy, "copy_"),
    (_cudnn_conv, "cudnn_convolution"),
    (_torch_attention(0, 8, 2), "_flash_attention_forward"),
    (_torch_attention(1, 11, 5), "_flash_attention_backward"),
)
"""By the name after ``aten::``, only operators that call no other ones: those would count twice."""


PRODUCTS: Mapping[Formula | None, Callable[[Inputs], tuple[list[int], list[int]]]] = {
    _matmul: _matmul_shapes,
    _matmul_bias: _matmul_bias_shapes,
    _addmm: _addmm_shapes,
}
"""Formula of a matrix product -> a function that returns the shapes of the two matrices."""


def is_attention(formula: Formula | None) -> bool:
    """Return whether a formula is that of Paddle's attention."""
    return formula is attention or (isinstance(formula, partial) and formula.func is attention)


LOSSES = ("cross_entropy_with_softmax", "c_softmax_with_cross_entropy")
"""Operators with one result for each label."""

CONVOLUTIONS = (_conv, _cudnn_conv)
"""Formulas of convolutions."""


def formula_of(operator: str) -> tuple[Formula | None, str]:
    """Return an operator's formula, and the name that it is listed under."""
    formulas, name = _FORMULAS, operator_of_gradient(operator) or operator
    if operator.startswith("aten::"):
        formulas, name = _TORCH, operator[len("aten::") :]
    name = name if name in formulas else name.rstrip("_")
    return formulas.get(name), name


def broadcast(shapes: Sequence[Shape]) -> list[int]:
    """Return the shape that shapes have together, dimension by dimension from the last.

    >>> broadcast([[4, 1, 3], [2, 3]])
    [4, 2, 3]
    """
    result: list[int] = []
    for index in range(1, max(map(len, shapes)) + 1):
        sizes = [shape[-index] for shape in shapes if len(shape) >= index]
        result.insert(0, 0 if 0 in sizes else max(sizes))
    return result


def _check_broadcast(shapes: Sequence[Shape]) -> None:
    for index in range(1, max(map(len, shapes), default=0) + 1):
        if len({shape[-index] for shape in shapes if len(shape) >= index} - {1}) > 1:
            raise UnknownError


def _each(value: Any, count: int) -> list[int]:
    """Return one number for each dimension."""
    numbers = [value] * count if isinstance(value, int) else list(value)
    if len(numbers) not in (count, 2 * count) or any(type(each) is not int for each in numbers):
        raise UnknownError
    return numbers
