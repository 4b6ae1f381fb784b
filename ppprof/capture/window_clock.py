"""Which state each step is in, on the job and on this rank, decided without any I/O.

Two steps are recorded, and this rank runs out of disk space after the first::

    step               0    1    2    3    4
    job's state        -    r    R    L    -
    this rank's state  -    r    R    -    -      cut: as if step 2 had been its last
    excluded                x    x    x    x      the profiler held the training up ahead of them
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from ppprof.capture.schedule import Schedule, State


class OnDemandWindows(Protocol):
    """The window that the ranks have agreed on while they train."""

    @property
    def first_free(self) -> int:
        """The lowest number that the next window may have."""

    @property
    def is_member(self) -> bool:
        """Whether this rank records the window."""

    @property
    def is_provisional(self) -> bool:
        """Whether the window may be deleted once it is recorded."""

    def state(self, step: int) -> State:
        """Return the job's state at a step; CLOSED without a window."""


@dataclass(frozen=True)
class Transition:
    """What changes between two steps."""

    step: int
    """The step that begins."""
    window: int
    """The window that the step is in, or the next one."""
    before: State
    """The job's state in the step that ended; CLOSED ahead of the first step."""
    after: State
    """The job's state in the step that begins."""
    own_before: State
    """This rank's state in the step that ended."""
    own_after: State
    """This rank's state in the step that begins; CLOSED if it does not record the window."""
    is_provisional: bool = False
    """Whether the window may be deleted once it is recorded."""
    excluded: bool = False
    """Whether a window opens or ends here, on any rank: the step that begins includes a stall."""

    @property
    def ends_window(self) -> bool:
        """Whether the step that ended was the last one of a window."""
        return self.before is State.LAST


class WindowClock:
    """Turns step numbers into transitions.

    Args:
        schedule: the windows of ``Profiler.scheduler``, which go first.
        on_demand: windows that are opened while the job runs.
        timer_only: record no window, whatever the schedule says.
    """

    def __init__(
        self,
        schedule: Schedule,
        on_demand: OnDemandWindows | None = None,
        timer_only: bool = False,
    ) -> None:
        self.schedule = schedule
        self.on_demand = on_demand
        self.timer_only = timer_only
        self.state = State.CLOSED
        """The job's state in the current step."""
        self.window = 0
        """The window that the current step is in, or the next one."""
        self._own_state = State.CLOSED
        self._is_cut = False

    @property
    def next_window(self) -> int:
        """The window that is open after the current step, or the next one."""
        return self.window + (self.state is State.LAST)

    def advance(self, step: int) -> Transition:
        """Return the transition to a step, the one after the current step."""
        before, own_before = self.state, self._own_state
        self.window = self.next_window
        after = State.CLOSED if self.timer_only else self.schedule.state(step)
        own_after, is_provisional = after, False
        on_demand = self.on_demand
        if on_demand is not None:
            self.window = max(self.window, on_demand.first_free)
            if after is State.CLOSED:
                after = on_demand.state(step)
                own_after = after if on_demand.is_member else State.CLOSED
                is_provisional = on_demand.is_provisional
        if before is State.LAST or not own_after.records:
            self._is_cut = False
        if self._is_cut:
            own_after = State.CLOSED
        self.state, self._own_state = after, own_after
        # The stalls of other ranks hold up this rank too, whether or not it records.
        excluded = before is State.LAST or after is State.READY or after.records > before.records
        return Transition(
            step, self.window, before, after, own_before, own_after, is_provisional, excluded
        )

    def cut(self, transition: Transition) -> Transition:
        """End this rank's window ahead of the job's, or record none of it.

        Args:
            transition: the latest one.

        Returns:
            The transition that replaces it: the step that ended is this rank's last one.
        """
        self._is_cut, self._own_state = True, State.CLOSED
        own_before = State.LAST if transition.own_before.records else transition.own_before
        return replace(transition, own_before=own_before, own_after=State.CLOSED, excluded=True)
