"""The time of each step outside all modules, at the place where it occurs."""

from __future__ import annotations

import numpy as np
import polars as pl

from ppprof.analysis.modules.module_tree import MODULES, OCCURRENCE, module_mask, module_names
from ppprof.analysis.profile.profile import Profile
from ppprof.arrays import Bool, Int64

UNKNOWN = "(unknown)"
"""The name of a gap: the time of a step before, between or after its outermost modules."""


def gaps(profile: Profile, step: pl.Series) -> pl.DataFrame:
    r"""Return the time of one rank's steps outside all modules, one row per step and gap.

    ::

        ProfileStep#3  ###################################
          GPT             ##########
          Backward                     ############
                       ---          ---            -------    three gaps

    Args:
        profile: a window.
        step: the step of each event of the trace.

    Returns:
        Columns of `ppprof.analysis.modules.module_tree.MODULES`, without gaps of no time.

        - path: `UNKNOWN` and the module behind the gap, ``(unknown)\x1eGPT\x1e0``, so that the
          gaps before one module are one node in all steps; ``(unknown)\x1e`` for the last gap;
        - self_ns and time_ns: gpu_ns if anything is launched in the step, else cpu_ns. Their sum
          over a step's gaps is the self_ns of the step in
          `ppprof.analysis.modules.module_tree.modules`;
        - cpu_ns: the duration. It is negative if modules on one thread overlap in a damaged trace;
        - gpu_ns: the time of kernels, copies and sets launched in the gap.
    """
    tree, hosts = profile.tree, profile.tree.hosts
    is_module = module_mask(profile, step)
    is_step = (hosts["category"] == "ProfileStep").to_numpy() & is_module
    above = tree.enclosing(is_module)
    steps = np.flatnonzero(is_step)
    inner = np.flatnonzero(is_module & (above >= 0) & is_step[above])
    start_ns, end_ns = hosts["start_ns"].to_numpy(), hosts["end_ns"].to_numpy()
    table = pl.DataFrame(
        {
            "owner": np.concatenate([above[inner], steps]),
            "row": np.concatenate([inner, np.full(len(steps), len(is_step))]),
            "name": [*module_names(hosts[inner]), *[""] * len(steps)],
            "end_ns": np.concatenate([start_ns[inner], end_ns[steps]]),
            "next_ns": np.concatenate([end_ns[inner], end_ns[steps]]),
        },
        schema_overrides={"name": pl.String},
    ).sort("owner", "row")
    owner = table["owner"].to_numpy()
    table = table.with_columns(
        step=step.gather(owner),
        step_ns=pl.Series(start_ns[owner]),
        has_launches=pl.Series(hosts["device_ns"].to_numpy()[owner] > 0),
    ).with_columns(
        start_ns=pl.coalesce(pl.col("next_ns").shift(1).over("owner"), "step_ns"),
        number=pl.int_range(pl.len()).over("step", "name"),
        begin_ns=pl.col("step_ns").min().over("step"),
    )
    is_last = pl.col("name") == ""
    behind = pl.concat_str("name", pl.lit(OCCURRENCE), "number")
    return (
        table.with_columns(
            path=pl.concat_str(
                pl.lit(UNKNOWN + OCCURRENCE), pl.when(is_last).then(pl.lit("")).otherwise(behind)
            ),
            cpu_ns=pl.col("end_ns") - pl.col("start_ns"),
            gpu_ns=pl.Series(_launched_ns(profile, is_step, is_module, table)),
        )
        .with_columns(
            start_ns=pl.col("start_ns") - pl.col("begin_ns"),
            self_ns=pl.when("has_launches").then("gpu_ns").otherwise("cpu_ns"),
        )
        .filter((pl.col("cpu_ns") != 0) | (pl.col("gpu_ns") != 0))
        .with_columns(time_ns="self_ns")
        .select(pl.col(name).cast(dtype) for name, dtype in MODULES.items())
    )


def _launched_ns(profile: Profile, is_step: Bool, is_module: Bool, table: pl.DataFrame) -> Int64:
    """Return the time of the device events that are launched in each gap."""
    events, hosts = profile.trace.events, profile.tree.hosts
    launched = events.select(launch="parent", dur_ns="dur_ns", device="device").filter(
        pl.col("device").is_not_null() & (pl.col("launch") >= hosts.height)
    )
    host = events["parent"].gather(launched["launch"])
    launched = launched.with_columns(host=host, at_ns=events["start_ns"].gather(launched["launch"]))
    launched = launched.drop_nulls("host")
    node = profile.tree.innermost(np.flatnonzero(is_module))[launched["host"].to_numpy()]
    in_gap = (node >= 0) & is_step[node]
    owner, at_ns = node[in_gap], launched["at_ns"].to_numpy()[in_gap]
    # In the order of steps and times, a launch follows the start of its gap.
    owners = np.concatenate([table["owner"].to_numpy(), owner])
    times = np.concatenate([table["start_ns"].to_numpy(), at_ns])
    is_launch = np.arange(len(owners)) >= table.height
    order = np.lexsort((is_launch, times, owners))
    gap = np.empty(len(owners), np.int64)
    gap[order] = np.cumsum(~is_launch[order]) - 1
    first = np.searchsorted(table["owner"].to_numpy(), owner)
    result = np.zeros(table.height, np.int64)
    launched_ns = launched["dur_ns"].to_numpy()[in_gap]
    np.add.at(result, np.maximum(gap[table.height :], first), launched_ns)
    return result
