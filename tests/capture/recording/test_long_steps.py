"""Limits of what a step, and a process, records of allocations, with Paddle's own profiler."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ppprof
from ppprof import rundir

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = pytest.mark.paddle

from ppprof.capture import postprocess  # noqa: E402
from ppprof.capture.recording import long_steps, recorder, segments  # noqa: E402
from ppprof.capture.recording.operator_calls import OperatorCallRecorder  # noqa: E402
from ppprof.config import ProfilerConfig  # noqa: E402
from ppprof.rundir.run_file import RunFile  # noqa: E402
from tests.capture.fake_helper import NO_TRACES  # noqa: E402
from tests.jobs import toy  # noqa: E402

FIRST, MORE = 2500, 1000
"""Operators ahead of a limit, and behind it."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the raw files in place, and make the limits of a step small."""
    monkeypatch.setattr(postprocess, "_COMMAND", NO_TRACES)
    monkeypatch.setattr(long_steps, "_MOST_WITH_ALLOCATIONS", FIRST - 1)
    monkeypatch.setattr(long_steps, "_MOST_AFTER_ALLOCATIONS", FIRST + 2 * MORE)
    monkeypatch.setattr(recorder.Recorder, "_allocation_bytes", 0)


@pytest.fixture
def add() -> Callable[..., None]:
    """Call so many operators, then wait until the watching thread has looked."""
    tensor = paddle.ones([8])

    def run(num: int, wait_s: float = 0.2) -> None:
        for _ in range(num):
            tensor + tensor
        time.sleep(wait_s)

    return run


def kinds(path: Path) -> dict[str, int]:
    """Return the number of operators, allocations and markers in a raw capture."""
    found = toy.recorded(path)
    return {
        "operators": found["Operator", "add dygraph"],
        "allocations": found["memory", "Allocate"],
        "markers": found["UserDefined", rundir.ALLOCATIONS_MARKER],
    }


def raw(run: Path) -> list[Path]:
    return [path for _, path in rundir.raw_files(run)]


def test_allocations_end_in_a_long_step_and_the_window_goes_on(
    tmp_path: Path, add: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    with ppprof.attach(
        {"enable": True, "scheduler": [1, 4], "profiler_log": str(tmp_path)}
    ) as prof:
        for operators in ((10,), (20,), (FIRST, MORE), (30,), (40,)):
            for num in operators:
                add(num, wait_s=0.2 * (num > 100))
            prof.step()
    (path,) = raw(tmp_path)
    assert kinds(path) == {
        "operators": 20 + FIRST + MORE + 30,
        "allocations": 20 + FIRST,
        "markers": 1,
    }
    said = capsys.readouterr().err
    assert (
        f"allocations are no longer recorded: {FIRST:,} operators without a call of step()" in said
    )
    memory = ppprof.open(path).summary("mem")
    assert memory.filter(name="add dygraph")["allocation_count"].to_list() == [20 + FIRST]
    assert f"{path}: allocations are recorded up to step 2 only" in capsys.readouterr().err


def test_a_window_ends_within_a_step_that_is_too_long(
    tmp_path: Path, add: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    with ppprof.attach({"enable": True, "profiler_log": str(tmp_path)}) as prof:
        add(10)
        prof.step()
        add(FIRST)
        add(2 * MORE + 1)
        assert not raw(tmp_path)
        add(1)  # which notices
        (path,) = raw(tmp_path)
        add(MORE)
        prof.step()
        add(10)
        prof.step()
    assert raw(tmp_path) == [path]
    assert kinds(path) == {
        "operators": 10 + FIRST + 2 * MORE + 2,
        "allocations": 10 + FIRST,
        "markers": 1,
    }
    assert "window 0 was cut short: 4,501 operators without a call of step()" in (
        capsys.readouterr().err
    )


def test_where_calls_are_not_counted_a_time_limits_allocations(
    tmp_path: Path, add: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_steps, "_MOST_SECONDS", 0.05)
    block = {"enable": True, "profiler_log": str(tmp_path), "record_shapes": False}
    with ppprof.attach({**block, "scheduler": [0, 1]}) as prof:
        end = time.thread_time() + 0.06
        while time.thread_time() < end:
            pass
        add(0)
        add(10)
        prof.step()
    (path,) = raw(tmp_path)
    assert kinds(path) == {"operators": 10, "allocations": 0, "markers": 1}


def test_operators_of_programs_are_not_counted(tmp_path: Path) -> None:
    calls = OperatorCallRecorder(tmp_path)

    def add_one(tensor: Any) -> Any:
        return tensor + 1

    program = paddle.jit.to_static(add_one, full_graph=True)
    program(paddle.ones([2]))
    calls.install()
    try:
        paddle.ones([2]) + 1
        assert (calls.num_operators() or 0) > 0
        program(paddle.ones([2]))
        assert calls.num_operators() is None
        calls.take()
        calls.started()
        assert calls.num_operators() == 0
        paddle.enable_static()
        assert calls.num_operators() is None
    finally:
        paddle.disable_static()
        calls.uninstall()


def test_allocations_end_where_paddle_has_kept_too_many(
    tmp_path: Path,
    add: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(segments, "_FIRST_OPERATORS", 100)
    monkeypatch.setattr(recorder, "_MOST_ALLOCATION_BYTES", 900 * 144)
    with ppprof.attach({"enable": True, "profiler_log": str(tmp_path)}) as prof:
        for _ in range(20):
            add(100, wait_s=0)
            prof.step()
    found = [kinds(path) for path in raw(tmp_path)]
    recorded = [each["allocations"] > 0 for each in found]
    assert recorded == sorted(recorded, reverse=True)
    assert [each["markers"] for each in found] == [int(not each) for each in recorded]
    total = sum(each["allocations"] for each in found)
    assert 450 <= total < 2000  # each is freed, too
    assert "Paddle keeps each one until the process ends, " in capsys.readouterr().err


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc's mallinfo2")
def test_paddle_keeps_what_it_has_recorded_of_allocations(
    tmp_path: Path, add: Callable[..., None]
) -> None:
    """The reason for the limit: once Paddle frees them, this fails, and the limit can go."""
    mallinfo: Any = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        pytest.skip("needs glibc 2.33")
    mallinfo.restype = _Mallinfo2

    def used_after(records_allocations: bool) -> tuple[int, int]:
        window = recorder.Recorder(ProfilerConfig(profile_memory=records_allocations))
        window.prepare()
        window.start()
        window.begin_step(0)
        add(5000, wait_s=0)
        window.end_step()
        window.write(window.take(), RunFile(tmp_path, "window.pb"))
        window.close()
        gc.collect()
        info = mallinfo()
        num = (tmp_path / "window.pb").read_bytes().count(b"Place(")
        return info.uordblks + info.hblkhd, num

    for records_allocations in (False, True):
        used_after(records_allocations)
        before, _ = used_after(records_allocations)
        after, num = used_after(records_allocations)
        kept = after - before
        if records_allocations:
            assert num == 10_000
            assert 0.8 * 144 * num < kept < 1.3 * 144 * num
        else:
            assert kept < 100_000
