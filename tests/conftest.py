"""What tests of several rooms share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

pytest.register_assert_rewrite("tests.oracles")
collect_ignore = [  # programs of other environments
    "oracles/capture_torch.py",
    "integrations/trainer_job.py",
]
# Time says nothing about an example here: a busy machine is no failure.
hypothesis.settings.register_profile(
    "ppprof",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("ppprof")


@pytest.fixture(scope="session")
def cpu_capture(tmp_path_factory):
    """Directory of a real CPU capture and of Paddle's tables for it (oracles/capture_cpu.py)."""
    directory = tmp_path_factory.mktemp("cpu_capture")
    done = subprocess.run(
        [sys.executable, "-m", "tests.oracles.capture_cpu", str(directory)],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return directory
