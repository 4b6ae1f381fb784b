"""Initialize Fleet for the config's degrees, and describe this rank's place in the topology."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import get_rng_state_tracker

from ppprof.config import Config
from ppprof.topology import Topology

_MP_RNG = "model_parallel_rng"  # the name that Fleet's layers use


@dataclass(frozen=True)
class Grid:
    """This rank and the topology of the job."""

    rank: int
    topology: Topology
    sharding_stage: int = 1
    """Sharding stage, 1 to 3; without effect if sharding_degree is 1."""

    def barrier(self) -> None:
        """Wait until every rank has called `barrier`; return at once in a job with one rank."""
        if self.topology.world_size > 1:
            dist.barrier()

    def seed(self, seed: int, step: int) -> None:
        """Seed the random numbers of a step, so that a resumed run drops the same elements.

        All ranks of an mp group get the same random numbers, for computation that they repeat.
        Inside `ppprof.train.layers.own_randomness`, each mp rank gets its own random numbers.

        Args:
            seed: seed of the run.
            step: number of the step.
        """
        coordinate = self.topology.coordinate(self.rank)
        shared = [seed, step, self.topology.replica(self.rank), coordinate["pp"]]
        if self.topology.degree("mp") > 1:
            with get_rng_state_tracker().rng_state(_MP_RNG):
                paddle.seed(_hash_seed([*shared, coordinate["mp"] + 1]))
        paddle.seed(_hash_seed(shared))


def make_grid(config: Config) -> Grid:
    """Initialize Fleet for the config's degrees and return this rank's grid. Call it once.

    In a job with one rank, Fleet is not initialized. On a CPU, also install `fleet_on_cpu`.
    """
    grid = Grid(dist.get_rank(), config.topology, config.Distributed.sharding.sharding_stage)
    if config.topology.world_size > 1:
        is_cpu = config.Global.device == "cpu"
        if is_cpu:
            from ppprof.train import fleet_on_cpu

            fleet_on_cpu.install()
            # Else Paddle's GPU wheel would communicate with NCCL, and compute on a GPU.
            os.environ["PADDLE_DISTRI_BACKEND"] = "gloo"
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
        # Switch off options of Fleet that are for NCCL and for GPU tensors.
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
        # If True, each mp rank sends a part of the tensor, since all mp ranks hold the same tensor.
        # With sequence parallelism, mp ranks hold different tensors.
        "enable_partial_send_recv": not (on_cpu or config.Model.sequence_parallel),
    }
    return strategy


def _hash_seed(parts: list[int]) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])
