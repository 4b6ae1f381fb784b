"""What the tests of `ppprof.remote` call on other processes; importable there."""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor

import paddle

from ppprof import remote


def pool(workers: int = 1) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def double(values: list[float]) -> list[float]:
    found = paddle.nn.functional.relu(paddle.to_tensor(values)) * 2
    return [float(value) for value in found.numpy()]


def fail(message: str) -> None:
    paddle.tanh(paddle.ones([3]))
    raise KeyError(message)


def double_elsewhere(values: list[float]) -> list[float]:
    with pool() as workers:
        inner = remote.submit(workers, double, values).result()
    return [float(value) for value in paddle.exp(paddle.to_tensor(inner)).numpy()]


def process_id() -> int:
    return os.getpid()


def clocks() -> tuple[int, int]:
    """The clock that all processes share, and this one's wall clock."""
    return time.monotonic_ns(), time.time_ns()
