"""FLOPs and rates of each module, forward and backward."""

from __future__ import annotations

import numpy as np
import polars as pl

from ppprof.analysis.efficiency.operator_work import work_of_profile
from ppprof.analysis.efficiency.roof import roof_of
from ppprof.analysis.modules.module_tree import OCCURRENCE, PHASES, SEPARATOR, modules
from ppprof.analysis.profile.profile import Profile
from ppprof.arrays import Int64

LAYERS: dict[str, pl.DataType] = {
    "depth": pl.Int64(),
    "name": pl.String(),
    "steps": pl.Int64(),
    "forward_ns": pl.Float64(),
    "backward_ns": pl.Float64(),
    "flops": pl.Float64(),
    "backward_flops": pl.Float64(),
    "flops_per_s": pl.Float64(),
    "mfu": pl.Float64(),
}


def layers(profile: Profile) -> pl.DataFrame:
    """Return the modules of a step in the order in which they run, with their FLOPs and rates.

    A module is an ``nn.Layer``, or a span of the user; see `ppprof.analysis.modules.module_tree`.
    The second ``Block`` of a ``GPT`` is one row for all steps.

    Returns:
        depth (0 for an outermost module); name; steps (number of steps that have it); per step, with
        all modules below: forward_ns, backward_ns, flops of the forward, and backward_flops. Times
        are those of the device if the module launches work on it, else of the CPU. FLOPs are those
        of the operators whose work is known; gradients are those that are known to belong to the
        module, and backward_ns and backward_flops are null if none is. flops_per_s of both
        together, and mfu, its share of the device's peak for bf16 and fp16, or for float32 if no
        operator computes in one of these; null if that is unknown. Empty if the trace lacks the
        events of its device.
    """
    if profile.unrecorded_device:
        return pl.DataFrame(schema=LAYERS)
    events, hosts = profile.trace.events, profile.tree.hosts
    work = work_of_profile(profile).drop_nulls("flops")
    work = work.filter(pl.col("row") < hosts.height)
    flops = np.zeros(hosts.height, np.int64)
    flops[work["row"].to_numpy()] = _without_nested(profile, work)
    step = events["step"]
    if not profile.steps:
        step = pl.Series("step", np.zeros(len(step), np.int64))
    table = modules(profile, step, flops=flops)
    last = pl.col("path").str.split(SEPARATOR)
    is_backward = pl.col("path").str.starts_with(f"Backward{OCCURRENCE}")
    is_phase = last.list.first().str.split(OCCURRENCE).list.first().is_in(PHASES)
    table = table.filter(pl.col("path") != "")
    forward = table.filter(~is_phase)
    # The gradients of a module: the path of the Backward, then that of the module.
    backward = table.filter(is_backward & last.list.len().gt(1)).with_columns(
        path=last.list.slice(1).list.join(SEPARATOR)
    )
    sums = [pl.col("time_ns").sum(), pl.col("flops").sum(), pl.col("step").n_unique()]
    of_forward = forward.group_by("path", maintain_order=True).agg(*sums)
    of_backward = backward.group_by("path").agg(*sums[:2])
    rows = of_forward.join(of_backward, "path", "left", suffix="_of_backward")
    name = last.list.last().str.split(OCCURRENCE).list.first()
    whole = pl.sum_horizontal
    rows = rows.with_columns(
        depth=last.list.len().cast(pl.Int64) - 1,
        name=name,
        steps=pl.col("step").cast(pl.Int64),
        forward_ns=pl.col("time_ns") / pl.col("step"),
        backward_ns=pl.col("time_ns_of_backward") / pl.col("step"),
        flops_per_s=whole("flops", "flops_of_backward")
        * 1e9
        / whole("time_ns", "time_ns_of_backward"),
        flops=pl.col("flops") / pl.col("step"),
        backward_flops=pl.col("flops_of_backward") / pl.col("step"),
    )
    peak = _peak(profile)
    rows = rows.with_columns(
        pl.when(pl.col("flops_per_s").is_finite()).then("flops_per_s"),
    ).with_columns(mfu=pl.col("flops_per_s") / pl.lit(peak, pl.Float64))
    return rows.select(pl.col(column).cast(dtype) for column, dtype in LAYERS.items())


def _without_nested(profile: Profile, work: pl.DataFrame) -> Int64:
    """Return the FLOPs of each operator, 0 for one that lies in another one with known FLOPs."""
    rows = work["row"].to_numpy()
    known = np.zeros(profile.tree.hosts.height, bool)
    known[rows] = True
    is_nested = profile.tree.enclosing(known)[rows] >= 0
    flops: Int64 = np.where(is_nested, 0, work["flops"].to_numpy())
    return flops


def _peak(profile: Profile) -> float | None:
    """Return the peak FLOP/s for bf16 or fp16 if an operator computes in it, else for float32."""
    roof = roof_of(profile.trace)
    dtypes = profile.trace.events["dtypes"].drop_nulls().unique().cast(pl.String)
    for dtype in ("bfloat16", "float16"):
        if dtypes.str.contains(f'"{dtype}"').any():
            return roof.flops(dtype)
    return roof.flops("float32")
