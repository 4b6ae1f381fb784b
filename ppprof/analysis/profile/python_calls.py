"""The operators that Python calls: Paddle records them as ``matmul dygraph``, and others without the suffix."""

from __future__ import annotations

import polars as pl

from ppprof.analysis.profile.profile import Profile, once

_SUFFIX = " dygraph"
_PHASES = {"in_layer": "Forward", "in_backward": "Backward", "in_optimization": "Optimization"}


@once
def python_calls(profile: Profile) -> pl.DataFrame:
    """Return the operators that Python calls.

    Returns:
        A row for each call, sorted by thread and row: row (of ``tree.hosts``), thread, start_ns; name (``matmul``,
        ``add_``); time_ns, that of `Tree.time_column`; is_outermost, whether no other operator contains it; in_layer,
        in_backward and in_optimization, whether it lies below such a phase, at any depth; step, null outside of
        steps; shapes, dtypes, attributes and callstack, as recorded, null if unknown.
    """
    tree, events = profile.tree, profile.tree.events
    rows = events.host_rows("Operator")
    rows = rows[events.names.take(rows).where(lambda name: name.endswith(_SUFFIX))]
    hosts = tree.hosts_at(rows, "row", "thread", "start_ns", "name", tree.time_column)
    calls = hosts.rename({tree.time_column: "time_ns"}).with_columns(
        pl.col("name").cast(pl.String).str.strip_suffix(_SUFFIX),
        is_outermost=tree.is_outermost_operator[rows],
        **{column: tree.below(events.host_rows(phase))[rows] for column, phase in _PHASES.items()},
    )
    inputs = events.events.select("step", "shapes", "dtypes", "attributes", "callstack")
    return calls.hstack(inputs[rows]).sort("thread", "row")
