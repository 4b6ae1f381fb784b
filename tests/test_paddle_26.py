"""Paddle 2.6.2, in an environment of its own: it needs another numpy and protobuf than 3.x brings.

What works there: `ppprof.attach` in any loop, and the harness data parallel. The harness' tensor and
pipeline parallelism on CPU stands in for parts of Paddle 3.x and needs that.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from ppprof import open as open_run

ROOT = Path(__file__).parents[1]
PYTHON = os.environ.get("PPPROF_PADDLE26_PYTHON", "")
ESSENTIALS = ("capture", "session", "collectives", "launch", "timer", "spans", "steps")
"""Of tests/capture: what a window holds and that it equals Paddle's own, at home and on two ranks."""

pytestmark = [
    pytest.mark.paddle,
    pytest.mark.launch,
    pytest.mark.skipif(
        not PYTHON,
        reason="needs PPPROF_PADDLE26_PYTHON, an interpreter with Paddle 2.6 (make test-paddle26)",
    ),
]


def run(folder: Path, *arguments: object) -> str:
    done = subprocess.run(
        [Path(PYTHON).absolute(), *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout + done.stderr


def test_it_is_paddle_26(tmp_path):
    code = "import paddle; print('Paddle', paddle.__version__)"
    assert re.search(r"^Paddle 2\.6\.", run(tmp_path, "-c", code), re.MULTILINE)


def test_a_capture_there_is_paddles_own(tmp_path):
    files = [ROOT / f"tests/capture/test_{name}.py" for name in ESSENTIALS]
    told = run(ROOT, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files)
    assert re.search(r"\d+ passed", told)


def test_the_harness_trains_data_parallel_there_and_this_python_reads_it(tmp_path):
    told = run(
        tmp_path,
        *("-m", "paddle.distributed.launch", "--nproc_per_node", "2", ROOT / "tools/train.py"),
        *("-c", ROOT / "configs/gpt/pretrain_gpt_tiny_cpu_dp2.yaml", "-o", "Profiler.enable=True"),
    )
    assert "Perf Summary" in told
    found = open_run(tmp_path / "profiler_log")
    assert found.ranks == [0, 1]
    assert found.manifest["versions"]["paddle"].startswith("2.6.")
    phases = found.summary("model", rank=1)["name"].to_list()
    assert {"ProfileStep", "Dataloader", "Forward", "Backward", "Optimization"} <= set(phases)
    # What Paddle 3.x calls "Global_MatmulGradNode" and "matmul kernel launch".
    operators = set(found.summary("op", rank=1)["name"].to_list())
    assert {"MatmulGradNode", "matmul dygraph", "matmul compute"} <= operators
    assert found.summary("dist", rank=1).height
