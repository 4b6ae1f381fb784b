"""Bring the times of a trace into the range that `ppprof.trace.schema` promises.

Sums of them then fit an int64, whatever the file says.
"""

from __future__ import annotations

import dataclasses

import polars as pl

from ppprof.trace.schema import Trace

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
    tables = {
        "events": trace.events,
        "frames": trace.frames,
        "overheads": trace.overheads,
        "memory": trace.memory,
    }
    for name, table in tables.items():
        for column, first in _FIRST_NS.items():
            if column in table.columns and not _are_between(table[column], first, ENDLESS_NS):
                sound = table[column].clip(first, ENDLESS_NS - 1)
                num_unsound += int((sound != table[column]).sum())
                tables[name] = table = table.with_columns(sound)
    if not num_unsound:
        return trace
    skipped = {**trace.skipped, UNSOUND: num_unsound}
    return dataclasses.replace(trace, **tables, skipped=skipped)  # type: ignore[arg-type]


def _are_between(values: pl.Series, first: int, end: int) -> bool:
    """Return whether every value that is not null is in [first, end)."""
    least, most = values.min(), values.max()
    return least is None or (int(least) >= first and int(most) < end)  # type: ignore[arg-type]
