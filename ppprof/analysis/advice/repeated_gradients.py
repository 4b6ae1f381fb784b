"""Gradients that a step computes a second time, since two losses have a graph in common."""

from __future__ import annotations

import polars as pl

from ppprof.analysis.profile.grouping import intervals_of
from ppprof.analysis.profile.intervals import Intervals, contains, together
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import sampled_steps, samples_by_line

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
        A row for each node that runs again: row (of the host events), step, name (the line that most samples of
        these Backwards are in; `UNKNOWN` without samples) and time_ns, device time if the trace has device events.
    """
    tree, events = profile.tree, profile.trace.events
    hosts = tree.hosts
    is_node = (hosts["category"] == "Operator") & hosts["name"].cast(pl.String).str.starts_with(
        "Global_"
    )
    nodes = hosts.filter(is_node).select(
        *("row", "thread", "start_ns"),
        time_ns=tree.time_column,
        step=events["step"].gather(hosts.filter(is_node)["row"]),
        forward=events["forward"].gather(hosts.filter(is_node)["row"]),
    )
    nodes = nodes.drop_nulls("forward").sort("start_ns")
    phases = profile.outermost.filter(
        pl.col("category").is_in(["Forward", "Backward", "Optimization"])
    ).sort("thread", "start_ns")
    follows = (pl.col("category") == "Backward") & (pl.col("category").shift() == "Backward")
    follows &= pl.col("thread") == pl.col("thread").shift()
    phases = phases.select(
        "thread", "start_ns", "end_ns", phase=pl.int_range(pl.len()), follows=follows
    )
    nodes = nodes.join_asof(
        phases.sort("start_ns"), on="start_ns", by="thread", check_sortedness=False
    )
    nodes = nodes.filter(pl.col("start_ns") < pl.col("end_ns")).sort("phase", "start_ns")
    earlier = nodes.select("forward", phase=pl.col("phase") + 1)
    again = nodes.filter("follows").join(
        earlier, ["phase", "forward"], "semi", maintain_order="left"
    )
    stretches = intervals_of(phases.join(again, "phase", "semi"))
    name = pl.lit(_line(profile, stretches) or UNKNOWN)
    return again.drop_nulls("step").select("row", "step", "time_ns", name=name)


def _line(profile: Profile, stretches: Intervals) -> str | None:
    """Return the line of most samples of threads with steps in some stretches of time."""
    sampled = sampled_steps(profile)
    if sampled is None or not len(stretches[0]):
        return None
    samples = samples_by_line(sampled).filter("is_step").drop_nulls("name")
    is_in = contains(together(stretches), samples["time_ns"].to_numpy())
    lines = samples.filter(pl.Series(is_in)).group_by("name").agg(pl.col("dur_ns").sum())
    return lines.sort("dur_ns", "name", descending=[True, False])["name"].first()  # type: ignore[return-value]
