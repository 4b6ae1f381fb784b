"""Jobs like ``make profile-hybrid`` in which not all ranks are recorded, shard, or live."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import polars as pl
import pytest

import ppprof
from tests.jobs.launching import (
    CONFIGS,
    NO_DROPOUT,
    SMALL,
    TRAIN,
    overrides,
    start,
    train,
    wait_for,
    workerlogs,
)

CONFIG = CONFIGS / "pretrain_gpt_tiny_cpu_dp2_mp2_pp2.yaml"
pytestmark = [pytest.mark.paddle, pytest.mark.all]


def test_one_rank_of_each_stage_can_be_recorded(tmp_path: Path) -> None:
    ranks = "Profiler.ranks={dp: 0, mp: 0, sharding: 0, pp: all}"
    grid = ["Distributed.dp_degree=2", "Distributed.pp_degree=2", "Global.micro_batch_size=2"]
    window = ["Profiler.enable=True", "Profiler.scheduler=[1, 2]", "Engine.max_steps=3"]
    done = train(tmp_path, *SMALL, *NO_DROPOUT, *grid, *window, ranks, processes=4)
    assert done.returncode == 0, done.stdout + done.stderr
    log = tmp_path / "profiler_log"
    stems = sorted(path.name.split("_time_")[0] for path in log.glob("*.paddle_trace.json"))
    assert stems == ["rank_00000_dp0_pp0_sharding0_mp0", "rank_00001_dp0_pp1_sharding0_mp0"]
    assert len(list(log.glob("steps/*.jsonl"))) == 4


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_sharding_optimizers_step_is_an_optimization(stage: int, tmp_path: Path) -> None:
    sharding = ["sharding_degree=2", f"sharding_stage={stage}"]
    window = ["Profiler.enable=True", "Profiler.scheduler=[1, 3]", "Engine.max_steps=4"]
    grid = [f"Distributed.sharding.{override}" for override in sharding]
    done = train(tmp_path, *SMALL, *grid, *window, "Global.micro_batch_size=4", processes=2)
    assert done.returncode == 0, done.stdout + done.stderr
    recorded = ppprof.open(tmp_path / "profiler_log")
    table = recorded.summary("model", rank=1)
    assert dict(table.select("name", "calls").iter_rows())["Optimization"] == 2
    axes = recorded.events().filter(pl.col("category") == "Communication")["axis"]
    assert axes.cast(pl.String).unique().to_list() == ["sharding"]


def test_a_rank_that_is_killed_is_named_and_the_others_save(tmp_path: Path) -> None:
    settings = [
        *("Distributed.dp_degree=1", "Profiler.enable=True", "Profiler.scheduler=[1, 9999]"),
        *("Engine.max_steps=9999", "Engine.logging_freq=1", "Engine.eval_freq=-1"),
    ]
    job = start(tmp_path, TRAIN, "-c", CONFIG, *overrides(*settings), processes=4)
    try:
        wait_for(lambda: "step 5/" in workerlogs(tmp_path).get(0, ""), job)
        (entry,) = (tmp_path / "profiler_log/alive").glob("00002.*")
        os.kill(int(entry.name.split(".")[1]), signal.SIGKILL)
        assert job.wait(60) != 0
    finally:
        job.kill()
    survivors = (0, 1, 3)
    logs = workerlogs(tmp_path)
    said = [logs[rank] for rank in survivors]
    named = "rank 2 (dp0_pp1_sharding0_mp0, pid "
    assert all(f"{named}{entry.name.split('.')[1]}) is gone" in text for text in said)
    traces = tmp_path / "profiler_log"
    wait_for(lambda: len(list(traces.glob("*.paddle_trace.json"))) == len(survivors))
    recorded = ppprof.open(traces)
    assert recorded.ranks == list(survivors)
    for rank in survivors:
        assert recorded.summary("model", rank=rank)["calls"][0] >= 3
