"""How long steps take, and whether one is slow or their times have settled: by the latest of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from itertools import islice

_NUM_KEPT = 64
"""Number of latest steps that the median covers."""
_NUM_ALIKE = 5
_MIN_STEPS = 20
"""Number of steps that must be known before any step counts as slow."""


class RunningSteps:
    """The durations of the latest 64 steps, sorted. Adding a duration takes 1 us.

    >>> steps = RunningSteps()
    >>> for duration_ns in [9, 1, 2, 3]:
    ...     steps.add(duration_ns)
    >>> steps.median_ns, steps.short_ns
    (3, 2)
    """

    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []

    def add(self, duration_ns: int) -> None:
        """Add the duration of a step; if there are more than 64, drop the oldest."""
        self._latest.append(duration_ns)
        insort(self._sorted, duration_ns)
        if len(self._latest) > _NUM_KEPT:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]

    def __len__(self) -> int:
        return len(self._sorted)

    @property
    def median_ns(self) -> int:
        """The median duration; of two middle durations the longer one. 0 without steps."""
        return self._sorted[len(self._sorted) // 2] if self._sorted else 0

    @property
    def short_ns(self) -> int:
        """The lower quartile of the durations: at least three quarters of the steps take that long.

        0 without steps.
        """
        return self._sorted[len(self._sorted) // 4] if self._sorted else 0

    @property
    def has_settled(self) -> bool:
        """Whether the latest five durations differ from their median by a fifth at most.

        >>> steps, settled = RunningSteps(), []
        >>> for duration_ns in [900, 300, 100, 110, 95, 100, 105]:
        ...     steps.add(duration_ns)
        ...     settled.append(steps.has_settled)
        >>> settled
        [False, False, False, False, False, False, True]
        """
        latest = sorted(islice(reversed(self._latest), _NUM_ALIKE))
        if len(latest) < _NUM_ALIKE:
            return False
        middle = latest[_NUM_ALIKE // 2]
        return 5 * max(latest[-1] - middle, middle - latest[0]) <= middle

    def is_slow(self, duration_ns: int, times: float) -> bool:
        """Return whether ``duration_ns`` is more than ``times`` the median.

        False until 20 steps were added.
        """
        return len(self._sorted) >= _MIN_STEPS and duration_ns > times * self.median_ns
