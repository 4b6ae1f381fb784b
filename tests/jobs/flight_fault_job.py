"""Two ranks train while their flight recorders cannot write: ``flight_fault_job.py nothing|ppprof FAULT``.

Each rank writes its losses and the number of its steps to ``losses.RANK``.
"""

from __future__ import annotations

import contextlib
import resource
import shutil
import sys
from pathlib import Path

import paddle.distributed as dist

import ppprof
from tests.jobs import toy

STEPS = 12
LOG = Path("log")


def fill_the_disk() -> None:
    """To the last byte."""
    with contextlib.suppress(OSError), (LOG / "ballast").open("wb", buffering=0) as file:
        while file.write(bytes(1 << 12)):
            pass


def train(way: str, fault: str) -> None:
    dist.init_parallel_env()
    rank = dist.get_rank()
    if fault == "file limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    block = {"enable": way == "ppprof", "timer_only": True, "profiler_log": str(LOG)}
    step = toy.training()
    with ppprof.attach(block) as prof, Path(f"losses.{rank}").open("w") as losses:
        for number in range(STEPS):
            if number == STEPS // 2 and not rank and way == "ppprof":
                if fault == "full later":
                    fill_the_disk()
                if fault == "removed":
                    shutil.rmtree(LOG)
            loss = step()
            dist.all_reduce(loss)
            losses.write(f"{float(loss)!r}\n")
            prof.step()


if __name__ == "__main__":
    train(*sys.argv[1:])
