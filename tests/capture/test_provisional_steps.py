"""The first steps of a training, recorded until its window has a step, and what is left of them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ppprof import rundir
from ppprof.capture.parts import Part, RecordingPart, StepsPart, TriggersPart
from ppprof.capture.ranks.control_channel import ControlChannel
from ppprof.capture.ranks.triggers import Triggers
from ppprof.capture.recording.disk_budget import DiskBudget
from ppprof.capture.recording.store import WindowStore
from ppprof.capture.recording.windows import Windows
from ppprof.capture.schedule import Plan, Schedule, latest_plan
from ppprof.capture.session import RecordingSession
from ppprof.capture.step_states import StepStates
from ppprof.capture.steps.perf_summary import PerfSummary
from ppprof.capture.steps.step_log import StepLog
from ppprof.capture.steps.timer import StepTime, StepTimer
from ppprof.config import ProfilerConfig
from ppprof.rundir.run_file import RunFile
from ppprof.topology import Topology
from tests.capture.fake_recorder import Recorder

MB = 1_000_000


class Timer(StepTimer):
    """Steps of 1 s; those before ``settles_at`` differ by more than a fifth."""

    def __init__(self, settles_at: int) -> None:
        super().__init__()
        self.settles_at = settles_at
        self.num_steps = 0

    def step(self) -> StepTime:
        self.num_steps += 1
        differs = self.num_steps <= self.settles_at and self.num_steps % 2
        return StepTime(3 * 10**9 if differs else 10**9, None)


class Training:
    """One rank, whose window of 3 steps opens once its step times have settled."""

    def __init__(
        self, run: Path, settles_at: int = 99, budget: DiskBudget | None = None, **block: Any
    ) -> None:
        self.run = run
        config = ProfilerConfig.from_mapping(
            {"trigger": {"settled": 3, "file": False, **block}}
        ).trigger
        assert config is not None
        schedule = Schedule.of(None, on_demand=True)
        topology = Topology.of(dp=1)
        triggers = Triggers(config, schedule, 0, topology, [0], run, ControlChannel())
        states = StepStates(schedule, triggers)
        self.recorder = Recorder()
        made: Any = SimpleNamespace(add=lambda *_: None, has_finished_window=False)
        recorder: Any = self.recorder
        self.store = WindowStore(run, 0, topology, made)
        steps = StepsPart(PerfSummary(), StepLog(RunFile(run, rundir.steps_path(0))))
        observers = [] if budget is None else [budget]
        self.windows = Windows(recorder, self.store, observers, before_waiting=steps.flush)
        parts: list[Part] = [
            TriggersPart(triggers, self.store.saved_steps),
            RecordingPart(states, self.windows, made, triggers),
            steps,
        ]
        self.session = RecordingSession(states, parts, timer=Timer(settles_at))

    def go(self, num_steps: int) -> Training:
        for _ in range(num_steps):
            self.session.step()
        return self

    def recordings(self) -> list[str]:
        """Return the text of each raw capture."""
        return [path.read_text() for path in sorted((self.run / "raw").glob("*.pb"))]

    def column(self, name: str) -> str:
        """Return a letter per step from the step log: 0 for window 0, x for true, else a dot."""
        file = self.run / rundir.steps_path(0)
        lines = file.read_text().splitlines() if file.exists() else ()
        letters = {"None": ".", "False": ".", "True": "x"}
        values = [str(json.loads(line)[name]) for line in lines]
        return "".join(letters.get(value, value) for value in values)


@pytest.mark.parametrize(
    ("num_steps", "settles_at", "recorded", "window", "excluded"),
    [
        (0, 99, [], "", ""),
        (1, 99, [], ".", "."),
        (2, 99, ["1 2-"], ".0", ".x"),
        (3, 99, ["1 2 3-"], ".00", ".x."),
        (4, 99, ["1 2 3"], ".000", ".x.."),
        (7, 99, ["1 2 3"], ".000...", ".x..x.."),
        # The window gets ready, and begins, but has no step.
        (19, 99, ["1 2 3"], ".000" + 15 * ".", ".x..x" + 14 * "."),
        (20, 99, ["1 2 3"], ".000" + 16 * ".", ".x..x" + 14 * "." + "x"),
        (21, 99, ["20 21-"], ".000" + 16 * "." + "0", ".x..x" + 14 * "." + "xx"),
        (26, 99, ["20 21 22"], ".000" + 16 * "." + "000...", ".x..x" + 14 * "." + "xx..x.."),
        # Five alike are known ahead of step 9, since steps 1 and 4 do not count.
        (9, 5, ["1 2 3"], ".000.....", ".x..x...."),
        (10, 5, ["1 2 3"], ".000......", ".x..x....x"),
        (11, 5, ["10 11-"], ".000......0", ".x..x....xx"),
        (16, 5, ["10 11 12"], ".000......000...", ".x..x....xx..x.."),
    ],
)
def test_the_first_steps_are_kept_until_the_window_has_a_step(
    tmp_path: Path, num_steps: int, settles_at: int, recorded: list[str], window: str, excluded: str
) -> None:
    training = Training(tmp_path, settles_at).go(num_steps)
    assert training.recordings() == [text for text in recorded if num_steps in (16, 26)]
    training.session.close()
    assert training.recordings() == recorded
    assert training.column("window") == window
    assert training.column("excluded") == excluded


def test_first_steps_are_recorded_once_the_probe_has_ended(tmp_path: Path) -> None:
    """Without a wait; the step ahead of which they begin includes a stall."""
    training = Training(tmp_path)
    training.recorder.probe_seconds_left = 1.0
    training.go(2)
    assert training.recorder.log == []
    training.recorder.probe_seconds_left = 0.0
    training.go(3)
    training.session.close()
    assert training.recordings() == ["3"]
    assert training.column("excluded") == ".x.xx"


def test_steps_that_are_dropped_are_never_written(tmp_path: Path) -> None:
    training = Training(tmp_path).go(21)
    (provisional,) = training.recorder.taken
    assert provisional() is not None  # freeing them would prolong step 21, which is recorded
    training.go(2)
    assert provisional() is None
    training.go(7).session.close()
    assert training.recorder.log == [
        *("prepare", "start", "take"),
        *("prepare", "start", "take", "write"),
        "discard",  # as the session closes
    ]
    assert training.store.num_dropped == 0


@pytest.mark.parametrize(
    ("num_steps", "recorded"),
    [(1, ["1-"]), (3, ["1 2 3-"]), (7, ["1 2 3"]), (20, ["1 2 3"]), (21, ["20 21-"])],
)
@pytest.mark.parametrize("way", ["exception", "signal"])
def test_a_training_that_fails_leaves_them_too(
    tmp_path: Path, way: str, num_steps: int, recorded: list[str]
) -> None:
    training = Training(tmp_path).go(num_steps)
    if way == "exception":
        error = ValueError("its own")
        training.session.__exit__(ValueError, error, None)
    else:
        training.session._save_on_signal()
        training.session._lock.release()
        if training.session._guard is not None:
            training.session._guard.uninstall()
    assert training.recordings() == recorded
    assert len(training.column("window")) == num_steps


def test_a_profiler_of_the_training_ends_them_and_the_window_comes_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path).go(3)
    training.windows.preempt()
    training.recorder.is_in_use = True
    training.go(3)
    training.recorder.is_in_use = False
    assert training.recordings() == []
    training.go(20)
    assert training.recordings() == ["20 21 22"]
    training.session.close()
    assert training.store.num_skipped == 0
    assert training.store.saved_steps == {0: range(20, 23)}
    what = (
        "the recording of the first steps, ahead of window 0 was cut short: the training has opened"
    )
    assert what in caplog.text
    assert not training.store.cut


def test_a_profiler_that_stays_open_is_reported_with_the_window_not_ahead_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path)
    training.recorder.is_in_use = True
    training.go(15)
    assert "another profiler" not in caplog.text
    training.go(10).session.close()
    assert training.recordings() == []
    assert caplog.text.count("window 0 is not recorded: another profiler is open") == 1


def test_a_profiler_of_the_training_leaves_what_was_recorded_before_it(tmp_path: Path) -> None:
    training = Training(tmp_path).go(3)
    training.windows.preempt()
    training.go(3).session.close()
    assert training.recordings() == ["1 2 3-"]
    assert training.store.saved_steps == {0: range(1, 3)}


@pytest.mark.parametrize("num_steps", [20, 21])
def test_a_profiler_of_the_training_before_the_window_has_a_step_leaves_the_first_steps(
    tmp_path: Path, num_steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As the window gets ready in step 19, or within its first step, step 20."""
    training = Training(tmp_path).go(num_steps - 1)
    training.windows.preempt()
    training.recorder.is_in_use = True
    training.go(20).session.close()
    assert training.recordings() == ["1 2 3"]
    assert "window 0 is not recorded: the training has opened" in caplog.text or num_steps == 20


def test_a_profiler_of_the_training_within_the_window_leaves_its_steps(tmp_path: Path) -> None:
    training = Training(tmp_path).go(22)
    training.windows.preempt()
    training.recorder.is_in_use = True
    training.go(5).session.close()
    assert training.recordings() == ["20 21 22-"]


def test_a_full_budget_ends_them_and_the_window_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(DiskBudget, "_last_step_bytes", None)
    sizes = [0]
    budget = DiskBudget(tmp_path, 0, 5e6, ["pb"], lambda: sizes[0])
    training = Training(tmp_path, budget=budget, settled=9).go(1)
    for _ in range(4):
        sizes[0] += MB  # of memory: 2 MB of a .pb at the most
        training.go(1)
    first = "ahead of window 0 ends after 2 steps on this rank: Profiler.max_trace_mb 5"
    assert f"the recording of the first steps, {first}" in caplog.text
    assert training.recordings() == []
    training.go(19)
    training.session.close()
    assert training.recordings() == ["20 21"]  # memory no longer grows, since it is reused
    assert caplog.text.count("window 0 ends after 2 steps on this rank") == 2


def test_memory_that_the_training_takes_in_its_first_steps_is_not_that_of_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DiskBudget, "_last_step_bytes", None)
    sizes = [0]
    budget = DiskBudget(tmp_path, 0, 1e9, ["pb"], lambda: sizes[0])
    training = Training(tmp_path, budget=budget, settled=9).go(1)
    for growth in (300 * MB, 300 * MB, 300 * MB, *([MB] * 6)):
        sizes[0] += growth
        training.go(1)
    training.go(25).session.close()
    assert training.recordings() == [" ".join(map(str, range(20, 29)))]


def calls_in(training: Training) -> list[str]:
    """Return the names of the folders for remote calls."""
    return sorted(path.name for path in (training.run / "raw").glob("*.calls"))


def note_call(training: Training) -> str:
    """Record a remote call of the open window, and return the name of its folder."""
    folder = training.windows.calls
    assert folder is not None
    (folder / "call.json").write(b"{}")
    return Path(folder.name).name


@pytest.mark.parametrize("num_steps", [22, 24])
def test_remote_calls_of_dropped_steps_are_deleted_and_those_of_the_window_stay(
    tmp_path: Path, num_steps: int
) -> None:
    """Also if both open within one second, and if the training ends within the window."""
    training = Training(tmp_path).go(2)
    dropped = note_call(training)
    training.go(18)
    kept = note_call(training)
    assert calls_in(training) == sorted({dropped, kept})
    training.go(num_steps - 20).session.close()
    assert calls_in(training) == [kept]
    assert dropped != kept


def test_a_signal_deletes_remote_calls_of_dropped_steps(tmp_path: Path) -> None:
    training = Training(tmp_path).go(2)
    note_call(training)
    training.go(18)
    kept = note_call(training)
    training.go(2).windows.rescue()
    assert calls_in(training) == [kept]


def test_remote_calls_of_a_window_without_a_step_are_deleted(tmp_path: Path) -> None:
    training = Training(tmp_path).go(2)
    kept = note_call(training)
    training.go(18)
    note_call(training)
    training.session.close()
    assert training.recordings() == ["1 2 3"]
    assert calls_in(training) == [kept]


def test_no_step_is_provisional_beside_a_schedule(tmp_path: Path) -> None:
    schedule = Schedule.of((30, 32))
    assert latest_plan(3, "all", schedule) == Plan(0, 20, 3, "all", is_held=False)
    assert latest_plan(3, "all", Schedule.of(None, on_demand=True)) == Plan(
        0, 20, 3, "all", is_held=False, num_provisional=3
    )


def test_in_a_resumed_training_the_window_has_its_numbers() -> None:
    for scheduler in ((30, 32), None):
        whole, resumed = (
            latest_plan(3, "all", Schedule.of(scheduler, on_demand=True, first_step=first_step))
            for first_step in (0, 700)
        )
        assert whole is not None
        assert resumed is not None
        assert resumed.start == 720
        states = [resumed.state(700 + step) for step in range(40)]
        assert states == [whole.state(step) for step in range(40)]
        assert resumed.ending(20, range(0)).startswith(
            "the training ended after 20 steps, before window 0, steps 720 to 722: nothing was"
        )
