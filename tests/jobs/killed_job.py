"""Pairs of ranks that communicate without end, each killed at a random moment: ``killed_job.py NUMBER``.

Paddle is imported once; each pair is forked and has a run directory of its own, the pair's number. Beside
it, ``NUMBER.RANK`` has a byte for each operation that the rank has begun.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import time
from pathlib import Path

import paddle
import paddle.distributed as dist

import ppprof


def train(number: int, rank: int, port: int) -> None:
    """Reduce without end."""
    addresses = [f"127.0.0.1:{port + 1 + each}" for each in range(2)]
    os.environ.update(
        PADDLE_TRAINER_ID=str(rank),
        PADDLE_TRAINERS_NUM="2",
        PADDLE_CURRENT_ENDPOINT=addresses[rank],
        PADDLE_TRAINER_ENDPOINTS=",".join(addresses),
        PADDLE_DISTRI_BACKEND="gloo",
        PADDLE_MASTER=f"127.0.0.1:{port}",
    )
    dist.init_parallel_env()
    tensor = paddle.ones([64])
    block = {"enable": True, "scheduler": [10**6, 10**6 + 1], "profiler_log": str(number)}
    with ppprof.attach(block) as prof, Path(f"{number}.{rank}").open("wb", buffering=0) as begun:
        while True:
            begun.write(b".")
            dist.all_reduce(tensor)
            prof.step()


def free_port() -> int:
    """A port with two more after it that are likely to be free, too."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
    return port


def kill_one(number: int) -> None:
    """Start a pair, and kill both at a random moment of their training."""
    chance, port = random.Random(number), free_port()
    pids = []
    for rank in range(2):
        pid = os.fork()
        if not pid:
            train(number, rank, port)
        pids.append(pid)
    begun = [Path(f"{number}.{rank}") for rank in range(2)]
    while not all(path.exists() and path.stat().st_size for path in begun):
        assert all(os.waitpid(pid, os.WNOHANG) == (0, 0) for pid in pids), number
        time.sleep(0.01)
    time.sleep(chance.uniform(0, 0.3))
    for pid in chance.sample(pids, 2):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        kill_one(number)
