"""Time in which operators compute nothing: casts, and copies of inputs whose elements do not lie side by side.

``transpose``, ``slice`` and ``expand`` return views. Most kernels take elements side by side, so Paddle
copies a view ahead of each of them. On a device, the copy is a kernel. On a host, nothing records it
but the operator, which takes longer than what is in it::

    relu of a view     |-- own ------|infer_meta| kernel launch |
    relu               |own|infer_meta| kernel launch |
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from ppprof.analysis.profile.event_tree import Tree
from ppprof.analysis.profile.profile import Profile
from ppprof.arrays import Array, Int64
from ppprof.trace.labels import map_texts
from ppprof.trace.operator_inputs import operator_of_gradient, shapes_as_shown

COPIES = {"step": pl.Int64(), "name": pl.String(), "time_ns": pl.Int64(), "row": pl.Int64()}
"""Columns of `strided_inputs` and `casts`."""

TIMES_USUAL = 5
"""How many times longer than the usual own time that of operators with a view has to be."""

_COPYING = re.compile(r"\bContiguous\w*Func")
"""In the names of Paddle's kernels that copy a view ahead of others, such as ``phi::ContiguousCaseOneFunc``."""
_OF_TORCH = "aten::contiguous"
_SUM = "GradNodeAccumulation"
_CASTS = frozenset(("cast", "cast_", "cast_grad", "pd_op.cast"))
_VIEWS = frozenset(
    [
        "transpose",
        "slice",
        "strided_slice",
        "split",
        "split_with_num",
        "unbind",
        "expand",
        "diagonal",
        "tensor_unfold",
    ]
)


def strided_inputs(profile: Profile) -> pl.DataFrame:
    """Return the operators and gradients that first copy a view, and the time of the copies.

    On a host, it is the own time of an operator above the usual one, the median of all operators. So
    is not the copy of a small view. For torch, it is the time of ``aten::contiguous``. Operators of one name and shape count if the median of theirs is
    at least `TIMES_USUAL` times the usual one: a single one may have lost its processor.

    Returns:
        A row for each call: step; name, with the shapes, as ``relu [8,32,32,16]`` and, of a gradient,
        ``relu_grad [8,32,32,16]``; time_ns; row, that of the operator in the trace. No rows if no
        operator returns a view.
    """
    tree = profile.tree
    operators = tree.events.host_rows("Operator")
    names = tree.events.names.take(operators)
    if (is_copy := names.is_one_of(_OF_TORCH)).any():
        time_ns = tree.hosts[tree.time_column].to_numpy()
        rows = operators[is_copy]
        return _named(profile, rows, time_ns[rows])
    if not names.where(lambda name: name.removesuffix(" dygraph") in _VIEWS).any():
        return pl.DataFrame(schema=COPIES)
    if not tree.devices.is_empty():
        return _named(profile, *_copying_kernels(tree))
    calls = _named(profile, *_own_times(tree, operators))
    usual_ns = pl.col("time_ns").median()
    more_ns = (pl.col("time_ns") - usual_ns).clip(0).round().cast(pl.Int64)
    is_long = usual_ns.over("name") >= TIMES_USUAL * usual_ns
    return calls.with_columns(more_ns, is_long=is_long).filter("is_long").select(*COPIES)


def casts(profile: Profile) -> pl.DataFrame:
    """Return the casts between dtypes, also those of ``auto_cast``, and their gradients, as `strided_inputs` does.

    Casts of float64 are left out, which `ppprof.analysis.advice.wide_dtypes` counts. A gradient has the time of its
    Local node, since the Global one adds up gradients, too; with ``create_graph``, that of the cast in it.
    """
    tree = profile.tree
    rows = tree.events.host_rows("Operator", "OperatorInner")
    is_cast = tree.events.names.take(rows).where(
        lambda name: _operator(name.replace("Local_", "Global_")) in _CASTS
    )
    rows = rows[is_cast]
    innermost, parent = tree.innermost(rows), tree.events.parent
    around = np.where(parent[rows] >= 0, innermost[parent[rows]], -1)
    is_inner = ~np.isin(rows, around)
    named = np.where(around >= 0, around, rows)[is_inner]
    outermost = np.where(parent[named] >= 0, innermost[parent[named]], -1)
    named = np.where(outermost >= 0, outermost, named)
    time_ns = tree.hosts[tree.time_column].to_numpy()
    forward = profile.trace.events["forward"].gather(named).fill_null(-1).to_numpy()
    dtypes = profile.trace.events["dtypes"].gather(np.where(forward >= 0, forward, named))
    is_double = dtypes.cast(pl.String).str.contains("float64").fill_null(value=False).to_numpy()
    return _named(profile, named[~is_double], time_ns[rows[is_inner]][~is_double])


def _own_times(tree: Tree, operators: Int64) -> tuple[Array, Int64]:
    """Return the operators with a kernel launch, and their time outside of what is in them."""
    parent = tree.events.parent[: tree.events.num_hosts]
    own_ns = tree.own("cpu_ns", np.ones(len(parent), bool), parent)
    launching = np.unique(parent[tree.events.host_rows("DygraphKernelLaunch")])
    operator = tree.innermost(operators)[launching]
    # The sum of a parameter's gradients waits for other ranks in it, where DataParallel reduces them.
    is_sum = tree.events.names.take(operator).where(lambda name: _SUM in name)
    is_known = (launching >= 0) & (operator >= 0) & ~is_sum
    return operator[is_known], own_ns[launching[is_known]]


def _copying_kernels(tree: Tree) -> tuple[Array, Int64]:
    """Return the operators that launch kernels which copy views, and the time of each kernel."""
    devices = tree.events.devices
    is_copy = tree.events.names.take(devices).where(lambda name: bool(_COPYING.search(name)))
    operator = tree.innermost(tree.events.host_rows("Operator"))
    host = tree.events.host_of_device
    row = np.where(host >= 0, operator[host], -1)
    chosen = np.flatnonzero(is_copy & (row >= 0))
    return row[chosen], tree.events.dur_ns[devices][chosen]


def _named(profile: Profile, row: Array, time_ns: Int64) -> pl.DataFrame:
    """Return columns of `COPIES`; a gradient has the shapes of its operator."""
    events = profile.trace.events
    forward = events["forward"].gather(row).fill_null(-1).to_numpy()
    shapes = events["shapes"].gather(np.where(forward >= 0, forward, row))
    calls = pl.DataFrame(
        {
            "step": events["step"].gather(row),
            "operator": map_texts(events["name"].gather(row), _operator),
            "shapes": map_texts(shapes, shapes_as_shown),
            "time_ns": time_ns,
            "row": row,
        }
    )
    name = pl.concat_str("operator", "shapes", separator=" ", ignore_nulls=True)
    calls = calls.with_columns(name=name).select(*COPIES)
    return calls.cast(COPIES)  # type: ignore[arg-type]


def _operator(name: str) -> str:
    of_gradient = operator_of_gradient(name)
    return f"{of_gradient}_grad" if of_gradient else name.removesuffix(" dygraph")
