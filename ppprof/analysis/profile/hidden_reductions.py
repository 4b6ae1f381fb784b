"""The gradient all-reduces of ``paddle.DataParallel``, which record no event on a CPU.

Its reducer runs in C++, as a hook of the last gradient of each group of parameters. It copies the
group into one tensor, divides that by the number of ranks, and reduces it over gloo::

    Global_GradNodeAccumulation      ############################
      empty kernel launch             #
      scale kernel launch                ##
    (the all-reduce, no event)             #####################

Only the reducer divides inside such a node without an operator of its own around the division. If
several groups are ready, one node reduces them one after another.

Source: EagerReducer::FusedAllReduceSchedule, paddle/fluid/distributed/collective/reducer.cc.
"""

from __future__ import annotations

import polars as pl

from ppprof.analysis.profile.event_tree import Tree
from ppprof.analysis.profile.grouping import matching

DATA_PARALLEL = "DataParallel"
"""Name of these all-reduces."""
DATA_PARALLEL_AXIS = "dp"
"""Their axis."""

_NODE = r"(^|_)gradnodeaccumulation$"
"""In lower case, as `matching` compares."""
_DIVISION = r"^scale (kernel launch|compute)$"
"""The kernel that divides, in Paddle 3 and in Paddle 2."""


def hidden_reductions(tree: Tree) -> pl.DataFrame:
    """Return the gradient all-reduces that no event shows.

    The times include the wait for the slowest rank, and the copies back into the gradients.

    Returns:
        row (of the node in ``tree.hosts``), start_ns, end_ns; sorted by row and start. Each begins
        where a division ends and ends where the next event of the node begins, or the node ends. No
        rows for a trace with device events, in which the all-reduces are kernels.
    """
    hosts = tree.hosts
    if not tree.devices.is_empty():
        return pl.DataFrame(schema=dict.fromkeys(("row", "start_ns", "end_ns"), pl.Int64))
    is_division = matching(hosts["name"], _DIVISION)
    is_node = (pl.col("category") == "Operator") & matching(hosts["name"], _NODE)
    nodes = hosts.filter(is_node).select("row", until_ns="end_ns")
    inside = (
        hosts.select("start_ns", "end_ns", row="parent", is_division=is_division)
        .join(nodes, on="row")
        .sort("row", "start_ns")
    )
    next_ns = pl.col("start_ns").shift(-1).over("row")
    until_ns = pl.min_horizontal(pl.coalesce(next_ns, "until_ns"), "until_ns")
    return (
        inside.with_columns(start_ns="end_ns", end_ns=until_ns)
        .filter(pl.col("is_division") & (pl.col("start_ns") < pl.col("end_ns")))
        .select(pl.col("row", "start_ns", "end_ns").cast(pl.Int64))
    )
