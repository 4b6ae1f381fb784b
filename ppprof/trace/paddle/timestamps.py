"""Estimate when events began: Paddle's JSON records it three times, each time inexactly.

``ts`` is cut to whole microseconds. ``start_time`` and ``end_time`` are microseconds since the
first event, kept as float32, which is exact for 16 ms and 2 us wrong after 20 s. Their ranges
overlap, and the true start lies in all of them::

    ts           [=========================)        1 us
    start_time         [=====]                      as wide as the spacing of float32 there
    end_time - dur        [=====]
    together              [==]
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ppprof.arrays import Int64
from ppprof.trace.fastpath.fixed_layout import MISSING

_FOREVER_NS = 2**62
_CHUNK = 1 << 14  # events at a time: their temporaries stay in the processor's cache
_FLOAT32_EXACT_NS = 16_384_000  # up to here the spacing of float32 microseconds is below 1 ns


class TimestampEstimator:
    """Estimates the zero of ``start_time`` from the events, and the start of each event from that.

    Args:
        times: pairs of ``ts`` in nanoseconds and ``start_time``, or `MISSING`; each of shape (N,).
    """

    def __init__(self, times: Iterable[tuple[Int64, Int64]]) -> None:
        first, last = -_FOREVER_NS, _FOREVER_NS
        for ts_ns, begin_ns in times:
            exact = (begin_ns > -_FLOAT32_EXACT_NS) & (begin_ns < _FLOAT32_EXACT_NS)
            if exact.any():
                zero = ts_ns[exact] - begin_ns[exact]
                first, last = max(first, int(zero.max())), min(last, int(zero.min()) + 999)
        self.zero_ns = (first + last) // 2 if -_FOREVER_NS < first <= last else None
        """The time at which ``start_time`` is 0.

        None if the events contradict each other, or if no event has an exact ``start_time``.
        """

    def starts(
        self, ts_ns: Int64, dur_ns: Int64, begin_ns: Int64, finish_ns: Int64
    ) -> tuple[Int64, Int64]:
        """Return the best estimate of each event's start, and the largest error that it may have.

        Both are in nanoseconds; all shapes are (N,). If ``zero_ns`` is unknown, only ``ts`` is
        used. The results may be in the memory of ``ts_ns`` and ``begin_ns``.

        Args:
            ts_ns: ``ts``; overwritten.
            dur_ns: duration of each event.
            begin_ns: ``start_time``, or `MISSING`; overwritten.
            finish_ns: ``end_time``, or `MISSING`.
        """
        if self.zero_ns is None:
            return ts_ns + 499, np.full_like(ts_ns, 500)
        columns = (ts_ns, dur_ns, begin_ns, finish_ns)
        for first in range(0, len(ts_ns), _CHUNK):
            rows = slice(first, first + _CHUNK)
            ts_ns[rows], begin_ns[rows] = _starts(self.zero_ns, *(side[rows] for side in columns))
        return ts_ns, begin_ns


def _starts(
    zero_ns: int, ts_ns: Int64, dur_ns: Int64, begin_ns: Int64, finish_ns: Int64
) -> tuple[Int64, Int64]:
    """Return what `TimestampEstimator.starts` does."""
    low, high = ts_ns, ts_ns + 999
    for relative, offset in ((begin_ns, 0), (finish_ns, dur_ns)):
        start = zero_ns + relative - offset
        slack = _slack(relative)
        # If the times contradict each other, stay within the range so far.
        earliest = np.clip(start - slack, low, high)
        latest = np.clip(start + slack, earliest, high)
        is_missing = np.flatnonzero(relative == MISSING)
        earliest[is_missing], latest[is_missing] = low[is_missing], high[is_missing]
        low, high = earliest, latest
    return (low + high) >> 1, (high - low + 1) >> 1


def _slack(relative_ns: Int64) -> Int64:
    """Return the possible error of float32 microseconds that were rounded twice.

    Argument and result are in nanoseconds. The error is 0 below 16 ms.
    """
    distance = np.abs(relative_ns)
    microseconds = distance.astype(np.float32) / np.float32(1000)
    slack = np.ceil(np.spacing(microseconds).astype(np.float64) * 1000)
    slack[distance < _FLOAT32_EXACT_NS] = 0
    whole: Int64 = slack.astype(np.int64)
    return whole
