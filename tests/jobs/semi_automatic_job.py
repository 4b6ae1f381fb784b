"""Semi-automatic parallelism: two layers split over two ranks, which Paddle itself initialises."""

import contextlib
import sys

import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.nn.functional import relu

import ppprof


def train() -> None:
    mesh = dist.ProcessMesh([[0, 1]], dim_names=["dp", "mp"])
    here = dist.Replicate()
    paddle.seed(0)
    first, last = nn.Linear(64, 64), nn.Linear(64, 8)
    first.weight = dist.shard_tensor(first.weight, mesh, [here, dist.Shard(1)])
    last.weight = dist.shard_tensor(last.weight, mesh, [here, dist.Shard(0)])
    parameters = [*first.parameters(), *last.parameters()]
    optimizer = dist.shard_optimizer(paddle.optimizer.AdamW(1e-3, parameters=parameters))
    block = {"enable": True, "scheduler": [3, 7], "profiler_log": "log"}
    attached = ppprof.attach(block) if "attach" in sys.argv else contextlib.nullcontext()
    with attached as prof:
        for _ in range(9):
            batch = dist.shard_tensor(paddle.ones([16, 64]), mesh, [here, here])
            loss = last(relu(first(batch))).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            if prof is not None:
                prof.step()


if __name__ == "__main__":
    train()
