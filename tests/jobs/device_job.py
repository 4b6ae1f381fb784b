"""A training on the test device: each step multiplies matrices, and reads no result.

    python -m tests.jobs.device_job FOLDER [KEY=VALUE...]

``FOLDER`` is the run directory, KEYs are those of the ``Profiler`` block, and ``steps``, ``matmuls``,
``fails`` (the step before which the training raises an exception), ``refuses`` (the step before which the
device's profiler begins to refuse), ``reads`` (whether each step
reads its result), ``returns`` (whether the current device is the CPU between two steps), ``aside`` (the step before which a stream of its own gets a product that no step needs) and
``patience`` (for how many seconds the device may be asked where a window ends). Prints ``step N`` after each step and the true time of a step at the end.
"""

from __future__ import annotations

import os
import sys
import time

import paddle
import yaml

import ppprof
from ppprof.capture.recording import recorder
from tests import device


def main(folder: str, *settings: str) -> None:
    """Train with the settings."""
    values = {key: yaml.safe_load(value) for key, _, value in (s.partition("=") for s in settings)}
    steps, matmuls = values.pop("steps", 8), values.pop("matmuls", 3)
    fails, reads = values.pop("fails", None), values.pop("reads", False)
    refuses, returns = values.pop("refuses", None), values.pop("returns", False)
    aside, patience = values.pop("aside", None), values.pop("patience", None)
    if patience is not None:
        recorder.LEAST_PATIENCE_SECONDS = recorder.LAST_PATIENCE_SECONDS = patience
    paddle.set_device(device.NAME)
    stream = paddle.device.Stream()
    matrix = paddle.ones([64, 64])
    block = {"enable": True, "scheduler": [2, 5], "profiler_log": folder, **values}
    with ppprof.attach(block) as session:
        start = time.perf_counter()
        for step in range(steps):
            if step == fails:
                raise ValueError("the training fails")
            if step == refuses:
                os.environ["PPPROF_TEST_DEVICE_REFUSES"] = "1"
            if step == aside:
                with paddle.device.stream_guard(stream):
                    paddle.matmul(matrix, matrix)
            product = matrix
            for _ in range(matmuls):
                product = paddle.matmul(matrix, matrix)
            if reads:
                product.numpy()
            if returns:
                paddle.set_device("cpu")
            session.step(num_samples=1)
            paddle.set_device(device.NAME)
            print(f"step {step}", flush=True)
        paddle.device.current_stream().synchronize()
        print(f"true step {(time.perf_counter() - start) / max(1, steps)} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
