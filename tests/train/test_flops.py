"""The model's FLOPs, against the matrix products that a real model calls."""

from __future__ import annotations

from math import prod
from typing import Any, Callable

import pytest

from ppprof.config import ModelConfig

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = pytest.mark.paddle

from ppprof.train.model import GPT, rank_flops  # noqa: E402

BATCH, LENGTH = 3, 10
SIZES: dict[str, Any] = {
    "vocab_size": 90,
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_layers": 3,
    "max_position_embeddings": 16,
}


def step_flops(config: ModelConfig, tokens: int, length: int) -> int:
    """Return the FLOPs of a replica of one rank."""
    return rank_flops(config, tokens, length, num_blocks=config.num_layers, has_logits=True)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """FLOPs of every matrix product that Python code asks Paddle for from now on.

    Those of backward are one product of the same size for each operand that has a gradient.
    """
    counted: list[int] = []

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(left: Any, right: Any, *rest: Any, **options: Any) -> Any:
            assert not options.get("transpose_x"), "else the terms are another dim's"
            product = function(left, right, *rest, **options)
            forward = 2 * prod(product.shape) * left.shape[-1]
            counted.append(forward * (1 + sum(not x.stop_gradient for x in (left, right))))
            return product

        return call

    for name in ("matmul", "linear"):
        monkeypatch.setattr(paddle._C_ops, name, watched(getattr(paddle._C_ops, name)))
    return counted


@pytest.mark.parametrize(
    "changes",
    [{}, {"ffn_hidden_size": 40}, {"fuse_attn_qkv": False, "num_layers": 1}],
    ids=["4h", "ffn 40", "three linears"],
)
def test_it_is_what_the_model_multiplies(products: list[int], changes: dict[str, Any]) -> None:
    config = ModelConfig(**{**SIZES, **changes})
    model = GPT(config)
    products.clear()
    model(paddle.zeros([BATCH, LENGTH], "int64"))
    assert step_flops(config, BATCH * LENGTH, LENGTH) == sum(products)


def test_it_is_megatrons_formula() -> None:
    """GPT-3 175B, 1536 samples: the paper's 4 passes without the forward that is done twice."""
    h, n, s, v, b = 12288, 96, 2048, 51200, 1536
    config = ModelConfig(hidden_size=h, num_layers=n, vocab_size=v, num_attention_heads=96)
    paper = 96 * b * s * n * h**2 * (1 + s / (6 * h) + v / (16 * n * h))
    again = 24 * b * s * n * h**2 * (1 + s / (6 * h))
    assert step_flops(config, b * s, s) == pytest.approx(paper - again, rel=1e-12)


def test_the_shares_of_the_ranks_add_up() -> None:
    config = ModelConfig(**{**SIZES, "num_layers": 5})
    stages = {"first": (3, False), "last": (2, True)}
    shares = [
        rank_flops(config, 40, 10, num_blocks=blocks, has_logits=logits, mp_degree=2)
        for blocks, logits in stages.values()
        for _ in range(2)
    ]
    assert sum(shares) == step_flops(config, 40, 10)
    blocks = rank_flops(config, 40, 10, num_blocks=1, has_logits=False, mp_degree=2)
    assert shares[0] == 3 * blocks
