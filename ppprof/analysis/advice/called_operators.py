"""The operators that a training calls outside its optimizer, each with the time of its gradient."""

from __future__ import annotations

import polars as pl

from ppprof.analysis.profile.profile import Profile, once
from ppprof.analysis.profile.python_calls import python_calls
from ppprof.trace.labels import map_texts
from ppprof.trace.operator_inputs import NUM_GRADIENTS, OF_ONE_LEAF, attributes_of

CALLED = {
    **dict.fromkeys(("step", "thread"), pl.Int64()),
    "name": pl.String(),
    **dict.fromkeys(("shapes", "attributes", "callstack"), pl.String()),
    **dict.fromkeys(("row", "start_ns", "time_ns"), pl.Int64()),
    **dict.fromkeys(("gradient_row", "gradient_start_ns", "gradient_ns"), pl.Int64()),
    **dict.fromkeys(("summed_gradient_ns", "num_gradients"), pl.Int64()),
    **dict.fromkeys(("is_of_one_leaf", "in_layer", "in_backward"), pl.Boolean()),
}
"""Columns of `called_operators`."""


@once
def called_operators(profile: Profile) -> pl.DataFrame:
    """Return the operators that steps call from Python outside an Optimization, with their gradients.

    ::

        matmul dygraph               time_ns
        Global_MatmulGradNode        summed_gradient_ns, with sums of gradients of one tensor
          Local_MatmulGradNode       gradient_ns

    Returns:
        A row for each call, sorted by step, thread and start: columns of `CALLED`. name is ``matmul``; shapes
        and attributes are as recorded, null if unknown; row is that of ``tree.hosts``. The columns of the
        gradient are null without a known one; gradient_row is that of the Global node, num_gradients for
        how many inputs it is, and is_of_one_leaf whether all of these are one parameter. Times are
        device time if the trace has device events.
    """
    tree = profile.tree
    events = profile.trace.events.select("attributes", "forward").slice(0, tree.hosts.height)
    hosts = tree.hosts.select(
        *("start_ns", "category"),
        row=pl.col("row").cast(pl.Int64),
        name=pl.col("name").cast(pl.String),
        parent=pl.col("parent").cast(pl.Int64),
        time_ns=pl.col(tree.time_column).cast(pl.Int64),
    ).with_columns(events)
    local = hosts.filter(pl.col("name").str.starts_with("Local_")).drop_nulls("parent")
    local = local.group_by(gradient_row="parent").agg(local_ns=pl.col("time_ns").sum())
    linked = hosts.filter(pl.col("forward").is_not_null(), pl.col("category") == "Operator")
    gradients = linked.select(
        row=pl.col("forward").cast(pl.Int64),
        gradient_row="row",
        gradient_start_ns="start_ns",
        summed_gradient_ns="time_ns",
        num_gradients=map_texts(linked["attributes"], _num_gradients, pl.Int64),
        is_of_one_leaf=map_texts(linked["attributes"], _is_of_one_leaf, pl.Boolean),
    ).unique("row", keep="first", maintain_order=True)
    gradients = gradients.join(local, "gradient_row", "left").with_columns(
        gradient_ns=pl.coalesce("local_ns", "summed_gradient_ns")
    )
    called = python_calls(profile).filter("is_outermost", ~pl.col("in_optimization"))
    called = called.drop_nulls("step").with_columns(
        pl.col("row").cast(pl.Int64), pl.col("name").str.strip_suffix("_")
    )
    called = called.join(gradients, "row", "left").sort("step", "thread", "start_ns")
    return called.select(pl.col(name).cast(dtype) for name, dtype in CALLED.items())


def _num_gradients(attributes: str) -> int | None:
    """Return the attribute ``gradients`` of a gradient."""
    found = attributes_of(attributes).get(NUM_GRADIENTS)
    return found if isinstance(found, int) else None


def _is_of_one_leaf(attributes: str) -> bool:
    """Return the attribute ``of_one_leaf`` of a gradient."""
    return attributes_of(attributes).get(OF_ONE_LEAF) is True
