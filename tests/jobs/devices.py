"""The devices that a test runs on: a GPU where there is one, and the test device.

``PPPROF_KEEP_CAPTURES=FOLDER`` keeps the ``.pb`` files that a test left, with device and test in
their names.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from ppprof.selftest import trained as selftest
from ppprof.selftest.bodies import BODIES, Body
from ppprof.selftest.trained import Trained
from tests import device

GPU = "gpu"
ON_GPU = pytest.param(GPU, marks=pytest.mark.gpu)
EACH = [device.NAME, ON_GPU]
COVERING = [pytest.param(device.NAME, marks=pytest.mark.jobs), ON_GPU]
"""The devices of a test whose run on the test device is in ``make test-jobs``."""


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

    def environment(self, num_devices: int = 1, **switches: object) -> dict[str, str]:
        """Return the variables of a program on this device.

        The test is skipped if there are fewer GPUs.

        Args:
            num_devices: devices that the program needs.
            switches: of the test device; a GPU has none.
        """
        if self.is_simulated:
            return self._variables(**switches)
        if num_gpus() < num_devices:
            pytest.skip(f"needs {num_devices} GPUs, Paddle sees {num_gpus()}")
        return {}

    def check(self, body: str | Body, command: Sequence[str] = (), **switches: object) -> Trained:
        """Run a body of the self-test, and fail if one of its claims does not hold.

        Args:
            body: a body, or its name.
            command: the program that starts Python.
            switches: of the test device.
        """
        body = BODIES[body] if isinstance(body, str) else body
        variables = self.environment(body.num_devices, **switches)
        trained = body.train(selftest.Machine(self.name, variables, command), self.folder)
        claims = list(body.check(trained))
        assert claims
        assert [claim for claim in claims if not claim.holds] == [], trained.output[-6000:]
        return trained

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
