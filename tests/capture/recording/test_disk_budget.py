"""When a window ends for ``max_trace_mb``."""

from __future__ import annotations

import logging
from datetime import datetime
from pathlib import Path

import pytest

from ppprof.capture.recording.disk_budget import DiskBudget, UnboundedWindow
from ppprof.rundir import TraceName

MB = 1_000_000


class Growing:
    """Resident memory that a test sets."""

    def __init__(self) -> None:
        self.size = 500 * MB

    def __call__(self) -> int:
        return self.size


@pytest.fixture(autouse=True)
def _no_earlier_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiskBudget, "_last_step_bytes", None)


def window(run: Path, number: int, size_mb: float) -> TraceName:
    """Write a raw window of that size."""
    name = TraceName(0, "dp0", datetime(2026, 11, 20), number)
    (run / "raw").mkdir(exist_ok=True)
    (run / name.raw).write_bytes(bytes(int(size_mb * MB)))
    return name


def num_steps(budget: DiskBudget, resident: Growing, step_mb: float) -> int:
    """Return the number of steps of a window whose steps make memory grow by so much."""
    budget.started()
    for steps in range(1, 1000):
        resident.size += int(step_mb * MB)
        if budget.is_close(steps):
            return steps
    return 1000


def test_a_first_window_is_judged_by_the_growth_of_memory(tmp_path: Path) -> None:
    resident = Growing()
    budget = DiskBudget(tmp_path, 0, 10, ["pb"], resident)
    # 0.5 MB of memory are 1 MB of a .pb at the most: 10 steps fit, and one more might not.
    assert not budget.is_spent
    assert num_steps(budget, resident, 0.5) == 10
    assert num_steps(DiskBudget(tmp_path, 0, 11, ["json", "json.gz"], resident), resident, 1) == 1


def test_later_windows_by_what_a_step_took_and_what_is_there(tmp_path: Path) -> None:
    resident = Growing()
    budget = DiskBudget(tmp_path, 0, 10, ["pb"], resident)
    budget.started()
    budget.saved(window(tmp_path, 0, 4), 4)
    assert not budget.is_spent
    assert num_steps(budget, resident, 0) == 6
    budget.saved(window(tmp_path, 1, 5.5), 6)
    assert budget.is_spent
    (tmp_path / "raw").joinpath("rank_00001_dp1_time_20261120T201530_000.pb").write_bytes(b"")


def test_json_that_is_still_to_be_made_counts(tmp_path: Path) -> None:
    budget = DiskBudget(tmp_path, 0, 10, ["json"], Growing())
    budget.started()
    name = window(tmp_path, 0, 2)
    budget.saved(name, 2)
    assert budget.is_spent  # 2 MB, 9 of JSON to come
    (tmp_path / name.raw).unlink()
    (tmp_path / name.summary).parent.mkdir()
    (tmp_path / name.summary).touch()
    (tmp_path / name.trace("json")).write_bytes(bytes(4 * MB))
    assert not budget.is_spent  # it took less


def test_a_deleted_window_takes_no_space(tmp_path: Path) -> None:
    budget = DiskBudget(tmp_path, 0, 10, ["json"], Growing())
    budget.started()
    name = window(tmp_path, 0, 2)
    budget.saved(name, 2)
    (tmp_path / name.raw).unlink()
    budget.dropped(name)
    assert not budget.is_spent


def test_resident_memory_is_read() -> None:
    budget = DiskBudget(Path(), 0, 10, ["pb"])
    assert 10 * MB < budget._resident_bytes() < 100_000 * MB


def messages_of(growth_mb: list[float], formats: list[str]) -> list[tuple[int, str]]:
    """Return what an endless window logs after which step, if its steps take so much memory."""
    resident = Growing()
    unbounded = UnboundedWindow(3, formats, resident)
    logged: list[tuple[int, str]] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append((step, record.getMessage()))  # type: ignore[method-assign]
    log = logging.getLogger("ppprof")
    log.addHandler(handler)
    try:
        for step, size_mb in enumerate(growth_mb, 1):
            resident.size += int(size_mb * MB)
            unbounded.step(step)
    finally:
        log.removeHandler(handler)
    return logged


def test_a_window_without_end_logs_the_size_of_a_step_once() -> None:
    # The first 5 steps are the training's own; a .pb is as large as the memory, JSON 4.5 times.
    steps = [80.0] * 5 + [2 * 1.048576] * 100
    assert messages_of(steps, ["json"]) == [
        (
            15,
            "rank 3: every step is recorded, as Profiler.scheduler is not set: a step adds 2 MiB of "
            "memory, and some 9 MiB of files at the end; to record a few steps: Profiler.scheduler: "
            "[10, 20]; to limit the files: Profiler.max_trace_mb",
        )
    ]
    assert "some 11 MiB of files" in messages_of(steps, ["json", "pb"])[0][1]
    assert messages_of(steps[:14], ["json"]) == []


def test_memory_that_was_free_before_delays_the_measurement() -> None:
    steps = [0.0] * 20 + [2 * 1.048576] * 100
    ((step, message),) = messages_of(steps, ["json"])
    assert step == 25  # 20 steps from step 5 on, of which 5 took 2 MiB
    assert "a step adds 512 KiB of memory" in message
