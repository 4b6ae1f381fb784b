"""When ``ppprof run`` begins: with the first layer behind the creation of an optimizer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")

pytestmark = pytest.mark.paddle

SAYS_WHEN = """
import paddle
from ppprof.capture.attached import is_attached

class Net(paddle.nn.Linear):
    def forward(self, rows):
        print("a layer:", is_attached(), "profiled:", paddle.nn.Layer.__call__ is not call)
        return super().forward(rows)

call = paddle.nn.Layer.__call__
net = Net(2, 2)
net(paddle.ones([1, 2]))
optimizer = paddle.optimizer.SGD(parameters=net.parameters())
print("created:", is_attached())
net(paddle.ones([1, 2]))
raise ValueError("ahead of the first step")
"""
RECORDS_ITSELF = """
import paddle
import ppprof

net = paddle.nn.Linear(2, 2)
optimizer = paddle.optimizer.SGD(parameters=net.parameters())
with ppprof.attach({"enable": True, "profiler_log": "own", "timer_only": True}) as session:
    for _ in range(3):
        net(paddle.ones([1, 2])).sum().backward()
        optimizer.step()
        session.step()
"""


def run(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "ppprof", "run", "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_job_that_ends_ahead_of_its_first_step_has_a_run_directory(tmp_path: Path) -> None:
    done = run(tmp_path, SAYS_WHEN)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("a layer", "created"))]
    assert lines == [
        "a layer: False profiled: False",
        "created: False",
        "a layer: True profiled: False",
    ]
    assert "ValueError: ahead of the first step" in done.stderr
    assert (tmp_path / "profiler_log/manifest.json").exists()


def test_the_scripts_own_session_records_instead(tmp_path: Path) -> None:
    done = run(tmp_path, RECORDS_ITSELF)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "own/manifest.json").exists()
    assert not (tmp_path / "profiler_log").exists()
