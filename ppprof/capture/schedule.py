"""Which steps a window covers: ``Profiler.scheduler`` with the semantics of ``paddle.profiler``.

``[5, 8]``, and ``{closed: 1, ready: 1, record: 2, repeat: 2, skip_first: 1}``::

    step     0  1  2  3  4  5  6  7  8      step     0  1  2  3  4  5  6  7  8  9
    state    -  -  -  -  r  R  R  R  -      state    -  -  r  R  R  -  r  R  R  -
    window                  0  0  0         window            0  0        1  1
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ppprof.config import WindowSchedule


class State(Enum):
    """What the profiler does during a step; Paddle's ``ProfilerState``."""

    CLOSED = "closed"
    READY = "ready"
    """Tracers are prepared but record nothing."""
    RECORD = "record"
    LAST = "last"
    """The last recorded step of a window (Paddle's ``RECORD_AND_RETURN``)."""

    @property
    def records(self) -> bool:
        """Whether events of the step are kept."""
        return self in (State.RECORD, State.LAST)


@dataclass(frozen=True)
class Schedule:
    """Periods of ``closed``, ``ready`` and ``record`` steps, after ``skip_first`` others."""

    closed: int
    ready: int
    record: int | None
    """Steps of a window; None for one window without an end, 0 for no window."""
    repeat: int
    """How many windows; 0 for no end to them."""
    skip_first: int = 0

    @classmethod
    def of(
        cls, scheduler: tuple[int, int] | WindowSchedule | None, on_demand: bool = False
    ) -> Schedule:
        """The schedule that a config's ``scheduler`` asks for.

        Args:
            scheduler: None records every step.
            on_demand: windows open on demand as well, and None schedules none.
        """
        if scheduler is None:
            return cls(closed=0, ready=0, record=0 if on_demand else None, repeat=1)
        if isinstance(scheduler, tuple):
            start, stop = scheduler
            ready = min(start, 1)  # one step to warm up, where there is room
            return cls(closed=start - ready, ready=ready, record=stop - start, repeat=1)
        return cls(
            closed=scheduler.closed,
            ready=scheduler.ready,
            record=scheduler.record,
            repeat=scheduler.repeat,
            skip_first=scheduler.skip_first,
        )

    def state(self, step: int) -> State:
        """The state of a step, counted from 0."""
        if self.record is None:
            return State.RECORD
        if not self.record or step < self.skip_first:
            return State.CLOSED
        period = self.closed + self.ready + self.record
        window, at = divmod(step - self.skip_first, period)
        if (self.repeat and window >= self.repeat) or at < self.closed:
            return State.CLOSED
        if at < self.closed + self.ready:
            return State.READY
        return State.LAST if at == period - 1 else State.RECORD

    def num_recorded(self, step: int) -> int:
        """Steps before ``step`` that the window around it holds; 0 outside a window.

        >>> [Schedule(closed=1, ready=1, record=3, repeat=1).num_recorded(step) for step in range(7)]
        [0, 0, 0, 1, 2, 0, 0]
        """
        if not self.state(step).records:
            return 0
        if self.record is None:
            return step
        at = (step - self.skip_first) % (self.closed + self.ready + self.record)
        return at - self.closed - self.ready

    def is_over(self, step: int) -> bool:
        """Whether no window is open at ``step`` and none will open any more."""
        if not self.record or not self.repeat:
            return False
        return step >= self.skip_first + self.repeat * (self.closed + self.ready + self.record)

    def __str__(self) -> str:
        """The schedule in words, for messages about a window that was never reached."""
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
