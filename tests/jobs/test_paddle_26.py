"""Paddle 2.6.2, in an environment of its own: it needs another numpy and protobuf than 3.x brings.

What works there: `ppprof.attach` in any loop, and the harness data parallel. The harness' tensor and
pipeline parallelism on CPU stands in for parts of Paddle 3.x and needs that.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ppprof import open as open_run
from tests.jobs.launching import CONFIGS, ROOT, TRAIN, run

PYTHON = os.environ.get("PPPROF_PADDLE26_PYTHON", "")
ESSENTIALS = (
    *("capture/test_capture", "capture/test_session", "capture/recording/test_collectives"),
    *(
        "capture/steps/test_timer",
        "capture/test_spans",
        "capture/steps/test_step_log",
        "jobs/test_launch",
    ),
)
"""what a window holds and that it equals Paddle's own, at home and on two ranks."""

pytestmark = [
    pytest.mark.paddle,
    pytest.mark.all,
    pytest.mark.skipif(
        not PYTHON,
        reason="needs PPPROF_PADDLE26_PYTHON, an interpreter with Paddle 2.6 (make test-paddle26)",
    ),
]


def printed(folder: Path, *program: str | Path, processes: int = 0) -> str:
    """Return what a program prints with Paddle 2.6.2."""
    done = run(folder, *program, python=Path(PYTHON).absolute(), processes=processes, timeout=500)
    return done.stdout + done.stderr


def test_it_is_paddle_26(tmp_path):
    code = "import paddle; print('Paddle', paddle.__version__)"
    assert re.search(r"^Paddle 2\.6\.", printed(tmp_path, "-c", code), re.MULTILINE)


def test_a_capture_there_is_paddles_own(tmp_path):
    files = [ROOT / f"tests/{name}.py" for name in ESSENTIALS]
    output = printed(ROOT, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files)
    assert re.search(r"\d+ passed", output)


def test_the_harness_trains_data_parallel_there_and_this_python_reads_it(tmp_path):
    config = CONFIGS / "pretrain_gpt_tiny_cpu_dp2.yaml"
    program = (TRAIN, "-c", config, "-o", "Profiler.enable=True")
    output = printed(tmp_path, *program, processes=2)
    assert "Perf Summary" in output
    found = open_run(tmp_path / "profiler_log")
    assert found.ranks == [0, 1]
    assert found.manifest["versions"]["paddle"].startswith("2.6.")
    phases = found.summary("model", rank=1)["name"].to_list()
    assert {"ProfileStep", "Dataloader", "Forward", "Backward", "Optimization"} <= set(phases)
    # What Paddle 3.x calls "Global_MatmulGradNode" and "matmul kernel launch".
    operators = set(found.summary("op", rank=1)["name"].to_list())
    assert {"MatmulGradNode", "matmul dygraph", "matmul compute"} <= operators
    assert found.summary("dist", rank=1).height
