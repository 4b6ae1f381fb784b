"""Step times on a fake clock, and what of them Paddle's DataLoader takes."""

from __future__ import annotations

import pytest

from ppprof.capture.timer import StepTime, StepTimer


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        return self.now


class Reader:
    """As much of a DataLoader iterator as Paddle's benchmark looks at."""

    def __init__(self, dataset: object) -> None:
        self._dataset = dataset


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_step_lasts_from_one_call_to_the_next(clock: Clock) -> None:
    timer = StepTimer(clock)
    clock.now += 70
    assert timer.step() == StepTime(70, None)
    clock.now += 5
    assert timer.step() == StepTime(5, None)


@pytest.mark.paddle
def test_reading_counts_and_an_evaluation_does_not(clock: Clock) -> None:
    """::

    train  r10 r10 s30 | r10 s20 |                  r10 s20 |
    eval                           r40 s50 r40 s50
    """
    pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    from paddle.profiler.timer import benchmark

    timer = StepTimer(clock)
    timer.watch_readers()
    train, evaluation = Reader("train"), Reader("eval")

    def read(reader: Reader, cost: int) -> None:  # as in paddle/io/dataloader/dataloader_iter.py
        benchmark().check_if_need_record(reader)
        benchmark().before_reader()
        clock.now += cost
        benchmark().after_reader()

    read(train, 10)
    read(train, 10)
    clock.now += 30
    assert timer.step() == StepTime(50, 20)
    read(train, 10)
    clock.now += 20
    assert timer.step() == StepTime(30, 10)
    for _ in range(2):
        read(evaluation, 40)
        clock.now += 50
    read(train, 10)
    clock.now += 20
    assert timer.step() == StepTime(30, 10)

    timer.close()
    assert benchmark().current_event is None
    assert list(benchmark().hooks) == ["timer_hook"]
    read(train, 10)
    assert timer.step() == StepTime(10, None)
