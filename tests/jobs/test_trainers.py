"""``PpprofCallback`` in the real Trainers, each in an environment of its own (`make integrations`)."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import ppprof
from ppprof import rundir
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import python_lines
from tests.jobs.launching import JOBS, ROOT, run
from tests.jobs.remains import arrived

pytestmark = [pytest.mark.paddle, pytest.mark.all]


@pytest.fixture(scope="module", params=["paddlenlp", "paddleformers"])
def package(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def interpreter(package: str) -> str:
    """The Python of the environment that has the package."""
    variable = f"PPPROF_{package.upper()}_PYTHON"
    found = os.environ.get(variable, str(ROOT / f".venv-{package}/bin/python"))
    if not Path(found).exists():
        pytest.skip(
            f"needs {package} in an environment of its own: make integrations, or {variable}"
        )
    return found


def train(
    interpreter: str, package: str, folder: Path, mode: str, *before: str | Path, code: int = 0
) -> str:
    """What the job says on stderr."""
    words = (*before, JOBS / "trainer_job.py", package, folder, mode)
    return run(folder, *words, python=interpreter, code=code, HF_HUB_OFFLINE="1").stderr


def steps(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "log" / rundir.steps_path(0)).read_text().splitlines()
    return [json.loads(line) for line in lines]


def model_rows(folder: Path) -> dict[str, int]:
    (summary,) = arrived(folder, "log/summary/rank_00000_w0.json")
    rows = json.loads(summary.read_text())["tables"]["model"]
    return {row["name"]: row["calls"] for row in rows}


@pytest.fixture(scope="module")
def losses(interpreter: str, package: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Those of the training without ppprof."""
    folder = tmp_path_factory.mktemp(package)
    train(interpreter, package, folder, "off")
    text = (folder / "losses").read_text()
    assert len(text.splitlines()) == 10
    return text


PHASES: Sequence[str] = ("ProfileStep", "Forward", "Backward", "Optimization")


def test_global_steps_are_steps_and_the_losses_stay_the_same(
    interpreter: str, package: str, losses: str, tmp_path: Path
) -> None:
    train(interpreter, package, tmp_path, "on")
    assert (tmp_path / "losses").read_text() == losses
    lines = steps(tmp_path)
    assert [line["step"] for line in lines] == list(range(10))
    counts = ("num_samples", "num_micro_batches", "num_tokens")
    assert {tuple(line[name] for name in counts) for line in lines} == {(2, 1, 32)}
    assert all(line["num_flops"] > 0 for line in lines)
    # Twenty batches of evaluation take 4 s after the 4th and 8th; no step has them.
    assert max(line["batch_cost_ns"] for line in lines[1:]) < 3_000_000_000
    rows = model_rows(tmp_path)
    assert {phase: rows[phase] for phase in PHASES} == {
        "ProfileStep": 2,
        "Forward": rows["Forward"],
        "Backward": 2,
        "Optimization": 2,
    }


def test_ppprof_run_takes_the_hooks_of_the_trainer(
    interpreter: str, package: str, losses: str, tmp_path: Path
) -> None:
    """The script knows nothing of ppprof, and its own code is one line: ``train()``."""
    command = ("-m", "ppprof", "run", "--steps", "3:6", "--log", tmp_path / "log")
    words = (*command, JOBS / "trainer_job.py", package, tmp_path, "off")
    run(tmp_path, *words, python=interpreter, HF_HUB_OFFLINE="1")
    assert (tmp_path / "losses").read_text() == losses
    lines = steps(tmp_path)
    assert {line["num_tokens"] for line in lines} == {32}
    assert all(line["num_flops"] > 0 for line in lines)
    recorded = ppprof.open(tmp_path / "log")
    stacks = recorded.trace(0).stacks
    assert stacks is not None
    own = {Path(frame.file).parts[0] for frame in stacks.frames if frame.is_own}
    assert package in own
    # The evaluation takes 4 s after step 3, of which no line has any.
    assert python_lines(Profile(recorded.trace(0)))["total_ns"].max() < 1_000_000_000


@pytest.mark.parametrize("by", ["ppprof run", "tools/attach.py"])
def test_hooks_take_over_where_the_optimizer_is_older_than_the_training(
    interpreter: str, package: str, tmp_path: Path, by: str
) -> None:
    command = ("-m", "ppprof", "run") if by == "ppprof run" else (ROOT / "tools/attach.py",)
    options = [
        f"-oProfiler.{key}" for key in ("enable=True", "scheduler=[5, 7]", "profiler_log=log")
    ]
    train(interpreter, package, tmp_path, "early", *command, *options)
    lines = steps(tmp_path)
    assert [line["step"] for line in lines] == list(range(10))
    assert {line["num_tokens"] for line in lines} == {32}
    # An evaluation takes 4 s.
    assert max(line["batch_cost_ns"] for line in lines[1:]) < 4_000_000_000


def test_a_resumed_training_goes_on_with_its_global_steps(
    interpreter: str, package: str, losses: str, tmp_path: Path
) -> None:
    """The schedule counts from the first step after the resume: the window has steps 5 to 8.

    The evaluation and the checkpoint after step 7 are spans in it.
    """
    train(interpreter, package, tmp_path, "off")
    train(interpreter, package, tmp_path, "resume")
    assert (tmp_path / "losses").read_text().splitlines() == losses.splitlines()[4:]
    lines = steps(tmp_path)
    assert [line["step"] for line in lines] == list(range(4, 10))
    assert {line["num_tokens"] for line in lines} == {32}
    recorded = ppprof.open(tmp_path / "log")
    assert recorded.cluster().steps["step"].to_list() == [5, 6, 7, 8]
    spans = recorded.events().filter(pl.col("name").cast(pl.String).str.starts_with("paused"))
    assert spans["name"].to_list() == ["paused: evaluation", "paused: checkpoint"]
    assert spans["dur_ns"][0] > 3_000_000_000  # twenty batches of 0.2 s


def test_stop_training_ends_the_trainer_after_the_last_window(
    interpreter: str, package: str, losses: str, tmp_path: Path
) -> None:
    train(interpreter, package, tmp_path, "stop")
    assert (tmp_path / "losses").read_text().splitlines() == losses.splitlines()[:7]
    assert len(steps(tmp_path)) == 7


def test_an_exception_ends_the_program_with_the_window_saved(
    interpreter: str, package: str, tmp_path: Path
) -> None:
    said = train(interpreter, package, tmp_path, "fail", code=1)
    assert "ValueError: the training's own" in said
    assert len(ppprof.open(tmp_path / "log").recordings) == 1
    assert len(steps(tmp_path)) == 5


def test_micro_batches_of_a_step_are_counted(
    interpreter: str, package: str, tmp_path: Path
) -> None:
    if package == "paddleformers":
        pytest.skip("needs a GPU or an XPU: PaddleFormers 1.2.0 accumulates gradients on no CPU")
    train(interpreter, package, tmp_path, "accumulate")
    assert {(line["num_samples"], line["num_micro_batches"]) for line in steps(tmp_path)} == {
        (4, 2)
    }
    assert model_rows(tmp_path)["Backward"] == 4


def test_without_the_callback_the_steps_of_its_optimizer_are_seen(
    interpreter: str, package: str, losses: str, tmp_path: Path
) -> None:
    options = [
        f"-oProfiler.{key}" for key in ("enable=True", "scheduler=[5, 7]", "profiler_log=log")
    ]
    train(interpreter, package, tmp_path, "off", ROOT / "tools/attach.py", *options)
    assert (tmp_path / "losses").read_text() == losses
    assert len(steps(tmp_path)) == 10
    assert model_rows(tmp_path)["Optimization"] == 2
