"""A ``paddle.profiler.Profiler`` of the training beside ppprof: each gets Paddle's profiler in turn."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import re
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import ppprof
from ppprof import rundir

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.usefixtures("unfinished")]

from paddle.base import core  # noqa: E402

from ppprof.capture.recording import instance  # noqa: E402
from ppprof.capture.recording.recorder import Recorder  # noqa: E402
from ppprof.config import ProfilerConfig  # noqa: E402
from ppprof.rundir.run_file import RunFile  # noqa: E402
from tests.jobs import toy  # noqa: E402
from tests.jobs.resident import resident_bytes  # noqa: E402

EVERY_4 = {"closed": 1, "ready": 1, "record": 2, "repeat": 0}
LIMIT = {"max_trace_mb": 1000}
"""Without it, the limit of a schedule without end is named."""
"""Windows of the steps 2 and 3, 6 and 7, 10 and 11..."""
SKIPPED = "window 0 is not recorded: another profiler is open in this process"


@pytest.fixture
def block(tmp_path: Path) -> dict[str, Any]:
    """A ``Profiler`` block."""
    return {"enable": True, "scheduler": EVERY_4, "profiler_log": str(tmp_path / "log")}


def theirs(path: Path, **settings: Any) -> Any:
    """Return a profiler of the training, which writes a ``.pb``."""
    return paddle.profiler.Profiler(on_trace_ready=lambda p: p.export(str(path), "pb"), **settings)


def steps_of(run: Path) -> list[list[str]]:
    """Return the names of the steps in each window of a run."""
    found = []
    for _, path in rundir.raw_files(run):
        names = {name for kind, name in toy.recorded(path) if kind == "ProfileStep"}
        found.append(sorted(names, key=lambda name: int(name.partition("#")[2])))
    return found


def recorded_steps(*numbers: int) -> list[str]:
    return [f"ProfileStep#{number}" for number in numbers]


def operators(path: Path) -> Counter[Any]:
    """Return the events of a recording that any profiler of the same steps has."""
    kinds = ("Operator", "Forward", "Backward", "Optimization", "UserDefined", "ProfileStep")
    events = toy.recorded(path)
    return Counter({key: n for key, n in events.items() if key[0] in kinds and "marker" not in key})


def profile_itself(path: Path, step: Any, num_steps: int = 2) -> None:
    """Run steps under a profiler of the training, which has been deleted on return."""
    with theirs(path) as profiler:
        for _ in range(num_steps):
            with paddle.profiler.RecordEvent("their span"):
                step()
            profiler.step()


def alone(folder: Path, step: Any, num_steps: int) -> Counter[Any]:
    """Return what a profiler of the training records without ppprof."""
    step()  # the first step also fills the optimizer's state
    profile_itself(folder / "alone.pb", step, num_steps)
    return operators(folder / "alone.pb")


def test_a_training_may_profile_itself_between_and_after_windows(
    tmp_path: Path, block: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    step = toy.training()
    expected = alone(tmp_path, step, 2)
    with ppprof.attach({**block, "scheduler": [1, 3]}) as prof:
        for number in range(8):
            if number == 5:
                profile_itself(tmp_path / "theirs.pb", step)
            step()
            prof.step()
    assert operators(tmp_path / "theirs.pb") == expected
    assert steps_of(tmp_path / "log") == [recorded_steps(1, 2)]
    assert "window" not in capsys.readouterr().err.replace("windows", "")


def test_an_event_that_is_open_when_the_training_opens_a_profiler_is_in_neither_recording(
    tmp_path: Path, block: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    step = toy.training()
    expected = alone(tmp_path, step, 2)
    with ppprof.attach({**block, "scheduler": [1, 5]}) as prof:
        for number in range(4):
            if number == 2:
                with paddle.profiler.RecordEvent("evaluation"):
                    profile_itself(tmp_path / "theirs.pb", step)
            step()
            prof.step()
    assert operators(tmp_path / "theirs.pb") == expected
    assert steps_of(tmp_path / "log") == [recorded_steps(1, 2)]
    assert "is not recorded" not in capsys.readouterr().err


def test_an_event_from_one_step_into_another_is_left_out_and_reported_once(
    tmp_path: Path, block: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    step = toy.training()
    events = {number: paddle.profiler.RecordEvent(f"from {number}") for number in (2, 3)}
    reused = paddle.profiler.RecordEvent("within a step")
    with ppprof.attach({**block, "scheduler": EVERY_4}) as prof:
        for number in range(8):
            if number in events:
                events[number].begin()
            if number - 1 in events:
                events[number - 1].end()  # 2 to 3 within a window, 3 to 4 out of it
            with reused:
                step()
            prof.step()
    assert steps_of(tmp_path / "log") == [recorded_steps(2, 3), recorded_steps(6, 7)]
    for _, path in rundir.raw_files(tmp_path / "log"):
        found = toy.recorded(path)
        assert found["PythonUserDefined", "within a step"] == 2
        assert not any(name.startswith("from") for _, name in found)
    reports = [line for line in capsys.readouterr().err.splitlines() if "is not recorded" in line]
    assert reports == [
        "ppprof: RecordEvent 'from 2' is not recorded: it began in one step and ended in another"
    ]


def test_a_profiler_that_the_training_opens_in_a_window_ends_the_window(
    tmp_path: Path, block: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    step = toy.training()
    expected = alone(tmp_path, step, 4)
    own = None
    with ppprof.attach({**block, "scheduler": {**EVERY_4, "record": 4}, **LIMIT}) as prof:
        for number in range(19):  # windows of 2 to 5, 8 to 11 and 14 to 17
            if number == 4:
                own = theirs(tmp_path / "theirs.pb")
                own.start()
            if number == 8:
                own.stop()
                assert not paddle.profiler.utils.in_profiler_mode()
            if number == 12:
                own = None
            if own is not None and number < 8:
                with paddle.profiler.RecordEvent("their span"):
                    step()
                own.step()
            else:
                step()
            prof.step()
    assert operators(tmp_path / "theirs.pb") == expected
    assert steps_of(tmp_path / "log") == [recorded_steps(2, 3, 4), recorded_steps(14, 15, 16, 17)]
    lines = re.findall("^ppprof: (.*)", capsys.readouterr().err, re.M)
    (cut, skipped) = (line for line in lines if "window " in line)
    assert re.fullmatch(
        "rank 0: window 0 was cut short: the training has opened a profiler of its own; steps "
        "recorded: 2; Paddle allows one profiler at a time; windows are recorded again once .* is "
        "deleted .*",
        cut,
    )
    assert skipped.startswith("rank 0: window 1 is not recorded: another profiler is open")
    cut_short = ppprof.open(rundir.raw_files(tmp_path / "log")[0][1])
    assert cut_short.events().filter(name="incomplete step")["dur_ns"].len() == 1


def test_a_profiler_that_the_training_opens_in_a_warm_up_step_ends_that_window(
    tmp_path: Path, block: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    step = toy.training()
    expected = alone(tmp_path, step, 2)
    with ppprof.attach(block) as prof:
        for number in range(9):
            if number == 1:
                profile_itself(tmp_path / "theirs.pb", step)
            step()
            prof.step()
    assert operators(tmp_path / "theirs.pb") == expected
    assert steps_of(tmp_path / "log") == [recorded_steps(6, 7)]
    assert "rank 0: the next window is not recorded: the training has" in capsys.readouterr().err


def test_a_profiler_that_was_open_before_is_left_alone(
    tmp_path: Path, block: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    step = toy.training()
    expected = alone(tmp_path, step, 8)
    with theirs(tmp_path / "theirs.pb") as own:
        with ppprof.attach(block) as prof:
            for _ in range(8):
                with paddle.profiler.RecordEvent("their span"):
                    step()
                own.step()
                prof.step()
        assert paddle.profiler.utils.in_profiler_mode()
    del own
    assert operators(tmp_path / "theirs.pb") == expected
    assert rundir.raw_files(tmp_path / "log") == []
    said = capsys.readouterr().err
    assert said.count(SKIPPED) == said.count("is not recorded") == 1
    assert "no window was recorded" not in said
    assert len((tmp_path / "log" / rundir.steps_path(0)).read_text().splitlines()) == 8


@pytest.mark.parametrize("number", [0, 2])
def test_a_profiler_that_only_times_costs_no_window(
    tmp_path: Path, block: dict[str, Any], capsys: pytest.CaptureFixture[str], number: int
) -> None:
    """It creates Paddle's C++ profiler, and never uses it."""
    step = toy.training()
    timer = None
    with ppprof.attach({**block, **LIMIT}) as prof:
        for current in range(9):
            if current == number:
                timer = paddle.profiler.Profiler(timer_only=True)
                timer.start()
            step()
            if timer is not None:
                timer.step(num_samples=4)
            prof.step()
    assert timer is not None
    assert "ips" in timer.step_info()
    timer.stop()
    assert steps_of(tmp_path / "log") == [recorded_steps(2, 3), recorded_steps(6, 7)]
    assert "window " not in capsys.readouterr().err


def test_a_thread_of_the_training_may_open_profilers_at_any_time(
    tmp_path: Path, block: dict[str, Any]
) -> None:
    """None of them is without Paddle's C++ profiler, and the training goes on.

    They are not started: without ppprof too, Paddle's start and stop in one thread corrupt memory
    while another thread computes.
    """
    step = toy.training(width=8)
    step()
    is_over, failures, num_opened = threading.Event(), [], 0

    def profile() -> None:
        nonlocal num_opened
        while not is_over.wait(0.003):
            try:
                own = paddle.profiler.Profiler(on_trace_ready=lambda p: None)
                assert own.profiler is not None
                del own
                num_opened += 1
            except Exception as error:
                failures.append(error)

    thread = threading.Thread(target=profile)
    with ppprof.attach({**block, "scheduler": {**EVERY_4, "closed": 0}}) as prof:
        thread.start()
        for _ in range(60):
            step()
            prof.step()
        is_over.set()
        thread.join()
    assert failures == []
    assert num_opened > 5
    assert instance.is_free()
    assert len((tmp_path / "log" / rundir.steps_path(0)).read_text().splitlines()) == 60


def test_a_thread_that_the_training_waits_for_gets_the_profiler_at_once(
    tmp_path: Path, block: dict[str, Any]
) -> None:
    """It cannot wait for the end of the step, which waits for it."""
    step = toy.training()
    step()
    with ppprof.attach({**block, "scheduler": None}) as prof:
        step()
        prof.step()

        def profile() -> None:
            with theirs(tmp_path / "theirs.pb"):
                step()

        thread, start = threading.Thread(target=profile), time.monotonic()
        thread.start()
        thread.join()
        assert time.monotonic() - start < 10
        prof.step()
    assert (tmp_path / "theirs.pb").exists()
    assert steps_of(tmp_path / "log") == [recorded_steps(0, 1)]


def test_a_window_whose_saving_fails_does_not_fail_the_trainings_profiler(
    tmp_path: Path, block: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    step = toy.training()
    with ppprof.attach({**block, "scheduler": None}) as prof:
        step()
        prof.step()
        (tmp_path / "log" / "raw").chmod(0)
        (tmp_path / "log" / "raw").rename(tmp_path / "log" / "moved")
        (tmp_path / "log" / "raw").touch()
        with theirs(tmp_path / "theirs.pb"):
            step()
        prof.step()
    assert (tmp_path / "theirs.pb").exists()
    assert re.search(
        "rank 0: .*window 0 is lost, steps recorded: 1; Paddle", capsys.readouterr().err
    )


def test_paddles_profiler_exists_in_windows_only(block: dict[str, Any]) -> None:
    step, free, wrapped = toy.training(), [], []
    plain = vars(core._Profiler)["create"]
    with ppprof.attach(block) as prof:
        for _ in range(8):
            free.append(instance.is_free())
            wrapped.append(vars(core._Profiler)["create"] is not plain)
            step()
            prof.step()
    assert free == [True, False, False, False] * 2
    assert wrapped == [not is_free for is_free in free]
    assert instance.is_free()


def test_200_windows_leave_no_memory_behind(tmp_path: Path) -> None:
    recorder = Recorder(ProfilerConfig())

    def windows(num: int) -> int:
        for _ in range(num):
            recorder.prepare()
            recorder.start()
            recorder.begin_step(0)
            recorder.end_step()
            recorder.write(recorder.take(brief=True), RunFile(tmp_path, "window.pb"), brief=True)
            recorder.discard()
        gc.collect()
        return resident_bytes()

    before = windows(50)
    assert windows(200) - before < 2 << 20
    recorder.close()


def test_a_child_forked_in_a_window_may_profile_itself_and_attach(
    tmp_path: Path, block: dict[str, Any]
) -> None:
    """Its parent's window is not its own: the parent saves it."""
    step = toy.training()
    with ppprof.attach({**block, "scheduler": [1, 5]}) as prof:
        for number in range(6):
            if number == 3:
                child = os.fork()
                if not child:
                    code = 1
                    try:
                        with theirs(tmp_path / "theirs.pb"):
                            step()
                        gc.collect()
                        with ppprof.attach({**block, "scheduler": [0, 2]}) as own:
                            for _ in range(3):
                                step()
                                own.step()
                        code = 0
                    finally:
                        os._exit(code)
                assert os.waitpid(child, 0)[1] == 0
            step()
            prof.step()
    assert (tmp_path / "theirs.pb").exists()
    assert steps_of(tmp_path / "log") == [recorded_steps(1, 2, 3, 4)]
    assert steps_of(tmp_path / "log/run_002") == [recorded_steps(0, 1)]


class Marked(paddle.nn.Layer):  # type: ignore[misc]
    """Keeps an event of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.event = paddle.profiler.RecordEvent("fwd")

    def forward(self, x: Any) -> Any:
        with self.event:
            return x + 1


def test_events_that_the_training_keeps_can_be_copied_and_saved(
    block: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    net, x = Marked(), paddle.ones([2])
    left = paddle.profiler.RecordEvent("left open")
    before = pickle.dumps(net.event)
    with ppprof.attach({**block, "scheduler": [1, 3]}) as prof:
        for number in range(6):
            net(x)
            copy.deepcopy(net)(x)
            assert pickle.dumps(net.event) == before
            if number == 2:
                left.begin()
            prof.step()
        assert pickle.loads(pickle.dumps(left)).event is None  # noqa: S301 (our own)
        left.end()
        assert left.event is None
    assert "fwd" not in capsys.readouterr().err


@pytest.mark.parametrize("name", [7, "bad\udcff", None])
def test_a_name_that_paddle_refuses_costs_its_event(
    tmp_path: Path, block: dict[str, Any], capsys: pytest.CaptureFixture[str], name: Any
) -> None:
    step = toy.training()
    with ppprof.attach({**block, "scheduler": [1, 3]}) as prof:
        for _ in range(4):
            with paddle.profiler.RecordEvent(name), paddle.profiler.RecordEvent("mine"):
                step()
            prof.step()
    ((_, path),) = rundir.raw_files(tmp_path / "log")
    assert toy.recorded(path)["PythonUserDefined", "mine"] == 2
    assert capsys.readouterr().err.count(" is not recorded: ") == 1


def test_a_forked_child_records_no_events_and_may_open_a_profiler(block: dict[str, Any]) -> None:
    outer, inner = (paddle.profiler.RecordEvent(name) for name in ("outer", "inner"))
    with ppprof.attach({**block, "scheduler": [0, 5]}) as prof:
        prof.step()
        for event in (outer, inner):
            event.begin()
        for event in (outer, inner):  # they overlap: Paddle cannot save them
            event.end()
        child = os.fork()
        if not child:
            try:
                is_off = not paddle.profiler.utils.in_profiler_mode()
                paddle.profiler.Profiler(timer_only=False)
                os._exit(0 if is_off else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_window_that_cannot_begin_leaves_paddles_profiler_to_the_training(
    block: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = Recorder.start

    def started_in_vain(recorder: Recorder) -> None:
        start(recorder)
        raise RuntimeError("interrupted")

    monkeypatch.setattr(Recorder, "start", started_in_vain)
    with ppprof.attach({**block, "scheduler": [1, 3]}) as prof:
        for _ in range(4):
            prof.step()
        with paddle.profiler.Profiler(on_trace_ready=lambda _: None):
            pass
    assert "recording failed: interrupted" in capsys.readouterr().err
