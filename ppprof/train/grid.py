"""The grid of a training job: Fleet initialised as the config says, and where this rank stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import get_rng_state_tracker

from ppprof.config import Config
from ppprof.topology import Topology

_OWN = "model_parallel_rng"  # the name that Fleet's layers use


@dataclass(frozen=True)
class Grid:
    """This rank among the others."""

    rank: int
    topology: Topology
    sharding_stage: int = 1
    """1 to 3: what sharding ranks divide, where there are several."""

    @property
    def coordinate(self) -> dict[str, int]:
        """Where this rank stands on every axis."""
        return self.topology.coordinate(self.rank)

    @property
    def replica(self) -> int:
        """Which of them this rank is a part of."""
        at = self.coordinate
        return at["dp"] * self.topology.degree("sharding") + at["sharding"]

    def barrier(self) -> None:
        """Waits for every rank."""
        if self.topology.world_size > 1:
            dist.barrier()

    def seed(self, seed: int, step: int) -> None:
        """Seeds dropout for a step: a resumed run drops out what an uninterrupted one would.

        mp ranks share one sequence of random numbers, for what they all compute, and have each
        another for their own part of a layer.
        """
        at = self.coordinate
        shared = [seed, step, self.replica, at["pp"]]
        if self.topology.degree("mp") > 1:
            with get_rng_state_tracker().rng_state(_OWN):
                paddle.seed(_number([*shared, at["mp"] + 1]))
        paddle.seed(_number(shared))


def make_grid(config: Config) -> Grid:
    """Starts what the config's degrees need; to be called once."""
    grid = Grid(dist.get_rank(), config.topology, config.Distributed.sharding.sharding_stage)
    if config.topology.world_size > 1:
        is_cpu = config.Global.device == "cpu"
        if is_cpu:
            from ppprof.train import fleet_on_cpu

            fleet_on_cpu.supply()
        fleet.init(is_collective=True, strategy=_strategy(config), log_level="WARNING")
        if is_cpu:
            fleet_on_cpu.open_channels(_fleet().get_pipe_parallel_group())
    return grid


def _fleet() -> Any:
    return fleet.get_hybrid_communicate_group()


def _strategy(config: Config) -> fleet.DistributedStrategy:
    distributed = config.Distributed
    strategy = fleet.DistributedStrategy()
    on_cpu = {}
    if config.Global.device == "cpu":
        # Options of Fleet's own: the first two are for NCCL and for GPU tensors; with the third
        # mp ranks would each send a part of a tensor that all of them have.
        on_cpu = {
            "pp_configs": {"use_batch_p2p_comm": False},
            "mp_configs": {"need_broadcast_data": False},
        }
    strategy.hybrid_configs = {
        "dp_degree": distributed.dp_degree,
        "mp_degree": distributed.mp_degree,
        "pp_degree": distributed.pp_degree,
        "sharding_degree": distributed.sharding.sharding_degree,
        "sep_degree": distributed.sep_degree,
        "order": list(distributed.order),
        **on_cpu,
    }
    strategy.pipeline_configs = {
        "accumulate_steps": config.Engine.accumulate_steps,
        "micro_batch_size": config.Global.micro_batch_size,
        # In a part for each mp rank what all of them have; under sequence parallelism they do not.
        "enable_partial_send_recv": not (on_cpu or config.Model.sequence_parallel),
    }
    return strategy


def _number(parts: list[int]) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])
