"""The parts of each step of one rank. They are disjoint and add up to the step.

`breakdown` returns one row per step and part; `ppprof.analysis.ranks.step_table` joins these tables
of many ranks. Every instant of a step belongs to the first of these parts that contains it:

- ``computation``: kernels that do not communicate (Paddle's Computation, and kernels whose launch
  was not recorded). In a trace without device events: operators, while their thread does not
  communicate (`ppprof.analysis.profile.communication.Communication`).
- ``exposed``, one per axis: communication outside the bubble. Where communication over two axes
  overlaps, the time counts for the axis that comes first in this order: mp, sep, sharding, dp, pp,
  several axes, "?" (unknown axis). The order is by how soon an axis blocks: the innermost blocks
  soonest.

      compute   ###___###____
      mp        __##_________
      dp        ____######___
      exposed   ___mdd___d___    hidden: 3 ticks of dp and 1 of mp

- ``data_loading``: Dataloader spans of the stepping thread.
- ``bubble``: the time in which a stage waits for other stages. It has two kinds of time. One is the
  time outside passes (Forward and Backward spans of micro-batches), between the first and the last
  of a step's passes, sends and receives. The other is the first collective of all stages after the
  last pass (such as an all_reduce over an axis that includes ``pp``), where a stage waits for
  stages that drain later:

      pass      ____FF__BBB_FF__BBB_______
      pp        rrrr__ss___r__rr___ss__aa_
      bubble    ####__##___#__##___##__##_    receive, send, all_reduce

  The bubble includes the transfers between stages: one rank's trace cannot separate a transfer from
  the wait for the sender. `ppprof.analysis.ranks.transfers` moves transfers out of the bubble if
  the trace of the other rank exists. In a trace without device events, the bubble also includes
  Python's work between two passes.
- ``host_bound``, only in traces with device events: nothing runs on any device, nothing is in its
  queue, and the stepping thread neither communicates nor synchronizes, so the host does not launch
  fast enough.
- ``queued``, only in traces with device events: nothing runs on any device, although work is in its
  queue (`ppprof.analysis.ranks.device_queue` says what it waits for).
- ``rest``: all other time. Without device events, this is Python between operators; with device
  events, copies and other waits.

With device events, computation and communication are kernels, and a step lasts until the kernels are
over that it launched (`ppprof.analysis.ranks.device_steps`). A pass then lasts from the start of its first device event
to the end of its last. Between passes, only two kinds of time are then bubble: a send or receive
runs, or the stepping thread waits in communication or in a synchronization.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.profile.grouping import intervals_of
from ppprof.analysis.profile.hidden_reductions import (
    DATA_PARALLEL,
    DATA_PARALLEL_AXIS,
    hidden_reductions,
)
from ppprof.analysis.profile.intervals import (
    Intervals,
    covered_within,
    difference,
    intersection,
    together,
    union,
)
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.runtime_calls import BLOCKING, COPY, WAIT, is_of_kind
from ppprof.analysis.ranks.device_queue import CAUSES, QUEUE, idle_causes, queue_of_steps
from ppprof.analysis.ranks.device_steps import steps_of_rank
from ppprof.arrays import Int64
from ppprof.trace.communication_names import communicates
from ppprof.trace.schema import is_kernel, nullable

PARTS = ("computation", "exposed", "data_loading", "bubble", "host_bound", "queued", "rest")
"""The parts of a step. An instant belongs to the first part that contains it; the docstring of the
module defines the parts."""

BESIDE = ("communication", "hidden", "host_launch")
"""Times outside the sum of the parts. ``communication``: all communication over an axis.
``hidden``: the part of it during computation. ``host_launch``: the time in which some thread is in
a runtime call and does not wait for the device."""

LONG_CALL_NS = 100_000
"""Least length of a call that copies, allocates or frees for its time beside work of a device to
count as waiting: a copy from memory that is not pinned, for example, waits for its stream. A call
that puts a copy into a queue takes some 10 us."""

GROUP_SPAN = "coalesced"
"""Name of the span around a group of communication calls that are launched together at its end."""

UNKNOWN_AXIS = "?"
"""The axis of communication whose group is unknown."""

STRETCHES = {"step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}

BREAKDOWN = {"step": pl.Int64, "part": pl.String, "axis": pl.String, "time_ns": pl.Int64}

_AXES = ("mp", "sep", "sharding", "dp", "pp")
_SENT = "(?i)send|recv"
_QUEUED = "^i?(send|recv)$"
_MEETING = "(?i)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier"


class Breakdown(NamedTuple):
    """The parts of the steps in one rank's window, and the intervals of the bubble."""

    parts: pl.DataFrame
    """Columns of `BREAKDOWN`: one row per step, part and axis."""
    bubbles: pl.DataFrame
    """Columns of `STRETCHES`: the bubble of each step, as disjoint intervals on the rank's own
    clock."""
    queue: pl.DataFrame
    """Columns of `ppprof.analysis.ranks.device_queue.QUEUE`; no rows without device events."""


def breakdown(profile: Profile) -> Breakdown:
    """Return the `PARTS` of one rank's steps, and the times `BESIDE` them.

    Args:
        profile: one rank's window.

    Returns:
        ``parts`` has the columns step, part, axis ("dp", "pp+mp", "?"; null except for exposed,
        communication and hidden) and time_ns int64. It is sorted by step. Within a step, the first
        row is ``step``, the whole time; then come the rows of `PARTS`, which add up to it, then the
        rows of `BESIDE`. Without device events, there are no rows for host_bound, queued and
        host_launch.
        If any step communicates over an axis, every step has rows for it, with 0 in the other
        steps. ProfileSteps with equal numbers are added up. Both tables have no rows if no
        ProfileStep has a number. If the trace lacks the events of its device, only step and
        data_loading have rows: the host's other times are of launches.
    """
    if profile.unrecorded_device:
        return _breakdown_of_launches(profile)
    tree = profile.tree
    on_device = not tree.devices.is_empty()
    steps = steps_of_rank(profile)
    start, end = intervals_of(steps)
    communication = communication_events(profile, profile.trace.events["step"])
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
    queue = pl.DataFrame(schema=QUEUE)
    if waiting is not None:
        idle = idle_causes(profile, steps)
        take("host_bound", None, difference(idle["nothing_queued"], waiting))
        take("queued", None, together(*(idle[cause] for cause in CAUSES[1:])))
        queue = queue_of_steps(profile, steps, idle)
    take("rest", None, (start, end))

    for axis, events in by_axis.items():
        all_of_axis = union(*intervals_of(events))
        hidden = intersection(all_of_axis, computation)
        times.append(("communication", axis, covered_within(all_of_axis, start, end)))
        times.append(("hidden", axis, covered_within(hidden, start, end)))
    if on_device:
        times.append(("host_launch", None, covered_within(_launching(profile), start, end)))
    return Breakdown(_sum_by_step(steps["step"], times), _clip_to_steps(steps, bubble), queue)


def _breakdown_of_launches(profile: Profile) -> Breakdown:
    steps = steps_of_rank(profile)
    start, end = intervals_of(steps)
    loading = union(*stepping_thread_in(profile, "Dataloader", steps["thread"].unique()))
    times: list[tuple[str, str | None, Int64]] = [
        ("step", None, end - start),
        ("data_loading", None, covered_within(loading, start, end)),
    ]
    nothing = pl.DataFrame(schema=STRETCHES)
    return Breakdown(_sum_by_step(steps["step"], times), nothing, pl.DataFrame(schema=QUEUE))


def _clip_to_steps(steps: pl.DataFrame, instants: Intervals) -> pl.DataFrame:
    """Return the pieces of ``instants``, a union, inside each step: columns of `STRETCHES`."""
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
    """Return the times of all parts as rows of `BREAKDOWN`; steps with equal numbers are added up.

    Args:
        steps: step numbers, N rows.
        times: for each part, its name, its axis and its times, shape (N,).
    """
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


def stepping_thread_in(profile: Profile, category: str, threads: pl.Series) -> Intervals:
    """Return the intervals of the events of one category on the stepping threads.

    Args:
        profile: one rank's window.
        category: the category of the events, such as ``Dataloader``.
        threads: the stepping threads, those with a ProfileStep.
    """
    events = profile.tree.hosts.filter(
        (pl.col("category") == category) & pl.col("thread").is_in(threads.implode())
    )
    return intervals_of(events)


def waiting_intervals(profile: Profile, threads: pl.Series) -> Intervals:
    """Return the intervals in which the stepping threads communicate or synchronize with a device.

    Sends and receives that launched no kernel do not count: another call launches it later, that of
    a group of transfers. Collectives without a kernel count, since they may be of a library that
    blocks the host, such as gloo.

    Args:
        profile: one rank's window, with device events.
        threads: the stepping threads, those with a ProfileStep.
    """
    tree = profile.tree
    calls = tree.launches.filter(is_of_kind(tree.launches["name"], WAIT))
    calls = calls.filter(pl.col("thread").is_in(threads.implode()))
    only_queues = pl.col("name").cast(pl.String).str.contains(_QUEUED) & (pl.col("device_ns") == 0)
    spans = tree.hosts.filter(
        (pl.col("category") == "Communication")
        & pl.col("thread").is_in(threads.implode())
        & ~only_queues
    )
    return together(intervals_of(spans), intervals_of(calls))


def _launching(profile: Profile) -> Intervals:
    """Return the instants in which a thread is in a runtime call and does not wait for a device.

        calls    launch  copy##########        #: a copy longer than `LONG_CALL_NS`
        devices      kkkkkkkkkkk
        out      ======         =======

    Args:
        profile: one rank's window, with device events.

    Returns:
        A union of intervals.
    """
    calls, devices = profile.tree.launches, profile.tree.devices
    is_long = pl.Series(calls["end_ns"] - calls["start_ns"] >= LONG_CALL_NS)
    may_wait = is_of_kind(calls["name"], COPY, BLOCKING) & is_long
    only_launch = calls.filter(~is_of_kind(calls["name"], WAIT) & ~may_wait)
    return together(
        intervals_of(only_launch),
        difference(intervals_of(calls.filter(may_wait)), intervals_of(devices)),
    )


def _computation(profile: Profile) -> Intervals:
    """Return the computation of `Communication`, and computing kernels without a recorded launch.

    Without the all-reduces of `hidden_reductions`.
    """
    kernels = profile.tree.devices.filter(is_kernel() & pl.col("host").is_null())
    unseen = intervals_of(kernels.filter(~communicates(kernels["name"])))
    computation = together(profile.communication.computation, unseen)
    return difference(computation, intervals_of(hidden_reductions(profile.tree)))


def communication_events(profile: Profile, step: pl.Series) -> pl.DataFrame:
    """Return the communication of a window: kernels, or host events without device events.

    The host events are Communication events. Operators named after a collective count only in a
    trace without any Communication event, because an operator such as
    ``Global_GradNodePyLayer_mp_allreduce`` may do nothing. The all-reduces of `hidden_reductions`
    count, too.

    Args:
        profile: a window.
        step: the step of each event of the trace.

    Returns:
        name, axis, step, start_ns, end_ns. name and axis are those of the innermost Communication
        event around the launch; without one, the row's own name, and for a kernel the axis of
        `_axes_of_kernels`, else `UNKNOWN_AXIS`. step is the step in which a host event began or a
        kernel was launched; null if unknown. No rows if the trace lacks the events of its device.
    """
    communication, tree = profile.communication, profile.tree
    events = profile.trace.events
    spans = np.flatnonzero((events["category"] == "Communication").to_numpy())
    if tree.devices.is_empty():
        rows = spans if len(spans) else communication.host_rows
        rows = rows[:0] if profile.unrecorded_device else rows
        table = tree.hosts[rows]
        launcher = table["row"]
        span = launcher if len(spans) else nullable(np.full(len(rows), -1, np.int64))
    else:
        is_launched = np.zeros(tree.devices.height, bool)
        is_launched[communication.device_rows] = True
        unseen = pl.col("host").is_null() & is_kernel() & communicates(tree.devices["name"])
        table = tree.devices.filter(pl.Series(is_launched) | unseen)
        launcher = table["host"]
        enclosing_span = np.append(tree.innermost(spans), -1)
        span = nullable(enclosing_span[launcher.fill_null(-1).to_numpy()])
    axis = events["axis"].gather(span).cast(pl.String)
    if not tree.devices.is_empty():
        # A group that is known and not of an axis has none, whatever else runs on its stream.
        has_group = events["group"].gather(span).is_not_null()
        axis = _axes_of_kernels(profile, table, axis.set(axis.is_null() & has_group, UNKNOWN_AXIS))
    span_name = pl.lit(events["name"].gather(span)).cast(pl.String)
    table = table.select(
        # A group of calls has no operation of its own: the kernel has.
        pl.coalesce(
            pl.when(span_name != GROUP_SPAN).then(span_name), pl.col("name").cast(pl.String)
        ).alias("name"),
        axis.fill_null(UNKNOWN_AXIS).alias("axis"),
        step.gather(launcher).alias("step"),
        *("start_ns", "end_ns"),
    )
    reductions = hidden_reductions(tree)
    hidden = reductions.select(
        name=pl.lit(DATA_PARALLEL),
        axis=pl.lit(DATA_PARALLEL_AXIS),
        step=step.gather(reductions["row"]),
        start_ns="start_ns",
        end_ns="end_ns",
    )
    return pl.concat([table, hidden])


def _axes_of_kernels(profile: Profile, kernels: pl.DataFrame, axis: pl.Series) -> pl.Series:
    """Return the axis of each kernel of communication; null if it is not known.

    Kernels that C++ launches, such as those of DataParallel's reducer, lie in no span. Two things
    give their axis: each process group of Paddle has a stream of its own, so a stream on which all
    kernels communicate, and all known ones over one axis, is of that axis; and in a job with a
    single axis, every group is of that axis.

        stream 20   all_reduce(dp)  ?  all_reduce(dp)      ? is dp
        stream 7    gemm  recv(pp)  ?                      ? is not known

    Source: ProcessGroupNCCL::CreateNCCLEnvCache, paddle/fluid/distributed/collective.

    Args:
        profile: the window.
        kernels: rows of ``tree.devices``, N rows.
        axis: the axis of the span around each launch, null without, shape (N,).
    """
    stream = ["device", "stream"]
    devices = profile.tree.devices.filter(is_kernel())
    num_kernels = devices.group_by(stream).agg(num_kernels=pl.len())
    of_stream = (
        kernels.select(stream)
        .with_columns(axis=axis)
        .group_by(stream)
        .agg(pl.col("axis").drop_nulls().unique(), num_communicating=pl.len())
        .join(num_kernels, on=stream, nulls_equal=True)
        .filter(
            (pl.col("axis").list.len() == 1)
            & (pl.col("num_communicating") == pl.col("num_kernels"))
        )
        .select(*stream, stream_axis=pl.col("axis").list.first())
    )
    by_stream = kernels.select(stream).join(
        of_stream, on=stream, how="left", maintain_order="left", nulls_equal=True
    )["stream_axis"]
    only_axis = pl.lit(profile.trace.only_axis, pl.String)
    return pl.select(pl.coalesce(axis, by_stream, only_axis).alias("axis")).to_series()


def _passes(profile: Profile, threads: pl.Series) -> pl.DataFrame:
    """Return the outermost Forward and Backward events of the stepping threads.

    If any of them has a stage, events without a stage are no passes. In a trace with device events,
    events that launched no device event are no passes.

    Returns:
        step (in which the event began), stage (null if no event has one), start_ns, end_ns. Start
        and end are those of the event or, in a trace with device events, the first start and the
        last end of the device events launched in it.
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
    """Return the communication with the communication between stages marked, and the bubble.

    Args:
        communication: the result of `communication_events`.
        passes: the result of `_passes`.
        waiting: the intervals in which the stepping threads wait; None in a trace without device
            events.

    Returns:
        ``communication`` with the column is_pipeline, and the intervals of the bubble. is_pipeline
        is True for the sends and receives over ``pp`` of a step with passes, and for the first
        collective of all stages after a step's last pass. If passes have stages, sends and receives
        over an unknown axis count too, and their axis becomes ``pp``.
    """
    over_stages = pl.col("axis").str.split("+").list.contains("pp")
    to_stages = over_stages
    if passes["stage"].count():  # then a send to an unknown rank goes to a stage
        to_stages |= pl.col("axis") == UNKNOWN_AXIS
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
    """Return a sort key for an axis: first the axes of `_AXES`, then combined axes, then `UNKNOWN_AXIS`.

    >>> sorted(["?", "dp", "pp+mp", "mp"], key=axis_position)
    ['mp', 'dp', 'pp+mp', '?']
    """
    return axis == UNKNOWN_AXIS, (*_AXES, axis).index(axis), axis
