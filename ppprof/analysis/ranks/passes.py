"""The passes of one rank through its stage: the bubble between them, and a table of them.

`ppprof.analysis.ranks.step_breakdown` defines the bubble: the time in which a stage waits for other
stages. `ppprof.analysis.ranks.what_if` replays the tables of all ranks.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.profile.event_tree import filled
from ppprof.analysis.profile.grouping import intervals_of
from ppprof.analysis.profile.intervals import (
    Intervals,
    covered_within,
    difference,
    extents_by_group,
    intersection,
    joined,
    together,
    union,
)
from ppprof.analysis.profile.profile import PHASES, Profile
from ppprof.analysis.ranks.collectives import kernel_times
from ppprof.analysis.ranks.device_steps import stepping_threads, steps_of_rank
from ppprof.analysis.ranks.rank_communication import (
    UNKNOWN_AXIS,
    RankCommunication,
    communication_of,
)
from ppprof.arrays import Bool, Int64
from ppprof.trace.schema import nullable

_SENT = re.compile("(?i)send|recv")
_MEETING = re.compile("(?i)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier")


class Passes(NamedTuple):
    """The N passes of a rank through its stage."""

    step: Int64
    """Step in which the pass began, shape (N,)."""
    stage: Int64
    """Stage, shape (N,); -1 if no pass has one."""
    intervals: Intervals
    """Start and end of each pass."""

    def take(self, chosen: Bool) -> Passes:
        """Return the chosen passes."""
        start, end = self.intervals
        return Passes(self.step[chosen], self.stage[chosen], (start[chosen], end[chosen]))


def passes_of(profile: Profile) -> Passes:
    """Return the outermost Forward and Backward events of the stepping threads.

    If any of them has a stage, events without a stage are no passes. In a trace with device events,
    events that launched no device event are no passes, and the others last from the first start to
    the last end of the device events launched in them. Events outside of steps are no passes.
    """
    tree, events = profile.tree, profile.tree.events
    rows = events.host_rows("Forward", "Backward")
    is_outermost = ~tree.below(events.host_rows(*PHASES))[rows]
    rows = rows[is_outermost & np.isin(events.thread[rows], stepping_threads(profile))]
    stage = filled(events.events["stage"].gather(rows))
    if (stage >= 0).any():
        rows, stage = rows[stage >= 0], stage[stage >= 0]
    passes = Passes(events.step[rows], stage, events.intervals(rows))
    if events.has_devices:
        around = np.append(tree.innermost(rows), -1)[events.host_of_device]
        inside = np.flatnonzero(around >= 0)
        launched, extents = extents_by_group(
            around[inside], events.intervals(events.first_device + inside)
        )
        has_launched = np.isin(rows, launched)
        passes = Passes(passes.step[has_launched], stage[has_launched], extents)
    return passes.take(passes.step >= 0)


def bubble_of(
    communication: RankCommunication, passes: Passes, waiting: Intervals | None
) -> tuple[RankCommunication, Bool, Intervals]:
    """Return a rank's communication, which of it is between pipeline stages, and its bubble.

    Args:
        communication: the communication of the rank.
        passes: the result of `passes_of`.
        waiting: the intervals in which the stepping threads wait; None in a trace without device
            events.

    Returns:
        - ``communication``. If passes have stages, sends and receives over an unknown axis have the
          axis ``pp`` now.
        - For each of its N rows, whether it is between stages: sends and receives over ``pp`` in a step
          with passes, and the first collective of all stages after the last pass of a step.
        - The intervals of the bubble, in which the rank waits for other stages.
    """
    name, axis, step = communication.name, communication.axis, communication.step
    to_stages = axis.where(_is_over_stages)
    if (passes.stage >= 0).any():  # then a send to an unknown rank goes to a stage
        to_stages |= axis.where(UNKNOWN_AXIS.__eq__)
    is_sent = to_stages & name.where(_is_sent) & np.isin(step, passes.step)
    communication = communication._replace(axis=axis.with_text("pp", is_sent))
    sent = communication.times(is_sent)

    staged = np.concatenate((step[is_sent], passes.step[passes.stage >= 0]))
    passes = passes.take(np.isin(passes.step, staged))
    _, pipelines = extents_by_group(
        np.concatenate((passes.step, step[is_sent])),
        joined(passes.intervals, sent),
    )
    bubble = difference(pipelines, passes.intervals)
    if waiting is not None:
        bubble = intersection(bubble, together(waiting, sent))

    meetings = _meetings(communication, passes)
    is_pipeline = is_sent.copy()
    is_pipeline[meetings] = True
    return communication, is_pipeline, together(bubble, communication.times(meetings))


def _meetings(communication: RankCommunication, passes: Passes) -> Int64:
    """Return the first collective of all stages after the last pass of each step.

    pass         FF_BB__________
    all_reduce   _____dd_pp__pp_      over dp and pp
    out          ________##_____
    """
    steps, (_, last_ns) = extents_by_group(passes.step, passes.intervals)
    start = communication.intervals[0]
    is_meeting = communication.axis.where(_is_over_stages) & communication.name.where(_is_meeting)
    rows = np.flatnonzero(is_meeting & np.isin(communication.step, steps))
    position = np.searchsorted(steps, communication.step[rows])
    is_after = start[rows] >= last_ns[position]
    rows, position = rows[is_after], position[is_after]
    order = np.argsort(start[rows], kind="stable")
    _, first = np.unique(position[order], return_index=True)
    return rows[order[first]]


def _is_over_stages(axis: str) -> bool:
    return "pp" in axis.split("+")


def _is_sent(name: str) -> bool:
    return _SENT.search(name) is not None


def _is_meeting(name: str) -> bool:
    return _MEETING.search(name) is not None


PASSES: dict[str, pl.DataType] = {
    "rank": pl.Int64(),
    "step": pl.Int64(),
    "kind": pl.String(),
    "chunk": pl.Int64(),
    "micro_batch": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "is_paused": pl.Boolean(),
}
"""Columns of `passes`. ``is_paused``: the training pauses in the step. The values of ``kind``:

- ``step``: the step itself;
- ``forward``, ``backward``: the pass of one micro-batch through one chunk (chunk is 0 if the stage
  has one chunk);
- ``own``, only in steps without passes: begins with the step and lasts as long as the step without
  the wait for other replicas.

chunk and micro_batch are null for step and own."""

_KINDS = {"Forward": "forward", "Backward": "backward"}
_BETWEEN_REPLICAS = frozenset(("dp", "sharding"))


def passes(profile: Profile) -> pl.DataFrame:
    """Return one rank's steps and passes.

    In a trace with device events, a pass lasts from the start of its first kernel to the end of its
    last; without any kernel it is no pass. Pauses of the training are no time of a step: what follows
    them in their step is as much earlier::

        step     |1 FFFF ...... BBBB |2 FFFF         six of a pause
        out      |1 FFFFBBBB |      2 FFFF

    Returns:
        Columns of `PASSES`, sorted by start; the rank, which a trace does not state, is -1. No rows if the window has no steps, or lacks the
        events of its device.
    """
    if profile.unrecorded_device:
        return pl.DataFrame(schema=PASSES)
    steps = steps_of_rank(profile)
    step, start, end = (steps[name].to_numpy() for name in ("step", "start_ns", "end_ns"))
    in_pass, chunk, micro_batch, kind, (first, last) = _passes(profile)
    is_own = ~np.isin(step, in_pass)
    exposed = _between_replicas(profile) if is_own.any() else (start[:0], end[:0])
    pauses = intervals_of(profile.pauses)
    unused = union(*(np.concatenate(times) for times in zip(exposed, pauses)))
    own_end = end[is_own] - covered_within(unused, start[is_own], end[is_own])
    paused_ns = covered_within(union(*pauses), start, end)
    if len(pauses[0]):
        by_step = np.argsort(step, kind="stable")
        begin = start[by_step][np.searchsorted(step[by_step], in_pass)]
        first, last = (
            times - covered_within(union(*pauses), begin, times) for times in (first, last)
        )
        end = end - paused_ns
    num_own, unknown = len(own_end), np.full(len(step) + len(own_end), -1)
    starts = np.concatenate((start, first, start[is_own]))
    order = np.argsort(starts, kind="stable")
    steps_of_rows = np.concatenate((step, in_pass, step[is_own]))
    columns = {
        "rank": np.full(len(starts), -1),
        "step": steps_of_rows,
        "kind": pl.Series(["step"] * len(step) + kind + ["own"] * num_own, dtype=pl.String),
        "chunk": nullable(np.insert(unknown, len(step), chunk)),
        "micro_batch": nullable(np.insert(unknown, len(step), micro_batch)),
        "start_ns": starts,
        "end_ns": np.concatenate((end, last, own_end)),
        "is_paused": np.isin(steps_of_rows, step[paused_ns > 0]),
    }
    return pl.DataFrame(columns, PASSES)[order]


def _passes(profile: Profile) -> tuple[Int64, Int64, Int64, list[str], Intervals]:
    """Return step, chunk, micro-batch, kind and interval of each pass of a micro-batch in a step."""
    events = profile.tree.events
    rows = events.host_rows(*_KINDS)
    rows = rows[events.step[rows] >= 0]
    chunk, micro_batch = (
        filled(events.events[name].gather(rows)) for name in ("chunk", "micro_batch")
    )
    (start, end), is_timed = kernel_times(events, rows[micro_batch >= 0])
    chosen = np.flatnonzero(micro_batch >= 0)[is_timed]
    kinds = [_KINDS[name] for name in events.events["category"].gather(rows[chosen]).to_list()]
    times = start[is_timed], end[is_timed]
    step = events.step[rows[chosen]]
    return step, np.maximum(chunk[chosen], 0), micro_batch[chosen], kinds, times


def _between_replicas(profile: Profile) -> Intervals:
    """Return the exposed communication between replicas.

    In a trace without device events, all communication between replicas counts as exposed. With
    device events, it is the kernels that count, also those that no span launched.
    Communication over an unknown axis counts as between replicas.

    ::

        computation      ######___###____
        dp all_reduce    ____#######_____     3 of 7 exposed
        own              #############___     16 - 3
    """
    communication = communication_of(profile)
    times = communication.times(communication.axis.where(_is_between_replicas))
    if not profile.tree.events.has_devices:
        return times
    return difference(times, profile.communication.computation)


def _is_between_replicas(axis: str) -> bool:
    return axis == UNKNOWN_AXIS or not _BETWEEN_REPLICAS.isdisjoint(axis.split("+"))
