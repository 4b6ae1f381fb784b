"""What the engine does around Fleet, where Fleet itself needs a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")

from ppprof.train.engine import Sharded  # noqa: E402

pytestmark = pytest.mark.paddle


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_micro_batch_waits_for_the_reductions_of_the_one_before(overlaps: bool) -> None:
    """Else it would add to gradients that are on their way to another rank."""
    layer, did = paddle.nn.Linear(1, 1), []

    def loss(score: Any, label: Any) -> Any:
        did.append("forward")
        return score.mean()

    engine = Sharded.__new__(Sharded)
    engine.model = engine._spread = layer
    engine._loss = loss  # type: ignore[assignment]
    engine.amp = SimpleNamespace(cast=nullcontext, scale=lambda loss: loss)  # type: ignore[assignment]
    task = SimpleNamespace(wait=lambda: did.append("wait"))
    engine._stepper = SimpleNamespace(_reduce_overlap=overlaps, _comm_task=task)
    engine._accumulate([(paddle.ones([1, 1]), None)] * 2)
    assert did == (["forward", "wait"] * 2 if overlaps else ["forward"] * 2)
