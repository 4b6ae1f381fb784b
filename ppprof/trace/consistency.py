"""Check that the tables of a trace fit together, as every reader makes them.

Readers guarantee what `EVENTS` and the other tables of `ppprof.trace.schema` say: the order of rows,
trees in pre-order, row numbers that exist, and times whose sums fit an int64 (`with_sound_times`).
Analysis relies on it. A table from another source, such as a cache file that may be forged, is
checked here first.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl

from ppprof.arrays import Int64
from ppprof.trace.nesting import nest_by_depth
from ppprof.trace.schema import Trace

_NEVER_NULL = {
    "events": ("name", "category", "start_ns", "dur_ns"),
    "memory": ("time_ns", "kind", "process", "thread"),
    "kernels": ("event",),
    "memsets": ("event",),
    "frames": ("name", "thread", "start_ns", "dur_ns"),
}
"""Table -> columns without nulls."""

ENDLESS_NS = 2**62
"""Times and lengths stay within this, so that a start plus a length fits an int64."""


_FIRST_NS = {"start_ns": -ENDLESS_NS, "dur_ns": 0, "time_ns": -ENDLESS_NS}
"""Column of times -> its least value."""

UNSOUND = "times out of range"


def with_sound_times(trace: Trace) -> Trace:
    """Return the trace with all times and lengths in their range; ``skipped`` counts the others.

    A length below 0 becomes 0: Paddle takes times from the wall clock, so an event during which the
    clock is set back ends before it starts. Times out of range are cut to it.
    """
    num_unsound = 0
    tables = {"events": trace.events, "frames": trace.frames, "memory": trace.memory}
    for name, table in tables.items():
        for column, first in _FIRST_NS.items():
            if column in table.columns and not _are_between(table[column], first, ENDLESS_NS):
                sound = table[column].clip(first, ENDLESS_NS - 1)
                num_unsound += int((sound != table[column]).sum())
                tables[name] = table = table.with_columns(sound)
    if not num_unsound:
        return trace
    skipped = {**trace.skipped, UNSOUND: num_unsound}
    events, frames, memory = tables.values()
    return dataclasses.replace(trace, events=events, frames=frames, memory=memory, skipped=skipped)


def problem(trace: Trace) -> str | None:
    """Return which rule of the schema the tables break; None if they keep every rule.

    Args:
        trace: tables with exactly the columns and dtypes of `ppprof.trace.schema`.
    """
    for table, columns in _NEVER_NULL.items():
        for column in columns:
            if getattr(trace, table)[column].null_count():
                return f"{table}: {column} is null"
    for table, times in (("events", trace.events), ("frames", trace.frames)):
        if not _are_times(times):
            return f"{table}: a time is out of range"
    return _problem_of_order(trace.events) or _problem_of_links(trace)


def _problem_of_order(events: pl.DataFrame) -> str | None:
    num_hosts, first_device = _bounds(events)
    depth = events["depth"].head(num_hosts)
    if (
        num_hosts > first_device
        or depth.null_count()
        or events["device"][first_device:].null_count()
    ):
        return "events: the order is not host events, launches, device events"
    if any(column.null_count() for column in events[:first_device].select("process", "thread")):
        return "events: a host event or a launch without process or thread"
    parent = nest_by_depth(depth.to_numpy().astype(np.int64))
    if parent is None or not np.array_equal(parent, _rows(events["parent"].head(num_hosts))):
        return "events: parent and depth of the host events are not trees in pre-order"
    return None


def _problem_of_links(trace: Trace) -> str | None:
    parent = trace.events["parent"]
    num_hosts, first_device = _bounds(trace.events)
    num_events = trace.events.height
    links = (
        ("events: parent of a launch", parent[num_hosts:first_device], 0, num_hosts),
        ("events: parent of a device event", parent[first_device:], num_hosts, first_device),
        ("events: forward", trace.events["forward"], 0, num_hosts),
        ("memory: event", trace.memory["event"], 0, num_hosts),
        ("kernels: event", trace.kernels["event"], first_device, num_events),
        ("memsets: event", trace.memsets["event"], first_device, num_events),
    )
    for name, rows, first, end in links:
        if not _are_between(rows, first, end):
            return f"{name} is not a row from {first} to {end - 1}"
    for name, events in (("kernels", trace.kernels["event"]), ("memsets", trace.memsets["event"])):
        if (np.diff(events.to_numpy()) <= 0).any():
            return f"{name}: two rows of one event, or rows out of order"
    return None


def _bounds(events: pl.DataFrame) -> tuple[int, int]:
    """Return the number of host events, and the row of the first device event."""
    return events["depth"].count(), events.height - events["device"].count()


def _rows(links: pl.Series) -> Int64:
    return links.fill_null(-1).to_numpy()


def _are_times(table: pl.DataFrame) -> bool:
    return _are_between(table["start_ns"], -ENDLESS_NS, ENDLESS_NS) and _are_between(
        table["dur_ns"], 0, ENDLESS_NS
    )


def _are_between(values: pl.Series, first: int, end: int) -> bool:
    """Return whether every value that is not null is in [first, end)."""
    least, most = values.min(), values.max()
    return least is None or (int(least) >= first and int(most) < end)  # type: ignore[arg-type]
