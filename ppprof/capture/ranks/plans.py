"""Windows on demand, as ranks agree on them, and which steps have room for one.

The window for settled step times, here of 4 steps, has provisional steps ahead of it::

    step     0  1  2  3  4  5 ... 18  19  20  21  22  23  24
    state    -  p  p  p  p  -      -   r   R   R   R   L   -
                                              | step 20 has ended: the provisional steps are dropped
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppprof.capture.schedule import Schedule, State

if TYPE_CHECKING:
    from ppprof.topology import RankSelector

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
    is_provisional: bool
    """Whether the window is deleted unless one of its steps is slow."""
    num_provisional: int = 0
    """Most steps that are recorded ahead of the window, from step 1 on. They are kept only if the
    training ends before the window has a step. Step 0 is left out: it warms the device up, and
    ``ppprof run`` sees its end only."""

    @property
    def end(self) -> int:
        """Number of the step after the window's last step."""
        return self.start + self.steps

    def state(self, step: int) -> State:
        """Return the job's state at a step.

        READY for one step, RECORD, then LAST; before that, PROVISIONAL from step 1 on; else CLOSED.
        """
        if self.start <= step < self.end:
            return State.LAST if step == self.end - 1 else State.RECORD
        if step == self.start - 1:
            return State.READY
        is_provisional = 1 <= step <= self.num_provisional and step < self.start
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
            place = "within" if num_steps > self.start else "before"
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

    Args:
        steps: how many steps it has.
        ranks: the ranks that record it.
        schedule: windows that take precedence.

    Returns:
        A window that starts at step 20, or as soon after it as the schedule has room; None if it has
        none in 20,000 steps. Unless the schedule has windows, as many provisional steps as the window
        has steps come ahead of it: no recording takes more memory than the window's own.
    """
    num_closed = window = 0
    for step in range(_SEARCHED_STEPS):
        state = schedule.state(step)
        window += state is State.LAST
        is_free = state is State.CLOSED and step >= _LATEST_START - 1
        num_closed = num_closed + 1 if is_free else 0
        if num_closed > steps:  # a step to warm up, then those of the window
            num_provisional = 0 if schedule.record else steps
            start = step + 1 - steps
            return Plan(window, start, steps, ranks, False, num_provisional)
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
