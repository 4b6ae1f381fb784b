"""What each rank spends each step on: parts that are disjoint and add up to the step.

`breakdown` makes of one rank's trace a small table, a row a step and part, and `ppprof.analysis.ranks.step_table`
joins such tables. Every instant of a step belongs to the first of these that holds it:

- ``computation``: kernels that do not communicate (Paddle's Computation); in a trace without device
  events, operators during which their thread does not communicate (`Communication`).
- ``exposed``, an axis each: communication, as far as it is no bubble. Where communication over two
  axes overlaps, the instant is that of the first in mp, sep, sharding, dp, pp, then those over
  several axes, then "?" (no axis is known): the innermost blocks soonest.

      compute   ###___###____
      mp        __##_________
      dp        ____######___
      exposed   ___mdd___d___    and 3 ticks of dp, 1 of mp are hidden

- ``data_loading``: Dataloader spans of the thread that steps.
- ``bubble``: what the pipeline makes a stage wait for others. It is the time between the first and
  the last of a step's passes (Forward and Backward spans of micro-batches) and of its sends and
  receives that lies in no pass; and the first collective after the last pass in which all stages
  meet (an all_reduce, say, over an axis ``pp`` is part of), for there a stage waits for those that
  drain later:

      pass      ____FF__BBB_FF__BBB_______
      pp        rrrr__ss___r__rr___ss__aa_
      bubble    ####__##___#__##___##__##_    receive, send, all_reduce

  It holds the transfers themselves, which one rank's trace cannot tell from the wait for the other
  side to send (`ppprof.analysis.ranks.transfers` takes them out, where the other side's trace is there);
  and, on CPU, what Python does between two passes.
- ``host_bound``, of traces with device events only: nothing runs on any device, and the thread that
  steps neither communicates nor synchronises: it does not launch fast enough.
- ``rest``: what is left. On CPU, Python between operators; on GPU, copies and other waits.

With device events, what computes and communicates are kernels, by when they ran, whichever step they
were launched in; a pass is then the time from the first to the last kernel launched in its span, and
between passes only that is bubble in which a send or receive runs or the thread that steps waits in
one, or in a synchronisation.
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
"""What a step consists of, the first that holds an instant wins; see the module."""

BESIDE = ("communication", "hidden", "host_launch")
"""Outside the sum: communication over an axis, hidden or not; what of it computation hides; the time
in which some thread launches (runtime calls)."""

UNKNOWN = "?"
"""The axis of communication whose group is not known."""

STRETCHES = {"step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}

BREAKDOWN = {"step": pl.Int64, "part": pl.String, "axis": pl.String, "time_ns": pl.Int64}

_NCCL = "(?i)nccl|xccl"
_AXES = ("mp", "sep", "sharding", "dp", "pp")
_SENT = "(?i)send|recv"
_SYNCHRONISING = "(?i)synchronize"
_MEETING = "(?i)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier"


class Breakdown(NamedTuple):
    """What `breakdown` makes of one rank's window."""

    parts: pl.DataFrame
    """Columns of `BREAKDOWN`: a row a step and part."""
    bubbles: pl.DataFrame
    """Columns of `STRETCHES`: the disjoint stretches of a step that are bubble."""


def breakdown(profile: Profile) -> Breakdown:
    """One rank's steps in `PARTS`, and what is told `BESIDE` them.

    Args:
        profile: one rank's window.

    Returns:
        ``parts``: step, part, axis ("dp", "pp+mp", "?"; null but for exposed, communication and hidden),
        time_ns: int64. By step; then ``step``, whose time is the sum of the `PARTS` behind it, and
        those `BESIDE`. No host_bound, no host_launch without device events. An axis that a step
        does not communicate over is 0 where another step does. Several ProfileSteps of one number
        are added up. No rows where there are no steps.
    """
    tree = profile.tree
    on_device = not tree.devices.is_empty()
    steps = numbered_steps(profile)
    start, end = intervals_of(steps)
    communication = _communication(profile)
    computation = _computation(profile)
    threads = steps["thread"].unique()
    waiting = waiting_of(profile, threads) if on_device else None
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
        of_stages = intervals_of(events.filter("of_stages"))
        others = intervals_of(events.filter(~pl.col("of_stages")))
        take("exposed", axis, together(others, difference(of_stages, bubble)))
    take("data_loading", None, stepping(profile, "Dataloader", threads))
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
    return Breakdown(_added_up(steps["step"], times), _cut(steps, bubble))


def _cut(steps: pl.DataFrame, instants: Intervals) -> pl.DataFrame:
    """The parts of a union that lie in each step: columns of `STRETCHES`."""
    start, end = instants
    nothing = np.empty(0, np.int64)
    cut = [(nothing, nothing, nothing)]
    for step, first, last in steps.select("step", "start_ns", "end_ns").iter_rows():
        inside = slice(np.searchsorted(end, first, "right"), np.searchsorted(start, last))
        within = start[inside].clip(first)
        cut.append((np.full(len(within), step), within, end[inside].clip(max=last)))
    columns = (np.concatenate(column) for column in zip(*cut))
    return pl.DataFrame(dict(zip(STRETCHES, columns)), STRETCHES)


def _added_up(steps: pl.Series, times: Sequence[tuple[str, str | None, Int64]]) -> pl.DataFrame:
    """Times of each step, one array a part, as rows of `BREAKDOWN`."""
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
    """step, thread, start_ns, end_ns of each ProfileStep that has a number."""
    step = pl.col("name").cast(pl.String).str.extract(r"#(\d+)$").cast(pl.Int64, strict=False)
    steps = profile.tree.of_category("ProfileStep")
    return steps.select("thread", "start_ns", "end_ns", step=step).drop_nulls("step")


def stepping(profile: Profile, category: str, threads: pl.Series) -> Intervals:
    """When the threads that step are in an event of a category."""
    events = profile.tree.hosts.filter(
        (pl.col("category") == category) & pl.col("thread").is_in(threads.implode())
    )
    return intervals_of(events)


def waiting_of(profile: Profile, threads: pl.Series) -> Intervals:
    """When the threads that step communicate, or wait for the device."""
    launches = profile.tree.launches
    calls = launches.filter(matching(launches["name"], _SYNCHRONISING))
    calls = calls.filter(pl.col("thread").is_in(threads.implode()))
    return together(stepping(profile, "Communication", threads), intervals_of(calls))


def _computation(profile: Profile) -> Intervals:
    """Paddle's Computation, and kernels of which nobody saw the launch."""
    kernels = profile.tree.devices.filter(
        (pl.col("category") == "Kernel") & pl.col("host").is_null()
    )
    unseen = intervals_of(kernels.filter(~_named(_NCCL)))
    return together(profile.communication.computation, unseen)


def _communication(profile: Profile) -> pl.DataFrame:
    """What communicates: of a trace with device events kernels, else host events.

    Host events are Communication events; operators that are named after a collective only where
    nobody has recorded such events, for a ``Global_GradNodePyLayer_mp_allreduce`` may do nothing.

    Returns:
        name and axis of the Communication event (of the innermost that launched a kernel; where
        there is none the event's own name and `UNKNOWN`), step (in which it began or was
        launched), start_ns, end_ns.
    """
    found, tree = profile.communication, profile.tree
    facts = profile.trace.events
    tellers = np.flatnonzero((facts["category"] == "Communication").to_numpy())
    if tree.devices.is_empty():
        rows = tellers if len(tellers) else found.host_rows
        events = tree.hosts[rows]
        launcher = events["row"]
        teller = launcher if len(tellers) else nullable(np.full(len(rows), -1))
    else:
        is_found = np.zeros(tree.devices.height, bool)
        is_found[found.device_rows] = True
        unseen = pl.col("host").is_null() & (pl.col("category") == "Kernel")
        unseen &= matching(tree.devices["name"], _NCCL)
        events = tree.devices.filter(pl.Series(is_found) | unseen)
        launcher = events["host"]
        around = np.append(tree.innermost(tellers), -1)
        teller = nullable(around[launcher.fill_null(-1).to_numpy()])
    return events.select(
        pl.coalesce(facts["name"].gather(teller), "name").cast(pl.String).alias("name"),
        facts["axis"].gather(teller).cast(pl.String).fill_null(UNKNOWN),
        facts["step"].gather(launcher),
        *("start_ns", "end_ns"),
    )


def _passes(profile: Profile, threads: pl.Series) -> pl.DataFrame:
    """The outermost Forward and Backward events of the threads that step, where they computed.

    Those of a stage alone, if any is of a stage.

    Returns:
        step (in which the event began), stage (null where it is not known), start_ns, end_ns: of
        the event or, in a trace with device events, of what was launched in it.
    """
    tree = profile.tree
    passes = profile.outermost.filter(
        pl.col("category").is_in(["Forward", "Backward"])
        & pl.col("thread").is_in(threads.implode())
    ).select("row", "start_ns", "end_ns")
    facts = profile.trace.events
    passes = passes.with_columns(facts[fact].gather(passes["row"]) for fact in ("step", "stage"))
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
    """When a stage waits for others.

    Args:
        communication: as `_communication` returns it.
        passes: as `_passes` returns it.
        waiting: when the host waits, if passes ran on a device.

    Returns:
        ``communication`` with of_stages, whether it is a pipeline's own: sends and receives of a
        step with passes, its axis then ``pp``, and the meeting after them. And the bubble.
    """
    over_stages = pl.col("axis").str.split("+").list.contains("pp")
    to_stages = over_stages
    if passes["stage"].count():  # then a send to nobody knows whom is one to a stage
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
    of_stages = (
        pl.Series(is_sent) | communication.select(row.is_in(meetings["row"].implode()))["row"]
    )
    return (
        communication.with_columns(of_stages=of_stages),
        together(bubble, intervals_of(meetings)),
    )


def _named(pattern: str) -> pl.Expr:
    return pl.col("name").cast(pl.String).str.contains(pattern)


def axis_position(axis: str) -> tuple[bool, int, str]:
    """Sort key: the axes of `_AXES`, then those of several, then what is not known."""
    return axis == UNKNOWN, (*_AXES, axis).index(axis), axis
