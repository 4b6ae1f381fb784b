"""The trainings of the self-test; one function a training.

    python -m ppprof.selftest.trainings TRAINING DEVICE [KEY=VALUE...]

KEYs are those of the ``Profiler`` block; the run directory is ``log``. The last line of stdout is a
JSON object with what the training measured itself, without ppprof.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import paddle
import paddle.distributed as dist
import yaml
from paddle import nn

import ppprof
from ppprof.selftest import FLOATS, LAST_STEP


def on_gpu() -> bool:
    """Return whether Paddle computes on a GPU, which needs larger matrices to be busy."""
    return str(paddle.device.get_device()).startswith("gpu")


def net(size: int) -> nn.Layer:
    """Return a stack of linear layers."""
    paddle.seed(0)
    return nn.Sequential(*[nn.Linear(size, size) for _ in range(2)])


def train(session: Any, step: Callable[[], Any], steps: int = 8) -> None:
    """Run the steps."""
    for number in range(steps):
        step()
        session.step(num_samples=1)
        print(f"step {number}", flush=True)


def seconds(work: Callable[[], Any]) -> float:
    """Return the shortest time of work on the device, by the host's clock."""
    measured = []
    for _ in range(3):
        paddle.device.synchronize()
        start = time.perf_counter()
        work()
        paddle.device.synchronize()
        measured.append(time.perf_counter() - start)
    return min(measured)


def kernels(session: Any, steps: int = 8) -> dict[str, Any]:
    """Forward, backward and optimizer of a small net; the loss is read."""
    model = net(64)
    optimizer = paddle.optimizer.AdamW(parameters=model.parameters())

    def step() -> None:
        loss = model(paddle.ones([8, 64])).mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        loss.item()

    train(session, step, steps)
    return {}


def long(session: Any) -> dict[str, Any]:
    """The same for 60 steps."""
    return kernels(session, 60)


def static(session: Any) -> dict[str, Any]:
    """A compiled forward pass."""
    model = paddle.jit.to_static(net(64), full_graph=True)
    data = paddle.ones([8, 64])
    with paddle.no_grad():
        train(session, lambda: model(data).numpy())
    return {}


def mixed_precision(session: Any) -> dict[str, Any]:
    """Matmuls in bfloat16; on devices of plugins, Paddle casts to float16 only."""
    matrix = paddle.ones([256, 256])
    dtype = "bfloat16" if on_gpu() else "float16"

    def step() -> None:
        with paddle.amp.auto_cast(dtype=dtype):
            product = paddle.matmul(matrix, matrix)
        assert product.dtype == getattr(paddle, dtype)

    train(session, step)
    return {}


def flash_attention(session: Any) -> dict[str, Any]:
    """Flash attention with its gradient."""
    query = paddle.randn([2, 128, 4, 64]).astype("bfloat16" if on_gpu() else "float32")
    query.stop_gradient = False

    def attend() -> paddle.Tensor:
        if on_gpu():
            return nn.functional.flash_attention.flash_attention(query, query, query, causal=True)[
                0
            ]
        # In Paddle's build for CPUs, the function above fails on the devices of plugins.
        return paddle._C_ops.flash_attn(
            query, query, query, None, None, 0.0, True, False, False, ""
        )[0]

    def step() -> None:
        attend().sum().backward()
        query.clear_gradient()

    train(session, step)
    return {}


def graph(session: Any) -> dict[str, Any]:
    """Three matmuls a step, in one replay of a CUDA graph."""
    from paddle.device.cuda.graphs import CUDAGraph

    matrix = paddle.ones([256, 256])

    def work() -> None:
        for _ in range(3):
            paddle.matmul(matrix, matrix)

    work()
    paddle.device.synchronize()
    recorded = CUDAGraph()
    recorded.capture_begin()
    work()
    recorded.capture_end()
    train(session, recorded.replay)
    paddle.device.synchronize()
    recorded.reset()
    return {}


def captures(session: Any) -> dict[str, Any]:
    """Each step is captured and replayed; ``step()`` is called within the capture from step 4 on."""
    from paddle.device.cuda.graphs import CUDAGraph

    matrix = paddle.ones([256, 256])
    product = paddle.matmul(matrix, matrix)
    kept = []  # a graph that is freed while another one is captured breaks the capture
    for number in range(8):
        recorded = CUDAGraph()
        kept += [recorded, product]
        recorded.capture_begin()
        for _ in range(3):
            product = paddle.matmul(matrix, matrix)
        if number >= 4:
            session.step(num_samples=1)
        recorded.capture_end()
        recorded.replay()
        assert float(product[0, 0]) == 256
        if number < 4:
            session.step(num_samples=1)
        print(f"step {number}", flush=True)
    return {}


def memory(session: Any) -> dict[str, Any]:
    """Step N holds N + 1 tensors of 4 MiB at once; step 3 and later hold as many as step 3."""
    peaks: list[int] = []

    def step() -> None:
        held = [paddle.zeros([1 << 20]) for _ in range(min(len(peaks), 3) + 1)]
        paddle.device.synchronize()
        peaks.append(int(paddle.device.max_memory_allocated()))
        del held

    train(session, step)
    return {"peaks": peaks}


def asynchronous(session: Any) -> dict[str, Any]:
    """Five matmuls a step, whose results are not read: the host runs ahead of the device."""
    matrix = paddle.ones([8192, 8192] if on_gpu() else [32, 32])

    def step() -> None:
        for _ in range(5):
            paddle.matmul(matrix, matrix)

    step()
    train(session, step, 12)
    while not paddle.device.current_stream().query():
        time.sleep(0.001)
    # synchronize() holds Python's lock, and so ppprof would find the end of the last step late.
    time.sleep(0.5)
    return {"step": seconds(step)}


def copies(session: Any) -> dict[str, Any]:
    """Two matmuls, then a copy to the device from memory that is not pinned."""
    matrix = paddle.ones([4096, 4096] if on_gpu() else [32, 32])
    data = paddle.ones([1 << 18]).cpu()
    device = paddle.device.get_device()

    def step() -> None:
        for _ in range(2):
            paddle.matmul(matrix, matrix)
        data.to(device, blocking=False)

    train(session, step)
    paddle.device.synchronize()
    return {}


def communicate(session: Any) -> dict[str, Any]:
    """Collectives, transfers alone and in groups, and the reducer of DataParallel, on two ranks."""
    rank, ones = dist.get_rank(), paddle.ones([FLOATS])
    other = 1 - rank
    model = paddle.DataParallel(net(64))

    def step() -> None:
        dist.all_reduce(ones)
        dist.broadcast(ones, src=0)
        dist.all_gather([], ones)
        dist.reduce_scatter(paddle.zeros([FLOATS // 2]), [ones[: FLOATS // 2]] * 2)
        if rank == 0:
            dist.send(ones, dst=other)
        else:
            dist.recv(ones, src=other)
        ways = [dist.P2POp(dist.isend, ones, other), dist.P2POp(dist.irecv, ones.clone(), other)]
        for task in dist.batch_isend_irecv(ways):
            task.wait()
        model(paddle.ones([8, 64])).mean().backward()
        for parameter in model.parameters():
            parameter.clear_gradient()

    train(session, step)
    paddle.device.synchronize()
    return {}


def overlap(session: Any) -> dict[str, Any]:
    """An all-reduce beside matmuls that do not need it; measures each alone, and both."""
    data = paddle.ones([1 << 26 if on_gpu() else 1024])
    matrix = paddle.ones([4096, 4096] if on_gpu() else [32, 32])

    def compute() -> None:
        for _ in range(2):
            paddle.matmul(matrix, matrix)

    def both() -> None:
        task = dist.all_reduce(data, sync_op=False)
        compute()
        task.wait()

    def step() -> None:
        both()
        paddle.device.synchronize()

    both()
    train(session, step)
    communication = seconds(lambda: dist.all_reduce(data, sync_op=False).wait())
    return {"compute": seconds(compute), "communicate": communication, "both": seconds(both)}


def stuck(session: Any, rank_1_leaves: bool = False) -> dict[str, Any]:
    """The fifth all-reduce never ends, on a device that can be made stuck."""
    ones = paddle.ones([1024])

    def step() -> None:
        dist.all_reduce(ones)
        ones.numpy()

    train(session, step, 4)
    print(LAST_STEP, flush=True)
    if rank_1_leaves and dist.get_rank() == 1:
        time.sleep(600)
    step()
    return {}


def left_alone(session: Any) -> dict[str, Any]:
    """Rank 1 leaves the fifth all-reduce to rank 0, which waits for it without end."""
    return stuck(session, rank_1_leaves=True)


TRAININGS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    training.__name__: training
    for training in (
        *(kernels, long, static, mixed_precision, flash_attention, graph, captures, memory),
        *(asynchronous, copies, communicate, overlap, stuck, left_alone),
    )
}


def main(training: str, device: str, *settings: str) -> None:
    """Train, and print what the training measured."""
    values = {key: yaml.safe_load(value) for key, _, value in (s.partition("=") for s in settings)}
    rank = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
    paddle.set_device(f"{device}:{rank}")
    if "PADDLE_TRAINER_ID" in os.environ:
        dist.init_parallel_env()
    block = {"enable": True, "scheduler": [2, 5], "formats": ["pb"], "profiler_log": "log"}
    with ppprof.attach({**block, **values}) as session:
        measured = TRAININGS[training](session)
    print(json.dumps(measured))


if __name__ == "__main__":
    main(*sys.argv[1:])
