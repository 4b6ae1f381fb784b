"""Whether a recording holds what happened on the device: one check before any analysis.

A profiler may lose records: its buffers fill up, its process is busy, or it was stopped early. What is
left looks like a device that idles. Each launch of a kernel has a device event, so launches without one
count what was lost, step by step::

    step       |0          |1          |2          |
    launches    l   l   l   l   l   l   l   l   l
    device      k   k   k   k                   k        steps 1 and 2 are lost

Lost steps are left out of all tables and averages (`without_lost_steps`). A recording with few other
steps is not usable for times of the device: its analysis is that of the host alone, as of a trace
without device events (`ppprof.trace.unrecorded_device`).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl

from ppprof.analysis.profile.event_tree import filled
from ppprof.analysis.profile.runtime_calls import (
    BEGIN_CAPTURE,
    END_CAPTURE,
    LAUNCH,
    is_of_kind,
    kind_of_call,
)
from ppprof.analysis.profile.steps import select_events
from ppprof.arrays import Bool, Int64
from ppprof.trace.consistency import ENDLESS_NS
from ppprof.trace.device_clock import device_clock_notes
from ppprof.trace.labels import Labels
from ppprof.trace.schema import DEVICE_CATEGORIES, Note, Trace
from ppprof.units import format_ranges, short_name

LOST_RATIO = 0.01
"""Share of a step's launches. A step that lacks the device events of more is lost: the rules of advice
report from 1% of a step on. In 25 public traces of intact recordings, no launch of a kernel lacks its
event; copies and memsets do (of no bytes, for example), so they do not count."""

LEAST_WHOLE = 0.25
"""Share of the steps. With fewer whole steps, a recording is not usable for times of the device."""

MANY_WHOLE = 0.5
"""Share of the steps. With fewer whole steps, the whole ones may be the exception: rules about time are
withheld."""

UNLAUNCHED_RATIO = 0.25
"""Share of the device events. With more that have no launch, it is unknown when a queue is empty."""

LOST, FEW, CUT, UNLAUNCHED = "lost", "few", "cut", "unlaunched"
"""Values of `Trace.doubts`: steps are left out; too many for findings about time; lengths of device
events are cut; launches are unknown."""

_ROUNDING_NS = 2_000
"""Torch has rounded starts and lengths to microseconds until 2.3."""

NOTES = (
    *("dropped", "unusable", "lost_events", "lost_few", "overlaps", "no_launch", "missing_ranks"),
    *("clock_ahead", "clock_behind", "clock_moves"),
)
"""Keys of `ppprof.messages` about what a recording lacks."""

_MOST_NAMES = 3


def checked(trace: Trace) -> Trace:
    """Return the trace of a whole window with the result of the check.

    Its ``lost_steps``, ``doubts`` and ``unrecorded_device`` are set, ``notes`` say what is missing, and
    device events that cannot be as long as recorded are cut (`overlapping`).
    """
    if not trace.events["device"].count():
        return trace
    notes, doubts = device_clock_notes(trace)
    trace = dataclasses.replace(trace, notes=trace.notes + notes, doubts=trace.doubts + doubts)
    return _with_lost_steps(_without_overlaps(trace))


def without_lost_steps(trace: Trace) -> Trace:
    """Return the trace without its lost steps; without device events if it is not usable for them."""
    if trace.unrecorded_device and trace.events["device"].count():
        is_host = trace.events["device"].is_null().to_numpy()
        return select_events(trace, is_host, np.ones(trace.memory.height, bool))
    if not trace.lost_steps:
        return trace
    is_kept = trace.events["step"].is_in(list(trace.lost_steps)).fill_null(value=False).not_()
    return select_events(trace, is_kept.to_numpy(), np.ones(trace.memory.height, bool))


def _with_lost_steps(trace: Trace) -> Trace:
    events = trace.events
    num_hosts, num_devices = events["depth"].count(), events["device"].count()
    launches = slice(num_hosts, events.height - num_devices)
    launched = events["parent"].slice(events.height - num_devices).drop_nulls().to_numpy()
    has_event = np.zeros(events.height, bool)
    has_event[launched] = True
    is_launch = _expect_events(trace, launches, has_event[launches])
    is_lost = is_launch & ~has_event[launches]
    notes: list[Note] = []
    dropped = (values["num"] for key, values in trace.notes if key == "dropped")
    num_dropped = sum(num for num in dropped if isinstance(num, int))
    if num_dropped > LOST_RATIO * num_devices:
        trace = dataclasses.replace(trace, doubts=(*trace.doubts, FEW))
    late = _without_launch(trace, launches)
    if late > LOST_RATIO * num_devices and len(launched):
        notes.append(("no_launch", {"num": late, "total": num_devices}))
    if late > UNLAUNCHED_RATIO * num_devices:
        trace = dataclasses.replace(trace, doubts=(*trace.doubts, UNLAUNCHED))
    if not is_lost.any():
        return dataclasses.replace(trace, notes=(*trace.notes, *notes))
    step = events["step"].fill_null(-1).to_numpy()
    lost, num_steps = _lost_steps(trace, step[launches][is_launch], step[launches][is_lost])
    few = {"num": int(is_lost.sum()), "total": int(is_launch.sum())}
    is_in_steps = len(lost) and lost[0] >= 0
    which = format_ranges("step", lost) if is_in_steps else "the whole trace"
    values = {**few, "steps": which, "num_lost": len(lost), "num_steps": num_steps}
    num_whole = num_steps - len(lost)
    if num_whole < LEAST_WHOLE * num_steps:
        device = str(trace.used_devices[0].get("name") or "") if trace.devices else ""
        return dataclasses.replace(
            trace,
            notes=(*trace.notes, *notes, ("unusable", values)),
            doubts=(*trace.doubts, LOST, FEW),
            unrecorded_device=device or "a device",
        )
    notes.append(("lost_events", values) if len(lost) else ("lost_few", few))
    doubts = (LOST,) * bool(len(lost)) + (FEW,) * (num_whole < MANY_WHOLE * num_steps)
    return dataclasses.replace(
        trace,
        notes=(*trace.notes, *notes),
        lost_steps=tuple(lost.tolist()),
        doubts=(*trace.doubts, *doubts),
    )


def _expect_events(trace: Trace, launches: slice, has_event: Bool) -> Bool:
    """Return which launches start a kernel, shape (launches,).

    A call that never has an event where others have one is no launch of its own: it is inside one. A
    launch without an event during the capture of a graph, on any thread, is a node of the graph.
    """
    names = Labels.of(trace.events["name"][launches])
    is_launch = names.where(lambda name: kind_of_call(name) == LAUNCH)
    num = len(names.texts) + 1
    is_launch &= has_event | ~_in_capture(trace.events[launches], names)
    answered = np.bincount(names.number[is_launch & has_event], minlength=num)
    if not answered.any():
        return is_launch
    return is_launch & (answered[names.number] > 0)


def _in_capture(calls: pl.DataFrame, names: Labels) -> Bool:
    """Return which calls begin while a thread captures a graph, shape (calls,).

    A capture lasts until the same thread's next call that ends or begins one::

        thread 1          begin  l  l      end    l        autograd launches on a thread of its own
        thread 2                      l  l
        in capture               x  x x  x
    """
    is_bound = is_of_kind(names, BEGIN_CAPTURE, END_CAPTURE)
    start = calls["start_ns"].to_numpy()
    if not is_bound.any():
        return is_bound
    rows = np.flatnonzero(is_bound)
    thread = [filled(calls[column])[rows] for column in ("process", "thread")]
    order = np.lexsort((start[rows], *thread))
    rows, thread = rows[order], [values[order] for values in thread]
    is_last = np.any([values[1:] != values[:-1] for values in thread], axis=0)
    until = np.append(np.where(is_last, ENDLESS_NS, start[rows[1:]]), ENDLESS_NS)
    begins = is_of_kind(names.take(rows), BEGIN_CAPTURE)
    num_begun, num_ended = (
        np.searchsorted(np.sort(times[begins]), start, side="right")
        for times in (start[rows], until)
    )
    in_capture: Bool = num_begun > num_ended
    return in_capture


def _without_launch(trace: Trace, launches: slice) -> int:
    """Return the number of device events without a launch that began after the first launch.

    Earlier ones were launched before the window.
    """
    events = trace.events
    start = events["start_ns"].to_numpy()
    if launches.start == launches.stop:
        return 0
    devices = slice(launches.stop, None)
    is_alone = events["parent"].is_null().to_numpy()[devices]
    return int((is_alone & (start[devices] > start[launches].min())).sum())


def _lost_steps(trace: Trace, launched: Int64, lost: Int64) -> tuple[Int64, int]:
    """Return the numbers of the lost steps, ascending, and how many steps there are.

    A trace without steps is one step, number -1.
    """
    steps = trace.events["step"].unique().drop_nulls().sort().to_numpy()
    if not len(steps):
        steps = np.array([-1])
    num = np.searchsorted(np.sort(launched), [steps, steps + 1])
    num_lost = np.searchsorted(np.sort(lost), [steps, steps + 1])
    is_lost = num_lost[1] - num_lost[0] > LOST_RATIO * (num[1] - num[0])
    return steps[is_lost], len(steps)


def _without_overlaps(trace: Trace) -> Trace:
    """Return the trace with the lengths of `overlapping` device events cut."""
    events = trace.events
    first = events.height - events["device"].count()
    rows, ends = overlapping(events[first:])
    if not len(rows):
        return trace
    start = events["start_ns"].to_numpy()[first + rows]
    names = events["name"].gather(first + rows).cast(pl.String).value_counts(sort=True, name="num")
    shown = ", ".join(short_name(name) for name in names["name"].head(_MOST_NAMES))
    return dataclasses.replace(
        trace,
        events=events.with_columns(events["dur_ns"].scatter(first + rows, ends - start)),
        notes=(*trace.notes, ("overlaps", {"num": len(rows), "names": shown})),
        doubts=(*trace.doubts, CUT),
    )


def overlapping(devices: pl.DataFrame) -> tuple[Int64, Int64]:
    """Return the device events that run past the end of a later one of their stream.

    A stream runs its work in order: a kernel may begin before the one ahead of it ends (programmatic
    dependent launch), but does not end first. Events of one launch, a graph, may, also if the launch was
    before the window::

        stream   a.........            a has lost its end: it is cut where b begins, but not before
                    b..  c..           an earlier event ends

    Args:
        devices: device events; reads category, device, context, stream, parent, correlation_id,
            start_ns and dur_ns.

    Returns:
        Row of each such event, ascending, and the end that it is given.
    """
    start = devices["start_ns"].to_numpy()
    end = start + devices["dur_ns"].to_numpy()
    parent, correlation = (filled(devices[name]) for name in ("parent", "correlation_id"))
    is_alone = np.ones(len(start), bool)
    if len(parent):
        is_alone = (parent < 0) | (np.bincount(parent + 1)[parent + 1] == 1)
    rest = np.flatnonzero((parent < 0) & (correlation > 0))
    _, which, num = np.unique(correlation[rest], return_inverse=True, return_counts=True)
    is_alone[rest] = num[which] == 1
    known = Labels.of(devices["category"]).is_one_of(*DEVICE_CATEGORIES)
    checked = np.flatnonzero(known & is_alone)
    stream = [filled(devices[column])[checked] for column in ("device", "context", "stream")]
    order = np.lexsort((end[checked], start[checked], *stream))
    is_new = np.any([values[order][1:] != values[order][:-1] for values in stream], axis=0)
    rows, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for own in np.split(checked[order], np.flatnonzero(is_new) + 1):
        least_end = np.minimum.accumulate(end[own][::-1])[::-1]
        is_past = end[own][:-1] > least_end[1:] + _ROUNDING_NS
        sound = np.where(is_past, start[own[:1]], end[own][:-1])
        until = np.maximum(start[own[1:]], np.maximum.accumulate(sound))
        rows.append(own[:-1][is_past])
        ends.append(until[is_past])
    row, until = np.concatenate(rows), np.concatenate(ends)
    by_row = np.argsort(row)
    return row[by_row], until[by_row]
