"""The steps of each window: ``Profiler.scheduler`` with the semantics of ``paddle.profiler``.

``[5, 8]``, and ``{closed: 1, ready: 1, record: 2, repeat: 2, skip_first: 1}``::

    step     0  1  2  3  4  5  6  7  8      step     0  1  2  3  4  5  6  7  8  9
    state    -  -  -  -  r  R  R  R  -      state    -  -  r  R  R  -  r  R  R  -
    window                  0  0  0         window            0  0        1  1

Other windows are planned while the job runs. The one for settled step times, here of 4 steps, has
provisional steps ahead of it::

    step     0  1  2  3  4  5 ... 18  19  20  21  22  23  24
    state    -  p  p  p  p  -      -   r   R   R   R   L   -
                                              | step 20 has ended: the provisional steps are dropped
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ppprof.config import WindowSchedule
    from ppprof.topology import RankSelector

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
    first_step: int = 0
    """Number of the training's first step, from which all steps above are counted. A training that
    resumes from a checkpoint goes on with that one's numbers."""

    @classmethod
    def of(
        cls,
        scheduler: tuple[int, int] | WindowSchedule | None,
        on_demand: bool = False,
        first_step: int = 0,
    ) -> Schedule:
        """Return the schedule of a config's ``scheduler``.

        Args:
            scheduler: the first recorded step and the step after the last; or the counts of a
                period; or None, which records every step in one window.
            on_demand: whether windows open on demand as well. If so, None for ``scheduler`` means
                that the schedule has no window.
            first_step: the number of the training's first step.
        """
        if scheduler is None:
            record = 0 if on_demand else None
            return cls(closed=0, ready=0, record=record, repeat=1, first_step=first_step)
        if isinstance(scheduler, tuple):
            start, stop = scheduler
            ready = min(start, 1)  # one step of warm-up, unless the window starts at step 0
            closed, record = start - ready, stop - start
            return cls(closed, ready, record, repeat=1, first_step=first_step)
        return cls(**vars(scheduler), first_step=first_step)

    @property
    def _start(self) -> int:
        """Number of the first period's first step."""
        return self.first_step + self.skip_first

    @property
    def num_windows(self) -> int | None:
        """Number of windows; None if there is no last one, or if the only one has no end."""
        if self.record == 0:
            return 0
        return self.repeat if self.record is not None and self.repeat else None

    def state(self, step: int) -> State:
        """Return the state of a step, by its number."""
        if self.record is None:
            return State.RECORD
        if not self.record or step < self._start:
            return State.CLOSED
        period = self.closed + self.ready + self.record
        window, position = divmod(step - self._start, period)
        if (self.repeat and window >= self.repeat) or position < self.closed:
            return State.CLOSED
        if position < self.closed + self.ready:
            return State.READY
        return State.LAST if position == period - 1 else State.RECORD

    def num_recorded(self, step: int) -> int:
        """Return how many recorded steps come before ``step`` in the window of ``step``.

        0 if ``step`` is outside a window.

        >>> [Schedule(closed=1, ready=1, record=3, repeat=1).num_recorded(step) for step in range(7)]
        [0, 0, 0, 1, 2, 0, 0]
        """
        if not self.state(step).records:
            return 0
        if self.record is None:
            return step - self.first_step
        position = (step - self._start) % (self.closed + self.ready + self.record)
        return position - self.closed - self.ready

    def num_left(self, step: int) -> int:
        """Return how many steps from ``step`` on belong to the window of ``step``, or to the next one.

        >>> [Schedule(closed=1, ready=1, record=3, repeat=1).num_left(step) for step in range(5)]
        [3, 3, 3, 2, 1]
        """
        return FOREVER if self.record is None else self.record - self.num_recorded(step)

    def is_over(self, step: int) -> bool:
        """Return whether the last window has closed before ``step``.

        False if no last window is scheduled: no window at all, a window without an end, or an
        unlimited number of windows.
        """
        if not self.record or not self.repeat:
            return False
        return step >= self._start + self.repeat * (self.closed + self.ready + self.record)

    def __str__(self) -> str:
        """Return the schedule in words, for messages.

        >>> str(Schedule(closed=1, ready=1, record=2, repeat=3))
        'steps 2 to 3, then every 4 steps, 3 times'
        """
        if self.record is None:
            return "every step"
        if not self.record:
            return "no step"
        first = self._start + self.closed + self.ready
        words = f"steps {first} to {first + self.record - 1}"
        if self.repeat == 1:
            return words
        period = self.closed + self.ready + self.record
        times = f", {self.repeat} times" if self.repeat else ""
        return f"{words}, then every {period} steps{times}"


_LATEST_START = 20
_SEARCHED_STEPS = 20_000


@dataclass(frozen=True)
class Plan:
    """A window that the ranks have agreed on."""

    window: int
    start: int
    steps: int
    ranks: RankSelector
    """Ranks that record the window, if they are among the ranks that record at all."""
    is_held: bool
    """Whether the window is deleted unless one of its steps is slow."""
    num_provisional: int = 0
    """Most steps that are recorded ahead of the window, from the training's second step on. They are kept
    only if the training ends before the window has a step. The first one is left out: it warms the device
    up, and ``ppprof run`` sees its end only."""
    first_step: int = 0
    """Number of the training's first step."""

    @property
    def end(self) -> int:
        """Number of the step after the window's last step."""
        return self.start + self.steps

    def state(self, step: int) -> State:
        """Return the job's state at a step.

        READY for one step, RECORD, then LAST; before that, PROVISIONAL from the training's second step
        on; else CLOSED.
        """
        if self.start <= step < self.end:
            return State.LAST if step == self.end - 1 else State.RECORD
        if step == self.start - 1:
            return State.READY
        is_provisional = 1 <= step - self.first_step <= self.num_provisional and step < self.start
        return State.PROVISIONAL if is_provisional else State.CLOSED

    def ending(self, num_steps: int, recorded: range) -> str:
        """Say what a training recorded that ended after so many steps, before the window's end.

        Args:
            num_steps: steps of the training.
            recorded: the steps that are saved: of the window or, in its place, provisional ones.
        """
        what = _were(recorded.start, recorded.stop) if recorded else "nothing was"
        if recorded and recorded.start >= self.start:
            what = f"only {what} recorded"
        else:
            instead = " instead" * bool(recorded)
            place = "within" if self.first_step + num_steps > self.start else "before"
            what = f"{place} {self}: {what} recorded{instead}"
        ended = f"the training ended after {num_steps} step{'s' * (num_steps != 1)}"
        return (
            f"{ended}, {what}; to choose the steps: "
            "ppprof run --steps FIRST:END, or Profiler.scheduler: [FIRST, END]"
        )

    def __str__(self) -> str:
        return f"window {self.window}, {_steps(self.start, self.end)}"


def latest_plan(steps: int, ranks: RankSelector, schedule: Schedule) -> Plan | None:
    """Return the window for settled step times that all ranks begin without any message.

    Returns:
        A window that starts after 20 steps, or as soon after it as the schedule has room; None if it has
        none in 20,000 steps. Unless the schedule has windows, as many provisional steps as the window
        has steps come ahead of it: no recording takes more memory than the window's own.
    """
    num_closed = window = 0
    first_step = schedule.first_step
    for step in range(first_step, first_step + _SEARCHED_STEPS):
        state = schedule.state(step)
        window += state is State.LAST
        is_free = state is State.CLOSED and step >= first_step + _LATEST_START - 1
        num_closed = num_closed + 1 if is_free else 0
        if num_closed > steps:  # a step to warm up, then those of the window
            num_provisional = 0 if schedule.record else steps
            start = step + 1 - steps
            return Plan(window, start, steps, ranks, False, num_provisional, first_step)
    return None


def why_no_room(schedule: Schedule, step: int, end: int) -> str | None:
    """Return why steps ``step`` to ``end - 1`` cannot hold a window on demand; None if they can.

    They cannot if the schedule has a step in this range that is not CLOSED: a step before a window
    (READY) counts too.
    """
    if schedule.state(step).records:
        return f"already recording: the schedule is {schedule}"
    if any(schedule.state(n) is not State.CLOSED for n in range(step, end)):
        return f"already recording before step {end}: the schedule is {schedule}"
    return None


def _were(start: int, end: int) -> str:
    return f"{_steps(start, end)} {'was' if end == start + 1 else 'were'}"


def _steps(start: int, end: int) -> str:
    return f"step {start}" if end == start + 1 else f"steps {start} to {end - 1}"
