"""A training on rank 0 whose upper half rank 1 trains in calls by rpc, under the launcher, by a stand-in agent."""

import os
import time

import paddle
from paddle.distributed import rpc

from tests.fixtures import rpc_agent

paddle.set_device("cpu")
NUM_STEPS = 20
BUSY_S = 0.05


class Upper:
    def __init__(self):
        self.layer = paddle.nn.Linear(16, 1)
        self.optimizer = paddle.optimizer.SGD(0.01, self.layer.parameters())

    def train(self, values):
        hidden = paddle.to_tensor(values, stop_gradient=False)
        until = time.perf_counter() + BUSY_S
        while time.perf_counter() < until:
            sum(range(1000))
        self.layer(hidden).mean().backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        return hidden.grad.numpy()


def train_upper(values):
    return upper.train(values)


def train():
    lower = paddle.nn.Linear(8, 16)
    optimizer = paddle.optimizer.SGD(0.01, lower.parameters())
    for _ in range(NUM_STEPS):
        hidden = lower(paddle.randn([4, 8]))
        gradient = rpc.rpc_sync("upper", train_upper, args=(hidden.numpy(),))
        hidden.backward(paddle.to_tensor(gradient))
        optimizer.step()
        optimizer.clear_grad()


if __name__ == "__main__":
    rpc_agent.install()
    rank = int(os.environ["PADDLE_TRAINER_ID"])
    upper = Upper() if rank else None
    rpc.init_rpc("upper" if rank else "lower", rank, 2, os.environ["PADDLE_MASTER"])
    if not rank:
        train()
    rpc.shutdown()
