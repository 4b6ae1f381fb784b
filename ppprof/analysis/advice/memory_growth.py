"""Memory that grows step after step: allocations of each step that are never freed."""

from __future__ import annotations

import numpy as np
import polars as pl

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import call_lines

KEPT = {
    "step": pl.Int64,
    "name": pl.String,
    "holder": pl.String,
    "has_graphs": pl.Boolean,
    "num": pl.Int64,
    "bytes": pl.Int64,
    "chain": pl.String,
}
"""Columns of `kept_memory`."""
LAST_STEPS = 2
"""Steps at the end of a window whose allocations may be freed soon: queues of batches, results."""
_NO_OPERATOR = "outside operators"


def kept_memory(profile: Profile) -> pl.DataFrame:
    """Return what each step of a window has allocated that is not freed until the window's end.

    ::

        step         |0          |1          |2          |3
        allocations   aaa  bbbbbbbbbbbbbbbbbb   ccc  ddddddddd        b and d are kept, d in step 2,
                                                                      which is one of the last two
    Returns:
        One row per step and name, also of steps that keep nothing (null name, 0 bytes): step; name
        (``matmul, train.py:9: hidden = net(batch)``); holder (the container that has these tensors,
        ``losses, train.py (list)``; null if it is unknown); has_graphs (whether its tensors have graphs of
        gradients); num and bytes, 0 in a bounded container: once it is full, it grows no more. What the step
        frees from before the window is taken off: a ring that is full frees as much as it keeps; chain, the same
        in all rows (a tensor whose graph of gradients reaches back over all steps,
        ``total_loss, main() of train.py``; null without one). The last `LAST_STEPS` steps have no rows.
    """
    memory, events = profile.trace.memory, profile.trace.events
    steps = events["step"].drop_nulls().unique().sort()
    steps = steps.head(max(0, len(steps) - LAST_STEPS))
    changes = memory.filter(pl.col("kind").is_in(["Allocate", "Free"])).sort("time_ns")
    is_last = pl.col("time_ns").cum_count(reverse=True).over("place", "addr") == 1
    kept = changes.filter(is_last & (pl.col("kind") == "Allocate") & (pl.col("bytes") > 0))
    kept = kept.filter(pl.col("event").is_not_null())
    is_first = pl.col("time_ns").cum_count().over("place", "addr") == 1
    earlier = changes.filter(is_first & (pl.col("kind") == "Free") & pl.col("event").is_not_null())
    event = kept["event"].cast(pl.Int64)
    tree = profile.tree
    operator = tree.innermost(np.flatnonzero(tree.is_outermost_operator))[event.to_numpy()]
    stacks = events["callstack"]
    rows = np.unique(operator)
    lines = call_lines(profile, stacks.gather(rows[rows >= 0]))
    names = {row: _name(profile, lines.get(stacks[row], ""), row) for row in rows.tolist()}
    found = [] if profile.trace.stacks is None else [*reversed(profile.trace.stacks.holders)]
    holders = {address: each.name for each in found for address in each.addresses}
    with_graphs = [each.name for each in found if each.has_graphs]
    bounded = [address for each in found if each.is_bounded for address in each.addresses]
    table = kept.select(
        bytes=pl.when(pl.col("addr").is_in(bounded)).then(0).otherwise("bytes"),
        holder=pl.col("addr").replace_strict(holders, default=None, return_dtype=pl.String),
        step=events["step"].gather(event),
        name=pl.Series([names[row] for row in operator.tolist()], dtype=pl.String),
    )
    freed = _freed_each_step(steps, events["step"].gather(earlier["event"]), earlier["bytes"])
    sums = table.join(freed, "step", "left")
    sums = sums.with_columns(left_ratio=1 - pl.col("freed") / pl.col("bytes").sum().over("step"))
    sums = (
        sums.with_columns(pl.col("bytes") * pl.col("left_ratio").clip(0).fill_nan(0).fill_null(1))
        .group_by("step", "name", "holder")
        .agg(num=pl.len().cast(pl.Int64), bytes=pl.col("bytes").sum().round().cast(pl.Int64))
        .with_columns(has_graphs=pl.col("holder").is_in(with_graphs).fill_null(value=False))
    )
    every = pl.DataFrame({"step": steps}, {"step": pl.Int64})
    chain = next((each.name for each in reversed(found) if each.is_chain), None)
    filled = every.join(sums, "step", "left").with_columns(
        pl.col("num", "bytes").fill_null(0), pl.col("has_graphs").fill_null(value=False)
    )
    filled = filled.with_columns(chain=pl.lit(chain, pl.String))
    return filled.select(*KEPT).cast(KEPT).sort("step", "name")  # type: ignore[arg-type]


def _freed_each_step(steps: pl.Series, step: pl.Series, num_bytes: pl.Series) -> pl.DataFrame:
    """Return the bytes from before the window that each step frees; the first step also frees what the one before it had used."""
    rows = pl.DataFrame({"step": step, "freed": num_bytes.abs()})
    sums = (
        pl.DataFrame({"step": steps})
        .join(rows, "step", "left")
        .group_by("step")
        .agg(pl.col("freed").sum())
        .sort("step")
    )
    later = sums["freed"].slice(1).max() or 0
    return sums.with_columns(pl.col("freed").clip(upper_bound=pl.lit(later)))


def _name(profile: Profile, line: str, row: int) -> str:
    """Return the name of an operator and the line that calls it, if that is known."""
    if row < 0:
        return _NO_OPERATOR
    name = str(profile.tree.hosts["name"][row]).removesuffix(" dygraph")
    return f"{name}, {line}" if line else name
