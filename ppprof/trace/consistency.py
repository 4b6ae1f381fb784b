"""Bring the times of a trace into the range that `ppprof.trace.schema` promises.

Sums of them then fit an int64, whatever the file says. A device event without a usable time is left
out: no average may count it.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl

from ppprof.arrays import Bool
from ppprof.trace.schema import COPIES, Trace

ENDLESS_NS = 2**62
"""Times and lengths stay within this, so that a start plus a length fits an int64."""

_FIRST_NS = {"start_ns": -ENDLESS_NS, "dur_ns": 0, "time_ns": -ENDLESS_NS}
"""Column of times -> its least value."""

UNSOUND = "times out of range"
UNTIMED = "device events without a time"
"""Key of ``skipped``: device events whose time was lost, as `untimed` recognizes them."""

_SHORT_NS = 2_000
"""Most length of a kernel of whose kind others may be rounded to 0 us."""

_FAR_NS = 10_000_000_000
"""A device event this far outside the time of the host, and its length again, has no usable time. A
device that the host has filled with work works on for less."""


def with_sound_times(trace: Trace) -> Trace:
    """Return the trace with all times and lengths in their range; ``skipped`` counts the others.

    Device events without a time are left out. Of other events, a length below 0 becomes 0: Paddle
    takes times from the wall clock, so an event during which the clock is set back ends before it
    starts. Times out of range are cut to it, and the length of such an event is 0.
    """
    trace = _without_untimed(trace)
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
                is_unsound = sound != table[column]
                if column == "dur_ns":
                    sound = sound.set(is_unsound, 0)
                num_unsound += int(is_unsound.sum())
                tables[name] = table = table.with_columns(sound)
    if not num_unsound:
        return trace
    skipped = {**trace.skipped, UNSOUND: num_unsound}
    return dataclasses.replace(trace, **tables, skipped=skipped)  # type: ignore[arg-type]


def _without_untimed(trace: Trace) -> Trace:
    """Return the trace without the device events that have no time; ``skipped`` counts them."""
    events = trace.events
    is_lost = untimed(events)
    if not is_lost.any():
        return trace
    first = events.height - len(is_lost)
    keep = np.append(np.ones(first, bool), ~is_lost)
    row = np.cumsum(keep, dtype=np.int32) - np.int32(1)

    def kept(table: pl.DataFrame) -> pl.DataFrame:
        own = table["event"].to_numpy()
        return table.filter(keep[own]).with_columns(event=pl.Series(row[own[keep[own]]]))

    return dataclasses.replace(
        trace,
        events=events.filter(keep),
        kernels=kept(trace.kernels),
        memsets=kept(trace.memsets),
        skipped={**trace.skipped, UNTIMED: int(is_lost.sum())},
    )


def untimed(events: pl.DataFrame) -> Bool:
    """Return which device events have no usable time, shape (device events,).

    A profiler that loses the record of an end, or all of its times, writes 0 in their place::

        host      #########
        device   k  kkk   kkk                 k       the last is far from the host: no usable time
        lost   k (at 0)     k (length 0 or negative, or out of range)

    In a file whose times begin at 0, an event may be at 0. Device events that are as many, and are far
    from the host at different times, are kept: their clock is another one. Rounded lengths are kept,
    too: `_short`.

    Args:
        events: host events and launches, then device events.
    """
    num_devices = events["device"].count()
    first = events.height - num_devices
    start, dur = (events[name].to_numpy()[first:] for name in ("start_ns", "dur_ns"))
    is_lost: Bool = (dur < 0) | (dur >= ENDLESS_NS)
    is_lost |= (start < -ENDLESS_NS) | (start >= ENDLESS_NS)
    if (dur == 0).any():
        is_lost |= (dur == 0) & ~_short(events[first:], is_lost)
    if not first or not num_devices:
        return is_lost
    of_host = events["start_ns"].to_numpy()[:first]
    begin, last = float(of_host.min()), float(of_host.max())
    margin = last - begin + _FAR_NS
    is_far = (start < begin - margin) | (start > last + margin)
    starts = start[is_far & ~is_lost]
    is_own_clock = 2 * len(starts) > num_devices and len(np.unique(starts)) > 1
    return is_lost if is_own_clock else is_lost | is_far


def _short(devices: pl.DataFrame, is_lost: Bool) -> Bool:
    """Return which device events may have a length of 0, shape (device events,).

    Torch has rounded times to microseconds until 2.3. In a file of whole microseconds, a kernel is short if
    the shortest kernel of its name with a length is; of names without lengths, if the file has more short
    kernels than lengths of 0. Copies and memsets may be short in any file.

    Args:
        devices: reads category, name and dur_ns.
        is_lost: the events whose time is lost anyway.
    """
    length = pl.col("dur_ns").filter(pl.col("dur_ns") > 0)
    of_name = length.min().over("name") <= _SHORT_NS
    of_file = (length <= _SHORT_NS).sum() > (pl.col("dur_ns") == 0).sum()
    is_whole = (pl.col("dur_ns").filter(~pl.Series(is_lost)) % 1_000 == 0).all()
    is_copy = pl.col("category").is_in(COPIES).fill_null(value=False)
    may_be = is_copy | (is_whole & of_name.fill_null(of_file))
    return devices.select(may_be).to_series().to_numpy()


def _are_between(values: pl.Series, first: int, end: int) -> bool:
    """Return whether every value that is not null is in [first, end)."""
    least, most = values.min(), values.max()
    return least is None or (int(least) >= first and int(most) < end)  # type: ignore[arg-type]
