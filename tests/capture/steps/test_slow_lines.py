"""The line of a slow step, in steps that nothing records."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ppprof.capture.parts import FinishedStep, StepsPart
from ppprof.capture.recording.user_files import UserFiles
from ppprof.capture.schedule import Schedule
from ppprof.capture.session import RecordingSession
from ppprof.capture.step_states import StepStates
from ppprof.capture.steps import slow_lines
from ppprof.capture.steps.perf_summary import PerfSummary
from ppprof.capture.steps.slow_lines import SlowLine, SlowLines
from ppprof.capture.steps.step_log import StepLog
from ppprof.capture.steps.timer import StepCost
from tests.fixtures.run_files import run_file

MS = 1_000_000


class Training:
    """Steps on a clock of its own, which are looked at every 10 ms of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(slow_lines, "start_thread", lambda run, name: threading.Thread())
        self.now_ns, self.is_paused = 0, False
        files = UserFiles(Path(__file__).parents[3])
        self.lines = SlowLines(files, lambda: self.is_paused, clock=lambda: self.now_ns)
        self.looking = ThreadPoolExecutor(1)
        self.begin_ns = 0
        self.forward_ms = 70
        self.lines.step(None, is_usual=True)

    def spend(self, time_ms: int) -> None:
        for _ in range(time_ms // 10):
            self.now_ns += 10 * MS
            self.looking.submit(self.lines.look).result()

    def forward(self) -> None:
        self.spend(self.forward_ms)

    def log(self) -> None:
        self.spend(10)

    def evaluate(self, time_ms: int) -> None:
        self.read()
        self.spend(time_ms - 10)

    def read(self) -> None:
        self.spend(10)

    def step(self, before: Callable[[], None], *, is_usual: bool = True) -> SlowLine:
        before()
        self.forward()
        self.log()
        self.spend(20)
        step_ns, self.begin_ns = self.now_ns - self.begin_ns, self.now_ns
        return self.lines.step(step_ns, is_usual=is_usual)

    def run(
        self, *steps: Callable[[], None], num_unusual: int = 0, num_usual: int = 20
    ) -> list[SlowLine]:
        """Run usual steps, and then one after each of the calls; the profiler is in the first of these."""
        before = [*[lambda: None] * num_usual, *steps]
        found = [
            self.step(each, is_usual=not 0 <= number - num_usual < num_unusual)
            for number, each in enumerate(before)
        ]
        assert found[:num_usual] == [(None, None, None)] * num_usual
        return found[num_usual:]


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Training:
    return Training(monkeypatch)


def test_the_line_that_other_steps_do_not_run_is_named(training: Training) -> None:
    found = training.run(lambda: training.evaluate(300), lambda: None)
    line, inner, time_ns = found[0]
    assert line is not None
    assert line.startswith("tests/capture/steps/test_slow_lines.py:")
    assert line.endswith("step(): before()")
    assert inner is not None
    assert inner.endswith("spend(): self.looking.submit(self.lines.look).result()")
    assert time_ns == 300 * MS
    assert found[1] == (None, None, None)
    assert training.lines.summary() == (
        f"outside windows, 1 slow step spent 300 ms (15.0% of the time) in {line}"
    )


def test_a_host_that_waits_for_its_device_now_and_then_is_not_slow(training: Training) -> None:
    """Nine steps of 100 are launched in 10, and the tenth waits for all of them, as for a logged loss."""
    lines = training.lines
    for number in range(1, 101):
        training.spend(10 if number % 10 else 910)
        found = lines.step(None, is_usual=True)
        assert lines.done(found, 100 * MS, 0) == (None, None, None)
    assert lines.summary() == ""
    training.spend(910)
    found = lines.step(None, is_usual=True)
    assert found.line is not None
    assert lines.done(found, 900 * MS, 0) == (None, None, None)  # it has waited for earlier steps
    assert lines.done(found, 1000 * MS, 0) == found
    assert lines.summary() == (
        f"outside windows, 1 slow step spent 900 ms (7.9% of the time) in {found.line}"
    )


def test_a_step_whose_device_is_known_at_once_is_judged_by_the_device(tmp_path: Path) -> None:
    called: list[tuple[str, int | None]] = []

    class Noting(SlowLines):
        def step(
            self, step_ns: int | None, *, is_usual: bool, communication_ns: int = 0
        ) -> SlowLine:
            called.append(("step", step_ns))
            return SlowLine("train.py:40", None, 5)

        def done(self, found: SlowLine, step_ns: int, communication_ns: int) -> SlowLine:
            called.append((f"done {found.line}", step_ns))
            return SlowLine()

    file = run_file(tmp_path / "rank_00000.jsonl")
    lines = Noting(UserFiles(tmp_path), lambda: False)
    steps = StepsPart(PerfSummary(), StepLog(file), slow_lines=lines)
    step = FinishedStep(3, 100, *[None] * 6, 0, False, None, 0, True)
    steps.on_step(step)
    steps.on_step(step._replace(batch_cost_ns=None, device_timed=None))
    steps.on_cost(StepCost(200, device_timed=True))
    steps.on_step(step._replace(device_timed=False))
    assert called == [
        *[("step", None), ("done train.py:40", 100)],
        *[("step", None), ("done train.py:40", 200)],
        ("step", 100),
    ]


def test_a_line_of_a_recursion_that_goes_deeper_is_one_of_all_steps(training: Training) -> None:
    def encode(depth: int, time_ms: int) -> None:
        training.spend(time_ms)
        if depth:
            encode(depth - 1, time_ms)

    for depth, time_ms in [*[(2, 20)] * 20, (6, 60)]:
        found = training.step(functools.partial(encode, depth, time_ms))
    assert found.line is None
    assert found.inner_line is not None


def test_a_rank_that_waits_for_others_in_slow_steps_is_not_in_the_summary(
    training: Training,
) -> None:
    training.run()
    training.spend(500)
    found = training.lines.step(500 * MS, is_usual=True, communication_ns=400 * MS)
    assert found.line is not None
    assert training.lines.summary() == ""


def test_with_few_looks_a_line_needs_more_time_than_other_steps_have(training: Training) -> None:
    """7 usual steps with 20 looks: a line with a tenth of their time might be in none of them."""
    spending = [lambda: training.spend(290), lambda: training.spend(300)]
    short, long = training.run(*spending, num_usual=7)
    assert (short.line, long.line is not None) == (None, True)
    assert (short.line_ns, long.line_ns) == (290 * MS, 300 * MS)


def test_with_hardly_a_look_nothing_is_compared(training: Training) -> None:
    """The first 5 steps show how long steps take; looks at them do not count."""
    found = training.run(lambda: training.spend(900), num_usual=5)
    assert found == [(None, None, None)]


def test_a_line_of_all_steps_that_takes_longer_is_an_inner_line_alone(training: Training) -> None:
    def longer() -> None:
        training.forward_ms = 470

    ((line, inner, more_ns),) = training.run(longer)
    assert line is None
    assert inner is not None
    assert inner.endswith("spend(): self.looking.submit(self.lines.look).result()")
    assert more_ns is not None
    assert abs(more_ns - 400 * MS) <= 10 * MS
    assert training.lines.summary() == ""


def test_steps_that_the_profiler_is_in_are_neither_usual_nor_slow(training: Training) -> None:
    def saving() -> None:
        training.spend(400)

    *unusual, found = training.run(saving, saving, saving, num_unusual=2)
    assert unusual == [(None, None, None)] * 2
    assert found.line is not None
    assert found.line_ns == 400 * MS


def test_a_pause_is_no_time_of_a_step(training: Training) -> None:
    def pausing() -> None:
        training.is_paused = True
        training.spend(900)
        training.is_paused = False
        training.begin_ns = training.now_ns

    assert training.run(pausing, lambda: None) == [(None, None, None)] * 2


def test_first_steps_are_compared_with_nothing(training: Training) -> None:
    for _ in range(3):
        assert training.step(lambda: training.spend(900)) == (None, None, None)
        assert training.step(lambda: None) == (None, None, None)


def test_no_line_is_named_that_has_less_than_half_of_what_the_step_takes_longer(
    training: Training,
) -> None:
    def several() -> None:
        training.spend(130)
        training.spend(130)
        training.spend(140)

    ((line, inner, time_ns),) = training.run(several)
    assert line is not None
    assert line.endswith("step(): before()")
    assert (inner, time_ns) == (line, 400 * MS)


def test_a_step_that_was_seldom_looked_at_has_no_line(training: Training) -> None:
    def unseen() -> None:
        training.now_ns += 300 * MS
        training.spend(20)  # the second look is late, but stands for all

    assert training.run(unseen) == [(None, None, None)]


def test_steps_are_looked_at_more_often_once_they_take_long(tmp_path: Path) -> None:
    """With a thread and a clock that are real."""
    lines = SlowLines(UserFiles(Path(__file__).parents[3]), lambda: False)
    found = []
    try:
        for number in range(141):
            time.sleep(0.02)
            if number in (20, 140):
                time.sleep(0.5)
            found.append(lines.step(None, is_usual=True))
    finally:
        lines.close()
    named = found[140]
    assert named.line is not None
    assert named.line.endswith("time.sleep(0.5)")
    assert found[:20] == [(None, None, None)] * 20
    assert not any("slow steps" in thread.name for thread in threading.enumerate())


def test_an_error_of_the_looks_costs_no_step_time(tmp_path: Path) -> None:
    class Failing(SlowLines):
        def step(
            self, step_ns: int | None, *, is_usual: bool, communication_ns: int = 0
        ) -> SlowLine:
            raise RuntimeError("no frames")

    lines = Failing(UserFiles(tmp_path), lambda: False)
    file = run_file(tmp_path / "rank_00000.jsonl")
    steps = StepsPart(PerfSummary(), StepLog(file), slow_lines=lines)
    with RecordingSession(
        StepStates(Schedule(closed=1, ready=1, record=2, repeat=2), timer_only=True), [steps]
    ) as session:
        for _ in range(3):
            session.step()
    records = [
        json.loads(line) for line in (tmp_path / "rank_00000.jsonl").read_text().split("\n")[:-1]
    ]
    assert [record["step"] for record in records] == [0, 1, 2]
    assert {record["slow_line"] for record in records} == {None}
