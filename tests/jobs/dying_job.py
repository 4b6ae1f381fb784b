"""Ranks that step in a window until something happens to one of them; started by launch."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import paddle.distributed as dist
from paddle.io import DataLoader, Dataset

import ppprof
from tests.jobs import toy
from tests.jobs.fault_job import Raw

HAPPENS_AFTER = 5
"""Steps, of which the window misses the first."""


class Numbers(Dataset):
    """Enough for any of these jobs."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> np.ndarray:
        return np.float32([index])


def happen(what: str) -> None:
    """On rank 1."""
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "term":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    if what == "raise":
        raise RuntimeError("boom\non rank 1")
    if what == "exit":
        sys.exit(7)
    if what == "hang":
        time.sleep(60)


def main(what: str, log: str, profiler: str) -> None:
    """Steps for ever, or until ``what`` happens on rank 1.

    ``profiler`` is on, off, or raw for Paddle's own.
    """
    dist.init_parallel_env()
    rank = dist.get_rank()
    step = toy.training()
    # Paddle's workers outlive a rank that is killed, with ppprof or without.
    loader = iter(DataLoader(Numbers(), num_workers=what not in ("kill", "term")))
    block = {"enable": profiler == "on", "scheduler": [1, 100_000], "profiler_log": log}
    raw = Raw((1, 100_000)) if profiler == "raw" else None
    with ppprof.attach(block) as session:
        prof = raw or session
        for number in range(100_000):
            if number == HAPPENS_AFTER:
                Path(f"{rank}.ready").touch()
                if rank == 1:
                    happen(what)
            numbers = next(loader)[0]
            step()
            dist.all_reduce(numbers)
            prof.step()
            time.sleep(0.01)


if __name__ == "__main__":
    main(*sys.argv[1:])
