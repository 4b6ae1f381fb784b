"""Windows that are recorded in segments, with recorders that are no Paddle's."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.capture import attached, profiled_calls
from ppprof.capture.parts import Part, RecordingPart, StepsPart
from ppprof.capture.recording.observers import WindowObserver
from ppprof.capture.recording.segments import STALL_SECONDS, SegmentLength
from ppprof.capture.recording.store import WindowStore
from ppprof.capture.recording.windows import Windows
from ppprof.capture.schedule import Schedule
from ppprof.capture.session import RecordingSession
from ppprof.capture.step_states import StepStates
from ppprof.capture.steps.perf_summary import PerfSummary
from ppprof.capture.steps.step_log import StepLog
from ppprof.rundir import raw_files, steps_path
from ppprof.rundir.recordings import scan
from ppprof.rundir.remote_calls import RemoteCall, read_calls
from ppprof.rundir.run_file import RunFile
from ppprof.topology import Topology
from tests.capture.fake_recorder import Recorder


class Counter(WindowObserver):
    """Counts operators as Python would call them, and the hooks that are called."""

    def __init__(self, operators_a_step: list[int]) -> None:
        self.of_steps = iter(operators_a_step)
        self.num = 0
        self.num_installed = self.num_started = 0
        self.saved_names: list[str] = []

    def install(self) -> None:
        self.num_installed += 1

    def uninstall(self) -> None:
        self.num_installed = 0

    def started(self) -> None:
        self.num_started += 1
        self.num = 0

    def num_operators(self) -> int:
        return self.num

    def saved(self, name: Any, num_steps: int) -> None:
        self.saved_names.append(f"{name.segment}:{num_steps}")


class Training:
    """One rank whose recorder takes a time to stop that grows with the square of its operators.

    Saving takes a time that grows with their number, on a device that has work for a second.
    """

    def __init__(self, run: Path, operators: list[int], schedule: Schedule) -> None:
        self.run, self.operators = run, operators
        self.recorder = Recorder()
        self.counter = Counter(operators)
        self.finished: list[tuple[int, Path]] = []
        self.longest_stall = self.time = 0.0
        take = self.recorder.take

        def timed(brief: bool = False) -> Any:
            stall = stall_seconds(self.counter.num)
            self.longest_stall = max(self.longest_stall, stall)
            self.time += stall + 1
            self.recorder.wait_seconds += 1
            return take(brief)

        self.recorder.take = timed  # type: ignore[method-assign]
        made: Any = SimpleNamespace(
            add=lambda window, raw, *_: self.finished.append((window, raw)),
            has_finished_window=False,
        )
        recorder: Any = self.recorder
        self.store = WindowStore(run, 0, Topology.of(dp=1), made)
        self.windows = Windows(recorder, self.store, [self.counter], now=lambda: self.time)
        states = StepStates(schedule)
        steps = StepsPart(PerfSummary(), StepLog(RunFile(run, steps_path(0))))
        parts: list[Part] = [RecordingPart(states, self.windows, made), steps]
        self.session = RecordingSession(states, parts)

    def go(self, num_steps: int) -> Training:
        for step in range(num_steps):
            self.counter.num += self.operators[step % len(self.operators)]
            self.session.step()
        return self

    def segments(self) -> list[str]:
        """Return the text of each raw capture, in the order of recording."""
        return [path.read_text() for _, path in raw_files(self.run)]


def stall_seconds(operators: float) -> float:
    return 2.5e-10 * operators**2 + 8e-6 * operators


ENDLESS = Schedule.of(None)


@given(
    operators=st.lists(st.integers(50, 30_000), min_size=1, max_size=5),
    num_steps=st.integers(1, 300),
)
def test_every_step_is_in_one_segment_and_no_stall_is_long(
    operators: list[int], num_steps: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    training = Training(tmp_path_factory.mktemp("run"), operators, ENDLESS).go(num_steps)
    training.session.close()
    recorded = " ".join(training.segments()).split()
    assert recorded == [*map(str, range(num_steps)), f"{num_steps}-"]
    (recording,) = scan([training.run])
    assert len(recording.segments) == len(training.segments())
    assert training.finished == [(0, recording.files[0])]  # once, at its end
    assert training.store.saved_steps == {0: range(num_steps)}
    assert training.counter.num_started == len(training.segments())
    assert training.counter.num_installed == 0
    allowed = next(num for num in range(0, 200_000, 10) if stall_seconds(num) >= STALL_SECONDS)
    most = 1.5 * max(allowed, 10_000) + max(operators)  # it ends after a step
    assert training.longest_stall <= stall_seconds(most)


def test_a_segments_stall_is_in_the_step_log_and_its_step_is_left_out(tmp_path: Path) -> None:
    training = Training(tmp_path, [10_000], ENDLESS).go(20)
    training.session.close()
    first_steps = [int(text.split()[0].strip("-")) for text in training.segments()]
    assert len(first_steps) > 3
    lines = [json.loads(line) for line in (tmp_path / steps_path(0)).read_text().splitlines()]
    expected = [step for step in first_steps if step < 20]
    assert [line["step"] for line in lines if line["excluded"]] == expected
    assert [line["step"] for line in lines if line["stall_ns"]] == expected


def test_a_short_window_has_one_segment(tmp_path: Path) -> None:
    training = Training(tmp_path, [600], Schedule.of((5, 15))).go(20)
    training.session.close()
    assert training.segments() == ["5 6 7 8 9 10 11 12 13 14"]
    assert training.recorder.log.count("start") == 1


def test_ranks_of_unequal_work_end_segments_together(tmp_path: Path) -> None:
    ends = []
    for rank, operators in enumerate((700, 900, 1_500)):
        run = tmp_path / str(rank)
        run.mkdir()
        training = Training(run, [operators], ENDLESS).go(256)
        training.session.close()
        ends.append({int(text.split()[0].strip("-")) for text in training.segments()[1:]})
    later = [{end for end in each if end >= 64} for each in ends]
    assert later[0] <= later[1] <= later[2]


def test_the_disk_that_fills_costs_the_open_segment_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training(tmp_path, [10_000], ENDLESS)
    write = training.recorder.write

    def fills(result: list[str], raw: RunFile, brief: bool = False) -> None:
        if "_s00002" in str(raw):
            raise OSError(28, "No space left on device")
        write(result, raw, brief)

    training.recorder.write = fills  # type: ignore[method-assign]
    training.go(20)
    training.session.close()
    assert len(training.segments()) == 2
    assert len(training.finished) == 1
    assert training.counter.num_installed == 0
    assert "earlier ones are saved" in capsys.readouterr().err


def test_a_signal_saves_the_open_segment_and_finishes_the_window(tmp_path: Path) -> None:
    training = Training(tmp_path, [10_000], ENDLESS).go(11)
    training.windows.rescue()
    assert " ".join(training.segments()).split()[-1] == "11-"
    assert len(training.finished) == 1
    training.session.close()


def test_a_training_that_takes_the_profiler_between_two_segments_ends_the_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training(tmp_path, [10_000], ENDLESS).go(3)
    training.recorder.is_in_use = True
    training.go(20)
    training.session.close()
    assert "was cut short: another profiler is open" in capsys.readouterr().err
    assert len(training.finished) == 1


@pytest.mark.parametrize(
    ("stall_seconds", "expected"), [(1e-4, 16), (0.02, 8), (0.09, 4), (0.11, 2), (0.3, 1), (30, 1)]
)
def test_the_length_follows_from_the_segment_before(stall_seconds: float, expected: int) -> None:
    length = SegmentLength()
    assert not length.is_reached(3, 3, 8_000, 1.0)  # all ranks end at powers of two
    assert length.is_reached(3, 3, 30_000, 1.0)  # unless there are too many operators
    assert length.is_reached(4, 4, 8_000, 1.0)
    length.learn(4, 30_000, stall_seconds)
    reached = [step for step in range(5, 70) if length.is_reached(1, step, 1, 1.0)]
    assert reached == [step for step in range(5, 70) if step % expected == 0]


def test_where_calls_are_not_counted_the_first_segment_is_short(tmp_path: Path) -> None:
    length = SegmentLength()
    assert length.is_reached(16, 16, None, 0.1)
    assert length.is_reached(4, 4, None, 15.0)
    assert not length.is_reached(8, 8, None, 1.0)


@pytest.mark.parametrize(
    ("seconds_left", "recorded"),
    [
        (0.0, "2 3 4 5 6 7"),
        (1e-9, "5 6 7"),  # the window is longer than the probe
        (1e9, "2 3 4 5 6 7"),  # it would be over: it waits
    ],
)
def test_a_window_begins_once_the_device_is_known(
    tmp_path: Path, seconds_left: float, recorded: str
) -> None:
    training = Training(tmp_path, [1], Schedule.of((2, 8)))
    training.recorder.probe_seconds_left = seconds_left
    training.go(4)
    training.recorder.probe_seconds_left = 0.0
    training.go(6)
    assert training.segments() == [recorded]


def test_a_window_whose_last_step_begins_waits_for_the_device(tmp_path: Path) -> None:
    training = Training(tmp_path, [1], Schedule.of((2, 8)))
    training.recorder.probe_seconds_left = 1e-9
    training.go(10)
    assert training.segments() == ["7"]


def test_a_call_that_returns_in_a_later_segment_is_in_the_segment_that_sent_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two calls are sent in the first segment, and one in the second::

    segment     0: step 1    saved    1: step 2 ...
    early       sent ........ returned
    late        sent ................... returned
    last                                sent ........ after the window: skipped
    """
    training = Training(tmp_path, [100], Schedule.of((1, 3)))
    monkeypatch.setattr(training.windows._length, "is_reached", lambda *_: True)
    session: Any = training.session
    monkeypatch.setattr(attached, "_latest", attached.Attached(session, training.windows, {}))
    answers = {}
    take = training.recorder.take

    def answered_meanwhile(brief: bool = False) -> Any:
        if "early" in answers:
            pickle.loads(answers.pop("early"))  # noqa: S301
        return take(brief)

    training.recorder.take = answered_meanwhile  # type: ignore[method-assign]
    training.go(1)
    answers["early"], answers["late"] = answer("early"), answer("late")
    training.go(1)
    answers["last"] = answer("last")
    pickle.loads(answers["late"])  # noqa: S301
    assert not caplog.records
    training.go(1)
    pickle.loads(answers["last"])  # noqa: S301
    training.session.close()
    (recording,) = scan([tmp_path])
    assert len(recording.segments) == 2
    folders = [files[0].with_suffix(".calls") for files in recording.segments]
    names = [
        {call.name for call in read_calls(RunFile(folder.parent, folder.name))[0]}
        for folder in folders
    ]
    assert names == [{"early", "late"}, set()]
    assert [record.message for record in caplog.records] == [
        "rpc#last(worker0 -> worker1): skipped: it returned after its window had closed"
    ]


def answer(name: str) -> bytes:
    """Send a call to another process, and return its answer, as a carrier has it."""
    origin = profiled_calls._current_origin(None, "", "")
    times = {"sent_ns": 1, "arrived_ns": 2, "began_ns": 3, "ended_ns": 4, "left_ns": 5}
    call = RemoteCall(name, None, name, "worker0", "worker1", "host:1", 1, **times, received_ns=0)
    return pickle.dumps(profiled_calls.RemoteResult(None, origin, ((call, b""),)))
