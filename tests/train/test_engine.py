"""What the engine does around Fleet, where Fleet itself needs a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")

from ppprof.config import load_config  # noqa: E402
from ppprof.topology import Topology  # noqa: E402
from ppprof.train import engine as engines  # noqa: E402
from ppprof.train.engine import Sharded  # noqa: E402
from ppprof.train.grid import Grid  # noqa: E402
from tests.jobs.launching import CONFIG  # noqa: E402

pytestmark = pytest.mark.paddle


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_micro_batch_waits_for_the_reductions_of_the_one_before(overlaps: bool) -> None:
    """Else it would add to gradients that are on their way to another rank."""
    layer, did = paddle.nn.Linear(1, 1), []

    def loss(score: Any, label: Any) -> Any:
        did.append("forward")
        return score.mean()

    engine = Sharded.__new__(Sharded)
    engine.model = engine._distributed_model = layer
    engine._loss = loss  # type: ignore[assignment]
    engine.amp = SimpleNamespace(cast=nullcontext, scale=lambda loss: loss)  # type: ignore[assignment]
    task = SimpleNamespace(wait=lambda: did.append("wait"))
    engine._distributed_optimizer = SimpleNamespace(_reduce_overlap=overlaps, _comm_task=task)
    engine._accumulate([(paddle.ones([1, 1]), None)] * 2)
    assert did == (["forward", "wait"] * 2 if overlaps else ["forward"] * 2)


@pytest.mark.parametrize(("dp", "num_groups"), [(1, 2), (2, 1)])
def test_fleet_makes_groups_of_its_own_only_where_no_others_make_any(
    dp: int, num_groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []
    stepper = SimpleNamespace(_set_broadcast_overlap=lambda on, **settings: calls.append(settings))
    groups = SimpleNamespace(
        get_sharding_parallel_group=lambda: None, get_data_parallel_group=lambda: None
    )
    monkeypatch.setattr(engines.fleet, "get_hybrid_communicate_group", lambda: groups)
    monkeypatch.setattr(
        engines, "group_sharded_parallel", lambda model, *rest, **more: (model, stepper, None)
    )
    engine = Sharded.__new__(Sharded)
    engine.model = paddle.nn.Linear(1, 1)
    engine.optimizer = SimpleNamespace(_grad_clip=None, _master_weights={})
    engine.amp = SimpleNamespace(scaler=None)  # type: ignore[assignment]
    engine._grid = Grid(0, Topology.of(dp=dp, sharding=2))
    engine._config = load_config(
        CONFIG,
        [
            "Global.device=gpu",
            "Global.local_batch_size=null",
            "Global.global_batch_size=32",
            f"Distributed.dp_degree={dp}",
            "Distributed.sharding.sharding_degree=2",
            "Distributed.sharding.sharding_stage=2",
            "Distributed.sharding.broadcast_overlap=True",
        ],
        world_size=2 * dp,
    )
    engine._wrap()
    assert [settings["num_groups"] for settings in calls] == [num_groups]
