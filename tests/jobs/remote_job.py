"""Trains a small net whose batches another process encodes, five steps recorded: docs/hybrid.md."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any

import paddle

import ppprof
from ppprof import remote

WORKER = "worker1"
MICRO_BATCHES = 2
WIDTH = 512


@cache
def encoder() -> Any:
    """Return the worker's layer."""
    return paddle.nn.Linear(WIDTH, WIDTH)


def encode(batch: Any) -> Any:
    """Return the output of the encoder for a batch; the worker calls it."""
    return paddle.nn.functional.relu(encoder()(paddle.to_tensor(batch))).numpy()


def main() -> None:
    """Train."""
    net = paddle.nn.Linear(WIDTH, 8)
    optimizer = paddle.optimizer.AdamW(parameters=net.parameters())
    batch = paddle.rand([64, WIDTH]).numpy()
    spawn = multiprocessing.get_context("spawn")
    block = {"enable": True, "scheduler": [3, 8], "formats": ["json.gz"]}
    with ProcessPoolExecutor(1, mp_context=spawn) as pool, ppprof.attach(block) as prof:
        for _ in range(9):
            for _ in range(MICRO_BATCHES):
                codes = pool.submit(remote.profiled(encode, to=WORKER), batch).result()
                loss = net(paddle.to_tensor(remote.result(codes))).square().mean()
                loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            prof.step(num_samples=64)


if __name__ == "__main__":
    main()
