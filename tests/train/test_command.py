"""What is said of a config before Paddle is imported."""

from __future__ import annotations

from ppprof.config import load_config
from ppprof.train.command import notes, preflight
from tests.jobs.launching import CONFIG

SHARDING = "Distributed.sharding"


def test_sep_is_not_for_this_harness() -> None:
    config = load_config(CONFIG, ["Distributed.sep_degree=2"], world_size=2)
    (problem,) = preflight(config)
    assert problem.message.endswith("2: this harness trains without sep; expected 1")


def test_what_a_cpu_has_no_use_for_is_said() -> None:
    idle = ("sharding_offload", "reduce_overlap", "broadcast_overlap")
    overrides = [f"{SHARDING}.sharding_degree=2", *(f"{SHARDING}.{name}=True" for name in idle)]
    told = [note.partition(": ")[2] for note in notes(load_config(CONFIG, overrides, world_size=2))]
    not_offloaded = (
        f"{SHARDING}.sharding_offload: has no effect: the harness keeps optimizer state where it "
        "trains"
    )
    on_a_cpu = [f"{SHARDING}.{name}: has no effect on a CPU" for name in idle[1:]]
    assert told == [not_offloaded, *on_a_cpu]
    on_gpu = load_config(CONFIG, [*overrides, "Global.device=gpu"], world_size=2)
    assert [note.partition(": ")[2] for note in notes(on_gpu)] == [not_offloaded]
