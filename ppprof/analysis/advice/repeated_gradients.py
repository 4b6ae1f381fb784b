"""Gradients that a step computes a second time, since two losses have a graph in common."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl

from ppprof.analysis.profile.intervals import contains, together
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import sampled_steps, samples_by_line

_REPEATED = {"step": pl.Int64(), "name": pl.String(), "time_ns": pl.Int64()}
UNKNOWN = "Backward"
"""Stands for the line where it is unknown."""
_ACCUMULATION = "GradNodeAccumulation"


def repeated_gradients(profile: Profile) -> pl.DataFrame:
    """Return the gradients that a Backward computes again.

    ::

        Backward   loss_a.backward(retain_graph=True)   head a | trunk
        Backward   loss_b.backward()                    head b | trunk    the trunk once more

    Recording knows the operator of a gradient node when it first runs only. So a node is one that runs
    again if its operator is unknown, nodes of its name are all known in the Backward just before, with no
    layer and no update in between, and operators of other nodes of its own Backward are known.

    Returns:
        A row for each node that runs again: step, name (the line that most samples of these Backwards
        are in; `UNKNOWN` without samples) and time_ns, device time if the trace has device events.
    """
    tree, events = profile.tree, profile.trace.events
    hosts = tree.hosts
    is_node = (hosts["category"] == "Operator") & hosts["name"].cast(pl.String).str.starts_with(
        "Global_"
    )
    nodes = hosts.filter(is_node).select(
        *("thread", "start_ns"),
        name=pl.col("name").cast(pl.String),
        time_ns="cpu_ns" if tree.devices.is_empty() else "device_ns",
        step=events["step"].gather(hosts.filter(is_node)["row"]),
        is_known=events["forward"].gather(hosts.filter(is_node)["row"]).is_not_null(),
    )
    nodes = nodes.filter(~pl.col("name").str.contains(_ACCUMULATION)).sort("thread", "start_ns")
    phases = profile.outermost.filter(
        pl.col("category").is_in(["Forward", "Backward", "Optimization"])
    ).sort("thread", "start_ns")
    follows = (pl.col("category") == "Backward") & (pl.col("category").shift() == "Backward")
    follows &= pl.col("thread") == pl.col("thread").shift()
    pairs = phases.with_columns(
        before_ns=pl.col("start_ns").shift(), before_end_ns=pl.col("end_ns").shift()
    ).filter(follows)
    again = [pl.DataFrame(schema=_REPEATED)]
    starts, ends = [], []
    by_thread = {
        thread: (own["start_ns"].to_numpy(), own)
        for (thread,), own in nodes.partition_by("thread", as_dict=True).items()
    }
    for thread, *times in pairs.select(
        "thread", "before_ns", "before_end_ns", "start_ns", "end_ns"
    ).iter_rows():
        if thread not in by_thread:
            continue
        node_ns, own = by_thread[thread]
        rows = np.searchsorted(node_ns, times).tolist()
        first, second = own[rows[0] : rows[1]], own[rows[2] : rows[3]]
        unknown = second.filter(~pl.col("is_known"))
        if not 0 < unknown.height < second.height:
            continue
        known = Counter(first.filter(pl.col("is_known").all().over("name"))["name"])
        nth = pl.int_range(pl.len()).over("name")
        most = pl.col("name").replace_strict(known, default=0, return_dtype=pl.Int64)
        repeated = unknown.filter(nth < most)
        if repeated.height:
            again.append(repeated.select(*_REPEATED))
            starts.append(times[2])
            ends.append(times[3])
    found = pl.concat(again).drop_nulls("step")
    return found.with_columns(name=pl.lit(_line(profile, starts, ends) or UNKNOWN))


def _line(profile: Profile, starts: list[int], ends: list[int]) -> str | None:
    """Return the line of most samples of threads with steps in some stretches of time."""
    sampled = sampled_steps(profile)
    if sampled is None or not starts:
        return None
    samples = samples_by_line(sampled).filter("is_step").drop_nulls("name")
    stretches = together((np.array(starts), np.array(ends)))
    is_in = contains(stretches, samples["time_ns"].to_numpy())
    lines = samples.filter(pl.Series(is_in)).group_by("name").agg(pl.col("dur_ns").sum())
    return lines.sort("dur_ns", "name", descending=[True, False])["name"].first()  # type: ignore[return-value]
