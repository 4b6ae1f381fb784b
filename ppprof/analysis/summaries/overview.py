"""The summaries of a window as a whole: Device, Overview, Model and Distributed."""

from __future__ import annotations

import math

import polars as pl

from ppprof.analysis.profile.grouping import STATS, intervals_of, num_distinct, ratio, ratio_of
from ppprof.analysis.profile.intervals import covered, overlap
from ppprof.analysis.profile.profile import PHASES, Profile

DEVICE = {"device": pl.String(), "utilization": pl.Float64()}

OVERVIEW = {
    "side": pl.String(),
    "event_type": pl.String(),
    "calls": pl.Int64(),
    "time_ns": pl.Int64(),
    "ratio": pl.Float64(),
}

MODEL = {**STATS, "cpu_ratio": pl.Float64(), "gpu_ratio": pl.Float64()}

DISTRIBUTED = {
    "name": pl.String(),
    "time_ns": pl.Int64(),
    "ratio": pl.Float64(),
    "computed_by": pl.String(),
}


def device(profile: Profile) -> pl.DataFrame:
    """How busy the processors were.

    Returns:
        device ("CPU(Process)", "CPU(System)", "GPU0"...), utilization: float64 ratio of the time
        inside steps in which a kernel ran; for CPU as the recorder measured it, of all cores;
        null where it is not known.
    """
    rows: list[tuple[str, float | None]] = []
    for name in ("Process", "System"):
        text = profile.trace.extra_info.get(f"{name} Cpu Utilization")
        rows.append((f"CPU({name})", _finite(text)))
    launched = profile.tree.devices.drop_nulls("host")
    for device in launched["device"].unique(maintain_order=True):
        kernels = launched.filter((pl.col("device") == device) & (pl.col("category") == "Kernel"))
        busy_ns = covered(*intervals_of(kernels))
        rows.append((f"GPU{device}", busy_ns / profile.total_ns if profile.total_ns else None))
    return pl.DataFrame(rows, DEVICE, orient="row")


def _finite(text: str | None) -> float | None:
    """A recorded ratio; a window shorter than the kernel's clock tick has "-nan" or "inf"."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def overview(profile: Profile) -> pl.DataFrame:
    """Time by type of event; events of one type that overlap count once.

    Returns:
        side ("cpu" or "gpu"), event_type, calls, time_ns, ratio (of the time inside steps; null
        where there is none). CPU rows by time, the longest first; GPU rows as first met.
    """
    tree, comm = profile.tree, profile.communication
    by_category: dict[str, list[pl.DataFrame]] = {}
    for table in (tree.hosts, tree.launches.drop_nulls("host")):
        times = table.select("category", "start_ns", "end_ns", "visit")
        for category in times["category"].unique(maintain_order=True):
            of_category = times.filter(pl.col("category") == category)
            by_category.setdefault(category, []).append(of_category)
    met = {
        category: min(part["visit"].to_numpy().min() for part in parts)
        for category, parts in by_category.items()
    }
    rows: dict[str, tuple[int, int]] = {}
    for category in sorted(by_category, key=met.__getitem__):
        events = pl.concat(by_category.pop(category))
        rows[category] = (events.height, covered(*intervals_of(events)))
    rows.pop("Communication", None)
    if len(comm.host[0]):
        rows["Communication"] = (num_distinct(comm.host), covered(*comm.host))
    for name in PHASES:
        phase = profile.phase(name)
        if phase is not None:
            rows[name] = (phase["calls"], phase["cpu_total_ns"])
    cpu = sorted(rows.items(), key=lambda row: row[1][1], reverse=True)

    gpu: dict[str, tuple[int, int]] = {}
    devices = tree.devices.drop_nulls("host")
    for _, of_device in devices.group_by("device", maintain_order=True):
        for category in of_device["category"].unique(maintain_order=True):
            events = devices.filter(pl.col("category") == category)
            gpu[category] = (events.height, covered(*intervals_of(events)))
    if len(comm.device[0]):
        gpu["Communication"] = (num_distinct(comm.device), covered(*comm.device))
    return pl.DataFrame(
        [
            (side, name, calls, time_ns, ratio(time_ns, profile.total_ns))
            for side, items in (("cpu", cpu), ("gpu", gpu.items()))
            for name, (calls, time_ns) in items
        ],
        OVERVIEW,
        orient="row",
    )


def model(profile: Profile) -> pl.DataFrame:
    """Steps and the phases they are made of; *Others* is what no phase covers.

    A phase counts where it lies in no other: the Forward of a layer is part of its model's, and what
    a Backward recomputes is part of the Backward. Under pipelining that is one Forward and one
    Backward a micro-batch:

        ProfileStep    #############################
        Forward        F0 F1    F2    F3                4 calls
          Forward       .  .     .     .                of layers: in their model's
        Backward             B0    B1    B2 B3          4 calls
          Forward             .     .     .  .          recomputed: in the Backward's
        Optimization                           O        1 call

    Returns:
        name, calls, cpu_ and gpu_ total_ns, avg_ns, max_ns, min_ns and ratio. GPU times sum all
        kernels launched in the phase, overlapping or not. CPU ratios are of the time inside
        steps, GPU ratios of the steps' GPU time (0 where that is 0). Others has totals only.
        No rows where there is one kind alone; no Others where there are no steps.
    """
    steps = profile.phase("ProfileStep")
    rows = [
        {**row, "name": name}
        for name in ("ProfileStep", *PHASES)
        if (row := profile.phase(name)) is not None
    ]
    if len(rows) < 2:
        rows = []
    elif steps is not None:
        rows.append(
            {
                "name": "Others",
                "cpu_total_ns": profile.total_ns - sum(row["cpu_total_ns"] for row in rows[1:]),
                "gpu_total_ns": steps["gpu_total_ns"]
                - sum(row["gpu_total_ns"] for row in rows[1:]),
            }
        )
    table = pl.DataFrame([{key: row.get(key) for key in STATS} for row in rows], STATS)
    return table.with_columns(
        cpu_ratio=ratio_of("cpu_total_ns", profile.total_ns, if_none=None),
        gpu_ratio=ratio_of("gpu_total_ns", steps["gpu_total_ns"] if steps else 0),
    )


def distributed(profile: Profile) -> pl.DataFrame:
    """Communication, computation, and how much of the first the second hides.

        Communication            ####   #####
        Computation            ####  #####
        Overlap                  ##     ##
        Exposed Communication      ##     ###

    Computation is kernels. Of a trace without device events, where Paddle says 0 for Computation
    and Overlap, it is the time in which some thread runs an operator and does not communicate
    itself: an operator that holds an all_reduce does not compute meanwhile, and neither does one
    that is named after a collective. Overlap then is one thread's communication while another
    computes. Exposed Communication, which Paddle leaves out, is Communication minus Overlap.

    Returns:
        name (ProfileStep, Communication, Computation, Overlap, Exposed Communication), time_ns,
        ratio of the time inside steps (null where there is none), computed_by ("kernels" or
        "operators"; null in the first two rows, which hold no computation). No rows where nothing
        communicates.
    """
    comm = profile.communication
    communication_ns = covered(*comm.both)
    overlap_ns = overlap(comm.both, comm.computation)
    rows = [
        ("ProfileStep", profile.total_ns, None),
        ("Communication", communication_ns, None),
        ("Computation", covered(*comm.computation), comm.computed_by),
        ("Overlap", overlap_ns, comm.computed_by),
        ("Exposed Communication", communication_ns - overlap_ns, comm.computed_by),
    ]
    return pl.DataFrame(
        [(name, ns, ratio(ns, profile.total_ns), by) for name, ns, by in rows]
        if len(comm.both[0])
        else [],
        DISTRIBUTED,
        orient="row",
    )
