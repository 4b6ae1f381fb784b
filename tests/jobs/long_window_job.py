"""``python -m tests.jobs.long_window_job nothing|ppprof STEPS [FAILS_AT]``: a window of many short segments.

Trains in the working directory, which then holds ``losses``, one line a step, and raw captures in ``log/``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ppprof
from ppprof.capture import postprocess
from ppprof.capture.recording import segments
from tests.capture.fake_helper import NO_TRACES
from tests.jobs import toy


def main(way: str, num_steps: int, fails_at: int = -1) -> None:
    """Train."""
    postprocess._COMMAND = NO_TRACES
    segments._FIRST_OPERATORS, segments.STALL_SECONDS = 500, 0.01
    step = toy.training()
    block = {"enable": True, "profiler_log": "log", "max_trace_mb": 1000}
    with (
        Path("losses").open("w", buffering=1) as losses,
        ppprof.attach(block if way == "ppprof" else None) as prof,
    ):
        for number in range(num_steps):
            loss = step()
            losses.write(f"{float(loss)!r}\n")
            prof.step()
            if number == fails_at:
                raise ValueError("loss is nan")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
