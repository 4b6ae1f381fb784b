"""When a window ends for ``max_trace_mb``."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from ppprof.capture.recording.disk_budget import DiskBudget, default_bytes
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


def open_window(budget: DiskBudget) -> None:
    budget.install()
    budget.started()


def num_steps(budget: DiskBudget, resident: Growing, step_mb: float) -> int:
    """Return the number of steps of a window whose steps make memory grow by so much."""
    open_window(budget)
    for steps in range(1, 1000):
        resident.size += int(step_mb * MB)
        if budget.is_close(steps):
            return steps
    return 1000


def test_a_first_window_is_judged_by_the_growth_of_memory(tmp_path: Path) -> None:
    resident = Growing()
    budget = DiskBudget(tmp_path, 0, 10 * MB, ["pb"], resident)
    # 0.5 MB of memory are 1 MB of a .pb at the most: 10 steps fit, and one more might not.
    assert not budget.is_spent
    assert num_steps(budget, resident, 0.5) == 10
    assert (
        num_steps(DiskBudget(tmp_path, 0, 11 * MB, ["json", "json.gz"], resident), resident, 1) == 1
    )


def test_later_windows_by_what_a_step_took_and_what_is_there(tmp_path: Path) -> None:
    resident = Growing()
    budget = DiskBudget(tmp_path, 0, 10 * MB, ["pb"], resident)
    open_window(budget)
    budget.saved(window(tmp_path, 0, 4), 4)
    assert not budget.is_spent
    assert num_steps(budget, resident, 0) == 6
    budget.saved(window(tmp_path, 1, 5.5), 6)
    assert budget.is_spent
    (tmp_path / "raw").joinpath("rank_00001_dp1_time_20261120T201530_000.pb").write_bytes(b"")


def test_json_that_is_still_to_be_made_counts(tmp_path: Path) -> None:
    budget = DiskBudget(tmp_path, 0, 10 * MB, ["json"], Growing())
    open_window(budget)
    name = window(tmp_path, 0, 2)
    budget.saved(name, 2)
    assert budget.is_spent  # 2 MB, 9 of JSON to come
    (tmp_path / name.raw).unlink()
    (tmp_path / name.summary).parent.mkdir()
    (tmp_path / name.summary).touch()
    (tmp_path / name.trace("json")).write_bytes(bytes(4 * MB))
    assert not budget.is_spent  # it took less


def test_segments_are_added_up_and_their_folder_is_not_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = DiskBudget(tmp_path, 0, 100 * MB, ["json"], Growing())
    budget.saved(window(tmp_path, 0, 1), 2)
    open_window(budget)
    listings: list[Path] = []
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda *given: [listings.append(given[0]), *glob(*given)][1:])
    number = 0
    while not budget.limit(1):
        name = replace(window(tmp_path, 1, 0), segment=number)
        (tmp_path / name.raw).write_bytes(bytes(MB))
        budget.saved(name, 2)
        budget.started()
        number += 1
    assert not listings
    # Each takes 5.5 MB with its JSON, as do the window before and the next two steps.
    assert number == 17


def test_a_deleted_window_takes_no_space(tmp_path: Path) -> None:
    budget = DiskBudget(tmp_path, 0, 10 * MB, ["json"], Growing())
    open_window(budget)
    name = window(tmp_path, 0, 2)
    budget.saved(name, 2)
    (tmp_path / name.raw).unlink()
    budget.dropped(name)
    assert not budget.is_spent


def test_resident_memory_is_read() -> None:
    budget = DiskBudget(Path(), 0, 10 * MB, ["pb"])
    assert 10 * MB < budget._resident_bytes() < 100_000 * MB


def test_a_schedule_without_end_gets_a_tenth_of_the_free_space_or_10_gb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=40_000 * MB))
    assert default_bytes(tmp_path, 8) == 500 * MB
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=4_000_000 * MB))
    assert default_bytes(tmp_path, 2) == 5_000 * MB
