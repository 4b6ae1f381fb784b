"""``benchmarks.verdicts``: shortened runs, and counted verdicts."""

from __future__ import annotations

from pathlib import Path

import ppprof
from benchmarks.verdicts import SKIPPED, shortened, verdicts

RUNS = Path(__file__).parents[1] / "fixtures/runs"


def test_a_shortened_run_has_the_first_steps(tmp_path: Path) -> None:
    run = ppprof.open(RUNS / "nothing")
    short = shortened(run, 5, tmp_path / "short")
    assert short.step_times["step"].to_list() == list(range(SKIPPED + 5))
    costs = run.step_times["batch_cost_ns"].to_list()
    assert short.step_times["batch_cost_ns"].to_list() == costs[: SKIPPED + 5]


def test_verdicts_are_counted() -> None:
    nothing, again, slow = (
        ppprof.open(RUNS / name) for name in ("nothing", "nothing_again", "slow_layer")
    )
    assert verdicts([(nothing, slow), (again, slow)]) == {"slower": 2}
    assert verdicts([(slow, nothing)]) == {"faster": 1}
