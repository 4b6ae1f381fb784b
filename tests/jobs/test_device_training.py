"""Trainings on the test device compute what trainings on the CPU compute, in every topology."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    "topology", [covering(name, "alone", "dp2", "dp2 mp2 pp2") for name in TOPOLOGIES]
)
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
