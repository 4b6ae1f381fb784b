"""The work of operators, computed from their inputs: FLOPs, bytes, and the shape of a matrix product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import polars as pl

from ppprof.analysis.efficiency.operator_formulas import (
    CONVOLUTIONS,
    EMBEDDING,
    ITEM_BYTES,
    LOSSES,
    MOST_DIMS,
    PRODUCTS,
    Formula,
    Inputs,
    UnknownError,
    broadcast,
    elementwise,
    formula_of,
    is_attention,
    movement,
    reduction,
)
from ppprof.analysis.profile.profile import Profile, once
from ppprof.trace.operator_inputs import NUM_GRADIENTS, Shape, operator_of_gradient

MOST_WORK = 10**16
"""No operator has so many FLOPs or bytes: it would run for seconds on any device."""


def num_elements(shapes: Sequence[Shape]) -> int | None:
    """Return the number of elements of some tensors together; None if unknown, or more than memory has.

    >>> num_elements([(4, 128), (128,)]), num_elements([(-1, 128)]), num_elements([(10**16,)])
    (640, None, None)
    """
    if any(len(shape) > MOST_DIMS for shape in shapes):
        return None
    num = sum(map(math.prod, shapes))
    return num if 0 <= num < MOST_WORK else None


def item_bytes(dtype: str | None) -> int | None:
    """Return the bytes of one element; None for an unknown dtype."""
    return ITEM_BYTES.get(dtype or "")


class Work(NamedTuple):
    """What an operator computes and moves."""

    flops: int
    bytes: int | None
    """None if a dtype is unknown."""


def _inputs_of(shapes: str, dtypes: str | None, attributes: str | None) -> Inputs:
    return Inputs(
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
    formula, name = formula_of(operator)
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
    except (UnknownError, msgspec.DecodeError, TypeError, IndexError, ZeroDivisionError):
        return None
    if operator_of_gradient(operator) is None:
        return Work(flops, inputs.num_bytes(result, True, 0))
    num_gradients = inputs.attributes.get(NUM_GRADIENTS)
    if not isinstance(num_gradients, int) or num_gradients < 0:
        return None
    if formula is EMBEDDING:
        tokens, weight = inputs.shape(0, "Ids"), inputs.shape(1, "W")
        result = [*tokens, *weight[1:]]
    elif name in LOSSES:
        result = inputs.shape(1)
    is_read = formula not in (movement, EMBEDDING) and name not in _SUMS
    return Work(
        _gradient_flops(formula, flops, num_gradients),
        inputs.num_bytes(result, is_read, num_gradients),
    )


def work_of_operators(events: pl.DataFrame) -> pl.DataFrame:
    """Return the work of each event that has shapes.

    Returns:
        row (of ``events``), flops int64, bytes int64; null where unknown. FLOPs or bytes from
        `MOST_WORK` on are null.
    """
    texts = pl.col("name", "shapes", "dtypes", "attributes").cast(pl.String)
    if not events["shapes"].count():
        events = events.clear()  # a filter of a million rows is slow, even if it keeps none
    with_shapes = events.select("name", "shapes", "dtypes", "attributes").with_row_index("row")
    with_shapes = with_shapes.filter(pl.col("shapes").is_not_null())
    with_shapes = with_shapes.with_columns(texts, pl.col("row").cast(pl.Int32))
    key = ["name", "shapes", "dtypes", "attributes"]
    kinds = with_shapes.select(key).unique(maintain_order=True)
    works = [
        work_of(name.partition(" ")[0], *inputs) or (None, None) for name, *inputs in kinds.rows()
    ]
    bounded = [[None if n is None or n >= MOST_WORK else n for n in work] for work in works]
    schema = {"flops": pl.Int64(), "bytes": pl.Int64()}
    kinds = kinds.hstack(pl.DataFrame(bounded, schema, orient="row"))
    return with_shapes.join(kinds, on=key, nulls_equal=True, maintain_order="left").drop(key)


@once
def work_of_profile(profile: Profile) -> pl.DataFrame:
    """Return `work_of_operators` of the rank's own events, which is computed once."""
    return work_of_operators(profile.trace.events)


_SUMS = frozenset(("add", "subtract", "scale", "sum", "mean", "mean_all", "elementwise_add"))
"""Operators whose gradient does not depend on their inputs, beside those that only move data."""


def _gradient_flops(formula: Formula, flops: int, num_gradients: int) -> int:
    if is_attention(formula):
        return flops * 5 // 2
    # Each is a product, but that of a bias, which is a sum. Of two with a bias, which two is unknown: those of the
    # input and the weight are two products, and those of a first layer's weight and bias one. They count as two.
    return flops * min(num_gradients, 2)


class Product(NamedTuple):
    """A matrix product: ``batch`` times (m, k) @ (k, n)."""

    batch: int
    m: int
    n: int
    k: int


def product_of(operator: str, shapes: str, attributes: str | None) -> Product | None:
    """Return the matrix product that an operator computes, or whose gradients it computes.

    None for other operators, and for a product with a number from `MOST_WORK` on. A batch that is
    multiplied with one matrix counts as one product.

    >>> product_of("matmul", '{"X0":[[4,16,8]],"X1":[[8,32]]}', None)
    Product(batch=1, m=64, n=32, k=8)
    """
    formula, _ = formula_of(operator)
    if formula not in PRODUCTS:
        return None
    try:
        inputs = _inputs_of(shapes, None, attributes)
        x, y = PRODUCTS[formula](inputs)
        if len(x) < 2 or len(y) < 2 or max(len(x), len(y)) > MOST_DIMS or min(*x, *y) < 0:
            return None
        if len(y) == 2:
            product = Product(1, math.prod(x[:-1]), y[-1], x[-1])
        else:
            product = Product(math.prod(broadcast([x[:-2], y[:-2]])), x[-2], y[-1], x[-1])
        return product if max(product) < MOST_WORK else None
    except (UnknownError, msgspec.DecodeError, TypeError, IndexError, ValueError):
        return None


_POINTWISE = frozenset(
    (
        *("relu", "leaky_relu", "relu6", "silu", "abs", "square", "scale", "pow", "clip", "sqrt"),
        *("rsqrt", "exp", "log", "tanh", "sigmoid", "gelu", "swiglu", "dropout", "cast"),
        *("layer_norm", "rms_norm", "fused_rms_norm", "softmax"),
        *("neg", "clamp_min", "native_layer_norm", "_softmax"),
    )
)

FAMILIES = ("product", "attention", "pointwise", "norm", "update", "other")
"""Families of operators: products and convolutions; attention; operators on each element; norms,
softmax and reductions; updates of parameters; the rest."""


_UPDATES = frozenset(
    (
        *("adamw", "adam", "fused_adam", "nadam", "radam", "adamax", "adadelta", "adagrad"),
        *("sgd", "asgd", "momentum", "lamb", "lars_momentum", "rmsprop", "rprop"),
    )
)
"""Operators of Paddle that update one parameter, without the underscore at the end."""


def family_of(name: str) -> str:
    """Return the family of an operator, or of the operator of a gradient (``matmul_grad``).

    >>> family_of("matmul_grad"), family_of("layer_norm"), family_of("aten::add")
    ('product', 'norm', 'pointwise')
    """
    formula, listed = formula_of(name.removesuffix("_grad"))
    if formula in PRODUCTS or formula in CONVOLUTIONS:
        return "product"
    if is_attention(formula) or listed.startswith("_flash_attention"):
        return "attention"
    if listed in _UPDATES:
        return "update"
    if formula is reduction or "norm" in listed or "softmax" in listed:
        return "norm"
    return "pointwise" if is_pointwise(listed) or formula is elementwise else "other"


def is_pointwise(operator: str) -> bool:
    """Return whether an operator passes over its input once, so that it can be fused with another.

    >>> is_pointwise("gelu"), is_pointwise("layer_norm"), is_pointwise("matmul")
    (True, True, False)
    """
    formula, name = formula_of(operator)
    return formula is elementwise or name in _POINTWISE
