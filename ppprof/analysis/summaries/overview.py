"""The summaries of a whole window: Device, Overview, Model and Distributed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
import polars as pl

from ppprof.analysis.profile.event_tree import Tree
from ppprof.analysis.profile.grouping import (
    STATS,
    intervals_of,
    num_distinct,
    ratio,
    ratio_of,
)
from ppprof.analysis.profile.intervals import (
    Intervals,
    covered,
    covered_by_group,
    difference,
    joined,
    overlap,
    pieces_inside,
    union,
)
from ppprof.analysis.profile.profile import PHASES, Profile
from ppprof.analysis.ranks.device_steps import steps_of_rank
from ppprof.analysis.ranks.rank_communication import communication_of
from ppprof.analysis.ranks.step_breakdown import computation_of
from ppprof.arrays import Array
from ppprof.trace.labels import Labels
from ppprof.trace.schema import is_kernel

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
    """Return the utilization of the CPU and of each GPU.

    Returns:
        device ("CPU(Process)", "CPU(System)", "GPU0"...) and utilization (float64, 1.0 is the
        whole; null if unknown). For a GPU, it is the share of the time inside steps in which a
        kernel ran, at most 1.0. Steps are those of the device: they last until their kernels are over
        (`ppprof.analysis.ranks.device_steps`), and where the host waits for the device they are the
        host's, as in Paddle. Paddle measures the CPU's: of the process, in cores, so that 2.0 is two cores;
        of the system, as a share of all cores.
    """
    rows: list[tuple[str, float | None]] = []
    for name in ("Process", "System"):
        text = profile.trace.extra_info.get(f"{name} Cpu Utilization")
        rows.append((f"CPU({name})", _finite(text)))
    launched = profile.tree.counted_devices
    kernels = launched.filter(is_kernel())
    devices = launched["device"].unique(maintain_order=True)
    number = kernels["device"].replace_strict(devices, range(len(devices))).to_numpy()
    steps = _device_steps(profile)
    total_ns = covered(*steps)
    piece, pieces = pieces_inside(intervals_of(kernels), steps)
    _, busy_ns = covered_by_group(number[piece], pieces)
    for device, ns in zip_longest(devices, busy_ns.tolist(), fillvalue=0):
        rows.append((f"GPU{device}", ns / total_ns if total_ns else None))
    return pl.DataFrame(rows, DEVICE, orient="row")


def _device_steps(profile: Profile) -> Intervals:
    """Return the time in which the host or the device is in a step, as a union."""
    host = intervals_of(profile.tree.of_category("ProfileStep"))
    return union(*joined(host, intervals_of(steps_of_rank(profile))))


def _finite(text: str | None) -> float | None:
    """Return a recorded ratio as a number; None if it is missing, not a number or not finite.

    A window shorter than a clock tick has "-nan" or "inf".
    """
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def overview(profile: Profile) -> pl.DataFrame:
    """Return the time in each type of event. Overlapping events of one type count once.

    Only the phases are sums: they are not merged where they overlap.

    Returns:
        side ("cpu" or "gpu"), event_type, calls, time_ns, ratio (to `Profile.whole_ns`, on the
        GPU's side to the device's steps as in `device` and the device events beside them; null
        without steps). CPU rows come first, sorted by time, the longest first; then GPU rows, in
        Paddle's order.
    """
    tree, comm = profile.tree, profile.paddle_communication
    rows = _host_categories(tree)
    rows.pop("Communication", None)
    if len(comm.host[0]):
        rows["Communication"] = (num_distinct(comm.host), covered(*comm.host))
    for name in PHASES:
        phase = profile.phase(name)
        if phase is not None:
            rows[name] = (phase["calls"], phase["cpu_total_ns"])
    cpu = sorted(rows.items(), key=lambda row: row[1][1], reverse=True)

    devices = tree.counted_devices
    by_device = devices.group_by("device", maintain_order=True)
    in_order = by_device.agg(pl.col("category").unique(maintain_order=True)).explode("category")
    categories = Labels.of(devices["category"])
    times = _calls_and_time(categories, intervals_of(devices))
    gpu = {name: times[name] for name in in_order["category"].unique(maintain_order=True)}
    if len(comm.device[0]):
        gpu["Communication"] = (num_distinct(comm.device), covered(*comm.device))
    steps = _device_steps(profile), intervals_of(profile.beside_steps)
    return pl.DataFrame(
        [
            (side, name, calls, time_ns, ratio(time_ns, total_ns))
            for side, total_ns, items in (
                ("cpu", profile.whole_ns, cpu),
                ("gpu", covered(*union(*joined(*steps))), gpu.items()),
            )
            for name, (calls, time_ns) in items
        ],
        OVERVIEW,
        orient="row",
    )


def _host_categories(tree: Tree) -> dict[str, tuple[int, int]]:
    """Return calls and time of each category of host events and of launches in them, in Paddle's order."""
    events = tree.events
    host = events.parent[events.launches]
    rows: Array | slice = slice(0, events.first_device)
    if (host < 0).any():
        rows = np.flatnonzero(np.append(np.ones(events.num_hosts, bool), host >= 0))
    categories = Labels.of(events.events["category"]).take(rows)
    times = _calls_and_time(categories, events.intervals(rows))
    first = np.full(len(categories.texts), events.num_hosts, np.int32)  # as visit: 35 times faster
    np.minimum.at(first, categories.number[: events.num_hosts], tree.visit)
    np.minimum.at(first, categories.number[events.num_hosts :], tree.visit[host[host >= 0]])
    in_order = (categories.texts[number] for number in np.argsort(first, kind="stable"))
    return {name: times[name] for name in in_order if name in times}


def _calls_and_time(labels: Labels, intervals: Intervals) -> dict[str, tuple[int, int]]:
    """Return the calls and the time of each label that an interval has."""
    calls, time_ns = (side.tolist() for side in covered_by_group(labels.number, intervals))
    return {name: (num, time) for name, num, time in zip(labels.texts, calls, time_ns) if num}


def model(profile: Profile) -> pl.DataFrame:
    """Return the steps, their phases, and as *Others* the time outside phases.

    Only outermost phases count: the Forward of a layer is part of the model's Forward, and a
    recomputed Forward is part of the Backward. With a pipeline, there is one Forward and one
    Backward per micro-batch:

        ProfileStep    #############################
        Forward        F0 F1    F2    F3                4 calls
          Forward       .  .     .     .                of layers: part of the model's
        Backward             B0    B1    B2 B3          4 calls
          Forward             .     .     .  .          recomputed: part of the Backward
        Optimization                           O        1 call

    Returns:
        name, calls, cpu_ and gpu_ total_ns, avg_ns, max_ns, min_ns and ratio. GPU times sum all
        kernels launched in the phase, overlapping or not. CPU ratios are relative to
        `Profile.whole_ns` (null without steps), GPU ratios to the GPU time of the steps
        and of `Profile.beside_steps` (0 if that is 0).
        *Others* is the steps without the phases; without those in them, if phases outside of steps
        or beside them take longer than the steps. It has totals and ratios; its other columns are null.
        The row is missing without steps. The table has no rows if the trace has only steps or only one of the phases.
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
        others = {"cpu_total_ns": profile.total_ns, "gpu_total_ns": steps["gpu_total_ns"]}
        inside = _phases_in_steps(profile)
        rows.append(
            {
                "name": "Others",
                **{
                    key: _rest(whole, [row[key] for row in rows[1:]], int(inside[column].sum()))
                    for (key, whole), column in zip(others.items(), ("cpu_ns", "device_ns"))
                },
            }
        )
    table = pl.DataFrame([{key: row.get(key) for key in STATS} for row in rows], STATS)
    beside_ns = int(profile.beside_steps.filter(is_kernel())["gpu_ns"].sum())
    return table.with_columns(
        cpu_ratio=ratio_of("cpu_total_ns", profile.whole_ns, if_none=None),
        gpu_ratio=ratio_of("gpu_total_ns", steps["gpu_total_ns"] + beside_ns if steps else 0),
    )


def _rest(whole_ns: int, parts_ns: Sequence[int], inside_ns: int) -> int:
    """Return the whole without its parts; without those inside it, if that is negative; at least 0."""
    rest_ns = whole_ns - sum(parts_ns)
    return rest_ns if rest_ns >= 0 else max(0, whole_ns - inside_ns)


def _phases_in_steps(profile: Profile) -> pl.DataFrame:
    """Return the phases that are below a step: they are parts of it, others run beside it."""
    tree = profile.tree
    is_inside = tree.below(tree.rows_of_category("ProfileStep"))
    phases = profile.outermost.filter(pl.col("category") != "ProfileStep")
    return phases.filter(pl.Series(is_inside[phases["row"].to_numpy()], dtype=pl.Boolean))


def distributed(profile: Profile) -> pl.DataFrame:
    """Return communication, computation and their overlap.

        Communication            ####   #####
        Computation            ####  #####
        Overlap                  ##     ##
        Exposed Communication      ##     ###

    With device events, Computation is the time in kernels. Without, Paddle reports 0 for
    Computation and Overlap. Here, Computation is then the time in which some thread runs an
    operator and does not itself communicate: an operator does not compute while an all_reduce runs
    in it, or if it is named after a collective. Overlap is then the time in which one thread
    communicates and another computes. Exposed Communication, which Paddle does not report, is
    Communication minus Overlap; if the device has kernels of communication, it is their time while
    no other kernel runs, as in `ppprof ranks`: the host's spans only launch them.

    If Paddle's rule finds no communication, it is that of `ppprof ranks`
    (`ppprof.analysis.ranks.rank_communication`): DataParallel's reductions on a CPU, which record no
    event, and kernels of libraries that Paddle does not know.

    If the trace lacks the events of its device, Computation, Overlap and Exposed Communication are
    unknown: operators and communication on the host only launch.

    Returns:
        name (ProfileStep, Communication, Computation, Overlap, Exposed Communication), time_ns,
        ratio (to `Profile.whole_ns`; null without steps), computed_by ("kernels", "operators" or
        "nothing", for which time_ns and ratio are null; null in the first two rows). No rows
        without communication.
    """
    comm = profile.paddle_communication
    both, computation = comm.both, comm.computation
    if not len(both[0]):
        both = union(*communication_of(profile).intervals)
        computation = profile.communication.computation
        if comm.computed_by == "operators":
            computation = difference(computation, both)
    communication_ns = covered(*both)
    overlap_ns = overlap(both, computation)
    exposed_ns = communication_ns - overlap_ns
    communicating = union(*communication_of(profile).intervals)
    if comm.computed_by == "kernels" and len(communicating[0]):
        exposed_ns = covered(*difference(communicating, computation_of(profile)))
    rows = [
        ("ProfileStep", profile.total_ns, None),
        ("Communication", communication_ns, None),
        ("Computation", covered(*computation), comm.computed_by),
        ("Overlap", overlap_ns, comm.computed_by),
        ("Exposed Communication", exposed_ns, comm.computed_by),
    ]
    table = pl.DataFrame(
        [(name, ns, ratio(ns, profile.whole_ns), by) for name, ns, by in rows]
        if len(both[0])
        else [],
        DISTRIBUTED,
        orient="row",
    )
    is_unknown = pl.col("computed_by").eq_missing("nothing")
    return table.with_columns(pl.when(~is_unknown).then(pl.col("time_ns", "ratio")))
