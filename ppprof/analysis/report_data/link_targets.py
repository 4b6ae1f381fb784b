"""Where in a trace an operator, a module, a collective... takes longest: what the links of a page lead to."""

from __future__ import annotations

import numpy as np
import polars as pl

from ppprof.analysis.advice.unexplained import host_time
from ppprof.analysis.diff.costs import name_collectives
from ppprof.analysis.diff.naming import Naming
from ppprof.analysis.efficiency.efficiency import operator_work
from ppprof.analysis.profile.module_tree import module_nodes
from ppprof.analysis.profile.profile import PHASES, Profile
from ppprof.analysis.ranks.rank_communication import communication_events
from ppprof.analysis.ranks.step_breakdown import Breakdown
from ppprof.analysis.report_data.memory_timeline import Memory
from ppprof.arrays import Int64
from ppprof.trace.schema import is_kernel

TARGETS = {
    "kind": pl.String,
    "name": pl.String,
    "event": pl.String,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "cpu_ns": pl.Int64,
    "gpu_ns": pl.Int64,
}
"""Columns of `longest_events`. ``kind``: step, phase, module, operator, shape, kernel, collective,
remote, gap or peak. ``name``: as in the page's tables: the number of a step, the category of a
phase, the path of a module, the place of a peak. ``event``: the event's recorded name, "" for a gap.
``cpu_ns``: the longest duration of such an event on the host, null for device events. ``gpu_ns``:
the most device time of such an event, null without device events."""


def longest_events(profile: Profile, naming: Naming, parts: Breakdown) -> pl.DataFrame:
    """Return the longest event of each operator, kernel, module, phase and step of one rank.

    ::

        matmul   ====   ======  =        one row: matmul, the second call

    An operator's longest event has the most device time, or without device events takes longest.
    Operators, kernels and collectives outside steps do not count, as in the tables that lead here.

    Returns:
        Columns of `TARGETS`, one row per kind and name, on the rank's own clock.
    """
    tree, hosts = profile.tree, profile.tree.hosts
    names, category = hosts["name"].cast(pl.String), hosts["category"]
    in_steps = profile.step.slice(0, hosts.height).is_not_null()
    operators = np.flatnonzero(((category == "Operator") & in_steps).to_numpy())
    phases = np.flatnonzero(category.is_in(PHASES).to_numpy())
    remote = np.flatnonzero(names.str.starts_with("rpc#").to_numpy())
    nodes = module_nodes(profile).filter(pl.col("path") != "")
    recorded = pl.col("name").cast(pl.String)
    steps = tree.of_category("ProfileStep").with_columns(
        event=recorded, name=recorded.str.extract(r"#(\d+)$")
    )
    is_in_step = profile.step.gather(tree.device_rows).is_not_null()
    kernels = tree.devices.filter(is_kernel() & is_in_step).with_columns(event="name")
    collectives = communication_events(profile).drop_nulls("step").with_columns(event="name")
    tables = [
        _of_hosts(profile, "operator", operators, naming.apply(hosts["name"].gather(operators))),
        _of_hosts(profile, "phase", phases, category.gather(phases).cast(pl.String)),
        _of_hosts(profile, "remote", remote, names.gather(remote)),
        _of_hosts(profile, "module", nodes["row"].to_numpy(), nodes["path"]),
        _of_times("step", steps).drop_nulls("name"),
        _of_times("kernel", kernels.with_columns(name=naming.apply(kernels["name"])), "gpu_ns"),
        _of_times("collective", collectives.with_columns(name=name_collectives())),
    ]
    if profile.trace.events["shapes"].count():
        shapes = operator_work(profile).drop_nulls("shapes")
        named = shapes.select(pl.concat_str("name", pl.lit(" "), "shapes")).to_series()
        tables.append(_of_hosts(profile, "shape", shapes["row"].to_numpy(), named))
    if not profile.unrecorded_device:
        gaps = host_time(profile, parts.bubbles).gaps
        tables.append(_of_times("gap", gaps.with_columns(event=pl.lit(""))))
    return pl.concat([pl.DataFrame(schema=TARGETS), *map(_longest, tables)])


def peak_targets(memory: Memory) -> pl.DataFrame:
    """Return the moment of the peak of each place, as rows of `TARGETS` of kind peak."""
    rows = [
        ("peak", peak.place, peak.event or "", peak.time_ns, peak.time_ns, None, None)
        for peak in memory.peaks
    ]
    return pl.DataFrame(rows, TARGETS, orient="row")


def _longest(events: pl.DataFrame) -> pl.DataFrame:
    """Return the event with the most time of each kind and name, with the maxima of all events.

    Of events with equal times, the first.
    """
    time_ns = pl.when(pl.col("gpu_ns").fill_null(0).sum() > 0).then("gpu_ns").otherwise("cpu_ns")
    time_ns = pl.coalesce(time_ns, pl.col("end_ns") - pl.col("start_ns"))
    columns = [pl.col(name).get(time_ns.arg_max()) for name in ("event", "start_ns", "end_ns")]
    longest = (
        events.sort("start_ns")
        .group_by("kind", "name", maintain_order=True)
        .agg(*columns, pl.col("cpu_ns", "gpu_ns").max())
    )
    return longest.select(pl.col(name).cast(dtype) for name, dtype in TARGETS.items())


def _of_hosts(profile: Profile, kind: str, rows: Int64, names: pl.Series) -> pl.DataFrame:
    """Return these rows of the host events as rows of `TARGETS`, one per event."""
    table = profile.tree.hosts[rows]
    has_device = not profile.tree.devices.is_empty()
    return table.select(
        pl.lit(kind).alias("kind"),
        pl.lit(names).alias("name"),
        pl.col("name").cast(pl.String).alias("event"),
        "start_ns",
        "end_ns",
        "cpu_ns",
        gpu_ns=pl.col("device_ns") if has_device else pl.lit(None, pl.Int64),
    )


def _of_times(kind: str, events: pl.DataFrame, clock: str = "cpu_ns") -> pl.DataFrame:
    """Return events as rows of `TARGETS`, one per event."""
    other = "gpu_ns" if clock == "cpu_ns" else "cpu_ns"
    table = events.select(
        pl.lit(kind).alias("kind"),
        pl.col("name", "event").cast(pl.String),
        "start_ns",
        "end_ns",
        (pl.col("end_ns") - pl.col("start_ns")).alias(clock),
        pl.lit(None, pl.Int64).alias(other),
    )
    return table.select(*TARGETS)
