"""The numbers of a rank for machines; for Prometheus, a text file that node_exporter's textfile collector reads.

::

    # HELP ppprof_step_seconds Median of the latest 20 steps outside windows.
    # TYPE ppprof_step_seconds gauge
    ppprof_step_seconds{run="profiler_log",rank="3"} 0.412

Source: Prometheus, "Exposition formats", text-based format, version 0.0.4.
"""

from __future__ import annotations

import logging
import re
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import isfinite
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ppprof.capture.steps.step_log import StepRecord
from ppprof.rundir.liveness import live_ranks
from ppprof.rundir.run_file import RunFile, matches

log = logging.getLogger("ppprof")

_EVERY_NS = 10_000_000_000
_MOST_STEPS = 20
"""Latest steps that a value is of, as in ``ppprof watch``."""
HELP = {
    "steps_total": "Steps that have ended.",
    "step_seconds": f"Median of the latest {_MOST_STEPS} steps outside windows.",
    "reader_seconds": "Wait for the DataLoader in such a step, mean.",
    "communication_seconds": "Wait of the host in communication in such a step, mean.",
    "samples_per_second": "Samples of the rank's data-parallel replica.",
    "tokens_per_second": "Tokens of the rank's data-parallel replica.",
    "mfu_ratio": "Model FLOPs of the rank over what its device can do.",
    "device_peak_bytes": "Peak memory in tensors on the device so far.",
    "device_peak_reserved_bytes": "Peak memory that Paddle has taken from the device so far.",
    "device_total_bytes": "Size of the device's memory.",
    "host_peak_bytes": "Peak resident memory of the process so far.",
    "loss": "The last loss that step() was given as a number.",
    "loss_is_finite": "1 if that loss is finite, 0 if it is NaN or infinite.",
}
"""Names of the metrics, after ``ppprof_``, and what they are."""


_STALE_S = 600
"""After how long without a change a file counts as that of a process that has ended."""
_FILE = re.compile(r"(?:(run_[0-9]{3,6})_)?rank_([0-9]{5,6})\.prom")


class Metrics(ABC):
    """The numbers of a running job on this rank, published every ten seconds.

    Args:
        peak_flops: FLOP/s that the device can do; None if unknown.
    """

    def __init__(
        self, peak_flops: float | None, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._peak_flops = peak_flops
        self._clock = clock
        self._published = clock()
        self._steps: deque[StepRecord] = deque(maxlen=_MOST_STEPS)
        self._latest: StepRecord | None = None
        self._loss: float | None = None

    @abstractmethod
    def publish(self) -> None:
        """Publish the `numbers`."""

    @abstractmethod
    def close(self, *, waits: bool) -> None:
        """End the publishing.

        Args:
            waits: whether there is time to wait for others: False if an exception or a signal ends the training.
        """

    def add(self, record: StepRecord) -> None:
        """Add a step; publish if that is due. The training's first step has no part in times and rates."""
        is_first, self._latest = self._latest is None, record
        if record.loss is not None:
            self._loss = record.loss
        if record.window is None and not record.excluded and not is_first:  # it compiles
            self._steps.append(record)
        now = self._clock()
        if now - self._published >= _EVERY_NS:
            self._published = now
            self.publish()

    def numbers(self) -> dict[str, float]:
        """Return the numbers by their names in `HELP`, those that are known; the loss may be NaN."""
        latest = self._latest
        if latest is None:
            return {}
        steps = list(self._steps)
        seconds = sum(step.batch_cost_ns for step in steps) / 1e9

        def per_second(name: str) -> float | None:
            values = [getattr(step, name) for step in steps]
            return sum(values) / seconds if seconds and None not in values else None

        def mean_s(name: str) -> float | None:
            values = [value for step in steps if (value := getattr(step, name)) is not None]
            return fmean(values) / 1e9 if values else None

        flops = per_second("num_flops")
        values = {
            "steps_total": latest.step + 1,
            "step_seconds": median(step.batch_cost_ns for step in steps) / 1e9 if steps else None,
            "reader_seconds": mean_s("reader_cost_ns"),
            "communication_seconds": mean_s("communication_ns"),
            "samples_per_second": per_second("num_samples"),
            "tokens_per_second": per_second("num_tokens"),
            "mfu_ratio": flops / self._peak_flops if flops and self._peak_flops else None,
            "device_peak_bytes": latest.device_peak_bytes,
            "device_peak_reserved_bytes": latest.device_peak_reserved_bytes,
            "device_total_bytes": latest.device_total_bytes,
            "host_peak_bytes": latest.host_peak_bytes,
            "loss": self._loss,
            "loss_is_finite": None if self._loss is None else float(isfinite(self._loss)),
        }
        return {name: value for name, value in values.items() if value is not None}


class MetricsFile(Metrics):
    """The file of one rank. It is removed at the end: its values are of a running job.

    The first failure is logged and ends the writing.

    Args:
        file: the file.
        run: name of the run.
        rank: of this process.
        peak_flops: as for `Metrics`.
    """

    def __init__(
        self, file: RunFile, run: str, rank: int, peak_flops: float | None, **clock: Any
    ) -> None:
        super().__init__(peak_flops, **clock)
        self._file = file
        self._labels = f'{{run="{_escaped(run)}",rank="{rank}"}}'
        self._failed = False

    def publish(self) -> None:
        """Write the file."""
        if self._failed:
            return
        try:
            self._file.write("".join(self._lines()).encode(), is_durable=False)
        except OSError as error:
            self._failed = True
            log.warning(f"{self._file}: {error.strerror or error}; Profiler.export has ended")

    def close(self, *, waits: bool) -> None:
        """Remove the file."""
        try:
            self._file.remove()
        except OSError as error:
            log.debug(f"{self._file}: {error.strerror or error}")

    def _lines(self) -> Iterator[str]:
        for name, value in self.numbers().items():
            kind = "counter" if name.endswith("_total") else "gauge"
            yield f"# HELP ppprof_{name} {HELP[name]}\n"
            yield f"# TYPE ppprof_{name} {kind}\n"
            yield f"ppprof_{name}{self._labels} {value}\n"


def remove_ended(log_dir: Path, rank: int) -> None:
    """Remove the files of ranks that have ended: a killed process leaves its file.

    Of a process on another host, or in another container, it is unknown whether it lives: it has ended
    if its file was not written for `_STALE_S`. Should it live all the same, it writes its file again.

    Args:
        log_dir: the log directory, which has the files of all its runs.
        rank: this rank; it removes those of its own number, and rank 0 all, since nodes may have disks of their own.
    """
    live: dict[str, tuple[set[int], set[int]]] = {}
    for match in matches(log_dir, "metrics", _FILE):
        run, number = match[1] or "", int(match[2])
        if rank not in (0, number):
            continue
        if run not in live:
            live[run] = live_ranks(log_dir / run, here=True), live_ranks(log_dir / run)
        runs, may_run = (number in ranks for ranks in live[run])
        file = RunFile(log_dir, f"metrics/{match[0]}")
        with suppress(OSError):
            age_s = time.time() - file.path.lstat().st_mtime
            if not runs and (not may_run or age_s > _STALE_S):
                file.remove()


def _escaped(text: str) -> str:
    r"""Return a value of a label.

    >>> _escaped('a"b')
    'a\\"b'
    """
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
