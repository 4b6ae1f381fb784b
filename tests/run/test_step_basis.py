"""A run's step time is the same wherever it is shown."""

from __future__ import annotations

import pytest

import ppprof
from ppprof.run.report import collect_report_data
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
