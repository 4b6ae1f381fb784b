"""How much of ``Profiler.max_trace_mb`` a rank has left, and when a window is to end for it."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ppprof import rundir
from ppprof.units import MEGABYTE

_PB_OF_RESIDENT = 2 / 5
"""Size of a ``.pb`` by the growth of resident memory in a first window, on the safe side: 1/5.9 to
1/8.4 with Paddle 3.3 on a CPU, but more where memory was free before (1/3 with 2.6.2). Later windows get the memory of
earlier ones, and do not make it grow."""
_OF_PB = {"json": 4.5, "json.gz": 0.5, "pb": 0.0}
"""Size of a trace by that of the ``.pb``: 4.1 and 0.42 there. The ``.pb`` itself is on the disk
while the others are made, asked for or not."""


class Budget:
    """Of one rank, over all windows of a run.

    Args:
        run: the run directory.
        rank: whose traces count.
        max_trace_mb: what they may take.
        formats: in which they are written.
        resident_bytes: resident memory of this process.
    """

    def __init__(
        self,
        run: Path,
        rank: int,
        max_trace_mb: float,
        formats: Sequence[str],
        resident_bytes: Callable[[], int] | None = None,
    ) -> None:
        self.max_bytes = int(max_trace_mb * MEGABYTE)
        self._run = run
        self._rank = rank
        self._times = 1 + sum(_OF_PB[fmt] for fmt in formats)
        self._resident_bytes = resident_bytes or _resident_bytes
        self._unfinished: dict[rundir.TraceName, int] = {}
        self._before = 0
        self._spent = 0
        self._step_bytes: float | None = None

    def open(self) -> None:
        """A window opens."""
        self._before = self._resident_bytes()
        self._spent = self._on_disk()

    @property
    def is_spent(self) -> bool:
        """Whether a window should not open: not one step would fit."""
        return self._on_disk() + self._times * (self._step_bytes or 1) > self.max_bytes

    def is_close(self, num_steps: int) -> bool:
        """Whether a window that has ``num_steps`` is to end, for one more might be too much."""
        per_step = self._step_bytes
        if per_step is None:
            grown = max(0, self._resident_bytes() - self._before)
            per_step = grown * _PB_OF_RESIDENT / max(num_steps, 1)
        return self._spent + self._times * per_step * (num_steps + 1) > self.max_bytes

    def saved(self, name: rundir.TraceName, num_steps: int) -> None:
        """A window was saved: from now on a step's size is known."""
        size = (self._run / name.raw).stat().st_size
        self._unfinished[name] = size
        if num_steps:
            self._step_bytes = size / num_steps

    def dropped(self, name: rundir.TraceName) -> None:
        """A window was deleted."""
        self._unfinished.pop(name, None)

    def _on_disk(self) -> int:
        """What the traces take, and will take once they are finished."""
        taken = rundir.trace_bytes(self._run, self._rank)
        coming = 0
        for name, size in list(self._unfinished.items()):
            if (self._run / name.summary).exists():
                del self._unfinished[name]  # being written, or there
            else:
                coming += int(size * (self._times - 1))
        return taken + coming


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # no Linux: the most there ever was
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return pages * resource.getpagesize()
