"""Operators that compute in a wider dtype than the model: float64, or products in float32 under AMP."""

from __future__ import annotations

import polars as pl

from ppprof.analysis.efficiency.operator_formulas import ITEM_BYTES
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import call_lines
from ppprof.trace.labels import map_texts
from ppprof.trace.operator_inputs import dtypes_in, operator_of_gradient

_FLOATS = ("float64", "float32", "bfloat16", "float16")
"""The widest first."""
_PRODUCTS = frozenset(
    ("matmul", "linear", "fused_gemm_epilogue", "bmm", "conv2d", "conv3d", "einsum", "addmm", "mm")
)
_USUAL = 0.25
"""Share of the calls of products from which a dtype is the model's. The time says nothing: a wide dtype takes longer."""
WIDE = {
    **{"step": pl.Int64, "name": pl.String, "dtype": pl.String, "usual": pl.String},
    **{"calls": pl.Int64, "time_ns": pl.Int64, "saved_ns": pl.Int64},
}
"""Columns of `wide_dtypes`."""


def wide_dtypes(profile: Profile) -> pl.DataFrame:
    """Return the operators in a wider dtype than the model's, by the line at which they begin.

    ::

        operators   matmul  multiply  tanh  add  cast  matmul
        dtype       32      32 and 64 64    64   64    32
        belongs to          ------------------------          the line that calls multiply

    The model's dtype is the narrowest one that a quarter of the matrix products have. Of operators in float32 under a narrower
    one, only products count: `auto_cast` computes losses and norms in float32 on purpose.

    Returns:
        One row per step and line: step; name (``train.py:10, forward(): x = x * scale``; without call
        stacks, the operator's name); dtype, the wide one; usual, the model's; calls; time_ns, with
        gradients; saved_ns, the part of it that moving fewer bytes would save. No rows if shapes were
        not recorded.
    """
    tree, trace = profile.tree, profile.trace
    columns = trace.events.select("step", "dtypes", "callstack", "forward").slice(
        0, tree.hosts.height
    )
    hosts = tree.hosts.select(
        *("row", "thread", "start_ns"), pl.col("name").cast(pl.String), time_ns=tree.time_column
    )
    operators = hosts.with_columns(columns).filter(tree.is_outermost_operator)
    operators = operators.with_columns(
        dtype=map_texts(operators["dtypes"], _widest),
        function=map_texts(operators["name"], _function),
        is_gradient=pl.col("name").str.ends_with(" dygraph").not_(),
    ).drop_nulls("step")
    products = operators.filter(pl.col("function").is_in(_PRODUCTS)).drop_nulls("dtype")
    if products.is_empty():
        return pl.DataFrame(schema=WIDE)
    calls = products["dtype"].value_counts(name="calls")
    common = calls.filter(pl.col("calls") >= _USUAL * pl.col("calls").sum())["dtype"]
    usual = next(dtype for dtype in reversed(_FLOATS) if dtype in common)
    wider = [dtype for dtype in _FLOATS if ITEM_BYTES[dtype] > ITEM_BYTES[usual]]
    is_wide = pl.col("dtype").is_in(wider) & (
        (pl.col("dtype") == "float64") | pl.col("function").is_in(_PRODUCTS)
    )
    forward = operators.filter(~pl.col("is_gradient")).sort("thread", "start_ns")
    forward = forward.with_columns(is_wide=is_wide.fill_null(value=False))
    before = pl.col("is_wide").shift(1).over("thread").fill_null(value=False)
    # Behind a cast to the wide dtype, the line of the cast is where it begins.
    cast = pl.col("function").shift(1).over("thread") == "cast"
    line = pl.when(cast).then(pl.col("callstack").shift(1).over("thread")).otherwise("callstack")
    begins = pl.col("is_wide") & ~before
    names = call_lines(profile, forward["callstack"])
    named = line.cast(pl.String).replace_strict(names, default=None, return_dtype=pl.String)
    name = pl.when(begins).then(named.fill_null(pl.col("function")))
    forward = forward.with_columns(begin=name.forward_fill().over("thread")).filter("is_wide")
    both = pl.concat(
        [forward.select("step", "begin", "dtype", "time_ns"), _gradients(operators, forward)]
    )
    part = {dtype: 1 - ITEM_BYTES[usual] / ITEM_BYTES[dtype] for dtype in wider}
    saved = pl.col("time_ns") * pl.col("dtype").replace_strict(
        part, default=0.0, return_dtype=pl.Float64
    )
    rows = both.group_by("step", name="begin", dtype="dtype").agg(
        usual=pl.lit(usual),
        calls=pl.len().cast(pl.Int64),
        time_ns=pl.col("time_ns").sum(),
        saved_ns=saved.sum().round().cast(pl.Int64),
    )
    return rows.select(*WIDE).sort("step", "name")


def _gradients(operators: pl.DataFrame, forward: pl.DataFrame) -> pl.DataFrame:
    """Return the gradients of wide operators: step, begin, dtype, time_ns."""
    of = forward.select("begin", "dtype", forward=pl.col("row").cast(pl.Int64))
    found = operators.filter("is_gradient").select(
        "step", "time_ns", forward=pl.col("forward").cast(pl.Int64)
    )
    return found.join(of, on="forward").select("step", "begin", "dtype", "time_ns")


def _widest(text: str) -> str | None:
    """Return the widest floating-point dtype in a text of the column ``dtypes``."""
    found = dtypes_in(text)
    return next((dtype for dtype in _FLOATS if dtype in found), None)


def _function(name: str) -> str:
    """Return the operator that an event calls, or computes the gradient of."""
    return operator_of_gradient(name) or name.removesuffix(" dygraph")
