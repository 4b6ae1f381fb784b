"""``benchmarks.verdicts``: shortened runs, and counted verdicts."""

from __future__ import annotations

from pathlib import Path

import ppprof
from benchmarks.verdicts import verdicts

RUNS = Path(__file__).parents[1] / "fixtures/runs"


def test_verdicts_are_counted() -> None:
    nothing, again, slow = (
        ppprof.open(RUNS / name) for name in ("nothing", "nothing_again", "slow_layer")
    )
    assert verdicts([(nothing, slow), (again, slow)]) == {"slower": 2}
    assert verdicts([(slow, nothing)]) == {"faster": 1}
