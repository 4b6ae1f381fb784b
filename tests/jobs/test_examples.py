"""The trainings in examples/ run as they stand, and ppprof says about them what they say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import ppprof
from tests.jobs.launching import ROOT, run

pytestmark = [pytest.mark.paddle, pytest.mark.all]
pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
EXAMPLES = ROOT / "examples"


def test_the_plain_loop_waits_for_its_data(tmp_path: Path) -> None:
    run(tmp_path, EXAMPLES / "plain_loop.py")
    recording = ppprof.open(tmp_path / "profiler_log")
    assert recording.step_times["num_samples"].to_list() == [8] * 20
    assert recording.summary("model")["calls"][0] == 5
    first, *_ = ppprof.advise(recording)
    assert first.rule == "input-bound"


def test_resnet_in_paddles_model(tmp_path: Path) -> None:
    run(tmp_path, EXAMPLES / "resnet_paddle_model.py")
    operators = ppprof.open(tmp_path / "profiler_log").summary("op")
    convolutions = operators.filter(operators["name"].str.contains("conv2d"))
    assert {20 * 3} <= set(convolutions["calls"])  # 20 convolutions, three steps
    assert "shape" in set(operators["kind"])


def test_gpt_by_fleet_on_two_ranks(tmp_path: Path) -> None:
    run(tmp_path, "-m", "ppprof", "run", "--nproc", "2", EXAMPLES / "gpt_fleet.py")
    recording = ppprof.open(tmp_path / "profiler_log")
    assert recording.ranks == [0, 1]
    assert recording.summary("model", rank=1)["calls"][0] == 10


def test_the_trainer_of_paddleformers(tmp_path: Path) -> None:
    variable = "PPPROF_PADDLEFORMERS_PYTHON"
    python = os.environ.get(variable, str(ROOT / ".venv-paddleformers/bin/python"))
    if not Path(python).exists():
        pytest.skip(
            f"needs paddleformers in an environment of its own: make integrations, or {variable}"
        )
    run(tmp_path, EXAMPLES / "paddleformers_trainer.py", python=python)
    assert ppprof.open(tmp_path / "profiler_log").summary("model")["calls"][0] == 3
