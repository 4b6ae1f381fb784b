"""The parts of each step of one rank. They are disjoint and add up to the step.

A pause within a step (`ProfilerSession.paused`) is no time of the step, as in the log of step times.
`breakdown` returns one row per step and part; `ppprof.analysis.ranks.step_table` joins these tables
of many ranks. Every instant of a step belongs to the first of these parts that contains it:

- ``computation``: kernels that do not communicate (Paddle's Computation, and kernels whose launch
  was not recorded). In a trace without device events: operators, while their thread does not
  communicate (`ppprof.analysis.profile.profile.Communication`).
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
  the wait for the sender. `ppprof.analysis.ranks.step_table` moves transfers out of the bubble if
  the trace of the other rank exists. In a trace without device events, the bubble also includes
  Python's work between two passes.
- ``host_bound``, only in traces with device events: nothing runs on any device, nothing is in its
  queue, and the stepping thread neither communicates nor synchronizes, so the host does not launch
  fast enough.
- ``queued``, only in traces with device events: nothing runs on any device, although work is in its
  queue (`ppprof.analysis.ranks.device_queue` says what it waits for).
- ``rest``: all other time. Without device events, this is Python between operators; with device
  events, copies and other waits.

With device events, computation and communication are kernels, and a step lasts until the last of its
kernels is over (`ppprof.analysis.ranks.device_steps`). A pass then lasts from the start of its first
device event to the end of its last. Between passes, only two kinds of time are then bubble: a send or
receive runs, or the stepping thread waits in communication or in a synchronization.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.profile.grouping import intervals_of
from ppprof.analysis.profile.intervals import (
    Intervals,
    covered_within,
    difference,
    intersection,
    pieces_inside,
    together,
    union,
)
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.runtime_calls import BLOCKING, COPY, WAIT, is_of_kind
from ppprof.analysis.ranks.device_queue import CAUSES, QUEUE, idle_causes, queue_of_steps
from ppprof.analysis.ranks.device_steps import stepping_threads, steps_of_rank
from ppprof.analysis.ranks.passes import bubble_of, passes_of
from ppprof.analysis.ranks.rank_communication import (
    axis_position,
    communication_of,
    hidden_reductions,
)
from ppprof.arrays import Int64

PARTS = ("computation", "exposed", "data_loading", "bubble", "host_bound", "queued", "rest")
"""The parts of a step. An instant belongs to the first part that contains it; the docstring of the
module defines the parts."""

BESIDE = ("communication", "hidden", "host_launch")
"""Times outside the sum of the parts. ``communication``: all communication over an axis.
``hidden``: the part of it during computation. ``host_launch``: the time in which some thread is in
a runtime call and does not wait for the device."""

STRETCHES = {"step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}

SLICES = {"step": pl.Int64, "part": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64}
"""Columns of `Breakdown.slices`."""

_NUM_SLICES = 240
"""Slices of a step: as many as a picture of it on a page can show."""

_MOST_SLICED = 20
"""Most steps that are sliced: those in the middle."""

BREAKDOWN = {"step": pl.Int64, "part": pl.String, "axis": pl.String, "time_ns": pl.Int64}


class Breakdown(NamedTuple):
    """The parts of the steps in one rank's window, and the intervals of the bubble."""

    parts: pl.DataFrame
    """Columns of `BREAKDOWN`: one row per step, part and axis."""
    bubbles: pl.DataFrame
    """Columns of `STRETCHES`: the bubble of each step, as disjoint intervals on the rank's own
    clock."""
    queue: pl.DataFrame
    """Columns of `ppprof.analysis.ranks.device_queue.QUEUE`; no rows without device events."""
    slices: pl.DataFrame
    """Columns of `SLICES`: of some steps, which of `PARTS` is when, on the rank's own clock. A step is
    cut into equal slices, and each slice belongs to the part with most of its time; pauses lack."""


def breakdown(profile: Profile) -> Breakdown:
    """Return the `PARTS` of one rank's steps, and the times `BESIDE` them.

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
    steps = steps_of_rank(profile)
    start, end = intervals_of(steps)
    pauses = union(*intervals_of(profile.pauses))
    step_ns = end - start - covered_within(pauses, start, end)
    times: list[tuple[str, str | None, Int64]] = [("step", None, step_ns)]
    if profile.unrecorded_device:
        loading = difference(loading_intervals(profile), pauses)
        times.append(("data_loading", None, covered_within(loading, start, end)))
        nothing = (pl.DataFrame(schema=columns) for columns in (STRETCHES, QUEUE, SLICES))
        return Breakdown(_sum_by_step(steps["step"], times), *nothing)
    on_device = profile.tree.events.has_devices
    computation = computation_of(profile)
    waiting = waiting_intervals(profile) if on_device else None
    communication, is_pipeline, bubble = bubble_of(
        communication_of(profile), passes_of(profile), waiting
    )
    is_over = {
        axis: communication.axis.where(axis.__eq__)
        for axis in sorted(communication.axis.used(), key=axis_position)
    }

    taken = pauses
    edges = _edges(start, end)
    in_slices: list[tuple[str, Int64]] = []

    def take(part: str, axis: str | None, instants: Intervals) -> None:
        nonlocal taken
        before, taken = taken, together(taken, instants)
        first, last = np.append(start, edges[:, :-1]), np.append(end, edges[:, 1:])
        time_ns = covered_within(taken, first, last) - covered_within(before, first, last)
        times.append((part, axis, time_ns[: len(start)]))
        in_slices.append((part, time_ns[len(start) :]))

    take("computation", None, computation)
    for axis, chosen in is_over.items():
        pipeline = communication.times(chosen & is_pipeline)
        others = communication.times(chosen & ~is_pipeline)
        take("exposed", axis, together(others, difference(pipeline, bubble)))
    take("data_loading", None, loading_intervals(profile))
    bubble = difference(bubble, taken)
    take("bubble", None, bubble)
    queue = pl.DataFrame(schema=QUEUE)
    if waiting is not None:
        idle = idle_causes(profile)
        take("host_bound", None, difference(idle["nothing_queued"], waiting))
        take("queued", None, together(*(idle[cause] for cause in CAUSES[1:])))
        queue = queue_of_steps(profile)
    take("rest", None, (start, end))

    for axis, chosen in is_over.items():
        all_of_axis = difference(communication.times(chosen), pauses)
        hidden = intersection(all_of_axis, computation)
        times.append(("communication", axis, covered_within(all_of_axis, start, end)))
        times.append(("hidden", axis, covered_within(hidden, start, end)))
    if on_device:
        launching = difference(_launching_intervals(profile), pauses)
        times.append(("host_launch", None, covered_within(launching, start, end)))
    return Breakdown(
        _sum_by_step(steps["step"], times),
        _clip_to_steps(steps, bubble),
        queue,
        _slices(steps["step"], edges, in_slices),
    )


def _middle(num_steps: int) -> slice:
    """Return the rows of the steps that are sliced."""
    first = max(0, num_steps - _MOST_SLICED) // 2
    return slice(first, first + _MOST_SLICED)


def _edges(start: Int64, end: Int64) -> Int64:
    """Return the edges of the slices of the steps that are sliced, shape (steps, slices + 1)."""
    chosen = _middle(len(start))
    first, length = (each[chosen, np.newaxis] for each in (start, end - start))
    number = np.arange(_NUM_SLICES + 1)
    whole, rest = length // _NUM_SLICES, length % _NUM_SLICES  # their product fits an int64
    edges: Int64 = first + whole * number + rest * number // _NUM_SLICES
    return edges


def _slices(steps: pl.Series, edges: Int64, in_slices: Sequence[tuple[str, Int64]]) -> pl.DataFrame:
    """Return `Breakdown.slices`, neighbours of one part joined."""
    parts = [part for part, _ in in_slices]
    shape = (len(edges), _NUM_SLICES)
    time_ns = np.array([time_ns for _, time_ns in in_slices])
    # -1: the slice lies in a pause
    largest = np.where(time_ns.any(axis=0), time_ns.argmax(axis=0), -1).reshape(shape)
    row, begin = np.nonzero(np.diff(largest, axis=1, prepend=-2))
    is_last = np.append(row[1:] != row[:-1], True)
    until = np.where(is_last, _NUM_SLICES, np.append(begin[1:], _NUM_SLICES))
    kept = (largest[row, begin] >= 0) & (edges[row, begin] < edges[row, until])
    row, begin, until = row[kept], begin[kept], until[kept]
    return pl.DataFrame(
        {
            "step": steps.to_numpy()[_middle(len(steps))][row],
            "part": pl.Series([parts[each] for each in largest[row, begin]], dtype=pl.String),
            "start_ns": edges[row, begin],
            "end_ns": edges[row, until],
        },
        SLICES,
    )


def _clip_to_steps(steps: pl.DataFrame, instants: Intervals) -> pl.DataFrame:
    """Return the pieces of ``instants``, a union, inside each step: columns of `STRETCHES`."""
    row, (start, end) = pieces_inside(intervals_of(steps), instants)
    step = steps["step"].gather(row)
    return pl.DataFrame({"step": step, "start_ns": start, "end_ns": end}, STRETCHES)


def _sum_by_step(steps: pl.Series, times: Sequence[tuple[str, str | None, Int64]]) -> pl.DataFrame:
    """Return the times of all parts as rows of `BREAKDOWN`; steps with equal numbers are added up."""
    numbers, row = np.unique(steps.to_numpy(), return_inverse=True)
    parts, axes, time_ns = zip(*times)
    sums = np.zeros((len(numbers), len(times)), np.int64)
    np.add.at(sums, row, np.transpose(time_ns))
    return pl.DataFrame(
        {
            "step": np.repeat(numbers, len(times)),
            "part": pl.Series(parts * len(numbers), dtype=pl.String),
            "axis": pl.Series(axes * len(numbers), dtype=pl.String),
            "time_ns": sums.ravel(),
        }
    )


def computation_of(profile: Profile) -> Intervals:
    """Return the computation of `Communication`, and computing kernels without a recorded launch.

    Without the all-reduces of `hidden_reductions`.
    """
    events = profile.tree.events
    is_unseen = events.is_kernel & (events.host_of_device < 0)
    rows = events.first_device + np.flatnonzero(is_unseen)
    rows = rows[~events.names.take(rows).where(events.communicates)]
    computation = together(profile.communication.computation, events.intervals(rows))
    return difference(computation, hidden_reductions(profile.tree)[1])


LONG_CALL_NS = 100_000
"""Least length of a call that copies, allocates or frees for its time beside work of a device to
count as waiting: a copy from memory that is not pinned, for example, waits for its stream. A call
that puts a copy into a queue takes some 10 us."""

_QUEUED = re.compile(r"i?(send|recv)")


def loading_intervals(profile: Profile) -> Intervals:
    """Return the intervals in which the stepping threads load data."""
    events = profile.tree.events
    return events.intervals(_on_stepping_threads(profile, events.host_rows("Dataloader")))


def waiting_intervals(profile: Profile) -> Intervals:
    """Return the intervals in which the stepping threads communicate or synchronize with a device.

    Sends and receives that launched no kernel do not count: another call launches it later, that of
    a group of transfers. Collectives without a kernel count, since they may be of a library that
    blocks the host, such as gloo.
    """
    tree, events = profile.tree, profile.tree.events
    is_wait = is_of_kind(events.names.take(events.launches), WAIT)
    calls = events.num_hosts + np.flatnonzero(is_wait)
    spans = events.communication_spans
    is_queued = events.names.take(spans).where(lambda name: bool(_QUEUED.fullmatch(name)))
    only_queues = is_queued & (tree.device_ns[spans] == 0)
    waits = np.concatenate((spans[~only_queues], calls))
    return together(events.intervals(_on_stepping_threads(profile, waits)))


def _launching_intervals(profile: Profile) -> Intervals:
    """Return the instants in which a thread is in a runtime call and does not wait for a device.

        calls    launch  copy##########        #: a copy longer than `LONG_CALL_NS`
        devices      kkkkkkkkkkk
        out      ======         =======

    Returns:
        A union of intervals.
    """
    events = profile.tree.events
    start, end = events.intervals(events.launches)
    names = events.names.take(events.launches)
    may_wait = is_of_kind(names, COPY, BLOCKING) & (end - start >= LONG_CALL_NS)
    only_launch = ~is_of_kind(names, WAIT) & ~may_wait
    waits = start[may_wait], end[may_wait]
    return together(
        (start[only_launch], end[only_launch]),
        difference(waits, events.intervals(events.devices)),
    )


def _on_stepping_threads(profile: Profile, rows: Int64) -> Int64:
    return rows[np.isin(profile.tree.events.thread[rows], stepping_threads(profile))]
