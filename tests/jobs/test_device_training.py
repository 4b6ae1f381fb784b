"""Trainings on the test device compute what trainings on the CPU compute, in every topology."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import ppprof
from tests import device
from tests.jobs.launching import NO_DROPOUT, SMALL, covering, losses, norms, train

pytestmark = [pytest.mark.paddle, pytest.mark.all]

SETTINGS = (
    *SMALL,
    *NO_DROPOUT,
    "Model.num_layers=4",
    "Engine.max_steps=5",
    "Global.global_batch_size=16",
    "Global.local_batch_size=",
    "Global.micro_batch_size=2",
)
SHARDED = "Distributed.sharding.sharding_degree=2 Distributed.sharding.sharding_stage="
TOPOLOGIES = {
    "alone": "",
    "dp2": "Distributed.dp_degree=2",
    "mp2": "Distributed.mp_degree=2",
    "pp2": "Distributed.pp_degree=2",
    "stage 1": f"{SHARDED}1",
    "stage 2": f"{SHARDED}2",
    "stage 3": f"{SHARDED}3",
    "dp2 mp2 pp2": "Distributed.dp_degree=2 Distributed.mp_degree=2 Distributed.pp_degree=2",
}


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, float], dict[int, float]]:
    """Losses and gradient norms of one process on the CPU, by step."""
    done = train(tmp_path_factory.mktemp("cpu"), *SETTINGS)
    return losses(done), norms(done)


@pytest.mark.parametrize("topology", [covering(name, "dp2 mp2 pp2") for name in TOPOLOGIES])
def test_a_training_on_a_device_computes_what_the_cpu_computes(
    tmp_path: Path,
    test_device: Callable[..., dict[str, str]],
    on_cpu: tuple[dict[int, float], dict[int, float]],
    topology: str,
) -> None:
    settings = TOPOLOGIES[topology].split()
    processes = {"alone": 0, "dp2 mp2 pp2": 8}.get(topology, 2)
    done = train(
        tmp_path,
        f"Global.device={device.NAME}",
        *SETTINGS,
        *settings,
        processes=processes,
        code=0,
        **test_device(),
    )
    if processes:
        done.stdout += (tmp_path / "launch/workerlog.0").read_text()
    assert losses(done) == pytest.approx(on_cpu[0], abs=1.1e-6)  # the last printed digit
    assert norms(done) == pytest.approx(on_cpu[1], rel=2e-6)


@pytest.mark.parametrize("use_recompute", [False, True])
def test_gradients_are_reduced_while_others_are_computed(
    tmp_path: Path, test_device: Callable[..., dict[str, str]], use_recompute: bool
) -> None:
    """As Paddle does: during backward, but after it with recompute, which its reducer cannot have."""
    train(
        tmp_path,
        *(*SETTINGS, f"Global.device={device.NAME}", "Distributed.dp_degree=2"),
        *("Model.hidden_size=256", "Model.num_layers=2", f"Model.use_recompute={use_recompute}"),
        *("Engine.max_steps=4", "Profiler.enable=True", "Profiler.scheduler=[2, 4]"),
        processes=2,
        code=0,
        **test_device(),
    )
    events = ppprof.open(tmp_path / "profiler_log").events()
    kernels = events.filter(category="Kernel").select(
        "rank", "step", "correlation_id", pl.col("name").cast(str)
    )
    launches = events.filter(category="CudaRuntime").select("rank", "correlation_id", "start_ns")
    launched = kernels.join(launches, on=["rank", "correlation_id"])
    # Backward computes the gradient of the embedding last.
    steps = launched.group_by("rank", "step").agg(
        first_reduction=pl.col("start_ns").filter(pl.col("name").str.contains("AllReduce")).min(),
        last_gradient=pl.col("start_ns").filter(pl.col("name").str.contains("EmbeddingGrad")).max(),
    )
    assert len(steps) == 2 * 2
    assert kernels["name"].str.contains("flash_fwd").any()
    overlaps = steps["first_reduction"] < steps["last_gradient"]
    assert overlaps.to_list() == [not use_recompute] * 4
