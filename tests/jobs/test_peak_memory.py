"""The modelled memory of each stage against what Paddle's allocator counted."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import ppprof
from ppprof.analysis.predict.prediction import memory
from ppprof.run.predict import spec_in
from tests.jobs.launching import SMALL, train

pytestmark = [pytest.mark.paddle, pytest.mark.all]


def test_the_modelled_memory_is_the_peak_of_the_allocator(tmp_path: Path) -> None:
    """With dropout, and a vocabulary that makes the loss the largest moment of the last stage."""
    settings = ("Distributed.pp_degree=2", "Model.vocab_size=1024", "Global.micro_batch_size=4")
    profiler = ("Profiler.enable=True", "Profiler.timer_only=True")
    train(tmp_path, *SMALL, *settings, *profiler, processes=2, code=0)
    run = ppprof.open(tmp_path / "profiler_log")
    peaks = run.step_times.group_by("rank").agg(pl.col("host_peak_allocated_bytes").max())
    stages = memory(spec_in(run))
    assert [stage["moment"] for stage in stages][1] == "loss"
    assert [stage["total_bytes"] for stage in stages] == pytest.approx(
        [peak for _, peak in sorted(peaks.rows())], rel=0.03
    )
