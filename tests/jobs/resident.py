"""``python -m tests.jobs.resident DIR window|trigger|always``: growth of resident memory, in MiB.

Over 200 steps, counted from the twentieth on, with shapes and memory recorded: in a window of 4 that
is over by then, by the scheduler or on demand, or in all of them, which shows that growth would be
seen.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import ppprof
from ppprof.capture import postprocess
from ppprof.rundir import raw_files
from ppprof.rundir.triggers import request_path
from tests.capture.fake_helper import NO_TRACES
from tests.jobs import toy

STEPS = 200

_WHEN = {
    "window": {"scheduler": [5, 9]},
    "trigger": {"trigger": {"slow_step": 1000, "steps": 4}},
    "always": {},
}


def growth_mib(directory: str, when: str) -> float:
    """Trains with the profiler attached; by how much the process has grown at the last step."""
    block = {
        "enable": True,
        **_WHEN[when],
        "profiler_log": directory,
        "record_shapes": True,
        "profile_memory": True,
    }
    step = toy.training(layers=4)
    with ppprof.attach(block) as prof:
        for step_number in range(STEPS):
            if step_number == 3 and when == "trigger":
                request_path(Path(directory)).touch()
            step()
            prof.step()
            if step_number == 20:
                assert when == "always" or len(raw_files(directory)) == 1
                before = resident_bytes()
        return (resident_bytes() - before) / (1 << 20)


def resident_bytes() -> int:
    """Resident memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    postprocess._COMMAND = NO_TRACES
    with contextlib.redirect_stdout(sys.stderr):
        grown = growth_mib(sys.argv[1], sys.argv[2])
    print(f"{grown:.1f}")
