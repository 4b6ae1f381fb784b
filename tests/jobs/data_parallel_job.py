"""Train with ``paddle.DataParallel`` on several ranks; rank 1 sleeps in each step.

python data_parallel_job.py DEVICE SECONDS
"""

import os
import sys
import time

import paddle
import paddle.distributed as dist
from paddle import nn

import ppprof


def train(device: str, sleep_s: float) -> None:
    paddle.set_device(device)
    dist.init_parallel_env()
    paddle.seed(0)
    net = paddle.DataParallel(nn.Sequential(*[nn.Linear(128, 128) for _ in range(6)]))
    optimizer = paddle.optimizer.SGD(parameters=net.parameters())
    block = {"enable": True, "scheduler": [3, 23], "profiler_log": "log"}
    with ppprof.attach(block) as prof:
        for _ in range(25):
            if dist.get_rank() == 1:
                time.sleep(sleep_s)
            net(paddle.ones([16, 128])).mean().backward()
            optimizer.step()
            optimizer.clear_grad()
            prof.step()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    train(sys.argv[1], float(sys.argv[2]))
