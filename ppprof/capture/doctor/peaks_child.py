"""Measure how fast the device computes matrix products, and reads and writes its memory.

    python ppprof/capture/doctor/peaks_child.py

Prints ``{"device": "gpu:0", "flops": {"bfloat16": ..., "float32": ...}, "bytes_per_s": ...}`` or
``{"error": ...}``.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

_SECONDS, _LEAST_RUNS, _LEAST_RUN_SECONDS = 2.0, 5, 0.02
_SIZES = (1024, 2048, 4096, 8192, 16384)
_COPIED_BYTES = 1 << 28


def _seconds_of(work: Callable[[], Any], synchronize: Callable[[], None]) -> float:
    """Return the median time of a run, over two seconds and at least five runs."""
    work()
    synchronize()
    times: list[float] = []
    end = time.monotonic() + _SECONDS
    while len(times) < _LEAST_RUNS or time.monotonic() < end:
        start = time.perf_counter()
        work()
        synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _flops(dtype: str, synchronize: Callable[[], None]) -> float:
    """Return the FLOP/s of a matrix product that is large enough for the device."""
    import paddle

    for size in _SIZES:
        x = paddle.ones([size, size]).astype(dtype)
        paddle.matmul(x, x)
        synchronize()
        start = time.perf_counter()
        paddle.matmul(x, x)
        synchronize()
        if time.perf_counter() - start >= _LEAST_RUN_SECONDS:
            break
    return 2 * size**3 / _seconds_of(lambda: paddle.matmul(x, x), synchronize)


def _bytes_per_s(synchronize: Callable[[], None]) -> float:
    """Return the bytes that are read and written a second while a tensor is scaled in place."""
    import paddle

    x = paddle.ones([_COPIED_BYTES // 4], "float32")
    return 2 * _COPIED_BYTES / _seconds_of(lambda: x.scale_(1.0), synchronize)


def measure() -> dict[str, Any]:
    """Return the device, FLOP/s by dtype, and bytes per second."""
    import paddle

    device = str(paddle.device.get_device())
    on_cpu = device.startswith("cpu")

    def synchronize() -> None:
        if not on_cpu:
            paddle.device.synchronize()

    flops = {}
    for dtype in ("float32",) if on_cpu else ("bfloat16", "float16", "float32"):
        try:
            flops[dtype] = _flops(dtype, synchronize)
        except (RuntimeError, ValueError, TypeError):  # the device lacks the dtype
            continue
    return {"device": device, "flops": flops, "bytes_per_s": _bytes_per_s(synchronize)}


if __name__ == "__main__":
    try:
        answer = measure()
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"[:500]}
    json.dump(answer, sys.stdout)
