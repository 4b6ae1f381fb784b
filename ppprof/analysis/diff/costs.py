"""What one rank's window costs, by step: the part of it that a comparison of runs is made of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from ppprof.analysis.diff.naming import Naming
from ppprof.analysis.modules.module_tree import has_forward_links, modules
from ppprof.analysis.profile.event_tree import Tree
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.ranks.step_breakdown import Breakdown, breakdown
from ppprof.analysis.summaries.overview import device
from ppprof.arrays import Int64
from ppprof.trace.schema import Trace

OPERATORS = {
    "name": pl.String,
    "step": pl.Int64,
    "calls": pl.Int64,
    "cpu_total_ns": pl.Int64,
    "cpu_self_ns": pl.Int64,
    "gpu_total_ns": pl.Int64,
    "gpu_self_ns": pl.Int64,
}
KERNELS = {"name": pl.String, "step": pl.Int64, "calls": pl.Int64, "gpu_total_ns": pl.Int64}


class Device(NamedTuple):
    """What a window ran on, and how busy and full that was."""

    name: str | None
    """Of the first GPU; None without one."""
    memory_bytes: int | None
    """Of that GPU."""
    gpu_utilization: float | None
    """Time of the steps in which a kernel ran, mean over devices."""
    cpu_utilization: float | None
    """Of the process, of all cores."""
    mean_bytes: float | None
    """Allocated, mean over the time of the window, on the device or else on the host."""
    peak_bytes: int | None
    """Allocated at most, the same."""


class Costs(NamedTuple):
    """One rank's window."""

    breakdown: Breakdown
    operators: pl.DataFrame
    """Columns of `OPERATORS`: see `operator_costs`."""
    kernels: pl.DataFrame
    """Columns of `KERNELS`."""
    modules: pl.DataFrame
    """Columns of `ppprof.analysis.modules.module_tree.MODULES`, gradients attributed to the modules
    whose forward made them."""
    unattributed_modules: pl.DataFrame
    """The same without attribution; the same table where the trace has no forward links."""
    device: Device
    framework: str
    """``paddle`` or ``torch``."""
    has_forward_links: bool
    """Whether gradients are linked to the forward that made them (`module_tree`)."""


def costs(trace: Trace, naming: Naming) -> Costs:
    """Return what a window costs. Events outside steps are left out, where there are steps.

    Args:
        trace: a window.
        naming: the names of operators and kernels.
    """
    return costs_of(Profile(trace), naming)


def costs_of(profile: Profile, naming: Naming) -> Costs:
    """Return the same for a profile that has other uses too."""
    step = profile.trace.events["step"]  # without what ran in remote calls, as its tree
    if not profile.steps:
        step = pl.Series("step", np.zeros(len(step), np.int64))
    is_linked = has_forward_links(profile)
    unattributed = modules(profile, step, attribute_backward=False)
    return Costs(
        breakdown(profile),
        operator_costs(profile, step, naming),
        _kernel_costs(profile, step, naming),
        modules(profile, step) if is_linked else unattributed,
        unattributed,
        _device(profile),
        _framework(profile.trace),
        is_linked,
    )


def operator_costs(profile: Profile, step: pl.Series, naming: Naming) -> pl.DataFrame:
    """Operators by name and step.

    ::

        linear           ##########      10, self 2
          addmm           ########       8: where both are "matmul", that is one call of 10, self 10
            kernel           ====        GPU: 4, of addmm itself

    Args:
        profile: a window.
        step: of each event of the trace.
        naming: names that become one are one operator; one within another is part of it, and so
            is all within a gradient where two frameworks are compared.

    Returns:
        Columns of `OPERATORS`. Total: of the outermost of a name; self: without the operators it
        calls. GPU: kernels, copies and sets launched in it, overlap counted twice.
    """
    hosts = profile.tree.hosts
    is_operator = (hosts["category"] == "Operator").to_numpy()
    is_operator &= ~_is_part(profile.tree, is_operator, naming)
    above = profile.tree.enclosing(is_operator)
    rows = np.flatnonzero(is_operator)
    own = {
        clock: profile.tree.own(column, is_operator, above)[rows]
        for clock, column in (("cpu", "cpu_ns"), ("gpu", "device_ns"))
    }
    cpu_ns, gpu_ns = hosts["cpu_ns"].to_numpy(), hosts["device_ns"].to_numpy()
    names = naming.applied(hosts["name"].gather(rows))
    code = np.full(len(is_operator), -1, np.int64)
    code[rows] = names.cast(pl.Categorical).to_physical().to_numpy()
    outermost = ~_is_within_its_own(above, code, rows)
    table = pl.DataFrame(
        {
            "name": names,
            "step": step.gather(rows),
            "calls": outermost.astype(np.int64),
            "cpu_total_ns": np.where(outermost, cpu_ns[rows], 0),
            "cpu_self_ns": own["cpu"],
            "gpu_total_ns": np.where(outermost, gpu_ns[rows], 0),
            "gpu_self_ns": own["gpu"],
        },
        OPERATORS,
    )
    return table.drop_nulls("step").group_by("name", "step").agg(pl.col(list(OPERATORS)[2:]).sum())


def _is_part(
    tree: Tree, is_operator: npt.NDArray[np.bool_], naming: Naming
) -> npt.NDArray[np.bool_]:
    """Which host events lie in an operator that counts with all it calls (`Naming.is_whole`)."""
    names = tree.hosts["name"].filter(pl.Series(is_operator)).unique().cast(pl.String)
    whole = [name for name in names if naming.is_whole(naming.of(name))]
    if not whole:
        return np.zeros(len(is_operator), bool)
    is_whole = tree.hosts["name"].cast(pl.String).is_in(whole).to_numpy() & is_operator
    return tree.below(np.flatnonzero(is_whole))


def _is_within_its_own(above: Int64, code: Int64, rows: Int64) -> npt.NDArray[np.bool_]:
    """Whether an operator lies, however deep, in one of the same name; shape of ``rows``."""
    found = np.zeros(len(rows), bool)
    at = above[rows].copy()
    own = code[rows]
    while (climbs := at >= 0).any():
        found |= climbs & (code[at] == own)
        at = np.where(climbs & ~found, above[at], -1)
    return found


def _kernel_costs(profile: Profile, step: pl.Series, naming: Naming) -> pl.DataFrame:
    events = profile.trace.events.select("name", "category", "dur_ns").with_columns(step=step)
    devices = events.filter(pl.col("category") == "Kernel")
    return (
        devices.select(name=naming.applied(devices["name"]), step="step", gpu_total_ns="dur_ns")
        .drop_nulls("step")
        .group_by("name", "step")
        .agg(calls=pl.len().cast(pl.Int64), gpu_total_ns=pl.col("gpu_total_ns").sum())
        .select(*KERNELS)
    )


def _device(profile: Profile) -> Device:
    trace = profile.trace
    found = trace.devices[0] if trace.devices else {}
    name, memory_bytes = found.get("name"), found.get("totalGlobalMem")
    table = device(profile)
    of_gpus = table.filter(pl.col("device").str.starts_with("GPU"))["utilization"]
    of_process = table.filter(device="CPU(Process)")["utilization"]
    gpu = of_gpus.mean()
    mean_bytes, peak_bytes = _memory(trace)
    return Device(
        str(name) if name else None,
        memory_bytes if isinstance(memory_bytes, int) and memory_bytes else None,
        float(gpu) if isinstance(gpu, (int, float)) else None,
        of_process.item() if of_process.len() else None,
        mean_bytes,
        peak_bytes,
    )


def _memory(trace: Trace) -> tuple[float | None, int | None]:
    """Allocated bytes, mean over time and the most: of the device that is used most, or the host."""
    memory = trace.memory.filter(pl.col("current_allocated").is_not_null())
    if memory.is_empty():
        return None, None
    on_device = memory.filter(~pl.col("place").cast(pl.String).str.contains("(?i)cpu"))
    memory = (on_device if on_device.height else memory).sort("time_ns")
    place = memory.group_by("place").agg(pl.col("current_allocated").max())
    memory = memory.filter(pl.col("place") == place.sort("current_allocated")["place"][-1])
    time, level = memory["time_ns"].to_numpy(), memory["current_allocated"].to_numpy()
    whole = time[-1] - time[0]
    mean = float((level[:-1] * np.diff(time)).sum() / whole) if whole else float(level.mean())
    return mean, int(level.max())


def _framework(trace: Trace) -> str:
    names = trace.events.filter(pl.col("category") == "Operator")["name"].unique().cast(pl.String)
    return "torch" if names.str.starts_with("aten::").any() else "paddle"
