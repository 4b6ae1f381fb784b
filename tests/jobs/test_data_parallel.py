"""The gradient all-reduce of ``paddle.DataParallel``, which starts in C++ and records no event."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from ppprof import advise
from ppprof import open as open_run
from ppprof.analysis.advice.disjoint import IDLE
from ppprof.analysis.advice.finding import Finding
from ppprof.run.run import Run
from tests import device
from tests.jobs.launching import JOBS, run

SLEEP_S = 0.1
ATTEMPTS = 3
"""On a busy machine, the two runs that are compared may not have had the same time."""
PYTHON26 = os.environ.get("PPPROF_PADDLE26_PYTHON", "")

pytestmark = [pytest.mark.paddle, pytest.mark.all]


@pytest.mark.parametrize(
    "python",
    [
        sys.executable,
        pytest.param(
            str(Path(PYTHON26).absolute()),
            marks=pytest.mark.skipif(
                not PYTHON26,
                reason="needs PPPROF_PADDLE26_PYTHON, an interpreter with Paddle 2.6",
            ),
        ),
    ],
    ids=["paddle 3", "paddle 2.6"],
)
def test_waiting_in_it_is_communication_and_the_late_rank_is_named(python, tmp_path):
    """Rank 0 waits as long as rank 1 sleeps; neither computes in that time."""
    run(tmp_path, JOBS / "data_parallel_job.py", "cpu", SLEEP_S, processes=2, python=python)
    recorded = open_run(tmp_path / "log")
    found = recorded.cluster()
    of_rank = found.steps.group_by("rank").agg(pl.col("computation_ns", "exposed_dp_ns").median())
    (_, computation, exposed), (_, other_computation, other_exposed) = of_rank.sort("rank").rows()
    assert exposed - other_exposed == pytest.approx(SLEEP_S * 1e9, rel=0.5)
    assert max(computation, other_computation) < 0.5 * SLEEP_S * 1e9
    assert found.slow_ranks.filter("is_slow")["rank"].to_list() == [1]
    findings = costs(recorded)
    assert findings["slow-rank"].cost_ns == pytest.approx(SLEEP_S * 1e9, rel=0.15)
    assert sum(finding.cost_ns for finding in findings.values()) <= step_ns(recorded)


def test_on_a_device_the_late_rank_costs_what_a_step_takes_longer(
    tmp_path: Path, test_device: Callable[..., dict[str, str]]
) -> None:
    """No other finding counts the time again in which the late rank's device is idle.

    Both ranks note the memory of their own device, which has the net and its gradients.
    """
    for attempt in range(ATTEMPTS):
        runs = {}
        for sleep_s in (0.0, SLEEP_S):
            folder = tmp_path / f"{attempt} {sleep_s}"
            folder.mkdir()
            job = (JOBS / "data_parallel_job.py", device.NAME, sleep_s)
            runs[sleep_s] = run_on(folder, job, test_device(KERNEL_MS=10))
        peaks = runs[SLEEP_S].step_times.sort("step").group_by("rank").last()["device_peak_bytes"]
        assert peaks.min() > 2 * 6 * (128 * 128 + 128) * 4
        longer_ns = step_ns(runs[SLEEP_S]) - step_ns(runs[0.0])
        even, late = map(costs, runs.values())
        idle, usual_idle = (
            sum(finding.cost_ns for rule, finding in findings.items() if rule in IDLE)
            for findings in (late, even)
        )
        cost_ns = late["slow-rank"].cost_ns if "slow-rank" in late else 0
        is_true = cost_ns == pytest.approx(longer_ns, rel=0.25)
        if is_true and idle - usual_idle < 0.2 * longer_ns:
            return
    pytest.fail(f"a step is {longer_ns} ns longer: {cost_ns}, idle {idle}, usually {usual_idle}")


def run_on(folder: Path, job: tuple[object, ...], variables: dict[str, str]) -> Run:
    own = {"PADDLE_XCCL_BACKEND": device.NAME, "PADDLE_DISTRI_BACKEND": "xccl"}
    run(folder, *map(str, job), processes=2, **variables, **own)
    return open_run(folder / "log")


def costs(recorded: Run) -> dict[str, Finding]:
    """Return the findings with a cost, by rule."""
    return {finding.rule: finding for finding in advise(recorded) if finding.cost_ns}


def step_ns(recorded: Run) -> float:
    """Return the median step of the slowest rank."""
    steps = recorded.cluster().steps.group_by("rank").agg(pl.col("step_ns").median())
    return float(steps["step_ns"].max())
