"""A job of three ranks that hangs in step 6, in the way that its argument names."""

import os
import signal
import sys
import threading
import time

import paddle
import paddle.distributed as dist

import ppprof

HANGS_IN = 6


def hang(kind: str, rank: int) -> None:
    """What only the culprit, rank 1, does."""
    if rank != 1:
        return
    if kind == "sleeps":
        time.sleep(1000)
    if kind == "loader blocks":
        threading.Event().wait()
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)


def train(kind: str) -> None:
    dist.init_parallel_env()
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    tensor = paddle.ones([1024])
    block = {"enable": True, "scheduler": [2, 4], "profiler_log": "log", "hang_after": 2}
    with ppprof.attach(block) as prof:
        for step in range(1000):
            hangs = step == HANGS_IN
            if hangs:
                hang(kind, rank)
            if hangs and kind == "other order" and rank < 2:
                for group in pairs[:: 1 - 2 * rank]:
                    dist.all_reduce(tensor, group=group)
            if not (hangs and kind == "skipped" and rank == 1):
                dist.all_reduce(tensor)
            if hangs and kind == "other operation":
                if rank:
                    dist.all_reduce(tensor)
                else:
                    dist.broadcast(tensor, 1)
            if hangs and kind == "other size":
                dist.all_reduce(paddle.ones([8 if rank == 1 else 16]))
            if hangs and kind == "no send" and rank == 0:
                dist.recv(tensor, 1)
            if step % 2:
                dist.barrier()
            else:
                dist.all_reduce(tensor * 2)
            prof.step()


if __name__ == "__main__":
    train(sys.argv[1])
