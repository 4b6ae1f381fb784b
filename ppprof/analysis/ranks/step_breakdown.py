"""The parts of each step of one rank. They are disjoint and add up to the step.

`breakdown` returns one row per step and part; `ppprof.analysis.ranks.step_table` joins such tables of many
ranks. Every instant of a step belongs to the first of these parts that contains it:

- ``computation``: kernels that do not communicate (Paddle's Computation); in a trace without device
  events, operators during which their thread does not communicate (`Communication`).
- ``exposed``, one per axis: communication outside the bubble. Where communication over two axes
  overlaps, the first in this order counts: mp, sep, sharding, dp, pp, several axes, "?" (unknown
  axis). The innermost axis blocks soonest.

      compute   ###___###____
      mp        __##_________
      dp        ____######___
      exposed   ___mdd___d___    and 3 ticks of dp, 1 of mp are hidden

- ``data_loading``: Dataloader spans of the stepping thread.
- ``bubble``: the time a stage waits for other stages. First, it is the time outside passes (Forward
  and Backward spans of micro-batches), between the first and the last of a step's passes, sends and
  receives. Second, it is the first collective of all stages after the last pass (such as an all_reduce
  over an axis that includes ``pp``): there a stage waits for stages that drain later:

      pass      ____FF__BBB_FF__BBB_______
      pp        rrrr__ss___r__rr___ss__aa_
      bubble    ####__##___#__##___##__##_    receive, send, all_reduce

  It includes the transfers themselves: one rank's trace cannot separate them from the wait for the
  sender (`ppprof.analysis.ranks.transfers` moves them out if the other side's trace is there). On CPU
  it also includes Python's work between two passes.
- ``host_bound``, only in traces with device events: nothing runs on any device, and the stepping
  thread neither communicates nor synchronizes. The host does not launch fast enough.
- ``rest``: all other time. On CPU, Python between operators; on GPU, copies and other waits.

With device events, computation and communication are kernels, by the time at which they ran, not by the
step they were launched in. A pass then lasts from its first to its last launched kernel. Between passes,
bubble is only the time in which a send or receive runs, or the stepping thread waits in one or in a
synchronization.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.profile.grouping import intervals_of, matching
from ppprof.analysis.profile.intervals import (
    Intervals,
    covered_within,
    difference,
    intersection,
    together,
    union,
)
from ppprof.analysis.profile.profile import Profile
from ppprof.arrays import Int64
from ppprof.trace.schema import nullable

PARTS = ("computation", "exposed", "data_loading", "bubble", "host_bound", "rest")
"""The parts of a step; the first one that contains an instant counts. See the module."""

BESIDE = ("communication", "hidden", "host_launch")
"""Times outside the sum: all communication over an axis; the part hidden by computation; the time in
which some thread launches (runtime calls)."""

UNKNOWN = "?"
"""The axis of communication with an unknown group."""

STRETCHES = {"step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}

BREAKDOWN = {"step": pl.Int64, "part": pl.String, "axis": pl.String, "time_ns": pl.Int64}

_NCCL = "(?i)nccl|xccl"
_AXES = ("mp", "sep", "sharding", "dp", "pp")
_SENT = "(?i)send|recv"
_SYNCHRONISING = "(?i)synchronize"
_MEETING = "(?i)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier"


class Breakdown(NamedTuple):
    """The result of `breakdown` for one rank's window."""

    parts: pl.DataFrame
    """Columns of `BREAKDOWN`: one row per step and part."""
    bubbles: pl.DataFrame
    """Columns of `STRETCHES`: the bubble of each step, as disjoint intervals."""


def breakdown(profile: Profile) -> Breakdown:
    """Return one rank's steps as `PARTS`, and the times `BESIDE` them.

    Args:
        profile: one rank's window.

    Returns:
        ``parts``: step, part, axis ("dp", "pp+mp", "?"; null except for exposed, communication and
        hidden), time_ns int64. Sorted by step; within a step, the row ``step`` is the sum of the
        `PARTS` after it, then come those `BESIDE`. Without device events there is no host_bound and
        no host_launch. A step has 0 for an axis that only other steps communicate over. ProfileSteps
        with the same number are added up. No rows if there are no steps.
    """
    tree = profile.tree
    on_device = not tree.devices.is_empty()
    steps = numbered_steps(profile)
    start, end = intervals_of(steps)
    communication = _communication(profile)
    computation = _computation(profile)
    threads = steps["thread"].unique()
    waiting = waiting_intervals(profile, threads) if on_device else None
    communication, bubble = _bubble(communication, _passes(profile, threads), waiting)
    by_axis = {
        axis: communication.filter(pl.col("axis") == axis)
        for axis in sorted(communication["axis"].unique(), key=axis_position)
    }

    times: list[tuple[str, str | None, Int64]] = [("step", None, end - start)]
    taken = together()

    def take(part: str, axis: str | None, instants: Intervals) -> None:
        nonlocal taken
        before, taken = taken, together(taken, instants)
        time_ns = covered_within(taken, start, end) - covered_within(before, start, end)
        times.append((part, axis, time_ns))

    take("computation", None, computation)
    for axis, events in by_axis.items():
        pipeline = intervals_of(events.filter("is_pipeline"))
        others = intervals_of(events.filter(~pl.col("is_pipeline")))
        take("exposed", axis, together(others, difference(pipeline, bubble)))
    take("data_loading", None, stepping_thread_in(profile, "Dataloader", threads))
    bubble = difference(bubble, taken)
    take("bubble", None, bubble)
    if waiting is not None:
        busy = together(intervals_of(tree.devices), waiting)
        take("host_bound", None, difference((start, end), busy))
    take("rest", None, (start, end))

    for axis, events in by_axis.items():
        all_of_axis = union(*intervals_of(events))
        hidden = intersection(all_of_axis, computation)
        times.append(("communication", axis, covered_within(all_of_axis, start, end)))
        times.append(("hidden", axis, covered_within(hidden, start, end)))
    if on_device:
        launches = union(*intervals_of(tree.launches))
        times.append(("host_launch", None, covered_within(launches, start, end)))
    return Breakdown(_sum_by_step(steps["step"], times), _clip_to_steps(steps, bubble))


def _clip_to_steps(steps: pl.DataFrame, instants: Intervals) -> pl.DataFrame:
    """Return the parts of a union inside each step: columns of `STRETCHES`."""
    start, end = instants
    nothing = np.empty(0, np.int64)
    cut = [(nothing, nothing, nothing)]
    for step, first, last in steps.select("step", "start_ns", "end_ns").iter_rows():
        inside = slice(np.searchsorted(end, first, "right"), np.searchsorted(start, last))
        within = start[inside].clip(first)
        cut.append((np.full(len(within), step), within, end[inside].clip(max=last)))
    columns = (np.concatenate(column) for column in zip(*cut))
    return pl.DataFrame(dict(zip(STRETCHES, columns)), STRETCHES)


def _sum_by_step(steps: pl.Series, times: Sequence[tuple[str, str | None, Int64]]) -> pl.DataFrame:
    """Return the times of each step, one array per part, as rows of `BREAKDOWN`."""
    parts, axes, time_ns = zip(*times)
    num = len(steps)
    table = pl.DataFrame(
        {
            "step": np.tile(steps.to_numpy(), len(times)),
            "part": [part for part in parts for _ in range(num)],
            "axis": [axis for axis in axes for _ in range(num)],
            "time_ns": np.concatenate(time_ns),
            "order": np.repeat(np.arange(len(times)), num),
        },
        {**BREAKDOWN, "order": pl.Int64},
    )
    keys = ["step", "order", "part", "axis"]
    return table.group_by(keys).agg(pl.col("time_ns").sum()).sort(keys).drop("order")


def numbered_steps(profile: Profile) -> pl.DataFrame:
    """Return step, thread, start_ns, end_ns of each ProfileStep with a number."""
    step = pl.col("name").cast(pl.String).str.extract(r"#(\d+)$").cast(pl.Int64, strict=False)
    steps = profile.tree.of_category("ProfileStep")
    return steps.select("thread", "start_ns", "end_ns", step=step).drop_nulls("step")


def stepping_thread_in(profile: Profile, category: str, threads: pl.Series) -> Intervals:
    """Return the intervals in which the stepping threads are in an event of a category."""
    events = profile.tree.hosts.filter(
        (pl.col("category") == category) & pl.col("thread").is_in(threads.implode())
    )
    return intervals_of(events)


def waiting_intervals(profile: Profile, threads: pl.Series) -> Intervals:
    """Return the intervals in which the stepping threads communicate or wait for the device."""
    launches = profile.tree.launches
    calls = launches.filter(matching(launches["name"], _SYNCHRONISING))
    calls = calls.filter(pl.col("thread").is_in(threads.implode()))
    return together(stepping_thread_in(profile, "Communication", threads), intervals_of(calls))


def _computation(profile: Profile) -> Intervals:
    """Return Paddle's Computation, and kernels whose launch was not recorded."""
    kernels = profile.tree.devices.filter(
        (pl.col("category") == "Kernel") & pl.col("host").is_null()
    )
    unseen = intervals_of(kernels.filter(~_named(_NCCL)))
    return together(profile.communication.computation, unseen)


def _communication(profile: Profile) -> pl.DataFrame:
    """Return the communication: kernels in a trace with device events, else host events.

    Host events are Communication events. Operators named after a collective count only if there are
    no such events: a ``Global_GradNodePyLayer_mp_allreduce`` may do nothing.

    Returns:
        name and axis of the Communication event (the innermost one around the launch; without one,
        the event's own name and `UNKNOWN`), step (in which it began or was launched), start_ns,
        end_ns.
    """
    communication, tree = profile.communication, profile.tree
    events = profile.trace.events
    spans = np.flatnonzero((events["category"] == "Communication").to_numpy())
    if tree.devices.is_empty():
        rows = spans if len(spans) else communication.host_rows
        table = tree.hosts[rows]
        launcher = table["row"]
        span = launcher if len(spans) else nullable(np.full(len(rows), -1))
    else:
        communicates = np.zeros(tree.devices.height, bool)
        communicates[communication.device_rows] = True
        unseen = pl.col("host").is_null() & (pl.col("category") == "Kernel")
        unseen &= matching(tree.devices["name"], _NCCL)
        table = tree.devices.filter(pl.Series(communicates) | unseen)
        launcher = table["host"]
        enclosing_span = np.append(tree.innermost(spans), -1)
        span = nullable(enclosing_span[launcher.fill_null(-1).to_numpy()])
    return table.select(
        pl.coalesce(events["name"].gather(span), "name").cast(pl.String).alias("name"),
        events["axis"].gather(span).cast(pl.String).fill_null(UNKNOWN),
        events["step"].gather(launcher),
        *("start_ns", "end_ns"),
    )


def _passes(profile: Profile, threads: pl.Series) -> pl.DataFrame:
    """Return the outermost Forward and Backward events of the stepping threads.

    If any event has a stage, only events with a stage count.

    Returns:
        step (in which the event began), stage (null if unknown), start_ns, end_ns: of the event or,
        in a trace with device events, of the device events launched in it.
    """
    tree = profile.tree
    passes = profile.outermost.filter(
        pl.col("category").is_in(["Forward", "Backward"])
        & pl.col("thread").is_in(threads.implode())
    ).select("row", "start_ns", "end_ns")
    events = profile.trace.events
    passes = passes.with_columns(events[name].gather(passes["row"]) for name in ("step", "stage"))
    if passes["stage"].count():
        passes = passes.drop_nulls("stage")
    if not tree.devices.is_empty():
        around = nullable(tree.innermost(passes["row"].to_numpy()))
        launched = (
            tree.devices.select("host", "start_ns", "end_ns")
            .join(
                pl.DataFrame({"host": pl.int_range(len(around), eager=True), "row": around}),
                on="host",
            )
            .group_by("row")
            .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        )
        passes = passes.drop("start_ns", "end_ns").join(launched, on="row")
    return passes.select("step", "stage", "start_ns", "end_ns").drop_nulls("step")


def _bubble(
    communication: pl.DataFrame, passes: pl.DataFrame, waiting: Intervals | None
) -> tuple[pl.DataFrame, Intervals]:
    """Return the communication with the pipeline's own marked, and the bubble.

    Args:
        communication: see `_communication`.
        passes: see `_passes`.
        waiting: the intervals in which the host waits, if passes ran on a device.

    Returns:
        ``communication`` with is_pipeline: sends and receives of a step with passes, whose axis is
        then ``pp``, and the first collective of all stages after the passes. And the bubble.
    """
    over_stages = pl.col("axis").str.split("+").list.contains("pp")
    to_stages = over_stages
    if passes["stage"].count():  # then a send to an unknown rank goes to a stage
        to_stages |= pl.col("axis") == UNKNOWN
    has_passes = pl.col("step").is_in(passes["step"].implode()).fill_null(value=False)
    is_sent = communication.select(to_stages & _named(_SENT) & has_passes).to_series()
    communication = communication.with_columns(
        axis=pl.when(is_sent).then(pl.lit("pp")).otherwise("axis")
    )
    sent = communication.filter(is_sent)
    staged = pl.concat([sent["step"], passes.drop_nulls("stage")["step"]])
    passes = passes.filter(pl.col("step").is_in(staged.implode()))

    extents = ("step", "start_ns", "end_ns")
    pipelines = (
        pl.concat([passes.select(extents), sent.select(extents)])
        .group_by("step")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    )
    bubble = difference(intervals_of(pipelines), intervals_of(passes))
    if waiting is not None:
        bubble = intersection(bubble, together(waiting, intervals_of(sent)))

    row = pl.int_range(pl.len()).alias("row")
    last = passes.group_by("step").agg(last_ns=pl.col("end_ns").max())
    meetings = (
        communication.with_columns(row)
        .filter(over_stages & _named(_MEETING))
        .join(last, on="step")
        .filter(pl.col("start_ns") >= pl.col("last_ns"))
        .sort("start_ns", "row")
        .unique("step", keep="first")
    )
    is_pipeline = (
        pl.Series(is_sent) | communication.select(row.is_in(meetings["row"].implode()))["row"]
    )
    return (
        communication.with_columns(is_pipeline=is_pipeline),
        together(bubble, intervals_of(meetings)),
    )


def _named(pattern: str) -> pl.Expr:
    return pl.col("name").cast(pl.String).str.contains(pattern)


def axis_position(axis: str) -> tuple[bool, int, str]:
    """Return a sort key: the axes of `_AXES`, then combined axes, then `UNKNOWN`."""
    return axis == UNKNOWN, (*_AXES, axis).index(axis), axis
