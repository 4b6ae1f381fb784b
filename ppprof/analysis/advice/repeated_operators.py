"""Calls of layers, and operators in functions of the user's code, that compute again what the step has computed before."""

from __future__ import annotations

import polars as pl

from ppprof.analysis.profile.profile import Profile, once
from ppprof.trace.operator_inputs import REPEATED


@once
def repeated_events(profile: Profile) -> pl.DataFrame:
    """Return the host events of layers, and of outermost operators, that have the attribute `REPEATED`, also beside the training.

    Returns:
        Columns of ``Tree.hosts``: row, thread, start_ns, end_ns.
    """
    tree = profile.tree
    hosts = tree.hosts.with_columns(
        attributes=profile.trace.events["attributes"].slice(0, tree.hosts.height).cast(pl.String)
    )
    is_repeated = pl.col("attributes").str.contains(f'"{REPEATED}":', literal=True)
    is_outermost = (pl.col("category") != "Operator") | pl.Series(tree.is_outermost_operator)
    return hosts.filter(is_outermost & is_repeated).select("row", "thread", "start_ns", "end_ns")
