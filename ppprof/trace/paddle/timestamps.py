"""Where events began, from what Paddle's JSON says of it three times, each time inexactly.

``ts`` is cut to whole microseconds; ``start_time`` and ``end_time`` are microseconds since the
first event, kept as float32, which is exact for 16 ms and 2 us wrong after 20 s. Together they
narrow it down::

    ts           [=========================)        1 us
    start_time         [=====]                      as wide as the spacing of float32 there
    end_time - dur        [=====]
    together              [==]
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ppprof.arrays import Int64

MISSING = np.int64(np.iinfo(np.int64).min)
"""In a column of numbers: not there."""

_FOREVER_NS = 2**62
_FLOAT32_EXACT_NS = 16_384_000  # below it the spacing of float32 microseconds is below 1 ns


class TimestampEstimator:
    """The moment that ``start_time`` counts from, found from events.

    Args:
        times: ``ts`` in nanoseconds and ``start_time``, `MISSING` where there is none; pairs of
            shape (N,).
    """

    def __init__(self, times: Iterable[tuple[Int64, Int64]]) -> None:
        first, last = -_FOREVER_NS, _FOREVER_NS
        for ts_ns, begin_ns in times:
            exact = np.abs(begin_ns) < _FLOAT32_EXACT_NS  # which MISSING is not
            if exact.any():
                zero = ts_ns[exact] - begin_ns[exact]
                first, last = max(first, int(zero.max())), min(last, int(zero.min()) + 999)
        self.zero_ns = (first + last) // 2 if -_FOREVER_NS < first <= last else None
        """The moment; None where the events do not agree on one."""

    def starts(
        self, ts_ns: Int64, dur_ns: Int64, begin_ns: Int64, finish_ns: Int64
    ) -> tuple[Int64, Int64]:
        """The best guess where events began, and how far it may be off, in nanoseconds."""
        low, high = ts_ns.copy(), ts_ns + 999
        if self.zero_ns is None:
            return ts_ns + 499, np.full_like(ts_ns, 500)
        for relative, offset in ((begin_ns, 0), (finish_ns, dur_ns)):
            at = self.zero_ns + relative - offset
            slack = _slack(relative)
            is_told = relative != MISSING
            # Never beyond what is known, should they not agree.
            low = np.where(is_told, np.clip(at - slack, low, high), low)
            high = np.where(is_told, np.clip(at + slack, low, high), high)
        return (low + high) >> 1, (high - low + 1) >> 1


def _slack(relative_ns: Int64) -> Int64:
    """How far a float32 of microseconds may be off there, having been rounded twice."""
    microseconds = np.abs(relative_ns).astype(np.float32) / np.float32(1000)
    spacing = np.spacing(microseconds).astype(np.float64) * 1000
    return np.where(np.abs(relative_ns) < _FLOAT32_EXACT_NS, 0, np.ceil(spacing)).astype(np.int64)
