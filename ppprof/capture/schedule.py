"""The steps of each window: ``Profiler.scheduler`` with the semantics of ``paddle.profiler``.

``[5, 8]``, and ``{closed: 1, ready: 1, record: 2, repeat: 2, skip_first: 1}``::

    step     0  1  2  3  4  5  6  7  8      step     0  1  2  3  4  5  6  7  8  9
    state    -  -  -  -  r  R  R  R  -      state    -  -  r  R  R  -  r  R  R  -
    window                  0  0  0         window            0  0        1  1
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ppprof.config import WindowSchedule


FOREVER = sys.maxsize
"""A step that never begins."""


class State(Enum):
    """The profiler's state during a step: Paddle's ``ProfilerState``."""

    CLOSED = "closed"
    READY = "ready"
    """Tracers are set up but record nothing."""
    RECORD = "record"
    LAST = "last"
    """The last recorded step of a window (Paddle's ``RECORD_AND_RETURN``)."""
    PROVISIONAL = "provisional"
    """Recorded, and kept only if the training ends before a step of the window has ended."""

    records: bool
    """Whether events of the step are kept."""

    def __init__(self, value: str) -> None:
        self.records = value in ("record", "last", "provisional")


@dataclass(frozen=True)
class Schedule:
    """``skip_first`` closed steps, then ``repeat`` periods of closed, ready and recorded steps.

    A period has ``closed``, then ``ready``, then ``record`` steps; its recorded steps are a window.
    """

    closed: int
    """Steps per period in which the profiler is off."""
    ready: int
    """Warm-up steps per period: the tracers are set up but record nothing."""
    record: int | None
    """Steps per window; None for a single window that never ends, 0 for no window."""
    repeat: int
    """Number of windows; 0 for an unlimited number."""
    skip_first: int = 0
    """Steps before the first period."""

    @classmethod
    def of(
        cls, scheduler: tuple[int, int] | WindowSchedule | None, on_demand: bool = False
    ) -> Schedule:
        """Return the schedule of a config's ``scheduler``.

        Args:
            scheduler: the first recorded step and the step after the last; or the counts of a
                period; or None, which records every step in one window.
            on_demand: whether windows open on demand as well. If so, None for ``scheduler`` means
                that the schedule has no window.
        """
        if scheduler is None:
            return cls(closed=0, ready=0, record=0 if on_demand else None, repeat=1)
        if isinstance(scheduler, tuple):
            start, stop = scheduler
            ready = min(start, 1)  # one step of warm-up, unless the window starts at step 0
            return cls(closed=start - ready, ready=ready, record=stop - start, repeat=1)
        return cls(
            closed=scheduler.closed,
            ready=scheduler.ready,
            record=scheduler.record,
            repeat=scheduler.repeat,
            skip_first=scheduler.skip_first,
        )

    def state(self, step: int) -> State:
        """Return the state of a step; steps are counted from 0."""
        if self.record is None:
            return State.RECORD
        if not self.record or step < self.skip_first:
            return State.CLOSED
        period = self.closed + self.ready + self.record
        window, position = divmod(step - self.skip_first, period)
        if (self.repeat and window >= self.repeat) or position < self.closed:
            return State.CLOSED
        if position < self.closed + self.ready:
            return State.READY
        return State.LAST if position == period - 1 else State.RECORD

    def next_opening(self, step: int) -> int:
        """Return the first step from ``step`` on that is not CLOSED; `FOREVER` if all are closed.

        >>> [Schedule(closed=2, ready=1, record=1, repeat=2).next_opening(step) for step in range(5)]
        [2, 2, 2, 3, 6]
        """
        if self.record is None:
            return step
        if not self.record or self.is_over(step):
            return FOREVER
        if step < self.skip_first:
            return self.skip_first + self.closed
        position = (step - self.skip_first) % (self.closed + self.ready + self.record)
        return step + max(self.closed - position, 0)

    def num_recorded(self, step: int) -> int:
        """Return how many recorded steps come before ``step`` in the window of ``step``.

        0 if ``step`` is outside a window.

        >>> [Schedule(closed=1, ready=1, record=3, repeat=1).num_recorded(step) for step in range(7)]
        [0, 0, 0, 1, 2, 0, 0]
        """
        if not self.state(step).records:
            return 0
        if self.record is None:
            return step
        position = (step - self.skip_first) % (self.closed + self.ready + self.record)
        return position - self.closed - self.ready

    def is_over(self, step: int) -> bool:
        """Return whether the last window has closed before ``step``.

        False if no last window is scheduled: no window at all, a window without an end, or an
        unlimited number of windows.
        """
        if not self.record or not self.repeat:
            return False
        return step >= self.skip_first + self.repeat * (self.closed + self.ready + self.record)

    def __str__(self) -> str:
        """Return the schedule in words, for messages.

        >>> str(Schedule(closed=1, ready=1, record=2, repeat=3))
        'steps 2 to 3, then every 4 steps, 3 times'
        """
        if self.record is None:
            return "every step"
        if not self.record:
            return "no step"
        first = self.skip_first + self.closed + self.ready
        words = f"steps {first} to {first + self.record - 1}"
        if self.repeat == 1:
            return words
        period = self.closed + self.ready + self.record
        times = f", {self.repeat} times" if self.repeat else ""
        return f"{words}, then every {period} steps{times}"
