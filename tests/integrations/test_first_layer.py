"""When ``ppprof run`` begins: with the first layer behind the creation of an optimizer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ppprof

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")

pytestmark = pytest.mark.paddle

SAYS_WHEN = """
import paddle
from ppprof.capture.attached import is_attached

class Net(paddle.nn.Linear):
    def forward(self, rows, name="", layer="", kind="", method=""):
        print("a layer:", is_attached(), "profiled:", paddle.nn.Layer.__call__ is not call)
        return super().forward(rows)

call = paddle.nn.Layer.__call__
net = Net(2, 2)
net(paddle.ones([1, 2]))
optimizer = paddle.optimizer.SGD(parameters=net.parameters())
print("created:", is_attached())
net(paddle.ones([1, 2]), name="a", layer="b", kind="c", method="d")
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


TRAINS = """
import paddle

class Net(paddle.nn.Linear):
    def forward(self, rows, name="", layer="", tensor="", task=""):
        return super().forward(rows)

net = Net(2, 2)
optimizer = paddle.optimizer.AdamW(parameters=net.parameters())
for _ in range(6):
    net(paddle.ones([1, 2]), name="a", layer="b", tensor="c", task="d").sum().backward()
    optimizer.step()
    optimizer.clear_grad()
"""


def run(folder: Path, script: str, *command: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "ppprof", "run", *(command or ["train.py"])],
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


def test_layers_with_options_of_any_name_in_a_package_that_imports_paddle(tmp_path: Path) -> None:
    """Paddle is imported before the module: its package does."""
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("import paddle")
    (package / "train.py").write_text(TRAINS)
    done = run(tmp_path, "", "--steps", "3:5", "--report", "page.html", "-m", "pack.train")
    assert done.returncode == 0, done.stderr
    steps = ppprof.open(tmp_path / "profiler_log").cluster().steps["step"].to_list()
    assert steps == [3, 4]
    assert (tmp_path / "page.html").exists()
