"""Train on the test device: five matmuls a step, whose results are read (``read``) or not (``async``).

    python device_steps_job.py {read,async} PROFILER_BLOCK_AS_JSON

One step is ahead of those that are counted. The test device's log has what it did in each.
"""

from __future__ import annotations

import json
import sys

import paddle

import ppprof
from tests import device

STEPS = 30


def main(mode: str, block: str) -> None:
    """Train."""
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


if __name__ == "__main__":
    main(*sys.argv[1:])
