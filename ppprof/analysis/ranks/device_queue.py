"""The queue of a device: how much work waits in it, and why the device is idle.

A device event waits in the queue from the end of the runtime call that launched it until it starts.
A device that is idle while its queue is empty waits for the host. If work is in the queue, it waits
for something else::

    host      LL   L        |             L: launches a kernel
    queue      qq   qqqqqqq |             q: a kernel waits
    device   __kk____kkk____kk
    idle     nl  nnnl   oooo              n: nothing queued, l: launch latency, o: other work
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from ppprof.analysis.profile.grouping import intervals_of
from ppprof.analysis.profile.intervals import (
    Intervals,
    covered_within,
    difference,
    intersection,
    together,
    union,
)
from ppprof.analysis.profile.profile import Profile, once
from ppprof.analysis.profile.runtime_calls import BLOCKING, is_of_kind
from ppprof.analysis.ranks.device_steps import steps_of_rank
from ppprof.arrays import Array, Bool, Int64

CAUSES = ("nothing_queued", "launch_latency", "blocking_call", "other_work", "unknown")
"""Why no device works, of an instant without any device event:

- ``nothing_queued``: no launched work waits, so the host has not launched enough;
- ``launch_latency``: work waits, for `LATENCY_NS` at most;
- ``blocking_call``: work waits for longer, and some thread is in a runtime call that copies, allocates
  or frees and returns only when that is done;
- ``other_work``: work waits for longer: for another stream, an event, the rest of a CUDA graph, or for
  other devices;
- ``unknown``: the next device event has no recorded launch, so it is unknown since when it waits."""

LATENCY_NS = 20_000
"""Most time from the end of a launch to the start of its kernel on an idle device. Launches take some
5 us from the call to the kernel on an idle GPU; twice that, and twice that for slower buses."""

QUEUE = {
    "step": pl.Int64,
    **{f"{cause}_ns": pl.Int64 for cause in CAUSES},
    "queue_length": pl.Float64,
    "launch_delay_ns": pl.Float64,
}
"""Columns of `queue_of_steps`: the step; its idle time by cause; the number of launched device events
that wait, mean over the step; and the time from the end of a launch to the start of its device
event, median over the events that the step launched (null if it launched none)."""


@once
def idle_causes(profile: Profile) -> Mapping[str, Intervals]:
    """Return the instants of steps without any device event, outside pauses, by cause.

    Returns:
        Cause of `CAUSES` -> a union of intervals; the unions are disjoint.
    """
    queued_ns, start_ns, end_ns, is_linked = _queue(profile)
    busy = together((start_ns, end_ns), intervals_of(profile.pauses))
    idle = difference(intervals_of(steps_of_rank(profile)), busy)
    waits = is_linked & (queued_ns < start_ns)
    queued = union(queued_ns[waits], start_ns[waits])
    empty = difference(idle, queued)
    is_unknown = np.isin(empty[1], start_ns[~is_linked]) & ~np.isin(empty[1], start_ns[is_linked])
    first, last = difference(idle, empty)
    is_short = last - first <= LATENCY_NS
    long = first[~is_short], last[~is_short]
    events = profile.tree.events
    is_blocking = is_of_kind(events.names.take(events.launches), BLOCKING)
    blocking = events.intervals(events.num_hosts + np.flatnonzero(is_blocking))
    return {
        "nothing_queued": (empty[0][~is_unknown], empty[1][~is_unknown]),
        "launch_latency": (first[is_short], last[is_short]),
        "blocking_call": intersection(long, blocking),
        "other_work": difference(long, blocking),
        "unknown": (empty[0][is_unknown], empty[1][is_unknown]),
    }


def queue_of_steps(profile: Profile) -> pl.DataFrame:
    """Return the queue of each step: columns of `QUEUE`, sorted by step."""
    steps, idle = steps_of_rank(profile), idle_causes(profile)
    start, end = intervals_of(steps)
    queued_ns, start_ns, _, is_linked = _queue(profile)
    queued_ns, start_ns = queued_ns[is_linked], start_ns[is_linked]
    waited = _waited_until(queued_ns, start_ns, end) - _waited_until(queued_ns, start_ns, start)
    numbers, row = np.unique(steps["step"].to_numpy(), return_inverse=True)

    def summed(values: Array) -> Array:
        sums = np.zeros(len(numbers), values.dtype)
        np.add.at(sums, row, values)
        return sums

    lengths = summed(waited / np.maximum(end - start, 1)) / np.bincount(row)
    step = profile.tree.events.step[profile.tree.events.devices][is_linked]
    columns = {
        "step": numbers,
        **{f"{cause}_ns": summed(covered_within(idle[cause], start, end)) for cause in CAUSES},
        "queue_length": lengths,
        "launch_delay_ns": _medians(start_ns - queued_ns, step, numbers),
    }
    return pl.DataFrame(columns, QUEUE)


def _medians(values: Int64, group: Int64, groups: Int64) -> list[float | None]:
    """Return the median of the values of each of ``groups``; None for a group without values."""
    order = np.argsort(group, kind="stable")
    sides = (np.searchsorted(group[order], groups, side) for side in ("left", "right"))
    of_group = (values[order[first:end]] for first, end in zip(*sides))
    return [float(np.median(values)) if len(values) else None for values in of_group]


def _queue(profile: Profile) -> tuple[Int64, Int64, Int64, Bool]:
    """Return when each device event was queued, started and ended, and whether its launch is known.

    Shapes (device events,). Without a known launch, an event counts as queued when it starts.
    """
    events = profile.tree.events
    start, end = events.intervals(events.devices)
    launch = events.parent[events.devices]
    is_linked = launch >= 0
    launched = np.where(is_linked, events.ends(launch), start)
    return np.minimum(launched, start), start, end, is_linked


def _waited_until(queued: Int64, started: Int64, instants: Int64) -> Int64:
    """Return the time that all events together have waited before each instant."""

    def since(times: Int64) -> Int64:
        ordered = np.sort(times) - base
        sums = np.append(0, np.cumsum(ordered))
        num = np.searchsorted(ordered, instants - base)
        passed: Int64 = num * (instants - base) - sums[num]
        return passed

    if not len(queued) or not len(instants):
        return np.zeros(len(instants), np.int64)
    base = min(int(queued.min()), int(instants.min()))
    return since(queued) - since(started)
