"""A job of three ranks that hangs in step 6, in the way that its argument names."""

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import paddle
import paddle.distributed as dist
from paddle.io import DataLoader, Dataset

import ppprof

HANGS_IN = 6


def hang(kind: str, rank: int) -> None:
    """What only the culprit, rank 1, does."""
    if rank != 1:
        return
    if kind in ("sleeps", "ends"):
        time.sleep(1000)
    if kind == "waits for a file":
        while not Path("never written").exists():
            time.sleep(0.1)
    if kind == "holds the lock":
        ctypes.PyDLL(None).sleep(1000)
    if kind == "a thread holds the lock":
        threading.Thread(target=ctypes.PyDLL(None).sleep, args=[1000]).start()
        time.sleep(1000)
    if kind == "crashes":
        ctypes.string_at(0)
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)


class Samples(Dataset):  # type: ignore[misc]
    """One sample for each step; on rank 1, that of the step that hangs takes long."""

    def __init__(self, blocks: bool) -> None:
        self.blocks = blocks

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> float:
        if self.blocks and index == HANGS_IN:
            time.sleep(100)
        return 1.0


def end_with_parent(worker: int) -> None:
    """Let a worker of a loader end when its rank is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def exchange(kind: str, hangs: bool, tensor: paddle.Tensor, pair: object) -> None:
    """Transfers between ranks 0 and 1, in every step."""
    if dist.get_rank() == 0:
        for _ in range(4 if hangs and kind == "uneven" else 3):
            dist.send(tensor, 1, pair)
    else:
        if hangs and kind == "crossed sends":
            dist.send(tensor, 0, pair)
        for _ in range(2 if hangs and kind == "no recv" else 3):
            dist.recv(tensor, 0, pair)


def reduce_both(kind: str) -> None:
    """Two collectives, which rank 1 calls in the other order."""
    first, second = paddle.ones([1024]), paddle.full([1024], 2.0)
    calls = [lambda: dist.all_reduce(first), lambda: dist.broadcast(second, 0)]
    if kind == "mixed up":
        calls[1] = lambda: dist.all_reduce(second)
    for call in calls[:: -1 if dist.get_rank() == 1 else 1]:
        call()
    if float(first[0]) > 4:  # rank 1 adds up 2 + 1 + 2, the others 1 + 2 + 1
        dist.all_reduce(first)


def reduce_checked(kind: str, hangs: bool, tensor: paddle.Tensor) -> None:
    """Reduce, unless a check fails, whose exception rank 1 swallows."""
    with suppress(ValueError):
        if hangs and kind == "swallowed" and dist.get_rank() == 1:
            raise ValueError("a bad batch")
        dist.all_reduce(tensor)


class TwoHeads(paddle.nn.Layer):  # type: ignore[misc]
    """A model of which a step may use one head only."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = paddle.nn.LayerList([paddle.nn.Linear(4, 4) for _ in range(2)])

    def forward(self, inputs: paddle.Tensor, num_used: int) -> paddle.Tensor:
        return sum(head(inputs) for head in list(self.heads)[:num_used])


def train_in_parallel(kind: str, hangs: bool, model: paddle.DataParallel) -> None:
    """A step of ``paddle.DataParallel``, which rank 1 does in another way, or not at all."""
    hangs &= dist.get_rank() == 1
    loss = model(
        paddle.ones([2, 4]), 1 if hangs and kind == "a head without gradient" else 2
    ).mean()
    if hangs and kind == "late backward":
        time.sleep(1000)
    if hangs and kind == "barrier for backward":
        dist.barrier()
    loss.backward()
    if hangs:
        time.sleep(1000)


def train(kind: str) -> None:
    dist.init_parallel_env()
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    tensor = paddle.ones([1024])
    block = {"enable": True, "scheduler": [2, 4], "profiler_log": "log", "hang_after": 2}
    if kind == "ends":
        block["hang_exit_code"] = 75
    samples = Samples(blocks=kind.startswith("loader blocks") and rank == 1)
    workers = int(kind == "loader blocks in its worker")
    is_parallel = "backward" in kind or "gradient" in kind
    model = paddle.DataParallel(TwoHeads()) if is_parallel else None
    loader = DataLoader(samples, num_workers=workers, worker_init_fn=end_with_parent)
    with ppprof.attach(block) as prof:
        for step, _ in enumerate(loader):
            hangs = step == HANGS_IN
            if hangs:
                hang(kind, rank)
            if model is not None:
                train_in_parallel(kind, hangs, model)
            if hangs and kind == "other order" and rank < 2:
                for group in pairs[:: 1 - 2 * rank]:
                    dist.all_reduce(tensor, group=group)
            if hangs and kind in ("other order in a group", "mixed up"):
                reduce_both(kind)
            if kind in ("uneven", "crossed sends", "no recv") and rank < 2:
                exchange(kind, hangs, tensor, pairs[0])
            if not (hangs and kind == "skipped" and rank == 1):
                reduce_checked(kind, hangs, tensor)
            if hangs and kind == "other root":
                dist.broadcast(tensor, 2 if rank == 1 else 0)
            if hangs and kind == "other operation":
                if rank:
                    dist.all_reduce(tensor)
                else:
                    dist.broadcast(tensor, 1)
            if hangs and kind == "other size":
                dist.all_reduce(paddle.ones([8 if rank == 1 else 16]))
            if hangs and kind == "other dtype":
                dist.all_reduce(paddle.ones([16], "float64" if rank == 1 else "float32"))
            if hangs and kind in ("other size", "other dtype") and rank == 1:
                time.sleep(1000)  # gloo may let operations of two sizes pass
            if hangs and kind == "no send" and rank == 0:
                dist.recv(tensor, 1)
            if step % 2:
                dist.barrier()
            else:
                dist.all_reduce(tensor * 2)
            prof.step()


if __name__ == "__main__":
    train(sys.argv[1])
