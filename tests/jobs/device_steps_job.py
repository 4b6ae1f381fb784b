"""Train on the test device: five matmuls a step, whose results are read (``read``) or not (``async``).

    python device_steps_job.py {read,async} PROFILER_BLOCK_AS_JSON

The last line of stdout is the true time of a step in ms: of steps with a synchronization after the
last one.
"""

from __future__ import annotations

import json
import sys
import time

import paddle

import ppprof
from tests import device

STEPS = 30


def main(mode: str, block: str) -> None:
    """Train, then measure the true time of a step."""
    paddle.set_device(device.NAME)
    matrix = paddle.ones([32, 32])

    def step() -> None:
        for _ in range(5):
            result = matrix @ matrix
        if mode == "read":
            result.numpy()

    step()
    paddle.device.synchronize()
    with ppprof.attach({"enable": True, **json.loads(block)}) as prof:
        for _ in range(STEPS):
            step()
            prof.step(num_samples=4)
    paddle.device.synchronize()
    start = time.perf_counter()
    for _ in range(10):
        step()
    paddle.device.synchronize()
    print((time.perf_counter() - start) / 10 * 1e3)


if __name__ == "__main__":
    main(*sys.argv[1:])
