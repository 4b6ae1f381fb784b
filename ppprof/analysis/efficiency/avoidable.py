"""Passes over memory that a change of the code would save: fusible operators, a wide vocabulary."""

from __future__ import annotations

import math
import re

import msgspec
import polars as pl

from ppprof.analysis.efficiency.efficiency import operator_work
from ppprof.analysis.efficiency.operator_formulas import LOSSES, MOST_DIMS
from ppprof.analysis.efficiency.operator_work import (
    MOST_WORK,
    family_of,
    is_pointwise,
    item_bytes,
    work_of_profile,
)
from ppprof.analysis.profile.profile import Profile
from ppprof.trace.operator_inputs import dtype_as_shown, shapes_as_shown

CHAINS = {"step": pl.Int64(), "name": pl.String(), "time_ns": pl.Int64(), "saved_ns": pl.Float64()}


def fusible_chains(profile: Profile) -> pl.DataFrame:
    """Return the chains of operators of the forward passes that one kernel could replace.

    ::

        add          read x, y   write a
        gelu                     read a    write b          fused: read x, y, write c
        dropout                            read b   write c

    A chain is two or more operators in a row on a thread, with no other one between them, whose
    first inputs have the same number of elements, and each of which passes over them once.

    Returns:
        A row per chain: step; name (``add + gelu + dropout [8,1024,4096]``); time_ns (device time);
        saved_ns, the share of it that the bytes have that are written by one operator and read by
        the next. No rows in a trace without device events.
    """
    tree = profile.tree
    if tree.devices.is_empty():
        return pl.DataFrame(schema=CHAINS)
    events = profile.trace.events
    hosts = tree.hosts.filter(pl.col("category") == "Operator").select(
        "row", "thread", pl.col("name").cast(pl.String), time_ns="device_ns"
    )
    calls = hosts.filter(pl.col("name").str.ends_with(" dygraph")).join(
        work_of_profile(profile), on="row", how="left", maintain_order="left"
    )
    calls = calls.with_columns(
        pl.col("name").str.strip_suffix(" dygraph"),
        step=events["step"].gather(calls["row"]),
        shapes=events["shapes"].gather(calls["row"]).cast(pl.String),
    ).sort("thread", "row")
    if calls["bytes"].count() < 2:
        return pl.DataFrame(schema=CHAINS)
    names = {name: is_pointwise(name) for name in calls["name"].unique()}
    dtypes = events["dtypes"].gather(calls["row"]).cast(pl.String)
    items = {text: item_bytes(dtype_as_shown(text)) for text in dtypes.drop_nulls().unique()}
    sizes = {text: _size(text) for text in calls["shapes"].drop_nulls().unique()}
    calls = calls.with_columns(
        item_bytes=dtypes.replace_strict(items, default=None, return_dtype=pl.Int64),
        size=pl.col("shapes").replace_strict(sizes, default=None, return_dtype=pl.Int64),
        fits=pl.col("name").replace_strict(names, return_dtype=pl.Boolean)
        & (pl.col("time_ns") > 0)
        & pl.col("bytes").is_not_null(),
    )
    key = pl.struct("thread", "step", "size", "fits")
    calls = calls.with_columns(chain=(key != key.shift(1)).fill_null(True).cum_sum())
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
    try:
        tensors = next(iter(msgspec.json.decode(shapes, type=dict[str, list[list[int]]]).values()))
    except (msgspec.DecodeError, StopIteration):
        return None
    if not tensors or len(tensors[0]) > MOST_DIMS:
        return None
    size = math.prod(tensors[0])
    return size if 0 <= size < MOST_WORK else None


VOCABULARY = {"step": pl.Int64(), "name": pl.String(), "time_ns": pl.Int64()}
"""Columns of `vocabulary_work`."""

LEAST_WORDS = 8192
"""Fewer classes are no vocabulary."""

_TABLES = {"embedding": 1, "c_embedding": 0}
"""Operator -> index of its table among the inputs."""
_SHAPE = re.compile(r"\[([0-9]{1,18}(?:,[0-9]{1,18})*)\]")


def vocabulary_work(profile: Profile) -> pl.DataFrame:
    """Return the operators on logits, such as the loss, and those on the embedding's table.

    Logits are what a cross entropy gets; other operators pass over them if the last dim of their
    first input is as long. Gradients count like their operators, matrix products not at all.

    Returns:
        A row for each call, columns of `VOCABULARY`. The name has the shapes:
        ``cross_entropy_with_softmax_grad [1024,50304] [1024,1]``. time_ns is as in
        `ppprof.analysis.efficiency.efficiency.efficiency`.
    """
    calls = operator_work(profile).drop_nulls("shapes")
    kinds = calls.select("name", "shapes").unique(maintain_order=True)
    inputs = [[_sizes(shape) for shape in _SHAPE.findall(text)] for text in kinds["shapes"]]
    operators = [name.removesuffix("_grad").rstrip("_") for name in kinds["name"]]
    words = {shapes[0][-1] for name, shapes in zip(operators, inputs) if name in LOSSES and shapes}
    words = {size for size in words if size >= LEAST_WORDS}
    is_wide = [
        _rows_of_table(name, shapes) >= LEAST_WORDS
        or (bool(shapes) and shapes[0][-1] in words and family_of(name) != "product")
        for name, shapes in zip(operators, inputs)
    ]
    wide = calls.join(kinds.filter(pl.Series(is_wide, dtype=pl.Boolean)), on=["name", "shapes"])
    step = profile.trace.events["step"].gather(wide["row"])
    return wide.select(
        step.alias("step"), pl.format("{} {}", "name", "shapes").alias("name"), "time_ns"
    ).cast(VOCABULARY)  # type: ignore[arg-type]


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]


def _rows_of_table(operator: str, shapes: list[list[int]]) -> int:
    """Return the number of rows of an embedding's table; 0 for another operator."""
    index = _TABLES.get(operator)
    return shapes[index][0] if index is not None and index < len(shapes) else 0
