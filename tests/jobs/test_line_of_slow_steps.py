"""A checkpoint that one of two ranks writes now and then, outside the window: its line, and the rank."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ppprof
from ppprof.report.text.advice import finding_rows
from tests.jobs.launching import environment

pytestmark = [pytest.mark.paddle, pytest.mark.jobs]

TRAINING = """
import time
import paddle
import paddle.distributed as dist

dist.init_parallel_env()
net = paddle.DataParallel(paddle.nn.Linear(256, 256))
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())


def save():
    time.sleep(0.5)


for step in range(400):
    net(paddle.randn([512, 256])).square().mean().backward()
    optimizer.step()
    optimizer.clear_grad()
    if step % 60 == 59 and dist.get_rank() == 1:
        save()
"""


def test_the_line_and_the_rank_are_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "ppprof",
        "run",
        "--nproc",
        "2",
        "--steps",
        "10:20",
        "train.py",
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    findings = ppprof.advise(ppprof.open(tmp_path / "profiler_log"))
    (slow,) = [each for each in findings if each.rule == "slow-steps"]
    assert slow.facts["gap"] == "train.py:20: save()"
    assert slow.facts["inner"] == "train.py:12, save(): time.sleep(0.5)"
    assert slow.facts["on_ranks"] == "rank 1"
    (row,) = finding_rows([slow])
    assert "hardly spend time in (most of it in train.py:12, save(): time.sleep(0.5))" in row.what
