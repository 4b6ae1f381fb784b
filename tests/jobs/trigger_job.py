"""Ranks that step until a file says to stop, with a slow step planted; started by launch.

``trigger_job.py LOG BLOCK [SLOW_STEP SLOW_RANK [EVERY [MILLISECONDS]]]``: ``BLOCK`` is the ``Profiler`` block as JSON;
step ``SLOW_STEP``, and each so many steps after it, takes 600 ms or so many longer on ``SLOW_RANK``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import paddle
import paddle.distributed as dist

import ppprof
from tests.jobs import toy

MOST_STEPS = 4000
STEP_SECONDS = 0.03


def main(
    log: str, block: dict[str, Any], slow_step: int, slow_rank: int, every: int, slow_ms: int
) -> None:
    """Trains until ``stop`` appears in the working directory, checked by rank 0 for all."""
    dist.init_parallel_env()
    rank = dist.get_rank()
    step = toy.training()
    with ppprof.attach({"enable": True, "profiler_log": log, **block}) as prof:
        for number in range(MOST_STEPS):
            step()
            time.sleep(STEP_SECONDS)
            late = number - slow_step
            if rank == slow_rank and late >= 0 and not late % every:
                time.sleep(slow_ms / 1e3)
            go_on = paddle.to_tensor([float(rank == 0 and Path("stop").exists())])
            dist.all_reduce(go_on)
            prof.step(loss=float(number))
            if number == 10 and rank == 0:
                Path("ready").touch()
            if go_on.item():
                break


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[3:]]
    given += [-1, -1, MOST_STEPS, 600][len(given) :]
    main(sys.argv[1], json.loads(sys.argv[2]), *given)
