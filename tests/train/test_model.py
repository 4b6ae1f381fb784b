from __future__ import annotations

import numpy as np
import pytest

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")

from ppprof.config import ModelConfig, OptimizerConfig  # noqa: E402
from ppprof.config.training import LearningRateConfig  # noqa: E402
from ppprof.train.model import GPT, PretrainingLoss  # noqa: E402
from ppprof.train.optim import CosineWithWarmup, make_optimizer, make_schedule, notes  # noqa: E402

pytestmark = pytest.mark.paddle
SIZES = {"hidden_size": 16, "num_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 8}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _model(**settings: object) -> GPT:
    paddle.seed(7)
    return GPT(ModelConfig(**{**SIZES, **settings}))


def _batch() -> tuple[object, object]:
    tokens = np.random.default_rng(0).integers(0, 256, (2, 9))
    return paddle.to_tensor(tokens[:, :-1]), paddle.to_tensor(tokens[:, 1:])


def test_a_token_sees_only_what_came_before_it() -> None:
    model = _model(**NO_DROPOUT)
    tokens, _ = _batch()
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 256
    before, after = (model(batch).numpy() for batch in (tokens, changed))
    assert np.array_equal(before[:, :5], after[:, :5])
    assert not np.allclose(before[:, 5:], after[:, 5:])


def test_an_untrained_model_knows_nothing() -> None:
    tokens, labels = _batch()
    loss = PretrainingLoss()(_model(**NO_DROPOUT)(tokens), labels)
    assert loss.item() == pytest.approx(np.log(256), rel=0.02)


@pytest.mark.parametrize("granularity", [None, "full", "full_attn", "core_attn"])
def test_recompute_changes_no_gradient(granularity: str | None) -> None:
    tokens, labels = _batch()

    def gradients(**settings: object) -> dict[str, np.ndarray]:
        model = _model(**settings)
        paddle.seed(3)  # dropout is on: recompute has to draw the same again
        PretrainingLoss()(model(tokens), labels).backward()
        return {name: param.grad.numpy() for name, param in model.named_parameters()}

    kept = gradients(use_recompute=False)
    again = gradients(use_recompute=True, recompute_granularity=granularity)
    for name, gradient in kept.items():
        np.testing.assert_allclose(again[name], gradient, rtol=1e-5, atol=1e-7, err_msg=name)


def test_fused_and_separate_projections_are_the_same_attention() -> None:
    tokens, _ = _batch()
    fused, apart = _model(**NO_DROPOUT), _model(fuse_attn_qkv=False, **NO_DROPOUT)
    weights = fused.state_dict()
    for name, value in list(weights.items()):
        if ".qkv." in name:
            heads = value.reshape([*value.shape[:-1], 2, 3, -1])  # of each head, one after another
            for index, part in enumerate(("query", "key", "value")):
                weights[name.replace("qkv", part)] = heads[..., index, :].flatten(-2)
    apart.set_state_dict(weights)
    np.testing.assert_allclose(apart(tokens).numpy(), fused(tokens).numpy(), rtol=1e-5, atol=1e-6)


def test_the_schedule_at_points_worked_out_by_hand() -> None:
    schedule = CosineWithWarmup(max_lr=1.0, min_lr=0.2, warmup_steps=10, decay_steps=110)
    rates = {}
    for step in range(131):
        rates[step] = schedule.get_lr()
        schedule.step()
    assert rates[0] == 0.0
    assert rates[5] == pytest.approx(0.5)
    assert rates[10] == pytest.approx(1.0)
    assert rates[60] == pytest.approx(0.6)  # half of the cosine
    assert rates[35] == pytest.approx(0.2 + 0.8 * (1 + 2**-0.5) / 2)  # a quarter
    assert rates[110] == rates[130] == pytest.approx(0.2)


def test_biases_and_norms_do_not_decay() -> None:
    model = _model(**NO_DROPOUT)
    config = OptimizerConfig(weight_decay=0.5, lr=LearningRateConfig(max_lr=0.1, warmup_rate=0.0))
    optimizer = make_optimizer(config, model, make_schedule(config))
    before = {name: param.numpy() for name, param in model.named_parameters()}
    for param in model.parameters():
        param.grad = paddle.zeros_like(param)
    optimizer.step()
    shrunk = {
        name
        for name, param in model.named_parameters()
        if not np.array_equal(param.numpy(), before[name])
    }
    assert shrunk == {n for n in before if n.endswith("weight") and "norm" not in n}
    assert [*notes(config)] == []
    assert "AdamW" in next(iter(notes(OptimizerConfig(name="FusedAdamW"))))
