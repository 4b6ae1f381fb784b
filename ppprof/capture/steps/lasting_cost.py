"""Whether steps take longer since the first window: a device's profiler may stay attached, as CUPTI does.

::

    steps   |....|before: the latest 200 | window 0 |.....| after: the next 200 |
"""

from __future__ import annotations

import math
import statistics
from collections import deque

from ppprof.units import format_ratio, format_time

_MOST, _FEWEST = 200, 8
"""Steps on each side."""
_WARM_UP = 3
"""First steps, and first steps after the window, that are not counted."""
_LEAST_RATIO = 0.01
_SURE = 3.0
"""Standard errors of the difference of the medians by which it must be above `_LEAST_RATIO`."""
_LEAST_ERROR = 0.001
"""Share of a median. Steps that a device has done between two queries are equally long, by construction."""


class LastingCost:
    """Collects the steps outside windows, and compares those before the first window with those after it."""

    def __init__(self) -> None:
        self._before: deque[int] = deque(maxlen=_MOST)
        self._after: list[int] = []
        self._num_left_out = 0
        self._is_after = self._is_over = False

    def add(self, cost_ns: int, window: int | None, *, is_excluded: bool) -> str:
        """Add a step; return the result of `compare` when there are enough, "" otherwise."""
        if self._is_over:
            return ""
        if window is not None:
            self._is_over = bool(self._after)  # another window: what follows is not the first one's
            self._is_after, self._num_left_out = True, 0
            return self.compare() if self._is_over else ""
        if is_excluded:
            return ""
        self._num_left_out += 1
        if self._num_left_out > _WARM_UP:
            (self._after if self._is_after else self._before).append(cost_ns)
        self._is_over = len(self._after) == _MOST
        return self.compare() if self._is_over else ""

    def compare(self) -> str:
        """Return how much longer steps take since the first window; "" if that is not sure, or below 1%."""
        self._is_over = True
        if min(len(self._before), len(self._after)) < _FEWEST:
            return ""
        before, after = statistics.median(self._before), statistics.median(self._after)
        error = math.hypot(_error(self._before), _error(self._after))
        if after - before < _LEAST_RATIO * before + _SURE * error:
            return ""
        return (
            f"steps take {format_ratio(after / before - 1)} longer since the first window: {format_time(after)}, "
            f"before it {format_time(before)} (medians of {len(self._after)} and {len(self._before)} steps); "
            "the device's profiler may stay attached until the process ends, as CUPTI does: record in a "
            "short job of its own, or only when asked (Profiler.trigger); on an NVIDIA GPU with CUDA 12.6 or "
            "later, TEARDOWN_CUPTI=1 detaches it after each window"
        )


def _error(values: deque[int] | list[int]) -> float:
    """Return the standard error of the median of normal values, by the median of their deviations."""
    median = statistics.median(values)
    deviation = 1.4826 * statistics.median(abs(value - median) for value in values)
    return max(1.2533 * deviation / math.sqrt(len(values)), _LEAST_ERROR * median)
