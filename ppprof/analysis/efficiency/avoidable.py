"""Passes over memory that a change of the code would save: fusible operators, a wide vocabulary, unused rows."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from ppprof.analysis.efficiency.efficiency import operator_work
from ppprof.analysis.efficiency.operator_formulas import LOSSES
from ppprof.analysis.efficiency.operator_work import (
    Product,
    family_of,
    is_pointwise,
    item_bytes,
    num_elements,
    product_of,
    work_of_profile,
)
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_calls import python_calls
from ppprof.trace.labels import map_texts
from ppprof.trace.operator_inputs import (
    Shape,
    attributes_of,
    dtype_as_shown,
    shapes_as_shown,
    shapes_by_input,
)

CHAINS = {"step": pl.Int64(), "name": pl.String(), "time_ns": pl.Int64(), "saved_ns": pl.Float64()}


def fusible_chains(profile: Profile, others: Sequence[int] = ()) -> pl.DataFrame:
    """Return the chains of operators of the forward passes that one kernel could replace.

    ::

        add          read x, y   write a
        gelu                     read a    write b          fused: read x, y, write c
        dropout                            read b   write c

    A chain is two or more operators in a row on a thread, with no other one between them, whose
    first inputs have the same number of elements, and each of which passes over them once. The same
    operator twice in a row rather computes on two tensors, as in a loop over parameters.

    Args:
        profile: the window.
        others: rows of operators that are in no chain.

    Returns:
        A row per chain: step; name (``add + gelu + dropout [8,1024,4096]``); time_ns (device time);
        saved_ns, the share of it that the bytes have that are written by one operator and read by
        the next. No rows in a trace without device events.
    """
    if profile.tree.devices.is_empty():
        return pl.DataFrame(schema=CHAINS)
    calls = python_calls(profile).filter(~pl.col("in_optimization"))
    calls = calls.join(work_of_profile(profile), "row", "left", maintain_order="left")
    if calls["bytes"].count() < 2:
        return pl.DataFrame(schema=CHAINS)
    calls = calls.with_columns(
        pl.col("shapes").cast(pl.String),
        item_bytes=map_texts(
            calls["dtypes"], lambda text: item_bytes(dtype_as_shown(text)), pl.Int64
        ),
        size=map_texts(calls["shapes"], _size, pl.Int64),
        fits=map_texts(calls["name"], is_pointwise, pl.Boolean)
        & (pl.col("time_ns") > 0)
        & pl.col("bytes").is_not_null()
        & ~pl.col("row").is_in(list(others)),
    )
    key = pl.struct("thread", "step", "size", "fits")
    begins = (key != key.shift(1)) | (pl.col("name") == pl.col("name").shift(1))
    calls = calls.with_columns(chain=begins.fill_null(True).cum_sum())
    chains = (
        calls.filter(pl.col("fits") & pl.col("size").is_not_null() & pl.col("step").is_not_null())
        .group_by("chain", maintain_order=True)
        .agg(
            pl.col("step").first(),
            pl.col("name"),
            pl.col("shapes").first(),
            pl.col("time_ns", "bytes").sum(),
            pl.col("size", "item_bytes").first(),
            length=pl.len(),
        )
        .filter(pl.col("length") > 1)
    )
    shown = {text: shapes_as_shown(text).split(" ")[0] for text in chains["shapes"].unique()}
    first = pl.col("shapes").replace_strict(shown, return_dtype=pl.String)
    # Each result but the last one is written, and read again.
    share = 2 * (pl.col("length") - 1) * pl.col("size") * pl.col("item_bytes") / pl.col("bytes")
    return chains.select(
        "step",
        name=pl.concat_str(pl.col("name").list.join(" + "), pl.lit(" "), first),
        time_ns="time_ns",
        saved_ns=pl.col("time_ns") * share.clip(0, 1),
    ).cast(CHAINS)  # type: ignore[arg-type]


def _size(shapes: str) -> int | None:
    """Return the number of elements of the first tensor; None if unknown, or more than memory has."""
    tensors = next(iter((shapes_by_input(shapes) or {}).values()), [])
    return num_elements(tensors[:1]) if tensors else None


THIN = {"step": pl.Int64(), "time_ns": pl.Int64()}
"""Columns of `thin_products`."""

_MOST_THIN = 4
"""Rows. A product of twice as many computes 4 operations for each byte of float32 that it reads: no
processor is that slow: it waits for memory."""


def thin_products(profile: Profile) -> pl.DataFrame:
    """Return the products of so few rows that they take as long with twice as many, and their gradients.

    ::

        matmul [1,1024] [1024,4096]     reads 4 M weights for one row

    Returns:
        step and time_ns of each, the share of it that its weights have of the bytes. No rows in a trace
        with device events: there, `ppprof.analysis.advice.products` compares products with the peak.
    """
    if not profile.tree.devices.is_empty():
        return pl.DataFrame(schema=THIN)
    calls = profile.trace.events.select("step", "shapes", "attributes")
    work = operator_work(profile).drop_nulls("shapes")
    work = work.filter(pl.col("name").is_in(_products_in(work["name"])))
    rows = work.select("row", "time_ns", "name").hstack(calls[work["row"]].cast(pl.String))
    kinds = rows.select("name", "shapes", "attributes").unique()
    shares = [
        _share_of_weights(product_of(name.removesuffix("_grad"), *rest))
        for name, *rest in kinds.rows()
    ]
    kinds = kinds.with_columns(share=pl.Series(shares, dtype=pl.Float64))
    rows = rows.join(kinds, ["name", "shapes", "attributes"], nulls_equal=True)
    thin = rows.drop_nulls("share").with_columns(pl.col("time_ns") * pl.col("share"))
    return thin.select(pl.col(name).cast(dtype) for name, dtype in THIN.items()).drop_nulls()


def _products_in(names: pl.Series) -> list[str]:
    return [name for name in names.unique() if family_of(name) == "product"]


def _share_of_weights(product: Product | None) -> float | None:
    """Return the share of a matrix of weights in the elements of a product; None if it has many rows."""
    if product is None or product.batch > 1 or not 0 < product.m <= _MOST_THIN:
        return None
    weights = product.k * product.n
    return weights / (weights + product.m * (product.k + product.n))


VOCABULARY = {"step": pl.Int64(), "name": pl.String(), "time_ns": pl.Int64()}
"""Columns of `vocabulary_work`."""

LEAST_WORDS = 8192
"""Fewer classes are no vocabulary."""
LEAST_CLASSES = 1024
"""With fewer classes, the product of a ``one_hot`` may be as fast as a lookup."""

_SHAPE = re.compile(r"\[([0-9]{1,18}(?:,[0-9]{1,18})*)\]")
_Kinds = dict[str, tuple[str, list[Shape]]]


def vocabulary_work(profile: Profile, others: pl.Series | None = None) -> pl.DataFrame:
    """Return the operators on logits, such as the loss.

    Logits are what a cross entropy gets; other operators pass over them if the last dim of their
    first input is as long. Gradients count like their operators, matrix products, and what computes on
    their weights, not at all: updates, clipping, casts.

    Args:
        profile: the window.
        others: rows of operators that have other findings.

    Returns:
        A row for each call, columns of `VOCABULARY`. The name has the shapes:
        ``cross_entropy_with_softmax_grad [1024,50304] [1024,1]``. time_ns is as in
        `ppprof.analysis.efficiency.efficiency.efficiency`.
    """
    calls = _calls(profile)
    kinds = _kinds(calls)
    words = {shapes[0][-1] for name, shapes in kinds.values() if name in LOSSES and shapes}
    words = {size for size in words if size >= LEAST_WORDS}
    products = [shapes for name, shapes in kinds.values() if family_of(name) == "product"]
    weights = {shape for shapes in products for shape in shapes[1:2]}
    wide = [
        kind
        for kind, (name, shapes) in kinds.items()
        if shapes and shapes[0][-1] in words
        # Logits may have the shape of the weights: as many tokens as the hidden size.
        if name in LOSSES or shapes[0] not in weights
        if family_of(name) not in ("product", "update")
    ]
    found = calls.filter(pl.col("name").is_in(wide))
    if others is not None:
        found = found.filter(~pl.col("row").is_in(others.implode()))
    return found.select(*VOCABULARY).cast(VOCABULARY)  # type: ignore[arg-type]


UNUSED_ROWS = {
    **VOCABULARY,
    **dict.fromkeys(("saved_ns", "table_saved_ns", "row"), pl.Int64()),
    **dict.fromkeys(("is_lookup", "is_update", "is_sparse"), pl.Boolean()),
}
"""Columns of `unused_rows`."""

_UPDATE_ROWS = ("sgd", "adagrad", "fused_adam")
"""Updates that write only the rows of a sparse gradient; those of Adam do with ``lazy_mode``, others never. The last one
has several parameters, none of which has a sparse gradient."""


def unused_rows(profile: Profile) -> pl.DataFrame:
    """Return the operators on all rows of an embedding's table.

    ::

        embedding       [256,10] [60000,32]      reads 2560 rows at most
        embedding_grad  [256,10] [60000,32]      writes all rows
        adam_           [60000,32] [60000,32]    updates all rows; 57440 of them do not occur
        clear_grad      [60000,32]               fills all rows of the gradient with zeros

    The product of a ``one_hot`` and a table computes on all rows, too. Left out are

    - tables without gradients, and those in another product or gradient, such as that of a shared last
      layer: it has all rows;
    - tables whose gradients are sparse already, but for their updates in all rows nevertheless, in a trace
      without device events: what others take on a device was not measured;
    - products whose first input may be another one than the ``one_hot``: an operator takes its shape;
    - updates of a table of which a step has only gradients: how many steps they add is unknown.

    Returns:
        A row for each call: columns of `VOCABULARY`; saved_ns, the part of time_ns of rows that no
        lookup of the rank takes (of an update, no lookup of the step that has a gradient; of one by a
        sparse gradient, rows that this does not have); table_saved_ns, that of all operators on the table
        in the step; row (of the events); is_lookup (one with a gradient), is_update, is_sparse (an update
        by a sparse gradient, which is no is_update). A row for each gradient of an update that is cleared,
        too: see `_clearing`. Tables of equal shape share the lookups of a step evenly.
    """
    calls = _calls(profile).drop_nulls("step")
    kinds = _kinds(calls)
    lookups = _lookups(kinds)
    others = {kind: each for kind, each in kinds.items() if kind not in lookups}
    tables = {table for kind, (table, _) in lookups.items() if "_grad " in kind}
    of_one_hots = {kind for kind in lookups if not kind.startswith("embedding")}
    sparse: dict[str, Shape] = {}
    for kind, (name, shapes) in others.items():
        if "_grad " in kind or family_of(name) == "product":
            tables -= {shape for each in shapes for shape in (each, each[::-1])}
        # A sparse gradient has fewer rows than the table.
        elif family_of(name) == "update" and len({s for s in shapes if s[1:] == shapes[0][1:]}) > 1:
            sparse[kind] = shapes[0]
    # Of Adam, the attributes say whether it updates all rows: those of the first call stand for all.
    attributes = profile.trace.events["attributes"].gather(calls["row"]).cast(pl.String)
    known = calls.select("name", attributes=attributes).drop_nulls()
    updates = list(sparse) if profile.tree.devices.is_empty() else []
    known = known.filter(pl.col("name").is_in(updates)).unique("name", keep="first")
    in_all_rows = {
        kind: _rows_of_gradient(others[kind][1])
        for kind, text in known.rows()
        if _is_in_all_rows(others[kind][0], attributes_of(text))
    }
    rows: list[tuple[str, Shape, int | None, int, bool]] = []
    for kind, (table, num_ids) in lookups.items():
        is_gradient = "_grad " in kind
        if table in sparse.values() and (is_gradient or kind in of_one_hots):
            continue
        # The operator embedding reads no other rows.
        needed = table[0] if kind.startswith("embedding ") else num_ids
        is_lookup = kind.replace(" ", "_grad ", 1) in lookups
        rows.append((kind, table, needed, num_ids if is_gradient else 0, is_lookup))
    for kind, (name, shapes) in others.items():
        if kind in in_all_rows:
            rows.append((kind, shapes[0], in_all_rows[kind], 0, False))
        elif shapes and family_of(name) == "update" and shapes[0] not in sparse.values():
            rows.append((kind, shapes[0], None, 0, False))
    wide = [
        (kind, str([*table]).replace(" ", ""), table[0], *rest)
        for kind, table, *rest in rows
        if table in tables and table[0] >= (LEAST_CLASSES if kind in of_one_hots else LEAST_WORDS)
    ]
    schema = {
        **dict.fromkeys(("name", "table"), pl.String()),
        **dict.fromkeys(("rows", "needed", "written"), pl.Int64()),
        "is_lookup": pl.Boolean(),
    }
    of_table = "step", "table"
    found = calls.join(pl.DataFrame(wide, schema, orient="row"), on="name").with_columns(
        is_update=pl.col("needed").is_null(),
        is_sparse=pl.col("name").is_in(list(in_all_rows)),
        updates=pl.col("needed").is_null().sum().over(of_table),
    )
    are_known = (pl.col("updates") > 0).all().over("table")
    updated = pl.col("written").sum().over(of_table) / pl.col("updates")
    needed_rows = pl.coalesce("needed", pl.when(are_known).then(updated).otherwise("rows"))
    found = found.with_columns(unused=(1 - needed_rows / pl.col("rows")).clip(0, 1))
    found = pl.concat([found, _clearing(profile, calls, kinds, found.filter("is_update"))])
    found = found.with_columns(saved_ns=(pl.col("time_ns") * pl.col("unused")).round())
    # The number of rows of a sparse gradient is another one in each step.
    operator = pl.format("{} {}", pl.col("name").str.extract(r"^(\S+)"), "table")
    found = found.with_columns(
        name=pl.when("is_sparse").then(operator).otherwise("name"),
        table_saved_ns=pl.col("saved_ns").sum().over(of_table),
    )
    return found.select(*UNUSED_ROWS).cast(UNUSED_ROWS)  # type: ignore[arg-type]


def _rows_of_gradient(shapes: Sequence[Shape]) -> int:
    """Return the rows of a sparse gradient: the input of an update that has fewer than the table, the first one."""
    table = shapes[0]
    return min(shape[0] for shape in shapes if shape[1:] == table[1:])


def _is_in_all_rows(update: str, attributes: Mapping[str, Any]) -> bool:
    """Return whether an update by a sparse gradient writes all rows of the table."""
    if update == "adam":  # the first of its switches is `lazy_mode`
        return not next((value for value in attributes.values() if isinstance(value, bool)), True)
    return update not in _UPDATE_ROWS


def _clearing(
    profile: Profile, calls: pl.DataFrame, kinds: _Kinds, updates: pl.DataFrame
) -> pl.DataFrame:
    """Return the clearing of gradients as rows like those of the updates, which it has no events of.

    A gradient takes as much of the time in which its step clears gradients as its size is of all
    parameters that the step updates. No rows in a trace with device events, since a host only launches
    the work.
    """
    stacks = profile.trace.stacks
    if stacks is None or updates.is_empty() or not profile.tree.devices.is_empty():
        return updates.clear()
    steps = profile.tree.hosts.filter(pl.col("category") == "ProfileStep")
    step = profile.trace.events["step"].gather(steps["row"])
    steps = steps.select("thread", "start_ns", step=step).sort("start_ns")
    thread, end_ns, clear_ns, *_ = stacks.clears.T
    clears = pl.DataFrame({"thread": thread, "end_ns": end_ns, "clear_ns": clear_ns}).sort("end_ns")
    clears = clears.join_asof(
        steps, left_on="end_ns", right_on="start_ns", by="thread", check_sortedness=False
    )
    sizes = {
        kind: math.prod(shapes[0])
        for kind, (name, shapes) in kinds.items()
        if shapes and family_of(name) == "update"
    }
    size = pl.col("name").replace_strict(sizes, return_dtype=pl.Float64)
    whole = calls.filter(pl.col("name").is_in(list(sizes))).group_by("step")
    share = size / pl.col("whole") * pl.col("clear_ns")
    return (
        updates.join(whole.agg(whole=size.sum()), "step")
        .join(clears.group_by("step").agg(pl.col("clear_ns").sum()), "step")
        .with_columns(
            time_ns=share.round().cast(pl.Int64),
            row=pl.lit(None, updates.schema["row"]),
            name=pl.format("clear_grad {}", pl.col("table")),
        )
        .select(updates.columns)
    )


def _lookups(kinds: _Kinds) -> dict[str, tuple[Shape, int]]:
    """Return name -> table and number of ids of lookups, their gradients and their ``one_hot``."""
    one_hots = {
        shapes[0]: kind for kind, (name, shapes) in kinds.items() if name == "one_hot" and shapes
    }
    lookups = {}
    for kind, each in kinds.items():
        name, shapes = each
        if len(shapes) < 2:
            continue
        first, table = shapes[:2]
        if name == "embedding":
            lookups[kind] = table, math.prod(first)
        elif first[:-1] in one_hots and first[-1] == table[0] and family_of(name) == "product":
            takers = [(taker, its) for taker, its in kinds.items() if first in its[1]]
            if all(its == each or taker.startswith("cast ") for taker, its in takers):
                lookups[kind] = lookups[one_hots[first[:-1]]] = table, math.prod(first[:-1])
    return lookups


def _calls(profile: Profile) -> pl.DataFrame:
    """Return step, name with the shapes, time_ns and row of the operators with known shapes."""
    calls = operator_work(profile).drop_nulls("shapes")
    step = profile.trace.events["step"].gather(calls["row"])
    return calls.select(step.alias("step"), pl.format("{} {}", "name", "shapes"), "time_ns", "row")


def _kinds(calls: pl.DataFrame) -> _Kinds:
    """Return names of `_calls` -> the operator, of a gradient that which it belongs to, and its shapes."""
    kinds = {}
    for kind in calls["name"].unique(maintain_order=True).to_list():
        name, _, text = kind.partition(" ")
        shapes = [tuple(map(int, shape.split(","))) for shape in _SHAPE.findall(text)]
        kinds[kind] = name.removesuffix("_grad").rstrip("_"), shapes
    return kinds
