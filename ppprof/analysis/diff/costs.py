"""The costs of one rank's window, by step. A `RunCosts` sums the costs of all ranks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.diff.naming import Naming
from ppprof.analysis.efficiency.efficiency import main_dtype, operator_work
from ppprof.analysis.profile.event_tree import Tree
from ppprof.analysis.profile.grouping import intervals_of
from ppprof.analysis.profile.intervals import covered_within, together
from ppprof.analysis.profile.module_tree import gaps, has_forward_links, modules
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import LINES, lines_by_step
from ppprof.analysis.profile.runtime_calls import name_of_call
from ppprof.analysis.ranks.collectives import collectives_of
from ppprof.analysis.ranks.device_steps import steps_of_rank
from ppprof.analysis.ranks.rank_communication import UNKNOWN_AXIS, communication_events
from ppprof.analysis.ranks.step_breakdown import Breakdown, breakdown
from ppprof.analysis.summaries.overview import device
from ppprof.arrays import Bool, Int32, Int64
from ppprof.trace.labels import map_texts
from ppprof.trace.schema import Trace, is_kernel

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
COLLECTIVES = {"name": pl.String, "step": pl.Int64, "calls": pl.Int64, "total_ns": pl.Int64}
RUNTIME_CALLS = {"name": pl.String, "step": pl.Int64, "calls": pl.Int64, "cpu_total_ns": pl.Int64}

SHAPES = {
    "name": pl.String,
    "step": pl.Int64,
    "calls": pl.Int64,
    "flops": pl.Int64,
    "time_ns": pl.Int64,
}

BY_NAME = {
    "lines": LINES,
    "operators": OPERATORS,
    "kernels": KERNELS,
    "collectives": COLLECTIVES,
    "runtime_calls": RUNTIME_CALLS,
    "operator_shapes": SHAPES,
}
"""The schemas of the tables with one row per name and step, keyed by the field of `Costs`."""


class Device(NamedTuple):
    """The device of a window, with its utilization and memory."""

    name: str | None
    """Name of the first GPU; None if the trace names no GPU."""
    memory_bytes: int | None
    """Size of the first GPU's memory; None if unknown."""
    gpu_utilization: float | None
    """The result of `_gpu_utilization`."""
    cpu_utilization: float | None
    """Processor time of the process over elapsed time: 2.0 is two cores; None if unknown."""
    mean_bytes: float | None
    """Allocated memory, mean over the window's time, of the fullest device, or of the host if no
    device has memory events; None without memory events."""
    peak_bytes: int | None
    """Maximum of the allocated memory that ``mean_bytes`` averages; None without memory events."""
    dtype: str | None = None
    """In which most FLOPs are computed; None if no work is known."""


class Costs(NamedTuple):
    """The costs of one rank's window."""

    breakdown: Breakdown
    calls: pl.DataFrame
    """The result of `ppprof.analysis.ranks.collectives.collectives_of`, for `with_rank`."""
    lines: pl.DataFrame
    """The result of `lines_by_step`."""
    unattributed_lines: pl.DataFrame
    """``lines`` in which gradients are time of the line that calls the Backward."""
    operators: pl.DataFrame
    """Columns of `OPERATORS`: sums of `operator_calls`."""
    kernels: pl.DataFrame
    """Columns of `KERNELS`: one row per name and step."""
    collectives: pl.DataFrame
    """Columns of `COLLECTIVES`: one row per name and step. A name has its axis, ``all_reduce
    (mp)``, unless the axis is unknown. Calls and times are those of the device events of
    collectives and transfers or, in a trace without device events, of their host events."""
    runtime_calls: pl.DataFrame
    """Columns of `RUNTIME_CALLS`: one row per name and step."""
    operator_shapes: pl.DataFrame
    """Columns of `SHAPES`: one row per operator, shapes of its inputs, and step. A name is an
    operator with the shapes: ``matmul [4,128] [128,64]``. Operators of unknown shapes or FLOPs have
    no row. Times are those of `ppprof.analysis.efficiency.efficiency`."""
    modules: pl.DataFrame
    """Columns of `ppprof.analysis.profile.module_tree.MODULES`. Gradients are attributed to the
    modules whose forward created them. The gaps between the outermost modules have rows, too, see
    `ppprof.analysis.profile.module_tree.gaps`; the self_ns of a step is the sum of its gaps."""
    unattributed_modules: pl.DataFrame
    """The columns of ``modules``. Gradients are not attributed to modules: they belong to the
    Backward. If the trace has no forward links, this is the table ``modules``."""
    device: Device
    framework: str
    """``paddle`` or ``torch``."""
    has_forward_links: bool
    """Whether the trace links gradients to the forward that created them (`has_forward_links`)."""


def costs(trace: Trace, naming: Naming) -> Costs:
    """Return the costs of one rank's window.

    Events outside steps do not count. If the window has no steps, all events count as step 0.
    """
    return costs_of(Profile(trace).without_pauses, naming)


def costs_of(profile: Profile, naming: Naming) -> Costs:
    """Return the result of `costs` for a trace that already has a `Profile`."""
    operators = operator_calls(profile, naming).drop_nulls("step")
    is_linked = has_forward_links(profile)
    unknown = gaps(profile)
    unattributed = pl.concat([modules(profile, attribute_backward=False), unknown])
    return Costs(
        breakdown(profile),
        collectives_of(profile),
        lines_by_step(profile),
        lines_by_step(profile, attribute_backward=False),
        operators.group_by("name", "step").agg(pl.col(list(OPERATORS)[2:]).sum()),
        _kernel_costs(profile, naming),
        _collective_costs(profile),
        _runtime_costs(profile),
        _shape_costs(profile),
        pl.concat([modules(profile), unknown]) if is_linked else unattributed,
        unattributed,
        _device(profile),
        profile.trace.framework,
        is_linked,
    )


def operator_calls(profile: Profile, naming: Naming) -> pl.DataFrame:
    """Return the calls and times of operators, one row per event.

    ::

        linear           ##########      10, self 2
          addmm           ########       8; if both are "matmul", that is one call of 10, self 10
            kernel           ====        GPU: 4, of addmm itself

    Args:
        profile: one rank's window.
        naming: how operators are named. Operators with one common name are one operator, and an
            inner operator of that name is part of the outer; see also `Naming.is_whole`.

    Returns:
        row (of the host events), then the columns of `OPERATORS`. Calls and totals are 0 for an
        event inside another one of its name. Self times are without the operators that an operator
        calls. GPU times are those of the kernels, copies and sets launched in an operator;
        overlapping ones count twice.
    """
    hosts = profile.tree.hosts
    is_operator = (hosts["category"] == "Operator").to_numpy()
    is_operator &= ~_is_part_of_whole(profile.tree, is_operator, naming)
    above = profile.tree.enclosing(is_operator)
    rows = np.flatnonzero(is_operator)
    own = {
        clock: profile.tree.own(column, is_operator, above)[rows]
        for clock, column in (("cpu", "cpu_ns"), ("gpu", "device_ns"))
    }
    cpu_ns, gpu_ns = hosts["cpu_ns"].to_numpy(), hosts["device_ns"].to_numpy()
    names = naming.apply(hosts["name"].gather(rows))
    code = np.full(len(is_operator), -1, np.int64)
    code[rows] = names.cast(pl.Categorical).to_physical().to_numpy()
    outermost = ~_is_in_same_name(above, code, rows)
    return pl.DataFrame(
        {
            "row": rows,
            "name": names,
            "step": profile.step.gather(rows),
            "calls": outermost.astype(np.int64),
            "cpu_total_ns": np.where(outermost, cpu_ns[rows], 0),
            "cpu_self_ns": own["cpu"],
            "gpu_total_ns": np.where(outermost, gpu_ns[rows], 0),
            "gpu_self_ns": own["gpu"],
        },
        {"row": pl.Int32, **OPERATORS},
    )


def _is_part_of_whole(tree: Tree, is_operator: Bool, naming: Naming) -> Bool:
    """Return whether each host event is part of an operator above it (`Naming.is_whole`)."""
    names = tree.hosts["name"].filter(pl.Series(is_operator)).unique().cast(pl.String)
    whole = [name for name in names if naming.is_whole(naming.common_name(name))]
    if not whole:
        return np.zeros(len(is_operator), bool)
    is_whole = tree.hosts["name"].cast(pl.String).is_in(whole).to_numpy() & is_operator
    return tree.below(np.flatnonzero(is_whole))


def _is_in_same_name(above: Int32, code: Int64, rows: Int64) -> Bool:
    """Return whether each operator lies, at any depth, in an operator of its name."""
    is_inside = np.zeros(len(rows), bool)
    outer = above[rows].copy()
    own = code[rows]
    while (climbs := outer >= 0).any():
        is_inside |= climbs & (code[outer] == own)
        outer = np.where(climbs & ~is_inside, above[outer], -1)
    return is_inside


def _kernel_costs(profile: Profile, naming: Naming) -> pl.DataFrame:
    columns = ("name", "category", "device", "dur_ns")
    devices = (
        profile.trace.events.select(columns).with_columns(step=profile.step).filter(is_kernel())
    )
    return (
        devices.select(name=naming.apply(devices["name"]), step="step", gpu_total_ns="dur_ns")
        .pipe(_by_name_and_step)
        .select(*KERNELS)
    )


def _collective_costs(profile: Profile) -> pl.DataFrame:
    return (
        communication_events(profile)
        .select(
            name=name_collectives(),
            step="step",
            total_ns=pl.col("end_ns") - pl.col("start_ns"),
        )
        .pipe(_by_name_and_step)
    )


def name_collectives() -> pl.Expr:
    """Return the name of collectives with their axis: ``all_reduce (mp)``; reads name and axis."""
    named = pl.concat_str("name", pl.lit(" ("), "axis", pl.lit(")"))
    return pl.when(pl.col("axis") == UNKNOWN_AXIS).then("name").otherwise(named)


def _runtime_costs(profile: Profile) -> pl.DataFrame:
    launches = profile.tree.launches
    return launches.select(
        name=map_texts(launches["name"], name_of_call),
        step=profile.step.gather(launches["row"]),
        cpu_total_ns=pl.col("end_ns") - pl.col("start_ns"),
    ).pipe(_by_name_and_step)


def _shape_costs(profile: Profile) -> pl.DataFrame:
    if not profile.trace.events["shapes"].count():
        return pl.DataFrame(schema=SHAPES)
    calls = operator_work(profile).drop_nulls(["shapes", "flops"])
    names = pl.concat_str("name", pl.lit(" "), "shapes")
    rows = calls.select(
        name=names, step=profile.step.gather(calls["row"]), flops="flops", time_ns="time_ns"
    )
    return _by_name_and_step(rows).select(*SHAPES)


def _by_name_and_step(calls: pl.DataFrame) -> pl.DataFrame:
    """Return name, step, calls (int64) and the summed times of each name and step, unordered."""
    sums = calls.drop_nulls("step").group_by("name", "step")
    return sums.agg(pl.len().cast(pl.Int64).alias("calls"), pl.all().exclude("name", "step").sum())


def _device(profile: Profile) -> Device:
    trace = profile.trace
    properties = trace.used_devices[0] if trace.devices else {}
    name, memory_bytes = properties.get("name"), properties.get("totalGlobalMem")
    process = device(profile).filter(device="CPU(Process)")["utilization"]
    mean_bytes, peak_bytes = _memory(trace)
    return Device(
        str(name) if name else None,
        memory_bytes if isinstance(memory_bytes, int) and memory_bytes else None,
        _gpu_utilization(profile),
        process.item() if process.len() else None,
        mean_bytes,
        peak_bytes,
        main_dtype(profile),
    )


def _gpu_utilization(profile: Profile) -> float | None:
    """Return the share of the time inside steps in which a kernel ran, mean over devices.

    The steps are those of the device (`ppprof.analysis.ranks.device_steps`), so the share is 0 to 1.
    Paddle's Device Summary divides the time of all kernels by the time of the host's steps, which is
    shorter if the host runs ahead. None without steps or device events.
    """
    steps = together(intervals_of(steps_of_rank(profile)))
    whole_ns = int((steps[1] - steps[0]).sum())
    events = profile.tree.devices
    if not whole_ns or events.is_empty():
        return None
    shares = [
        covered_within(together(intervals_of(kernels.filter(is_kernel()))), *steps).sum() / whole_ns
        for kernels in events.partition_by("device")
    ]
    return float(np.mean(shares))


def _memory(trace: Trace) -> tuple[float | None, int | None]:
    """Return mean over time and maximum of the allocated bytes of the fullest device, or of the host; None if unknown."""
    memory = trace.memory.filter(pl.col("current_allocated").is_not_null())
    if memory.is_empty():
        return None, None
    on_device = memory.filter(~pl.col("place").cast(pl.String).str.contains("(?i)cpu"))
    memory = (on_device if on_device.height else memory).sort("time_ns")
    place = memory.group_by("place").agg(pl.col("current_allocated").max())
    memory = memory.filter(pl.col("place") == place.sort("current_allocated")["place"][-1])
    time, level = memory["time_ns"].to_numpy(), memory["current_allocated"].to_numpy()
    whole = time[-1] - time[0]
    # In float64: 80 GB for a second, in bytes times nanoseconds, is more than an int64 holds.
    mean = float(np.average(level[:-1], weights=np.diff(time)) if whole else level.mean())
    return mean, int(level.max())
