"""The configs in configs/gpt, checked for the clusters they are named for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppprof.config import load_config
from ppprof.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs" / "gpt"
FITS = {
    "pretrain_gpt_base": (1, 2, 8),
    "pretrain_gpt_tiny_cpu": (1,),
    "pretrain_gpt_tiny_cpu_dp2": (2,),
    "pretrain_gpt_tiny_cpu_dp2_mp2_pp2": (8,),
    "pretrain_gpt_345M_single_card": (1,),
    "pretrain_gpt_1.3B_dp8": (8,),
    "pretrain_gpt_6.7B_sharding16": (16, 32),
    "pretrain_gpt_175B_mp8_pp16": (128, 256),
}
MISFITS = {
    "pretrain_gpt_tiny_cpu": (2,),
    "pretrain_gpt_tiny_cpu_dp2": (1, 4),
    "pretrain_gpt_tiny_cpu_dp2_mp2_pp2": (2, 4, 16),
    "pretrain_gpt_345M_single_card": (2, 8),
    "pretrain_gpt_1.3B_dp8": (1, 16),
    "pretrain_gpt_6.7B_sharding16": (1, 8, 24),
    "pretrain_gpt_175B_mp8_pp16": (1, 64, 192),
}


def pairs(sizes):
    return [(name, size) for name, each in sizes.items() for size in each]


def test_each_is_in_the_table():
    assert {path.stem for path in CONFIGS.iterdir()} == set(FITS)


@pytest.mark.parametrize(("name", "world_size"), pairs(FITS))
def test_fits(name, world_size):
    config = load_config(CONFIGS / f"{name}.yaml", world_size=world_size)
    assert config.warnings == ()
    assert config.topology.world_size == world_size
    assert config.Profiler.enable is False
    assert (config.Profiler.scheduler, config.Profiler.profiler_log) == ((1, 5), "profiler_log")


@pytest.mark.parametrize(("name", "world_size"), pairs(MISFITS))
def test_does_not_fit(name, world_size):
    with pytest.raises(ConfigError, match=f"but {world_size} processes were launched"):
        load_config(CONFIGS / f"{name}.yaml", world_size=world_size)


@pytest.mark.parametrize(
    ("name", "world_size", "parameters"),
    [
        ("pretrain_gpt_345M_single_card", 1, 345e6),
        ("pretrain_gpt_1.3B_dp8", 8, 1.3e9),
        ("pretrain_gpt_6.7B_sharding16", 16, 6.7e9),
        ("pretrain_gpt_175B_mp8_pp16", 128, 175e9),
    ],
)
def test_is_as_large_as_its_name_says(name, world_size, parameters):
    model = load_config(CONFIGS / f"{name}.yaml", world_size=world_size).Model
    width, inner = model.hidden_size, model.ffn_hidden_size or 4 * model.hidden_size
    embeddings = (model.vocab_size + model.max_position_embeddings) * width
    blocks = model.num_layers * (4 * width**2 + 2 * width * inner)
    assert embeddings + blocks == pytest.approx(parameters, rel=0.05)


def test_the_tiny_ones_are_seconds_of_work():
    config = load_config(CONFIGS / "pretrain_gpt_tiny_cpu_dp2.yaml", world_size=2)
    assert config.Global.device == "cpu"
    assert config.Engine.max_steps > config.Profiler.scheduler[1]
    assert config.Model.max_position_embeddings >= config.Data.Train.dataset.max_seq_len
    assert not config.Engine.mix_precision.enable
