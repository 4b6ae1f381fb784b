"""What a session does at each step, and that none of its failures reaches the training."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from ppprof.capture.parts import (
    DevicePart,
    Ending,
    FinishedStep,
    Part,
    StepsPart,
)
from ppprof.capture.postprocess import PostProcessor
from ppprof.capture.recording import windows as recording
from ppprof.capture.recording.store import WindowStore
from ppprof.capture.results import Results
from ppprof.capture.schedule import Schedule, State
from ppprof.capture.session import RecordingSession
from ppprof.capture.step_states import StepStates, Transition
from ppprof.capture.steps.perf_summary import PerfSummary
from ppprof.capture.steps.step_log import StepLog
from ppprof.capture.steps.timer import StepTimer
from ppprof.capture.steps.visualdl_scalars import Scalars
from ppprof.rundir import TraceName
from ppprof.rundir.run_file import RunFile
from ppprof.topology import Topology
from tests.capture.sessions import session
from tests.capture.small_session import SmallRecorder
from tests.fixtures.run_files import run_file


class Windows:
    """Keeps its calls, and fails at one step if it should."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.calls: list[object] = []
        self.saved: list[object] = []
        self.fail_at = fail_at
        self.num_dropped = self.num_skipped = 0
        self.cut: set[int] = set()
        self.num_segments: dict[int, int] = {}

    def admit(self, transition: Transition) -> bool:
        return True

    def ends_segment(self, transition: Transition) -> bool:
        return False

    opens_late = ends_segment

    def advance(self, transition: Transition) -> bool:
        states = f"{transition.own_before.value}->{transition.own_after.value}"
        self.calls.append((states, transition.step, transition.window))
        if transition.step == self.fail_at:
            raise OSError(28, "No space left on device")
        return True

    def close(self, keep_empty: bool, failed: bool = False) -> None:
        self.calls.append(f"close(keep_empty={keep_empty})")


TWICE = Schedule(closed=1, ready=1, record=2, repeat=2)


def test_windows_advance_where_a_state_changes() -> None:
    windows = Windows()
    with session(windows, TWICE) as prof:
        for _ in range(10):
            prof.step()
    assert windows.calls == [
        ("closed->ready", 1, 0),
        ("ready->record", 2, 0),
        ("record->last", 3, 0),
        ("last->closed", 4, 1),
        ("closed->ready", 5, 1),
        ("ready->record", 6, 1),
        ("record->last", 7, 1),
        ("last->closed", 8, 2),
        "close(keep_empty=False)",
    ]


def test_a_resumed_training_goes_on_with_its_numbers(tmp_path: Path) -> None:
    """The schedule counts from its first step."""
    path = tmp_path / "steps.jsonl"
    windows, made = Windows(), PostProcessor(tmp_path, 0, prints=True, command=[])
    schedule = Schedule.of((2, 4), first_step=700)
    log = StepLog(run_file(path))
    with session(windows, schedule, steps=log, post_processor=made, stop_training=True) as prof:
        stops = []
        for _ in range(6):
            prof.step()
            stops.append(prof.should_stop)
    assert windows.calls == [
        ("closed->ready", 701, 0),
        ("ready->record", 702, 0),
        ("record->last", 703, 0),
        ("last->closed", 704, 1),
        "close(keep_empty=False)",
    ]
    assert stops == [False] * 3 + [True] * 3
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(700, 706))
    assert [line["window"] for line in lines] == [None, None, 0, 0, None, None]


@pytest.mark.parametrize("windows", [Windows(), None], ids=["records", "does not record"])
def test_steps_next_to_a_window_are_marked_on_every_rank(
    tmp_path: Path, windows: Windows | None
) -> None:
    path = tmp_path / "steps.jsonl"
    made = PostProcessor(tmp_path, 0, prints=True, command=[]) if windows else None
    with session(
        windows, Schedule.of((2, 4)), steps=StepLog(run_file(path)), post_processor=made
    ) as prof:
        for _ in range(6):
            prof.step(num_samples=4, num_tokens=64, num_micro_batches=2, num_flops=10**12)
    lines = [json.loads(line) for line in path.read_text().splitlines()]

    assert [line["step"] for line in lines if line["excluded"]] == [1, 2, 4]
    assert [line["window"] for line in lines] == [None, None, 0, 0, None, None]
    counts = ("num_samples", "num_tokens", "num_micro_batches", "num_flops")
    assert {tuple(line[name] for name in counts) for line in lines} == {(4, 64, 2, 10**12)}
    stalls = {line["step"] for line in lines if line["stall_ns"] > 0}
    assert stalls == ({1, 2, 4} if windows else set())
    assert all(line["stall_ns"] <= line["batch_cost_ns"] for line in lines)


def test_should_stop_follows_the_schedule_alone() -> None:
    with session(None, TWICE, stop_training=True) as prof:
        stops = []
        for _ in range(10):
            prof.step()
            stops.append(prof.should_stop)
    assert stops == [False] * 7 + [True] * 3
    with session(None, TWICE) as prof:
        prof.step()
        assert not prof.should_stop


def test_one_thread_ends_the_steps_until_it_has_ended(messages: list[str]) -> None:
    windows = Windows()
    with session(windows, TWICE, rank=3) as prof:

        def step_in(name: str, times: int) -> None:
            thread = threading.Thread(target=lambda: [prof.step() for _ in range(times)], name=name)
            thread.start()
            thread.join()

        step_in("first", 2)  # it has ended when the next one begins
        prof.step()
        for name in ("second", "third"):
            step_in(name, 5)
        prof.step()
        assert windows.calls[-1][1] == 4  # type: ignore[index]
    assert messages == [
        "rank 3: step() was called in thread second, but thread MainThread ends the steps: such calls "
        "have no effect; call step() in one thread"
    ]


@pytest.mark.parametrize("fail_at", [1, 2, 4])
def test_a_failure_ends_the_recording_and_not_the_training(
    capsys: pytest.CaptureFixture[str], fail_at: int
) -> None:
    windows = Windows(fail_at)
    with session(windows, TWICE, rank=5) as prof:
        for _ in range(10):
            prof.step()
    assert windows.calls[-1] == "close(keep_empty=False)"
    assert windows.calls[-2][1] == fail_at  # type: ignore[index]
    assert capsys.readouterr().err == (
        "ppprof: rank 5: recording failed: [Errno 28] No space left on device; "
        "the training goes on without\n"
    )


def test_a_clock_that_fails_is_no_exception_either(capsys: pytest.CaptureFixture[str]) -> None:
    timer = StepTimer()
    with session(None, TWICE, timer=timer) as prof:
        timer.step = None  # type: ignore[assignment, method-assign]
        prof.step()
    assert "timing a step failed" in capsys.readouterr().err


def test_an_exception_of_the_training_passes_and_the_window_is_kept() -> None:
    windows = Windows()
    error = ValueError("loss is nan")
    with pytest.raises(ValueError, match="loss is nan") as raised, session(windows, TWICE):
        raise error
    assert raised.value is error
    assert windows.calls == ["close(keep_empty=True)"]


@pytest.mark.parametrize(("code", "failed"), [(0, False), (None, False), (3, True)])
def test_an_exit_without_a_code_is_no_failure(code: int | None, failed: bool) -> None:
    windows = Windows()
    with pytest.raises(SystemExit), session(windows, TWICE):
        sys.exit(code)
    assert windows.calls == [f"close(keep_empty={failed})"]


def test_a_loop_that_its_caller_leaves_is_no_failure() -> None:
    windows = Windows()

    def training() -> Iterator[int]:
        with session(windows, TWICE) as prof:
            for step in range(9):
                yield step
                prof.step()

    steps = training()
    for step in steps:
        if step == 3:
            break
    steps.close()  # type: ignore[attr-defined]
    assert windows.calls[-1] == "close(keep_empty=False)"


@pytest.mark.parametrize("is_earlier", [True, False])
def test_an_exception_of_an_earlier_cell_is_not_what_ends_a_training(
    is_earlier: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows, error = Windows(), ValueError("loss is nan")
    if is_earlier:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
    prof = session(windows, TWICE)
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    prof._at_exit()  # type: ignore[attr-defined]
    assert windows.calls == [f"close(keep_empty={not is_earlier})"]


def test_a_pause_is_in_no_step_and_lets_exceptions_through(tmp_path: Path) -> None:
    now, path = [0], tmp_path / "steps.jsonl"
    prof = session(None, TWICE, timer=StepTimer(lambda: now[0]), steps=StepLog(run_file(path)))
    error = ValueError("no text to evaluate on")

    def evaluate() -> None:
        with prof.paused("evaluation"):
            now[0] += 100
            raise error

    now[0] += 3
    prof.step()
    with pytest.raises(ValueError, match="no text") as raised:
        evaluate()
    assert raised.value is error
    now[0] += 4
    for what, length in (("checkpoint", 50), ("", 30), ("log", 5)):
        with prof.paused(what), prof.paused("nested"):
            now[0] += length
    prof.step()
    prof.step()
    prof.close()
    records = [json.loads(line) for line in path.read_text().splitlines()]
    names = ("batch_cost_ns", "paused_ns", "paused_for")
    assert [tuple(record[name] for name in names) for record in records] == [
        (3, 0, None),
        (4, 185, "evaluation, checkpoint"),
        (0, 0, None),
    ]


def test_a_pause_of_another_thread_pauses_no_training(tmp_path: Path) -> None:
    """Such as that of a thread that writes a checkpoint."""
    now, path = [0], tmp_path / "steps.jsonl"
    prof = session(None, TWICE, timer=StepTimer(lambda: now[0]), steps=StepLog(run_file(path)))
    prof.step()
    begun, done = threading.Event(), threading.Event()

    def write() -> None:
        with prof.paused("checkpoint"):
            begun.set()
            done.wait()

    writer = threading.Thread(target=write)
    writer.start()
    begun.wait()
    now[0] += 7
    prof.step()
    done.set()
    writer.join()
    prof.close()
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(record["batch_cost_ns"], record["paused_ns"]) for record in records] == [
        (0, 0),
        (7, 0),
    ]


def test_mfu_is_of_the_devices_peak(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0]
    timer = StepTimer(lambda: now[0])
    with session(None, TWICE, timer=timer, timer_only=True, device_peak_flops=4e12) as prof:
        for _ in range(12):
            now[0] += 500_000_000
            prof.step(num_tokens=100, num_flops=10**12)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[1:4:2] for line in printed[-4:-1]] == [
        ["tokens/s", "200.00000"],
        ["TFLOP/s", "2.00000"],
        ["MFU", "0.50000"],
    ]


def test_closing_twice_and_stepping_after_it_do_nothing() -> None:
    windows = Windows()
    prof = session(windows, TWICE)
    prof.close()
    prof.close()
    prof.step()
    assert windows.calls == ["close(keep_empty=False)"]
    assert prof.closed


@pytest.mark.parametrize(("num_steps", "seen"), [(1, "1 step was seen"), (4, "4 steps were seen")])
def test_a_window_that_was_never_reached_is_a_warning(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, num_steps: int, seen: str
) -> None:
    with session(Windows(), Schedule.of((5, 8)), run=tmp_path) as prof:
        for _ in range(num_steps):
            prof.step()
    assert capsys.readouterr().err == (
        f"ppprof: no window was recorded: the schedule is steps 5 to 7, and {seen}\n"
    )


@pytest.mark.parametrize("is_short", [True, False])
def test_a_training_that_is_too_short_logs_one_line(
    is_short: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    on_demand: Any = SimpleNamespace(cut_short=object() if is_short else None)
    states = StepStates(Schedule.of(None, on_demand=True), on_demand)
    results = Results(0, tmp_path, states, PerfSummary(), store=cast("Any", Windows()))
    results.wait(Ending(None, 5, 5, False, set()))
    why = "no window was recorded: the schedule is no step, and 5 steps were seen; "
    expected = [] if is_short else [f"{why}no window was asked for on this rank"]
    assert caplog.messages == expected


def test_a_training_without_a_step_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    states = StepStates(
        Schedule.of(None, on_demand=True), cast("Any", SimpleNamespace(cut_short=None))
    )
    results = Results(0, tmp_path, states, PerfSummary(), store=cast("Any", Windows()))
    results.wait(Ending(ValueError("a shape"), 0, 0, True, set()))
    assert caplog.messages == ["no window was recorded: the training ended before its first step"]


def test_timer_only_prints_the_perf_summary_and_marks_no_step(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "steps.jsonl"
    with session(None, TWICE, timer_only=True, steps=StepLog(run_file(path))) as prof:
        for _ in range(12):
            prof.step()
    out = capsys.readouterr().out
    assert "Perf Summary" in out
    assert "Time Unit: s, IPS Unit: steps/s" in out
    assert "ppprof advise" not in out  # there is no run directory
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {(line["excluded"], line["window"]) for line in lines} == {(False, None)}

    with session(None, TWICE, timer_only=True, prints=False) as prof:
        for _ in range(12):
            prof.step()
    assert capsys.readouterr() == ("", "")


def test_timer_only_ends_in_the_share_of_waiting_for_data(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    summary = PerfSummary()
    for _ in range(12):
        summary.add(50_000_000, 20_000_000)
    assert summary.verdict() == "step 50 ms: 40% waiting for data"
    without = PerfSummary()
    for _ in range(12):
        without.add(50_000_000)
    assert without.verdict() == "step 50 ms"

    with session(None, TWICE, timer_only=True, run=tmp_path / "my log", rank=2) as prof:
        for _ in range(12):
            prof.step()
    *_, verdict, report, advise = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"rank 2: step [\d.]+ [nu]s", verdict)
    assert report == f"all ranks, as a page: ppprof report '{tmp_path}/my log'"
    assert advise == f"what to change: ppprof advise '{tmp_path}/my log'"


def test_a_run_without_a_window_ends_in_its_step_time(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with session(Windows(), Schedule.of((50, 60)), run=tmp_path) as prof:
        for _ in range(12):
            prof.step()
    verdict, report, advise = capsys.readouterr().out.splitlines()[-3:]
    assert re.fullmatch(r"rank 0: step [\d.]+ [nu]s", verdict)
    assert report == f"all ranks, as a page: ppprof report {tmp_path}"
    assert advise == f"what to change: ppprof advise {tmp_path}"


@pytest.mark.parametrize("failed", [False, True])
def test_a_run_ends_in_its_verdict_and_what_to_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, failed: bool
) -> None:
    windows = Windows()
    windows.saved.append(TraceName(0, "dp0", datetime(2026, 11, 20), 0))
    made = PostProcessor(tmp_path, 0, prints=True, command=[])
    made.verdict = "" if failed else "rank 0, window 0: step 9 ms: 40% waiting for data"
    with session(windows, TWICE, run=tmp_path, post_processor=made) as prof:
        prof.step()
    lines = capsys.readouterr().out.splitlines()
    commands = [
        f"all ranks, as a page: ppprof report {tmp_path}",
        f"what to change: ppprof advise {tmp_path}",
    ]
    assert lines[-2:] == commands
    assert (lines[-3] == "rank 0, window 0: step 9 ms: 40% waiting for data") is not failed
    with session(windows, TWICE, run=tmp_path, post_processor=made, prints=False) as prof:
        prof.step()
    assert capsys.readouterr().out == ""


def test_a_step_in_which_tables_are_printed_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, go = tmp_path / "steps.jsonl", tmp_path / "go"
    program = (
        "import pathlib, time\n"
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\n"
        "print('table')"
    )
    made = PostProcessor(
        tmp_path,
        0,
        prints=True,
        command=[sys.executable, "-m", "tests.capture.fake_helper", program],
    )
    made.add(0, tmp_path / "0.pb")
    with session(
        None, TWICE, timer_only=True, steps=StepLog(run_file(path)), post_processor=made
    ) as prof:
        prof.step()
        go.touch()  # not before: this step would print the table
        deadline = time.monotonic() + 60
        while not made.has_finished_window:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        prof.step()
        assert capsys.readouterr().out == "table\n"
        prof.step()
        prof.step()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["excluded"] for line in lines] == [False, False, True, False]
    assert lines[2]["stall_ns"] > 0


def test_a_step_that_fails_every_time_is_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    with session(None, TWICE) as prof:
        for _ in range(20):
            prof.step(num_samples="eight")  # type: ignore[arg-type]
    assert capsys.readouterr().err == (
        "ppprof: rank 0: step(num_samples=eight): expected a whole number from 0; it is left out\n"
    )


@pytest.mark.parametrize(("viewed", "expected"), [("json", True), ("json.gz", False)])
def test_visualdl_is_named_where_it_can_open_something(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], viewed: str, expected: bool
) -> None:
    windows = Windows()
    windows.saved.append(TraceName(0, "dp0", datetime(2026, 11, 20), 0))
    with session(windows, TWICE, run=tmp_path, viewed=viewed) as prof:
        prof.step()
    printed = capsys.readouterr().out
    assert ("visualdl --logdir" in printed) is expected
    assert f"_000.paddle_trace.{viewed}" in printed


def test_scalars_of_other_libraries_are_numbers(tmp_path: Path) -> None:
    log = StepLog(run_file(tmp_path / "steps.jsonl"))
    with session(None, TWICE, steps=log) as prof:
        for _ in range(5):
            prof.step(num_samples=np.int64(8), num_tokens=np.int64(64))  # type: ignore[arg-type]
    records = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [(r["num_samples"], r["num_tokens"]) for r in records] == [(8, 64)] * 5


def idle_windows(calls: Path, close: Callable[..., None]) -> Any:
    """Return windows that record nothing."""
    return SimpleNamespace(
        calls=calls,
        saved=[],
        cut=set(),
        num_skipped=0,
        advance=lambda *_: True,
        admit=lambda *_: True,
        ends_segment=lambda _: False,
        opens_late=lambda _: False,
        close=close,
    )


def test_a_forked_child_has_no_part_in_its_parents_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = idle_windows(tmp_path, close=lambda keep_empty, failed=False: None)
    path = tmp_path / "steps.jsonl"
    with session(windows, TWICE, steps=StepLog(run_file(path))) as prof:  # type: ignore[arg-type]
        assert prof.is_active
        with monkeypatch.context() as child:
            child.setattr("ppprof.capture.process.num_forks", 1)
            assert not prof.is_active
            prof.step()
            prof.close()
        assert not prof.closed
        prof.step()
    assert not prof.is_active
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0]


def test_a_window_that_cannot_be_saved_at_the_end_is_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def close(keep_empty: bool, failed: bool = False) -> None:
        raise MemoryError

    windows = idle_windows(tmp_path, close=close)
    with session(windows, Schedule.of((1, 5)), run=tmp_path) as prof:  # type: ignore[arg-type]
        for _ in range(3):
            prof.step()
    assert capsys.readouterr().err == (
        "ppprof: rank 0: recording failed: MemoryError; the training goes on without\n"
    )


def test_an_interrupt_while_a_window_is_saved_is_the_trainings() -> None:
    windows = Windows()
    advance = windows.advance

    def interrupted(transition: Transition) -> bool:
        advance(transition)
        if transition.own_before is State.LAST:
            raise KeyboardInterrupt
        return True

    windows.advance = interrupted  # type: ignore[method-assign]
    prof = session(windows, Schedule.of((1, 3)))
    started: list[int] = []

    def train() -> None:
        with prof:
            for step in range(10):
                started.append(step)
                prof.step()

    with pytest.raises(KeyboardInterrupt):
        train()
    assert started == [0, 1, 2]
    assert windows.calls[-1] == "close(keep_empty=True)"
    assert prof.closed


class Unprintable(Exception):
    """Cannot even be shown."""

    def __str__(self) -> str:
        raise self


class Uncountable:
    """Is no number, and cannot be shown."""

    def __int__(self) -> int:
        raise Unprintable

    __str__ = __repr__ = __int__  # type: ignore[assignment]


TWO_WINDOWS = Schedule(closed=4, ready=1, record=2, repeat=2)


def test_no_step_after_a_window_counts_as_stalled(tmp_path: Path) -> None:
    steps = StepLog(run_file(tmp_path / "steps"))
    with RecordingSession(StepStates(TWO_WINDOWS), [StepsPart(PerfSummary(), steps)]) as prof:
        for _ in range(20):
            prof.step()
    lines = [json.loads(line) for line in (tmp_path / "steps").read_text().splitlines()]
    assert [line["step"] for line in lines if line["excluded"]] == [4, 5, 7, 11, 12, 14]
    assert [line["step"] for line in lines if line["window"] is not None] == [5, 6, 12, 13]


class Preempted(OSError):
    """The machine is about to be taken away."""


def _preempted(number: int, frame: object) -> None:
    raise Preempted("preempted")


class Interrupted(Part):
    """Gets a signal, which the training handles, in one of its calls."""

    def __init__(self, call: str) -> None:
        setattr(self, call, self._interrupt)

    def _interrupt(self, *args: object) -> int:
        signal.raise_signal(signal.SIGUSR1)
        return 0


@pytest.mark.parametrize("handler", [_preempted, partial(_preempted)], ids=["function", "partial"])
@pytest.mark.parametrize("call", ["on_step", "on_transition", "close", "wait"])
def test_an_exception_of_the_trainings_signal_handler_reaches_the_training(
    call: str, handler: Callable[[int, object], None]
) -> None:
    with handling(handler):
        prof = RecordingSession(StepStates(TWICE), [Interrupted(call)])
        last = prof.step if call in ("on_step", "on_transition") else prof.close
        with pytest.raises(Preempted, match=r"^preempted$"):
            last()
        assert prof.closed == (call in ("close", "wait"))
        with suppress(Preempted):
            prof.close()


def test_so_does_one_that_costs_a_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Recorder(SmallRecorder):
        def write(self, steps: object, raw: RunFile, brief: bool = False) -> None:
            signal.raise_signal(signal.SIGUSR1)

    made = PostProcessor(tmp_path, 0, prints=True, command=[])
    store = WindowStore(tmp_path, 0, Topology.of(dp=1), made)
    windows = recording.Windows(Recorder(""), store)  # type: ignore[arg-type]
    with handling(_preempted), session(windows, Schedule.of((0, 2)), post_processor=made) as prof:
        prof.step()
        with pytest.raises(Preempted, match=r"^preempted$"):
            prof.step()
        prof.step()
    assert "window 0 is lost, steps recorded: 2" in capsys.readouterr().err


@contextmanager
def handling(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Handle SIGUSR1 in a block."""
    previous = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, previous)


class Proxy:
    """A handler that has any attribute."""

    def __getattr__(self, name: str) -> list[str]:
        return []

    def __call__(self, number: int, frame: object) -> None:
        pass


@pytest.mark.parametrize("handler", [Proxy(), signal.SIG_IGN, print])
def test_any_handler_may_be_installed_while_a_part_fails(
    capsys: pytest.CaptureFixture[str], handler: Any
) -> None:
    with handling(handler), session(Windows(fail_at=1), TWICE) as prof:
        prof.step()
    assert "No space left on device" in capsys.readouterr().err


def test_an_exception_may_be_its_own_cause(capsys: pytest.CaptureFixture[str]) -> None:
    with session(Windows(fail_at=1), TWICE) as prof:
        try:
            raise ValueError("loss is nan")
        except ValueError as error:
            error.__cause__ = error
            prof.step()
    assert "No space left on device" in capsys.readouterr().err


def test_so_does_one_that_is_raised_while_the_loss_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("visualdl")

    def loss() -> float:
        signal.raise_signal(signal.SIGUSR1)
        return 1.0

    steps, scalars = StepLog(run_file(tmp_path / "steps")), Scalars(run_file(tmp_path / "log"))
    with handling(_preempted), session(None, TWICE, steps=steps, scalars=scalars) as prof:
        with pytest.raises(Preempted, match=r"^preempted$"):
            prof.step(loss=loss)
        prof.step(loss=0.5)
    assert len((tmp_path / "steps").read_text().splitlines()) == 2


def test_an_earlier_exception_of_a_handler_is_not_raised_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    windows = Windows(fail_at=1)
    with handling(_preempted), session(windows, TWICE) as prof:
        try:
            signal.raise_signal(signal.SIGUSR1)
        except Preempted:
            prof.step()
    assert "No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("schedule", "steps", "said"),
    [
        (Schedule.of((1, 9)), 4, "it has 3 of 8 steps, the last of them 3"),
        (
            Schedule(closed=0, ready=0, record=4, repeat=0),
            6,
            "it has 2 of 4 steps, the last of them 5",
        ),
        (Schedule.of(None), 6, None),
        (Schedule.of((1, 3)), 6, None),
        (Schedule.of((1, 9), first_step=700), 4, "it has 3 of 8 steps, the last of them 703"),
    ],
)
def test_a_window_that_is_cut_short_is_a_warning(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    schedule: Schedule,
    steps: int,
    said: str | None,
) -> None:
    windows = Windows()
    num_recorded = schedule.num_recorded(schedule.first_step + steps)
    window = num_recorded and steps // (schedule.record or steps + 1)
    windows.saved = [TraceName(0, "dp0", datetime(2026, 11, 20), window)]
    with session(windows, schedule, run=tmp_path) as prof:
        for _ in range(steps):
            prof.step()
    err = capsys.readouterr().err
    line = f"ppprof: window {window} was cut short by the end of the training: {said}\n"
    assert err == (line if said else "")


def test_a_loop_that_never_steps_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with session(None, TWICE, run=tmp_path):
        pass
    assert "step() was never called: no step times are known" in capsys.readouterr().err


@pytest.mark.parametrize(
    "count", ["x", float("nan"), float("inf"), -1, 1 << 63, [1, 2], Uncountable()]
)
def test_a_count_that_is_no_number_costs_itself_only(count: Any) -> None:
    steps: list[FinishedStep] = []

    class Noting(Part):
        def on_step(self, step: FinishedStep) -> None:
            steps.append(step)

        def on_failure(self) -> None:
            pytest.fail("the recording ended")

    session = RecordingSession(StepStates(Schedule.of((2, 4))), [Noting()])
    session.step(num_samples=count, num_tokens=7)
    session.step(num_samples=8)
    session.close()
    assert [(step.step, step.num_samples, step.num_tokens) for step in steps] == [
        (0, None, 7),
        (1, 8, None),
    ]


@pytest.mark.parametrize(
    ("first", "later", "what"),
    [
        ("cpu", "npu:0", "step times, memory and windows are those of cpu"),
        ("npu:0", "npu:1", "the memory of steps and the device in the manifest are those of npu:0"),
        ("cpu", "cpu", ""),
    ],
)
def test_a_device_that_is_set_after_attach_is_one_warning(
    messages: list[str], first: str, later: str, what: str
) -> None:
    devices = iter([first, later])
    with RecordingSession(
        StepStates(Schedule.of(None)), [DevicePart(lambda: next(devices))]
    ) as prof:
        for _ in range(3):
            prof.step()
    expected = (
        f"the training computes on {later}, but attach() was called on {first}: {what}; call attach() "
        "after paddle.set_device()"
    )
    assert messages == ([expected] if what else [])


def test_a_pause_in_a_window_is_a_span_named_for_what_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spans: list[str] = []

    @contextmanager
    def noted(name: str) -> Iterator[None]:
        spans.append(name)
        yield
        spans.append("end")

    monkeypatch.setattr("ppprof.capture.session.span", noted)
    with session(Windows(), Schedule.of((1, 2))) as prof:
        for what in ("before", "evaluation", "after"):
            with prof.paused(what), prof.paused():
                pass
            prof.step()
    assert spans == ["paused: evaluation", "paused", "end", "end"]


def test_communication_in_a_pause_counts_in_no_step() -> None:
    """Two steps: c communicates, p communicates in a pause, which may be nested and end with an error.

    ::

        c c p p p c | c p p c | ? p c    3, 2 and an unknown time of communication
    """
    spent = iter([2, 1, 1, 1, 1, 1, 2, 1, None, 1, 1])
    steps: list[FinishedStep] = []

    class Steps(Part):
        task = "steps"

        def on_step(self, step: FinishedStep) -> None:
            steps.append(step)

    states = StepStates(Schedule.of(None))
    with RecordingSession(states, [Steps()], communication_ns=lambda: next(spent)) as prof:

        def pause() -> None:
            with prof.paused():
                pass

        with suppress(KeyError), prof.paused():
            pause()
            raise KeyError
        prof.step()
        with prof.paused():
            other = threading.Thread(target=pause)  # it ends no steps, so it takes no time
            other.start()
            other.join()
        prof.step()
        pause()
        prof.step()
    assert [step.communication_ns for step in steps] == [3, 2, None]
    assert next(spent, None) is None
