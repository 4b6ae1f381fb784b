"""Two ranks that call collectives in every way, with a window over one step; started by launch."""

from __future__ import annotations

import contextlib
import sys
import threading

import paddle
import paddle.distributed as dist
from paddle.distributed import all_reduce  # bound by value
from paddle.distributed.fleet.utils.hybrid_parallel_util import fused_allreduce_gradients

import ppprof
from ppprof.capture import postprocess
from tests.capture.fake_helper import NO_TRACES

put_away = {"isend": dist.isend}  # where no wrapper reaches it


def communicate(rank: int, net: paddle.nn.Layer) -> None:
    """Every kind of call, in an order that gloo survives."""
    ones, other = paddle.ones([4, 256]), 1 - rank
    dist.all_reduce(ones)
    all_reduce(ones)
    dist.stream.all_reduce(ones, sync_op=True)
    thread = threading.Thread(target=dist.all_reduce, args=(paddle.ones([2]),))
    thread.start()
    thread.join()
    gathered: list[paddle.Tensor] = []
    dist.all_gather(gathered, ones)
    dist.all_gather_object([], {"rank": rank})
    dist.broadcast(ones, src=0)
    dist.reduce(ones, dst=0)
    dist.scatter(paddle.zeros([2]), [paddle.ones([2])] * 2 if rank == 0 else None, src=0)
    dist.barrier()
    if rank == 0:
        dist.send(ones, dst=other)
        put_away["isend"](ones, other).wait()
        dist.isend(ones, other).wait()
    else:
        dist.recv(ones, src=other)
        dist.irecv(ones, other).wait()
        dist.irecv(ones, other).wait()
    dist.P2POp(put_away["isend"], ones, other)
    way = dist.isend if rank == 0 else dist.irecv  # gloo hangs if both ranks send first
    for task in dist.batch_isend_irecv([dist.P2POp(way, ones, other)]):
        task.wait()
    net(paddle.ones([1, 8])).sum().backward()
    fused_allreduce_gradients(list(net.parameters()), None)
    with contextlib.suppress(AttributeError, TypeError, ValueError):
        dist.all_reduce("not a tensor")
        raise AssertionError("a bad argument was accepted")


def main(log: str) -> None:
    """Three steps, the second recorded; then once more on rank 1 alone."""
    postprocess._COMMAND = NO_TRACES
    dist.init_parallel_env()
    rank = dist.get_rank()
    net = paddle.nn.Linear(8, 8)
    block = {"enable": True, "scheduler": [1, 2], "profiler_log": log}
    with ppprof.attach(block) as prof:
        for _ in range(3):
            communicate(rank, net)
            prof.step()
    if rank == 1:
        with ppprof.attach({**block, "timer_only": True}) as prof:
            prof.step()
    dist.barrier()


if __name__ == "__main__":
    main(sys.argv[1])
