"""A run's step time is the same wherever it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

import ppprof
from ppprof.errors import UsageError
from ppprof.run.advise import collect_evidence_of_run
from ppprof.run.report import collect_report_data
from tests.fixtures import gpu_traces
from tests.fixtures.run_directories import run as run_directory
from tests.fixtures.run_directories import step_lines
from tests.fixtures.timeline import write
from tests.jobs.launching import ROOT

RUNS = ROOT / "tests/fixtures/runs"


@pytest.mark.parametrize("name", ["slow_layer", "slow_dataset"])
def test_report_and_diff_give_one_verdict(name: str) -> None:
    base, run = (ppprof.open(RUNS / folder) for folder in ("nothing", name))
    diff = ppprof.diff(base, run)
    report = collect_report_data(run, baseline=base)
    assert report.diff is not None
    assert [basis for _, basis in diff.samples] == ["outside the window"] * 2
    assert report.diff.change == diff.change
    card = report.costs.metrics["step_time"]
    row = diff.overview.filter(metric="step_time").row(0, named=True)
    assert (card, report.costs.sample.basis) == (row["experiment"], "outside the window")


def test_a_window_that_was_asked_for_is_judged_by_its_own_steps() -> None:
    base, run = (ppprof.open(RUNS / folder) for folder in ("nothing", "slow_layer"))
    report = collect_report_data(run, baseline=base, window=0)
    assert report.costs.sample.basis == "recorded"


@pytest.mark.parametrize(
    ("steps", "basis", "num"),
    [("5:", "outside the window", 6), ("16:18", "recorded", 2)],
)
def test_steps_of_a_page_are_those_of_both_runs(steps: str, basis: str, num: int) -> None:
    """Both runs take steps 0 to 18; 12 to 17 are recorded, and 11, 12 and 18 excluded."""
    base, run = (ppprof.open(RUNS / folder) for folder in ("nothing", "slow_layer"))
    report = collect_report_data(run, baseline=base, steps=steps)
    diff = ppprof.diff(base, run, steps=steps)
    assert report.diff is not None
    assert report.diff.change == diff.change
    assert report.diff.modules.equals(diff.modules)
    assert [(times.height, basis) for times, basis in report.diff.samples] == [(num, basis)] * 2


def test_the_modules_of_the_baseline_are_those_of_the_steps() -> None:
    """The comparison of equal runs has the operators of equal steps."""
    run = ppprof.open(RUNS / "slow_layer")
    report = collect_report_data(run, baseline=run, steps="16:18")
    assert report.module_work.equals(report.baseline_module_work)


def test_a_baseline_without_the_steps_is_rejected(tmp_path: Path) -> None:
    late = ppprof.open(RUNS / "slow_layer")
    early = ppprof.open(write(tmp_path / "early.pb", *gpu_traces.training()))
    with pytest.raises(UsageError, match=r"early\.pb: no step of 12:"):
        collect_report_data(late, baseline=early, steps="12:")


@pytest.fixture
def four_ranks(tmp_path: Path) -> Path:
    """Each step takes 10 ms; rank 2 works longer than the others, which wait for it."""
    lines = [
        [
            {**line, "communication_ns": (1 if rank == 2 else 3) * 1_000_000}
            for line in step_lines(10_000_000, noise=0)
        ]
        for rank in range(4)
    ]
    return run_directory(tmp_path / "log", [gpu_traces.training()] * 4, step_lines=lines)


def test_findings_of_some_ranks_read_the_step_times_of_these(four_ranks: Path) -> None:
    opened = ppprof.open(four_ranks)
    next(four_ranks.glob("raw/rank_00002*")).unlink()  # its step times count all the same
    for ranks, expected in ((1, [1]), ("0,2-3", [0, 2, 3]), ("all", [0, 1, 2, 3])):
        evidence = collect_evidence_of_run(opened, ranks)
        assert evidence.step_times["rank"].unique().sort().to_list() == expected


def test_of_too_many_timelines_those_of_slow_ranks_are_drawn(
    four_ranks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppprof.run.report._MOST_DRAWN", 2)
    assert list(collect_report_data(ppprof.open(four_ranks)).details) == [0, 2]
