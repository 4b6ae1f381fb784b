"""Ranks that wait for one another at every step, with a window early on; started by launch.

Writes the time after each step to ``<rank>.times``, and ends once all windows of all ranks are
finished, or after many steps.
"""

from __future__ import annotations

import time
from pathlib import Path

import paddle
import paddle.distributed as dist

import ppprof
from tests.jobs import toy

WINDOW = (1, 21)
STEPS = 20_000


def main() -> None:
    """Trains beside the finishing of its windows."""
    dist.init_parallel_env()
    rank, log = dist.get_rank(), Path("log")
    step = toy.training(layers=2)
    block = {
        "enable": True,
        "scheduler": WINDOW,
        "profiler_log": str(log),
        "formats": ["json", "pb"],
        "print_ranks": "all",
    }
    with ppprof.attach(block) as prof, Path(f"{rank}.times").open("w") as times:
        for _ in range(STEPS):
            step()
            done = len(list(log.glob("*.paddle_trace.json"))) == dist.get_world_size()
            everywhere = paddle.to_tensor(float(done))
            dist.all_reduce(everywhere)
            prof.step()
            times.write(f"{time.time_ns()}\n")
            time.sleep(0.02)  # else a machine of few cores has nothing left for the helpers
            if everywhere.item() == dist.get_world_size():
                break


if __name__ == "__main__":
    main()
