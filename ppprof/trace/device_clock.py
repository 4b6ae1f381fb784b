"""The clock of a device against the host's, in a raw capture: checked in every window, and corrected.

No kernel begins before its launch, and each has ended when the host has waited for the whole device, as
capture does where a window ends. So a window bounds how far the device's clock is ahead::

    host      launch |                      | cudaDeviceSynchronize |
    device             | kernel |
              <------>                                                  at most: start - launch
                                <------------------------------------>  at least: end - end of the wait

The probe of the device's profiler waits for each of its kernels and so has closer bounds. Where they
exclude 0, capture has recorded a marker with them, and the window's must agree. A clock that moves within the
window is not corrected.
"""

from __future__ import annotations

import dataclasses
import re
from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.arrays import Int64
from ppprof.rundir import DEVICE_CLOCK_MARKER
from ppprof.trace.labels import Labels
from ppprof.trace.schema import Note, Trace
from ppprof.units import format_time

UNSTEADY = "clock"
"""Value of `Trace.doubts`: the device's clock moves against the host's."""

_KEY = "device_clock"
"""Key of ``extra_info``, whose value has the fields of `_Found`."""
_MARKER = re.escape(DEVICE_CLOCK_MARKER) + r"(-?\d{1,18}) to (-?\d{1,18}) ns"
_WAIT = re.compile(r"\w+DeviceSynchronize(_v\d+)?")
_NOISE_NS = 10_000
"""Clocks that are this close agree: what converts one into the other is no more exact."""
_MOST_UNSTEADY_NS = 1_000_000
"""A clock that moves by no more is corrected by its mean."""
_OUTLIERS = 200
"""One event of so many may have a wrong time, and bounds nothing."""


class _Found(NamedTuple):
    ahead_ns: int
    """How far the device's clock is ahead; below 0 if it is behind."""
    error_ns: int
    """Half of the distance of its bounds."""
    is_steady: int
    """1 if device events are corrected, 0 if not."""


def with_device_clock(trace: Trace) -> Trace:
    """Return the trace of a raw capture with device events on the host's clock; ``extra_info`` says so."""
    events = trace.events
    first = events.height - events["device"].count()
    if first == events.height or _KEY in trace.extra_info:
        return trace
    bounds = _bounds(events, first)
    probed = _probed(events)
    both = (max(bounds[0], probed[0]), min(bounds[1], probed[1])) if probed else bounds
    least, most = both if both[0] <= both[1] else bounds
    if least - _NOISE_NS <= 0 <= most + _NOISE_NS:
        return trace
    if np.isinf((least, most)).any():  # one bound only: as little as makes it possible
        least = most = min(least, most, key=abs)
    found = _Found(
        round((least + most) / 2),
        round(abs(most - least) / 2),
        int(least - most <= _MOST_UNSTEADY_NS),
    )
    if found.is_steady:
        is_device = pl.int_range(pl.len()) >= first
        shift_ns = pl.when(is_device).then(found.ahead_ns).otherwise(0)
        events = events.with_columns(pl.col("start_ns") - shift_ns)
    extra_info = {**trace.extra_info, _KEY: " ".join(map(str, found))}
    return dataclasses.replace(trace, events=events, extra_info=extra_info)


def device_clock_notes(trace: Trace) -> tuple[tuple[Note, ...], tuple[str, ...]]:
    """Return what a reader should know about the device's clock: notes, and doubts."""
    match = re.fullmatch(r"(-?\d{1,19}) (\d{1,19}) ([01])", trace.extra_info.get(_KEY, ""))
    if match is None:
        return (), ()
    found = _Found(*map(int, match.groups()))
    if not found.is_steady:
        return (("clock_moves", {"time": format_time(2 * found.error_ns)}),), (UNSTEADY,)
    key = "clock_ahead" if found.ahead_ns > 0 else "clock_behind"
    times = {"time": format_time(abs(found.ahead_ns)), "error": format_time(found.error_ns)}
    return ((key, times),), ()


def _bounds(events: pl.DataFrame, first: int) -> tuple[float, float]:
    """Return the least and the most that the device's clock is ahead, in ns; infinite if unknown."""
    start, length = events["start_ns"].to_numpy(), events["dur_ns"].to_numpy()
    launched = first + np.flatnonzero(events["parent"].slice(first).is_not_null().to_numpy())
    launch = start[events["parent"].gather(launched).to_numpy()]
    end = start[launched] + length[launched]
    device = events["device"].gather(launched).to_numpy()
    late = [np.sort((start[launched] - launch)[device == each]) for each in np.unique(device)]
    calls = (events["category"].head(first) == "CudaRuntime").arg_true().to_numpy()
    names = Labels.of(events["name"].gather(calls))
    waits = calls[names.where(lambda name: _WAIT.fullmatch(name) is not None)]
    waits = waits[np.argsort(start[waits], kind="stable")]
    row = np.searchsorted(start[waits], launch)  # of the first wait after a launch
    is_awaited = (row < len(waits)) & (len(late) == 1)
    waited = (start[waits] + length[waits])[row[is_awaited]]
    least = np.sort(end[is_awaited] - waited)
    return (
        float(least[-1 - _num_wrong(least)]) if len(least) else -np.inf,
        # What holds for the clock of every device.
        max((float(each[_num_wrong(each)]) for each in late), default=np.inf),
    )


def _num_wrong(values: Int64) -> int:
    return (len(values) + _OUTLIERS // 2) // _OUTLIERS


def _probed(events: pl.DataFrame) -> tuple[int, int] | None:
    """Return the bounds in the marker; None without one."""
    markers = Labels.of(events["name"].filter(events["category"] == "UserDefined")).used()
    matches = (re.fullmatch(_MARKER, name) for name in markers)
    return next(((int(match[1]), int(match[2])) for match in matches if match), None)
