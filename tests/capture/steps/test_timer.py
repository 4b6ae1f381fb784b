"""Step times on a fake clock, and what of them Paddle's DataLoaders take."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ppprof.capture.steps.timer import StepTime, StepTimer


class Clock:
    """A clock that advances on request."""

    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timer(clock: Clock) -> StepTimer:
    timer = StepTimer(clock)
    timer.start()
    return timer


def read(timer: StepTimer, clock: Clock, cost: int) -> None:
    """What a DataLoader does to hooks around a batch."""
    timer.before_reader(None)
    clock.now += cost
    timer.after_reader(None)


def test_a_step_lasts_from_one_call_to_the_next(timer: StepTimer, clock: Clock) -> None:
    clock.now += 70
    assert timer.step() == StepTime(70, None)
    clock.now += 5
    assert timer.step() == StepTime(5, None)


def test_all_reading_between_two_steps_counts(timer: StepTimer, clock: Clock) -> None:
    read(timer, clock, 10)
    clock.now += 30
    read(timer, clock, 4)
    assert timer.step() == StepTime(44, 14)
    clock.now += 20
    assert timer.step() == StepTime(20, None)


def test_a_pause_counts_in_no_step_and_no_reading(timer: StepTimer, clock: Clock) -> None:
    """::

    read     # # _ _ _ | # _ # _ _ # # # _ |
    paused   _ _ _ _ _ | _ _ _ _ # # # # _ |
    """
    read(timer, clock, 2)
    clock.now += 3
    assert timer.step() == StepTime(5, 2)
    read(timer, clock, 1)
    clock.now += 1
    read(timer, clock, 1)
    clock.now += 1
    with timer.paused():
        clock.now += 1
        read(timer, clock, 3)
    clock.now += 1
    assert timer.step() == StepTime(5, 2, paused_ns=4)
    assert timer.step() == StepTime(0, None, paused_ns=0)


def test_reading_in_a_pause_alone_is_no_reading(timer: StepTimer, clock: Clock) -> None:
    with timer.paused():
        read(timer, clock, 3)
    assert timer.step() == StepTime(0, None, paused_ns=3)


def test_pauses_nest_and_end_with_an_exception(timer: StepTimer, clock: Clock) -> None:
    def evaluate() -> None:
        with timer.paused():
            with timer.paused():
                clock.now += 10
            clock.now += 10
            raise KeyError

    clock.now += 1
    with pytest.raises(KeyError):
        evaluate()
    clock.now += 1
    assert timer.step() == StepTime(2, None, paused_ns=20)


def test_a_step_may_end_in_a_pause(timer: StepTimer, clock: Clock) -> None:
    clock.now += 4
    with timer.paused():
        clock.now += 10
        assert timer.step() == StepTime(4, None)
        clock.now += 10
    clock.now += 5
    assert timer.step() == StepTime(5, None, paused_ns=20)


def test_a_thread_that_reads_ahead_holds_up_no_step(timer: StepTimer, clock: Clock) -> None:
    ahead = threading.Thread(target=read, args=(timer, clock, 9))
    ahead.start()
    ahead.join()
    assert timer.step() == StepTime(9, None)


def test_the_thread_that_steps_is_the_one_that_counts(timer: StepTimer, clock: Clock) -> None:
    steps: list[StepTime] = []

    def train() -> None:
        for _ in range(2):
            read(timer, clock, 9)
            steps.append(timer.step())

    training = threading.Thread(target=train)
    training.start()
    training.join()
    assert steps == [StepTime(9, None), StepTime(9, 9)]


# Real loaders


@pytest.fixture
def paddle() -> Any:
    return pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")


@pytest.fixture
def watching(paddle: Any) -> Iterator[StepTimer]:
    timer = StepTimer()
    timer.watch_readers()
    timer.start()
    yield timer
    timer.close()


class Slow:
    """Ten samples that take their time; not to be compared, as a big one would be slow to be."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.05)
        return np.float32([index])

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.paddle
@pytest.mark.parametrize("workers", [0, 2])
def test_waiting_for_a_loader_is_reading(paddle: Any, watching: StepTimer, workers: int) -> None:
    loader = iter(paddle.io.DataLoader(Slow(), batch_size=5, num_workers=workers))
    watching.step()
    next(loader)
    first = watching.step()
    idle = watching.step()
    assert first.reader_cost_ns is not None
    assert 20_000_000 < first.reader_cost_ns <= first.batch_cost_ns
    assert idle.reader_cost_ns is None

    with watching.paused():
        assert len(list(loader)) == 1
        assert len(list(paddle.io.DataLoader(Slow(), batch_size=5))) == 2
    assert watching.step().reader_cost_ns is None


@pytest.mark.paddle
@pytest.mark.parametrize(
    ("options", "started"),
    [
        ({"num_workers": 2}, [2, 2, 2]),
        ({"num_workers": 2, "persistent_workers": True}, [2, 0, 0]),
        ({}, [0, 0, 0]),
    ],
)
def test_each_pass_over_a_loader_starts_its_workers(
    paddle: Any, watching: StepTimer, options: dict[str, Any], started: list[int]
) -> None:
    """A pass of two batches is two steps; with the second one's end, the workers stop, in the step after it."""
    loader, steps = paddle.io.DataLoader(Slow(), batch_size=5, **options), []
    for _ in range(3):
        for _ in loader:
            steps.append(watching.step())
    first, others = steps[::2], steps[1::2]
    assert [step.started_workers for step in first] == started
    assert {step.started_workers for step in others} == {0}
    assert {step.starting_ns for step in others} == {0}
    for step in first[1:]:
        assert step.starting_ns is not None
        assert bool(step.starting_ns) == bool(options)
        assert (step.starting_ns >= 500_000_000) == ("persistent_workers" in options)
        assert step.batch_cost_ns is not None
        assert step.starting_ns + (step.reader_cost_ns or 0) <= step.batch_cost_ns

    with watching.paused():  # an evaluation
        assert len(list(loader)) == 2
    assert watching.step().started_workers == 0


@pytest.mark.paddle
def test_full_garbage_collections_are_counted_in_any_thread(watching: StepTimer) -> None:
    def collect() -> None:
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()

    gc.disable()
    try:
        watching.step()
        collect()
        gc.collect()
        assert watching.step().num_collections == 2
        gc.collect(1)
        assert watching.step().num_collections == 0
        with watching.paused(), watching.paused():
            collect()
        gc.collect()
        assert watching.step().num_collections == 1
        watching.close()
        assert watching.step().num_collections is None
    finally:
        gc.enable()


@pytest.mark.paddle
def test_workers_are_not_counted_when_the_timer_is_closed(paddle: Any, watching: StepTimer) -> None:
    from paddle.io.dataloader.dataloader_iter import _DataLoaderIterMultiProcess

    names = ("_init_workers", "_try_shutdown_all", "_reset")
    wrapped = [vars(_DataLoaderIterMultiProcess)[name] for name in names]
    watching.close()
    assert all(vars(_DataLoaderIterMultiProcess)[n] is not w for n, w in zip(names, wrapped))
    assert (watching.step().started_workers, watching.step().starting_ns) == (None, None)


@pytest.mark.paddle
def test_two_loaders_a_step_and_an_array_for_a_dataset(paddle: Any, watching: StepTimer) -> None:
    texts, images = (
        iter(paddle.io.DataLoader(np.zeros([8, 4], np.float32), batch_size=2)) for _ in range(2)
    )
    for _ in range(3):
        next(texts)
        alone = watching._reader_ns
        next(images)
        took = watching.step()
        assert alone is not None
        assert took.reader_cost_ns is not None
        assert 0 < alone < took.reader_cost_ns <= took.batch_cost_ns


@pytest.mark.paddle
@pytest.mark.parametrize("theirs_is_outside", [True, False])
def test_a_profiler_of_the_trainings_own_changes_nothing(
    paddle: Any, capsys: pytest.CaptureFixture[str], theirs_is_outside: bool
) -> None:
    """Nor does ours change what theirs counts: 15 steps with 15 reads."""
    from paddle.profiler.timer import benchmark

    loader = iter(paddle.io.DataLoader([np.float32([i]) for i in range(40)], batch_size=1))
    theirs, timer = paddle.profiler.Profiler(timer_only=True), StepTimer()
    if theirs_is_outside:
        theirs.start()
        timer.watch_readers()
    else:
        timer.watch_readers()
        theirs.start()
    event = benchmark().current_event
    for _ in range(15):
        next(loader)
        theirs.step()
        assert timer.step().reader_cost_ns is not None
    if theirs_is_outside:
        timer.close()
        next(loader)
        theirs.step()
        assert timer.step().reader_cost_ns is None
        assert benchmark().current_event is event
        theirs.stop()
    else:
        theirs.stop()
        next(loader)
        assert timer.step().reader_cost_ns is not None
        timer.close()
    assert event.reader_cost_averager._total_iters == event.batch_cost_averager._total_iters
    assert "reader_cost" in capsys.readouterr().out
    assert benchmark().current_event is None
    assert list(benchmark().hooks) == ["timer_hook"]
    del theirs
