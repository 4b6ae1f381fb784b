"""The size of windows: what is left of ``Profiler.max_trace_mb``, or of a limit for schedules without end."""

from __future__ import annotations

import logging
import resource
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ppprof import rundir
from ppprof.capture.recording.observers import WindowObserver
from ppprof.units import MEGABYTE

_PB_PER_RESIDENT = 2.0
"""Size of a ``.pb`` divided by the growth of resident memory in a first window, rounded up to be
safe. Measured on a CPU: 0.85 to 1.44 with Paddle 3.3, 1.1 to 1.33 with 2.6.2; more if memory was free
before. In later windows memory does not grow, since they reuse the memory of earlier windows."""
_SIZE_PER_PB = {"json": 4.5, "json.gz": 0.5, "pb": 0.0}
"""Size of a trace divided by the size of the ``.pb``, rounded up; the same measurement gave 4.1 and
0.42. ``pb`` adds nothing: the ``.pb`` itself always counts once, because it is on the disk while the
other formats are written, even if it is deleted afterwards."""


_FEWEST_MEASURED = 2
"""Fewest steps of a window that is not saved to estimate the size of a step from."""
_MOST_BYTES, _SHARE_OF_FREE = 10_000_000_000, 0.1
"""Limits of a run whose schedule has no end."""

log = logging.getLogger("ppprof")


class DiskBudget(WindowObserver):
    """The disk space of one rank's traces, over all windows of a run.

    Args:
        max_bytes: limit in bytes.
        formats: formats in which traces are written, of ``json``, ``json.gz`` and ``pb``.
        resident_bytes: returns the resident memory of this process in bytes; tests pass another
            function.
        limit: the limit for messages; "" for the setting.
    """

    _last_step_bytes: float | None = None
    """Size of a step in the window that this process saved last."""

    def __init__(
        self,
        run: Path,
        rank: int,
        max_bytes: float,
        formats: Sequence[str],
        resident_bytes: Callable[[], int] | None = None,
        limit: str = "",
    ) -> None:
        self.max_bytes = int(max_bytes)
        self._limit = limit or f"Profiler.max_trace_mb {self.max_bytes / MEGABYTE:.10g}"
        self._run = run
        self._rank = rank
        self._total_per_pb = 1 + sum(_SIZE_PER_PB[fmt] for fmt in formats)
        self._resident_bytes = resident_bytes or _resident_bytes
        self._unfinished: dict[rundir.TraceName, int] = {}
        self._resident: dict[int, int] = {}
        """Steps that had ended in the open window -> resident memory."""
        self._spent = 0
        self._step_bytes = DiskBudget._last_step_bytes

    def limit(self, num_steps: int | None) -> str:
        """Return the limit if one more step might exceed it; "" if the step fits."""
        exceeds = self.is_spent if num_steps is None else self.is_close(num_steps)
        return self._limit if exceeds else ""

    def install(self) -> None:
        """Note the disk space taken: within the window, only its own segments are added."""
        self._spent = self._on_disk()

    def started(self) -> None:
        """Note the memory in use: a window, or its next segment, has opened."""
        self._resident = {0: self._resident_bytes()}

    @property
    def is_spent(self) -> bool:
        """Whether the limit leaves no space for one more step, so that no window should open.

        The size of a step is that of the last saved window; before the first, any space will do.
        """
        return self._on_disk() + self._total_per_pb * (self._step_bytes or 1) > self.max_bytes

    def is_close(self, num_steps: int) -> bool:
        """Return whether the open window has to end, since one more step might not fit.

        The size of a step is that of the last saved window; in the first window it is estimated
        from the growth of resident memory. That growth is too small once Paddle has recorded in this
        process, since it reuses the memory; so the size is kept from session to session.
        """
        self.step(num_steps)
        per_step = self._growth(0, num_steps) if self._step_bytes is None else self._step_bytes
        return self._spent + self._total_per_pb * per_step * (num_steps + 1) > self.max_bytes

    def step(self, num_steps: int) -> None:
        """Note the memory in use after so many steps of the open window."""
        if self._step_bytes is None and num_steps not in self._resident:
            self._resident[num_steps] = self._resident_bytes()

    def kept(self, name: rundir.TraceName, num_steps: int) -> None:
        """Estimate the size of a step, unless it is known: the steps may never be written.

        Only the second half of its steps counts, since the training itself takes memory in its first
        steps. The size stays unknown if there are too few steps, or if memory has not grown.
        """
        half = num_steps // 2
        is_noted = half in self._resident and num_steps in self._resident
        if self._step_bytes is None and num_steps >= _FEWEST_MEASURED and is_noted:
            self._step_bytes = self._growth(half, num_steps) or None

    def _growth(self, first: int, last: int) -> float:
        """Return the size of a step of the raw capture, from the memory after two steps."""
        growth = max(0, self._resident[last] - self._resident[first])
        return growth * _PB_PER_RESIDENT / max(last - first, 1)

    def saved(self, name: rundir.TraceName, num_steps: int) -> None:
        """Note the size of a saved window's raw capture; from now on the size of a step is known.

        With 0 steps, the size of a step does not change.

        Raises:
            OSError: the raw capture is gone.
        """
        size = (self._run / name.raw).stat().st_size
        for beside in (name.operator_calls, name.stacks):
            with suppress(FileNotFoundError):
                size += (self._run / beside).stat().st_size
        self._unfinished[name] = size
        self._spent += int(size * self._total_per_pb)
        if num_steps:
            self._step_bytes = DiskBudget._last_step_bytes = size / num_steps

    def dropped(self, name: rundir.TraceName) -> None:
        """Stop counting the traces that a saved window was to get: the window was deleted."""
        self._unfinished.pop(name, None)

    def _on_disk(self) -> int:
        """Return the bytes of this rank's traces, with an estimate for traces not written yet."""
        written = rundir.trace_bytes(self._run, self._rank)
        pending = 0
        for name, size in list(self._unfinished.items()):
            if (self._run / name.summary).exists():
                del self._unfinished[name]  # its traces are being written, or are complete
            else:
                pending += int(size * (self._total_per_pb - 1))
        return written + pending


def default_bytes(run: Path, num_ranks: int) -> int:
    """Return the limit of one rank's traces in a run whose schedule has no end.

    10 GB or a tenth of the free space, whichever is less, divided by the ranks that record.

    Raises:
        OSError: the free space cannot be read.
    """
    free = shutil.disk_usage(run).free
    return int(min(_MOST_BYTES, free * _SHARE_OF_FREE) / max(num_ranks, 1))


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # not Linux: the peak so far
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return pages * resource.getpagesize()
