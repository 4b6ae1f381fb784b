"""A run's step time is the same wherever it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

import ppprof
from ppprof.errors import UsageError
from ppprof.run.report import collect_report_data
from tests.fixtures import gpu_traces
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
