"""The strategy that Fleet gets for a config, including settings that need a GPU."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")

from ppprof.config import load_config  # noqa: E402
from ppprof.train import fleet_on_cpu, grid  # noqa: E402
from ppprof.train.grid import _strategy, make_grid  # noqa: E402
from tests.jobs.launching import CONFIG  # noqa: E402

pytestmark = pytest.mark.paddle


@pytest.mark.parametrize(
    ("device", "sequence_parallel", "in_parts"),
    [("gpu", False, True), ("gpu", True, False), ("cpu", False, False)],
)
def test_stages_exchange_parts_only_of_what_all_mp_ranks_have(
    device: str, sequence_parallel: bool, in_parts: bool
) -> None:
    """Else Fleet would put a tensor together from slices of different tensors."""
    overrides = [
        f"Global.device={device}",
        f"Model.sequence_parallel={sequence_parallel}",
        "Distributed.mp_degree=2",
        "Distributed.pp_degree=2",
    ]
    strategy = _strategy(load_config(CONFIG, overrides, world_size=4))
    assert strategy.pipeline_configs["enable_partial_send_recv"] is in_parts


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("gpu", "nccl")])
def test_ranks_on_a_cpu_communicate_with_gloo_also_beside_gpus(
    device: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher sets gloo only where it sees no GPU; with NCCL, Paddle computes on a GPU."""
    backends: list[str] = []

    def init(**_: Any) -> None:
        backends.append(os.environ["PADDLE_DISTRI_BACKEND"])

    monkeypatch.setenv("PADDLE_DISTRI_BACKEND", "nccl")
    monkeypatch.setattr(fleet_on_cpu, "install", lambda: None)
    monkeypatch.setattr(fleet_on_cpu, "open_channels", lambda group: None)
    monkeypatch.setattr(grid, "_fleet", lambda: SimpleNamespace(get_pipe_parallel_group=bool))
    monkeypatch.setattr(grid.fleet, "init", init)
    overrides = [
        f"Global.device={device}",
        "Distributed.dp_degree=2",
        "Global.global_batch_size=null",
    ]
    make_grid(load_config(CONFIG, overrides, world_size=2))
    assert backends == [backend]
