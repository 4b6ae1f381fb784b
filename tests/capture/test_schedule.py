"""Which steps are recorded, against ``paddle.profiler`` itself."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.capture.schedule import Schedule, State

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = pytest.mark.paddle

STEPS = 60


@dataclass(frozen=True)
class Mapping:
    closed: int
    ready: int
    record: int
    repeat: int
    skip_first: int


SMALL = st.integers(0, 4)


def paddle_states(scheduler: object) -> list[State]:
    profiler_state = paddle.profiler.ProfilerState
    ours = {
        profiler_state.CLOSED: State.CLOSED,
        profiler_state.READY: State.READY,
        profiler_state.RECORD: State.RECORD,
        profiler_state.RECORD_AND_RETURN: State.LAST,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "some data may be noisy" without a ready step
        profiler = paddle.profiler.Profiler(scheduler=scheduler)
        return [ours[profiler.scheduler(step)] for step in range(STEPS)]


def states(schedule: Schedule) -> list[State]:
    return [schedule.state(step) for step in range(STEPS)]


@given(st.builds(Mapping, SMALL, SMALL, st.integers(1, 4), SMALL, SMALL))
def test_a_mapping_means_what_it_means_to_paddle(mapping: Mapping) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheduler = paddle.profiler.make_scheduler(**vars(mapping))
    schedule = Schedule.of(mapping)  # type: ignore[arg-type]

    assert states(schedule) == paddle_states(scheduler)
    over = [schedule.is_over(step) for step in range(STEPS)]
    left = [any(state.records for state in states(schedule)[step:]) for step in range(STEPS)]
    if mapping.repeat:
        assert over == [not some for some in left]
    else:
        assert not any(over)


@given(st.integers(0, 20), st.integers(1, 20))
def test_a_pair_means_what_it_means_to_paddle(start: int, length: int) -> None:
    assert states(Schedule.of((start, start + length))) == paddle_states((start, start + length))


def test_no_scheduler_records_every_step_and_is_never_over() -> None:
    schedule = Schedule.of(None)
    assert states(schedule) == paddle_states(None)
    assert not schedule.is_over(10**9)


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        (None, "every step"),
        ((1, 5), "steps 1 to 4"),
        (Mapping(1, 1, 2, 3, 4), "steps 6 to 7, then every 4 steps, 3 times"),
        (Mapping(1, 1, 2, 0, 0), "steps 2 to 3, then every 4 steps"),
    ],
)
def test_a_schedule_says_in_words_when_it_records(scheduler: object, words: str) -> None:
    assert str(Schedule.of(scheduler)) == words  # type: ignore[arg-type]


@given(
    st.none()
    | st.tuples(SMALL, st.integers(1, 4)).map(lambda pair: (pair[0], sum(pair)))
    | st.builds(Mapping, SMALL, SMALL, st.integers(1, 4), SMALL, SMALL),
    st.integers(0, 10**6),
)
def test_a_schedule_counts_from_the_first_step(scheduler: Any, first_step: int) -> None:
    whole, resumed = Schedule.of(scheduler), Schedule.of(scheduler, first_step=first_step)
    for step in range(STEPS):
        number = first_step + step
        assert resumed.state(number) is whole.state(step)
        assert resumed.num_recorded(number) == whole.num_recorded(step)
        assert resumed.num_left(number) == whole.num_left(step)
        assert resumed.is_over(number) == whole.is_over(step)
