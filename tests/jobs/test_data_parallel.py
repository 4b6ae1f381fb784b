"""The gradient all-reduce of ``paddle.DataParallel``, which starts in C++ and records no event."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import polars as pl
import pytest

from ppprof import open as open_run
from tests.jobs.data_parallel_job import SLEEP_S
from tests.jobs.launching import JOBS, run

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
    run(tmp_path, JOBS / "data_parallel_job.py", processes=2, python=python)
    found = open_run(tmp_path / "log").cluster()
    of_rank = found.steps.group_by("rank").agg(pl.col("computation_ns", "exposed_dp_ns").median())
    (_, computation, exposed), (_, other_computation, other_exposed) = of_rank.sort("rank").rows()
    assert exposed - other_exposed == pytest.approx(SLEEP_S * 1e9, rel=0.5)
    assert max(computation, other_computation) < 0.5 * SLEEP_S * 1e9
    assert found.slow_ranks.filter("is_slow")["rank"].to_list() == [1]
