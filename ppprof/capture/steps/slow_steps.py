"""Which steps are slow: by how many times the running median."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

_REMEMBERED = 64
"""Steps that the median is of."""
_FEWEST = 20
"""Steps without which there is no telling what is slow."""


class RunningSteps:
    """The latest steps by length, sorted; 1 us a step.

    >>> steps = RunningSteps()
    >>> for took in [9, 1, 2, 3]:
    ...     steps.add(took)
    >>> steps.median_ns, steps.short_ns
    (3, 2)
    """

    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []

    def add(self, took_ns: int) -> None:
        """Remembers a step, and forgets the oldest."""
        self._latest.append(took_ns)
        insort(self._sorted, took_ns)
        if len(self._latest) > _REMEMBERED:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]

    def __len__(self) -> int:
        return len(self._sorted)

    @property
    def median_ns(self) -> int:
        """The middle one, of two the longer; 0 without steps."""
        return self._sorted[len(self._sorted) // 2] if self._sorted else 0

    @property
    def short_ns(self) -> int:
        """What three quarters of the steps take at least; 0 without steps."""
        return self._sorted[len(self._sorted) // 4] if self._sorted else 0

    def is_slow(self, took_ns: int, times: float) -> bool:
        """Whether a step takes more than ``times`` the median; never before there is a median."""
        return len(self._sorted) >= _FEWEST and took_ns > times * self.median_ns
