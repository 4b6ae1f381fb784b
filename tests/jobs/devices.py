"""The devices that a test runs on: a GPU where there is one, and the test device.

``PPPROF_KEEP_CAPTURES=FOLDER`` keeps the ``.pb`` files that a test left, with device and test in
their names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import ppprof
from tests import device
from tests.jobs.launching import JOBS, run, workerlogs

GPU = "gpu"
ON_GPU = pytest.param(GPU, marks=pytest.mark.gpu)
EACH = [device.NAME, ON_GPU]
COVERING = [pytest.param(device.NAME, marks=pytest.mark.jobs), ON_GPU]
"""The devices of a test whose run on the test device is in ``make test-jobs``."""
PROGRAM = JOBS / "gpu_job.py"


@cache
def num_gpus() -> int:
    """Return how many GPUs Paddle sees."""
    paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    return int(paddle.device.cuda.device_count())


@dataclass(frozen=True)
class Machine:
    """A device, and a folder for the trainings of one test on it."""

    name: str
    """Paddle's name of the device."""
    folder: Path
    _variables: Callable[..., dict[str, str]]

    @property
    def is_simulated(self) -> bool:
        """Whether it is the test device, whose switches say what is true."""
        return self.name == device.NAME

    def environment(self, processes: int = 0, **switches: object) -> dict[str, str]:
        """Return the variables of a program on this device.

        The test is skipped if there are fewer GPUs than processes.

        Args:
            processes: ranks.
            switches: of the test device; a GPU has none.
        """
        if self.is_simulated:
            return self._variables(**switches)
        if num_gpus() < max(1, processes):
            pytest.skip(f"needs {max(1, processes)} GPUs, Paddle sees {num_gpus()}")
        return {}

    def train(
        self, training: str, *settings: str, processes: int = 0, **switches: object
    ) -> tuple[ppprof.Run, dict[str, Any], str]:
        """Run a training of ``gpu_job.py``; return its run, what it measured, and its output.

        Args:
            training: name of a function in it.
            settings: keys of the ``Profiler`` block: ``scheduler=[2, 5]``.
            processes: ranks; 0 for one without the launcher.
            switches: of the test device.
        """
        variables = self.environment(processes, **switches)
        program = (PROGRAM, training, self.name, *settings)
        done = run(self.folder, *program, processes=processes, **variables)
        printed = workerlogs(self.folder)[0] if processes else done.stdout
        measured = next(line for line in reversed(printed.splitlines()) if line.startswith("{"))
        return (
            ppprof.open(self.folder / "log"),
            json.loads(measured),
            printed + done.stderr * (not processes),
        )

    def keep(self, test: str) -> None:
        """Copy the captures to ``PPPROF_KEEP_CAPTURES``, if it is set.

        Args:
            test: name of the test.
        """
        target = os.environ.get("PPPROF_KEEP_CAPTURES")
        if not target:
            return
        Path(target).mkdir(parents=True, exist_ok=True)
        name = re.sub(r"\W+", "_", test).strip("_")
        for capture in self.folder.rglob("*.pb"):
            shutil.copyfile(capture, Path(target, f"{self.name}-{name}-{capture.name}"))
