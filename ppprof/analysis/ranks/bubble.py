"""The bubble of one rank's steps: the time in which its stage waits for other stages.

`ppprof.analysis.ranks.step_breakdown` defines it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from ppprof.analysis.profile.event_arrays import filled
from ppprof.analysis.profile.intervals import (
    Intervals,
    difference,
    extents_by_group,
    intersection,
    joined,
    together,
)
from ppprof.analysis.profile.profile import PHASES, Profile
from ppprof.analysis.ranks.rank_communication import UNKNOWN_AXIS, RankCommunication
from ppprof.arrays import Bool, Int64

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


def passes_of(profile: Profile, threads: Int64) -> Passes:
    """Return the outermost Forward and Backward events of the stepping threads.

    If any of them has a stage, events without a stage are no passes. In a trace with device events,
    events that launched no device event are no passes, and the others last from the first start to
    the last end of the device events launched in them. Events outside of steps are no passes.

    Args:
        profile: one rank's window.
        threads: the stepping threads, those with a ProfileStep.
    """
    tree, events = profile.tree, profile.tree.events
    rows = events.host_rows("Forward", "Backward")
    is_outermost = ~tree.below(events.host_rows(*PHASES))[rows]
    rows = rows[is_outermost & np.isin(events.thread[rows], threads)]
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
    """Return the communication, which of it is between stages, and the bubble.

    Args:
        communication: the communication of the rank.
        passes: the result of `passes_of`.
        waiting: the intervals in which the stepping threads wait; None in a trace without device
            events.

    Returns:
        ``communication`` with other axes; whether each of its rows is between stages, shape (N,);
        and the intervals of the bubble. Between stages are the sends and receives over ``pp`` of a
        step with passes, and the first collective of all stages after a step's last pass. If passes
        have stages, sends and receives over an unknown axis count too, and their axis becomes
        ``pp``.
    """
    name, axis, _, step = communication[:4]
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
