"""Processor time of the training's thread for `attach`, and for each ``step()`` that opens a window.

    python -m benchmarks.window_start [--device cpu] [--windows 8]

Processor time, since a machine that works on other things makes a stall longer. On a device, the windows
are far enough from the start that its probe has ended.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

import paddle

import ppprof

_CLOSED = 40
_RECORD = 2


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--windows", type=int, default=8)
    args = parser.parse_args()
    paddle.set_device(args.device)
    net = paddle.nn.Sequential(*(paddle.nn.Linear(64, 64) for _ in range(4)))
    batch = paddle.ones([8, 64])
    with tempfile.TemporaryDirectory() as folder:
        schedule = {"closed": _CLOSED - 1, "ready": 1, "record": _RECORD, "repeat": args.windows}
        block = {
            "enable": True,
            "brief": True,
            "profiler_log": f"{folder}/log",
            "scheduler": schedule,
        }
        begin = time.thread_time()
        with ppprof.attach(block) as prof:
            attached = time.thread_time() - begin
            opened = []
            for step in range(args.windows * (_CLOSED + _RECORD)):
                net(batch).mean().numpy()
                if not args.device.startswith("cpu"):
                    time.sleep(0.2)
                begin = time.thread_time()
                prof.step()
                if (step + 1) % (_CLOSED + _RECORD) == _CLOSED:
                    opened.append(time.thread_time() - begin)
    print(f"attach: {attached * 1e3:.1f} ms")
    print(f"opening the first window: {opened[0] * 1e3:.1f} ms")
    print(f"opening a later window, median: {statistics.median(opened[1:]) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
