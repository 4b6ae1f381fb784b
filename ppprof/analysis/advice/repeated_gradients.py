"""Gradients that a step computes a second time, since two losses have a graph in common."""

from __future__ import annotations

import numpy as np
import polars as pl

from ppprof.analysis.profile.intervals import contains, together
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import sampled_steps, samples_by_line

_REPEATED = {"step": pl.Int64(), "time_ns": pl.Int64()}
UNKNOWN = "Backward"
"""Stands for the line where it is unknown."""


def repeated_gradients(profile: Profile) -> pl.DataFrame:
    """Return the gradients that a Backward computes again.

    ::

        Backward   loss_a.backward(retain_graph=True)   head a | trunk
        Backward   loss_b.backward()                    head b | trunk    the trunk once more

    A node is one that runs again if a node of the same operator runs in the Backward just before, with no
    layer and no update in between. Nodes of unknown operators do not count: their graph may be another one.

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
        time_ns="cpu_ns" if tree.devices.is_empty() else "device_ns",
        step=events["step"].gather(hosts.filter(is_node)["row"]),
        forward=events["forward"].gather(hosts.filter(is_node)["row"]),
    )
    nodes = nodes.drop_nulls("forward").sort("thread", "start_ns")
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
        repeated = second.join(first, "forward", "semi", maintain_order="left")
        if repeated.height:
            again.append(repeated.select("step", "time_ns"))
            starts.append(times[2])
            ends.append(times[3])
    name = pl.lit(_line(profile, starts, ends) or UNKNOWN)
    return pl.concat(again).drop_nulls("step").select("step", "time_ns", name=name)


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
