"""Transitions from step to step, as tables; a letter per step: ``.`` closed, r ready, R, L last."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

from ppprof.capture.ranks.triggers import Plan
from ppprof.capture.schedule import Schedule, State
from ppprof.capture.step_states import StepStates, Transition

LETTERS = {
    State.CLOSED: ".",
    State.READY: "r",
    State.RECORD: "R",
    State.LAST: "L",
    State.PROVISIONAL: "p",
}


@dataclass
class OnDemand:
    """A window that the ranks agree on when a step comes."""

    plan: Plan
    agreed_at: int = 0
    is_member: bool = True
    step: int = 0

    @property
    def _is_known(self) -> bool:
        return self.agreed_at <= self.step < self.plan.end

    cut_short = None

    @property
    def first_free(self) -> int:
        return self.plan.window + (self.step >= self.plan.end) if self.step >= self.agreed_at else 0

    @property
    def is_held(self) -> bool:
        return self._is_known and self.plan.is_held

    def state(self, step: int) -> State:
        return self.plan.state(step) if self._is_known else State.CLOSED


def run(
    states: StepStates, num_steps: int, on_demand: OnDemand | None = None, cut_at: int | None = None
) -> list[Transition]:
    """Return all transitions; the disk is full at ``cut_at``."""
    transitions = []
    for step in range(num_steps):
        if on_demand is not None:
            on_demand.step = step
        transition = states.advance(step)
        if step == cut_at:
            transition = states.cut(transition)
        transitions.append(transition)
    return transitions


def columns(transitions: list[Transition]) -> dict[str, str]:
    """Return a letter or digit per step for each column; x where a flag is set."""
    return {
        "job": "".join(LETTERS[item.after] for item in transitions),
        "own": "".join(LETTERS[item.own_after] for item in transitions),
        "window": "".join(str(item.window) for item in transitions),
        "excluded": "".join(".x"[item.excluded] for item in transitions),
        "provisional": "".join(".x"[item.is_held] for item in transitions),
    }


NEVER = "............"


@pytest.mark.parametrize(
    ("schedule", "job", "window", "excluded"),
    [
        (Schedule.of((5, 8)), "....rRRL....", "000000001111", "....xx..x..."),
        (Schedule.of((0, 2)), "RL..........", "001111111111", "x.x........."),
        (Schedule.of(None), "RRRRRRRRRRRR", "000000000000", "x..........."),
        (Schedule.of(None, on_demand=True), NEVER, "000000000000", NEVER),
        (
            Schedule(closed=1, ready=1, record=2, repeat=2),
            ".rRL.rRL....",
            "000011112222",
            ".xx.xxx.x...",
        ),
        # Windows that touch: each first step excludes what saving the one before it takes.
        (
            Schedule(closed=0, ready=0, record=3, repeat=3),
            "RRLRRLRRL...",
            "000111222333",
            "x..x..x..x..",
        ),
        (Schedule(closed=0, ready=0, record=1, repeat=0), "LLLLLLLLLLLL", None, "xxxxxxxxxxxx"),
    ],
)
def test_a_schedule(schedule: Schedule, job: str, window: str | None, excluded: str) -> None:
    transitions = run(StepStates(schedule), 12)
    seen = columns(transitions)
    assert (seen["job"], seen["own"], seen["excluded"]) == (job, job, excluded)
    assert seen["provisional"] == NEVER
    if window is not None:
        assert seen["window"] == window
    befores = [transition.before for transition in transitions]
    assert befores == [State.CLOSED, *(transition.after for transition in transitions[:-1])]
    ends = [LETTERS[before] == "L" for before in befores]
    assert [transition.ends_window for transition in transitions] == ends


def test_a_timer_records_and_excludes_nothing() -> None:
    seen = columns(run(StepStates(Schedule.of((2, 5)), timer_only=True), 12))
    assert seen == {
        "job": NEVER,
        "own": NEVER,
        "window": "000000000000",
        "excluded": NEVER,
        "provisional": NEVER,
    }


TRIAL = Plan(window=0, start=4, steps=3, ranks="all", is_held=True)
LATER = Plan(window=1, start=7, steps=3, ranks="all", is_held=False)
FIRST = Plan(window=0, start=7, steps=3, ranks="all", is_held=False, num_provisional=3)


@pytest.mark.parametrize(
    ("schedule", "on_demand", "expected"),
    [
        (  # opened on demand, and kept only if a step turns out slow
            Schedule.of(None, on_demand=True),
            OnDemand(TRIAL, agreed_at=1),
            {
                "job": "...rRRL.....",
                "own": "...rRRL.....",
                "window": "000000011111",
                "excluded": "...xx..x....",
                "provisional": ".xxxxxx.....",
            },
        ),
        (  # another rank records: this one is held up too
            Schedule.of(None, on_demand=True),
            OnDemand(TRIAL, agreed_at=1, is_member=False),
            {
                "job": "...rRRL.....",
                "own": "............",
                "window": "000000011111",
                "excluded": "...xx..x....",
                "provisional": ".xxxxxx.....",
            },
        ),
        (  # after a window of the schedule
            Schedule.of((1, 3)),
            OnDemand(LATER, agreed_at=4),
            {
                "job": "rRL...rRRL..",
                "own": "rRL...rRRL..",
                "window": "000111111122",
                "excluded": "xx.x..xx..x.",
                "provisional": NEVER,
            },
        ),
        (  # provisional steps, with the window's number
            Schedule.of(None, on_demand=True),
            OnDemand(FIRST),
            {
                "job": ".ppp..rRRL..",
                "own": ".ppp..rRRL..",
                "window": "000000000011",
                "excluded": ".x..x.xx..x.",
                "provisional": NEVER,
            },
        ),
        (  # the window's warm-up ends the provisional steps
            Schedule.of(None, on_demand=True),
            OnDemand(dataclasses.replace(FIRST, num_provisional=9)),
            {
                "job": ".ppppprRRL..",
                "own": ".ppppprRRL..",
                "window": "000000000011",
                "excluded": ".x....xx..x.",
                "provisional": NEVER,
            },
        ),
        (  # this rank hears of it late, and records what is left
            Schedule.of(None, on_demand=True),
            OnDemand(LATER, agreed_at=8),
            {
                "job": "........RL..",
                "own": "........RL..",
                "window": "000000001122",
                "excluded": "........x.x.",
                "provisional": NEVER,
            },
        ),
    ],
)
def test_a_window_on_demand(
    schedule: Schedule, on_demand: OnDemand, expected: dict[str, str]
) -> None:
    assert columns(run(StepStates(schedule, on_demand), 12, on_demand)) == expected


@pytest.mark.parametrize(
    ("cut_at", "own", "excluded", "own_before"),
    [
        (4, "..rR...rRRL.", "..xxx.xxx..x", State.LAST),  # one step was recorded
        (3, "..r....rRRL.", "..xx..xxx..x", State.READY),  # no step was
        (2, ".......rRRL.", "..xx..xxx..x", State.CLOSED),
    ],
)
def test_a_cut_window_ends_on_this_rank_alone(
    cut_at: int, own: str, excluded: str, own_before: State
) -> None:
    schedule = Schedule(closed=1, ready=1, record=3, repeat=2, skip_first=1)
    transitions = run(StepStates(schedule), 12, cut_at=cut_at)
    seen = columns(transitions)
    assert seen["job"] == "..rRRL.rRRL."
    assert (seen["own"], seen["excluded"]) == (own, excluded)
    assert transitions[cut_at].own_before is own_before
    assert transitions[cut_at].own_after is State.CLOSED


def test_steps_after_a_cut_are_in_no_window() -> None:
    states = StepStates(Schedule(closed=1, ready=1, record=3, repeat=2))
    windows = []
    for step in range(9):
        transition = states.advance(step)
        if step == 3:
            states.cut(transition)
        windows.append(states.open_window)
    assert windows == [None, None, 0, None, None, None, None, 1, 1]


def test_a_cut_among_provisional_steps_does_not_save_them() -> None:
    on_demand = OnDemand(FIRST)
    transitions = run(StepStates(Schedule.of(None, on_demand=True), on_demand), 12, on_demand, 3)
    assert columns(transitions)["own"] == ".pp...rRRL.."
    assert transitions[3].own_before is State.PROVISIONAL
