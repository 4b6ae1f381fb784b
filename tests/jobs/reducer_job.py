"""Train on the test device with ``paddle.DataParallel``, whose reducer launches all_reduces in C++.

    python reducer_job.py DEGREE_OF_DP DEGREE_OF_MP

Each step has one all_reduce of all gradients over dp. With mp, it has one over mp, too, which calls
``paddle.distributed``.
"""

from __future__ import annotations

import sys

import paddle
import paddle.distributed as dist
from paddle import nn

import ppprof
from ppprof.topology import Topology
from tests import device


def main(dp: int, mp: int) -> None:
    """Train 8 steps; steps 3 to 6 are recorded."""
    paddle.set_device(device.NAME)
    dist.init_parallel_env()
    topology = Topology.of(dp=dp, mp=mp)
    groups = {axis: own_group(topology, axis) for axis in ("dp", "mp")}
    paddle.seed(0)
    net = paddle.DataParallel(
        nn.Sequential(*[nn.Linear(32, 32) for _ in range(4)]), group=groups["dp"]
    )
    optimizer = paddle.optimizer.SGD(parameters=net.parameters())
    block = {"enable": True, "scheduler": [3, 7], "formats": ["pb"]}
    with ppprof.attach(block, topology=topology) as prof:
        for _ in range(8):
            if mp > 1:
                dist.all_reduce(paddle.ones([32]), group=groups["mp"])
            net(paddle.ones([16, 32])).mean().backward()
            optimizer.step()
            optimizer.clear_grad()
            prof.step()


def own_group(topology: Topology, axis: str) -> dist.collective.Group:
    """Create all groups of an axis on all ranks, and return that of this rank."""
    for ranks in topology.groups(axis):
        group = dist.new_group(list(ranks))
        if dist.get_rank() in ranks:
            own = group
    return own


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
