"""The state of each step, in the job and on this rank, decided without any I/O.

Two steps are recorded, and this rank runs out of disk space after the first::

    step               0    1    2    3    4
    job's state        -    r    R    L    -
    this rank's state  -    r    R    -    -      cut: as if step 2 had been its last
    excluded                x    x    x    x      the profiler stalled the training ahead of the step
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ppprof.capture.schedule import Schedule, State

if TYPE_CHECKING:
    from ppprof.capture.ranks.triggers import Triggers


class Transition(NamedTuple):
    """The change of states between two steps."""

    step: int
    """Number of the step that begins."""
    window: int
    """Number of the window that the step is in; outside windows, the next window's number."""
    before: State
    """The job's state in the step that ended; CLOSED ahead of the first step."""
    after: State
    """The job's state in the step that begins."""
    own_before: State
    """This rank's state in the step that ended."""
    own_after: State
    """This rank's state in the step that begins; CLOSED if this rank does not record the window."""
    is_held: bool = False
    """Whether the window may be deleted once it is recorded; only for windows on demand."""
    excluded: bool = False
    """Whether the step that begins includes a stall: any rank's window gets ready, opens or ends
    between the two steps."""
    num_left: int | None = None
    """Steps of the window from this one on, or from its first one; None for a window on demand."""

    @property
    def ends_window(self) -> bool:
        """Whether the step that ended was the last step of the job's window."""
        return self.before is State.LAST

    @property
    def ends_recording(self) -> bool:
        """Whether the step that ended was the last one of a window, or of the provisional steps."""
        return self.ends_window or ends_provisional_steps(self.before, self.after)


def ends_provisional_steps(before: State, after: State) -> bool:
    """Return whether a step with the state ``before`` is the last of the provisional steps."""
    return before is State.PROVISIONAL and after is not State.PROVISIONAL


class StepStates:
    """Turns step numbers into transitions.

    Args:
        schedule: the windows of ``Profiler.scheduler``; they take precedence over ``on_demand``.
        on_demand: windows that are opened while the job runs; None to open no such windows.
        timer_only: whether to ignore the windows of ``schedule``.
    """

    def __init__(
        self,
        schedule: Schedule,
        on_demand: Triggers | None = None,
        timer_only: bool = False,
    ) -> None:
        self.schedule = schedule
        self.on_demand = on_demand
        self.timer_only = timer_only
        self.state = State.CLOSED
        """The job's state in the current step."""
        self.window = 0
        """Number of the window that the current step is in; outside windows, the next number."""
        self._own_state = State.CLOSED
        self._is_cut = False

    @property
    def open_window(self) -> int | None:
        """Number of the window that the current step is in; None outside windows.

        None also after `cut`: of an endless window, all later steps are those of an unrecorded training.
        """
        return self.window if self.state.records and not self._is_cut else None

    @property
    def next_window(self) -> int:
        """Number of the window that is open after the current step, or the next window's number."""
        return self.window + (self.state is State.LAST)

    def advance(self, step: int) -> Transition:
        """Begin ``step``, which follows the current step, and return the transition to it."""
        before, own_before = self.state, self._own_state
        if before is State.LAST:
            self.window += 1
        after = State.CLOSED if self.timer_only else self.schedule.state(step)
        own_after, is_held = after, False
        num_left = None if after is State.CLOSED else self.schedule.num_left(step)
        on_demand = self.on_demand
        if on_demand is not None:
            self.window = max(self.window, on_demand.first_free)
            if after is State.CLOSED:
                after = on_demand.state(step)
                own_after = after if on_demand.is_member else State.CLOSED
                is_held = on_demand.is_held
        if before is State.LAST or not own_after.records:
            self._is_cut = False
        if self._is_cut:
            own_after = State.CLOSED
        self.state, self._own_state = after, own_after
        # Other ranks' stalls hold up this rank too, even if it does not record.
        opens = after is State.READY or after.records > before.records
        excluded = opens or before is State.LAST or ends_provisional_steps(before, after)
        states = before, after, own_before, own_after
        return Transition(step, self.window, *states, is_held, excluded, num_left)

    def cut(self, transition: Transition) -> Transition:
        """Record no further step of the job's window on this rank, until the job's window ends.

        Args:
            transition: the latest result of `advance`.

        Returns:
            The transition to use instead of ``transition``. If this rank recorded the step that
            ended, that step is its last one; ``own_after`` is CLOSED.
        """
        self._is_cut, self._own_state = True, State.CLOSED
        own_before = State.LAST if transition.own_before is State.RECORD else transition.own_before
        return transition._replace(own_before=own_before, own_after=State.CLOSED, excluded=True)
