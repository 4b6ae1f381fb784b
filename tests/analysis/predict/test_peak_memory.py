"""The memory of tiny models, added up by hand in values of 4 bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ppprof.analysis.predict.peak_memory import memory_of, shares
from ppprof.analysis.predict.prediction import memory
from tests.fixtures.training_specs import SPEC

TINY = replace(
    SPEC,
    pp=1,
    micro_batches=1,
    layers=1,
    hidden=1,
    inner=4,
    heads=1,
    vocabulary=10,
    positions=1,
    length=1,
)
"""One token: one block of 12 + 13 values, 10 words, 1 position and a norm of 2."""
PARAMETERS = 25 + 10 + 1 + 2
KEPT = 4 + 3 + 1 + 1 + 4 + 4
"""Inputs of two norms and two products; query, key, value; scores; their sum; around the GELU."""


def values(**changes: object) -> dict[str, float]:
    held = memory_of(replace(TINY, **changes), stage=0)  # type: ignore[arg-type]
    return {"state": held.state_bytes / 4, **{k: v / 4 for k, v in held.moments.items()}}


def test_each_moment_of_one_block() -> None:
    assert values() == {
        "state": 4 * PARAMETERS,
        # Two gradients of hidden states, one after the GELU, and those of a product's weights and of the words.
        "backward pass of an MLP": KEPT + 2 + 4 + 4 + 10,
        # The MLP keeps nothing any more. Two gradients of hidden states have taken the place of an input
        # of a norm and of the sum; and gradients of scores, sum and value, and copies of two of them.
        "backward pass of an attention": KEPT - 9 + 1 + 3 + 10,
        "optimizer": PARAMETERS,
        "loss": KEPT + 2 + 2 * 10,
        "backward pass of the loss": KEPT + 2 + 10 + 1 + 10,
        "backward pass of the embedding": 1 + 10 + 10,
    }


@pytest.mark.parametrize(
    ("recompute", "kept"), [("full", 1), ("full_attn", KEPT - 5), ("core_attn", KEPT - 1)]
)
def test_recompute_keeps_less_for_the_loss(recompute: str, kept: int) -> None:
    assert values(recompute=recompute)["loss"] == kept + 2 + 2 * 10


def test_dropout_keeps_masks_of_a_byte() -> None:
    more = values(hidden_dropout=True, attention_dropout=True)["loss"] - values()["loss"]
    assert more == 2 / 4 + 1 + 1 / 4


def test_the_first_of_two_stages_keeps_two_micro_batches() -> None:
    held = memory_of(replace(TINY, pp=2, layers=2, micro_batches=4), stage=0)
    # A message to the other stage, one from it, and nothing waits for the embedding.
    assert held.moments["backward pass of an MLP"] / 4 == 2 * KEPT + 2 + 2 + 4 + 4


def test_mp_ranks_share_heads_mlp_and_words() -> None:
    spec = replace(SPEC, pp=1, mp=2)
    one, half = (memory_of(each, 0).moments["loss"] for each in (replace(spec, mp=1), spec))
    in_sequence = memory_of(replace(spec, sequence_parallel=True), 0).moments["loss"]
    whole = 4 * spec.length * spec.hidden
    unsplit = spec.layers * 4 * whole + 2 * whole
    assert half == unsplit + (one - unsplit) // 2
    # Inputs of the norms are split, those of the products gathered.
    assert in_sequence == half - spec.layers * whole - whole // 2


def test_sharding_divides_moments() -> None:
    spec = replace(SPEC, sharding=2)
    size = spec.parameters(1)
    assert memory_of(spec, 1).state_bytes == pytest.approx(12 * size, rel=0.01)
    # Gradients of stage 2 are in buffers of all ranks; one more is held.
    spec = replace(spec, sharding_stage=2)
    assert memory_of(spec, 1).state_bytes == pytest.approx((4 + 6 + 4) * size, rel=0.02)
    assert memory(replace(spec, sharding_stage=3)) == []


def test_a_tensor_goes_to_the_rank_that_has_least() -> None:
    assert shares([7, 1, 2, 5], 2) == [7, 8]


def test_level_o2_keeps_16_bytes_a_parameter_and_no_scores() -> None:
    mixed = {"word_bytes": 2, "flash_attention": True}
    held = memory_of(replace(TINY, **mixed), 0)  # type: ignore[arg-type]
    assert held.state_bytes == 16 * PARAMETERS
    # Half of everything but the scores, which are not kept, and of the loss in float32.
    assert held.moments["loss"] == 2 * (KEPT - 1 + 2) + (2 + 4 + 4) * 10
    assert memory(replace(TINY, word_bytes=None)) == []
