"""The optimizer that updates all parameters at once is the one that updates them one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")

from ppprof.config import OptimizerConfig  # noqa: E402
from ppprof.train.optim import make_optimizer, make_schedule  # noqa: E402

pytestmark = pytest.mark.paddle


def made(**settings: Any) -> tuple[Any, Any, Any]:
    """Two layers with their optimizer and its schedule; the same weights each time."""
    config = OptimizerConfig(**settings)
    model = paddle.nn.LayerList([paddle.nn.Linear(3, 4), paddle.nn.Linear(4, 2)])
    for number, param in enumerate(model.parameters()):
        param.set_value(np.linspace(-1, number, param.size, dtype="float32").reshape(param.shape))
    schedule = make_schedule(config)
    optimizer = make_optimizer(config, model, schedule)
    optimizer._apply_decay_param_fun = lambda name: name.endswith("w_0")  # no biases
    return model, optimizer, schedule


def trained(model: Any, optimizer: Any, schedule: Any, steps: range) -> list[Any]:
    """The weights after some steps; in every third the last layer has no gradients."""
    for step in steps:
        for number, param in enumerate(model.parameters()):
            if step % 3 or number < 2:
                param.grad = paddle.full(param.shape, (step + number + 1) / 7)
        optimizer.step()
        optimizer.clear_grad(set_to_zero=False)
        schedule.step()
    return [param.numpy() for param in model.parameters()]


@pytest.mark.parametrize("clip", [{}, {"grad_clip": None}])
def test_at_once_or_one_by_one(clip: Any) -> None:
    one, other = (
        trained(*made(use_multi_tensor=at_once, weight_decay=0.5, **clip), range(7))
        for at_once in (False, True)
    )
    for left, right in zip(one, other):
        np.testing.assert_array_equal(left, right)


def test_a_state_is_taken_over_from_one_to_the_other() -> None:
    whole = trained(*made(), range(8))
    model, optimizer, schedule = made()
    trained(model, optimizer, schedule, range(4))
    again, at_once, _ = made(use_multi_tensor=True)
    names = [param.name for param in model.parameters()]
    renamed = dict(zip(names, (param.name for param in again.parameters())))
    for param, source in zip(again.parameters(), model.parameters()):
        param.set_value(source)
    state = optimizer.state_dict()

    def other_name(key: str) -> str:
        names = (key.replace(old, new, 1) for old, new in renamed.items() if key.startswith(old))
        return next(names, key)

    at_once.set_state_dict({other_name(key): value for key, value in state.items()})
    for left, right in zip(whole, trained(again, at_once, at_once._learning_rate, range(4, 8))):
        np.testing.assert_array_equal(left, right)
