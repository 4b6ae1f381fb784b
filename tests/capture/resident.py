"""``python -m tests.capture.resident DIR window|always``: growth of resident memory, in MiB.

Over 100 steps, counted from the tenth on, with shapes and memory recorded: in a window of 4 that is
over by then, or in all of them, which shows that growth would be seen.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import ppprof
from ppprof.capture import finisher
from tests.capture import toy


def growth_mib(directory: str, scheduler: list[int] | None) -> float:
    """Trains with the profiler attached; by how much the process has grown at the last step."""
    block = {
        "enable": True,
        "scheduler": scheduler,
        "profiler_log": directory,
        "record_shapes": True,
        "profile_memory": True,
    }
    step = toy.training(layers=4)
    with ppprof.attach(block) as prof:
        for at in range(100):
            step()
            prof.step()
            if at == 10:
                before = resident_bytes()
        return (resident_bytes() - before) / (1 << 20)


def resident_bytes() -> int:
    """Resident memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    finisher._COMMAND = (sys.executable, "-c", "")
    with contextlib.redirect_stdout(sys.stderr):
        grown = growth_mib(sys.argv[1], [5, 9] if sys.argv[2] == "window" else None)
    print(f"{grown:.1f}")
