"""Two ranks whose clocks differ, in three sessions; started by launch.

``clocks_job.py DIR NAME=VALUE...``: rank 1 gets these variables, which shift its clock. Each rank
leaves in ``DIR/marks_N.jsonl`` pairs of a clock that both share and its own, and what was left over.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from pathlib import Path

RANK = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
if __name__ == "__main__" and RANK == 1 and "LD_PRELOAD" not in os.environ:
    shifted = dict(pair.split("=", 1) for pair in sys.argv[2:])
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **shifted})
if "FAKETIME" in os.environ:
    # libfaketime 0.9.10 fails clock_nanosleep on a CLOCK_MONOTONIC that it is configured to ignore.
    time.sleep = lambda seconds: select.select([], [], [], seconds) and None

import paddle  # noqa: E402
import paddle.distributed as dist  # noqa: E402

import ppprof  # noqa: E402
from ppprof.capture import postprocess  # noqa: E402
from tests.capture.fake_helper import NO_TRACES  # noqa: E402
from tests.jobs import toy  # noqa: E402

STEPS, REDUCES = 80, 5


def mark(path: Path) -> None:
    """The moment by CLOCK_MONOTONIC, which nothing shifts, and by the wall clock."""
    pairs = []
    for _ in range(100):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        pairs.append((after - before, (before + after) // 2, wall))
    _, shared, own = min(pairs)
    with path.open("a") as file:
        file.write(json.dumps([shared, own]) + "\n")


def train(log: Path, steps: int, **more: object) -> None:
    """A session of that many steps, each with work in C++, work in Python and all-reduces."""
    step = toy.training(width=64)
    with ppprof.attach({"enable": True, "profiler_log": str(log), **more}) as prof:
        for _ in range(steps):
            step()
            until = time.perf_counter() + 0.02
            while time.perf_counter() < until:
                pass
            for _ in range(REDUCES):  # the first one waits for the other rank, the rest is close
                dist.all_reduce(paddle.ones([256]))
            prof.step()


def main(folder: Path) -> None:
    """Both ranks are recorded; then rank 1 alone, up to its end; then rank 1 is alone."""
    postprocess._COMMAND = NO_TRACES
    dist.init_parallel_env()
    marks = folder / f"marks_{RANK}.jsonl"
    mark(marks)
    train(folder / "both", STEPS, scheduler=[1, STEPS - 1])
    mark(marks)
    train(folder / "one", 5, ranks="1")
    dist.barrier()
    if RANK == 1:
        start = time.monotonic()
        with ppprof.attach({"enable": True, "profiler_log": str(folder / "alone")}) as prof:
            prof.step()
        with (folder / "alone_seconds").open("w") as file:
            file.write(str(time.monotonic() - start))
    left = [thread.name for thread in threading.enumerate() if "ppprof" in thread.name]
    (folder / f"left_{RANK}").write_text(json.dumps(left))
    dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
