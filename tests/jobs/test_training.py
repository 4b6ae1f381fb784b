"""The harness as its users start it: real processes, the real launcher, real text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ppprof.rundir.step_times import read_step_times
from tests.jobs.launching import NO_DROPOUT, SMALL, losses, train, workerlogs

EVAL = "Engine.eval_freq=10"
pytestmark = [pytest.mark.paddle, pytest.mark.all]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of one process with batches of 8 and no dropout."""
    return losses(train(tmp_path_factory.mktemp("alone"), *SMALL, *NO_DROPOUT, EVAL))


def test_it_learns(alone: dict[int, float]) -> None:
    assert list(alone) == [*range(1, 11), 0]
    assert alone[10] < alone[1] - 0.2


def test_two_ranks_train_what_one_does(alone: dict[int, float], tmp_path: Path) -> None:
    two = ["Distributed.dp_degree=2", "Global.local_batch_size=4", "Global.micro_batch_size=2"]
    done = train(tmp_path, *SMALL, *NO_DROPOUT, EVAL, *two, processes=2)
    assert losses(done) == pytest.approx(alone, rel=1e-5)


def test_micro_batches_train_what_a_batch_does(alone: dict[int, float], tmp_path: Path) -> None:
    done = train(tmp_path, *SMALL, *NO_DROPOUT, EVAL, "Global.micro_batch_size=2")
    assert losses(done) == pytest.approx(alone, rel=1e-5)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, float], str]:
    """Losses of a run with dropout and shuffled data, and where it saved steps 5 and 10."""
    folder = tmp_path_factory.mktemp("saved")
    saving = ["Engine.save_load.save_steps=5", f"Engine.save_load.output_dir={folder}/out"]
    return losses(train(folder, *SMALL, *saving)), f"Engine.save_load.ckpt_dir={folder}/out/step_"


@pytest.mark.jobs
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(
    saved: tuple[dict[int, float], str], tmp_path: Path
) -> None:
    """Its steps, too: those of the step log are counted from 0, those of the losses from 1."""
    through, ckpt = saved
    profiling = ("Profiler.enable=True", "Profiler.timer_only=True", "Profiler.profiler_log=log")
    resumed = losses(train(tmp_path, *SMALL, *profiling, f"{ckpt}00000005"))
    assert resumed == {step: through[step] for step in range(6, 11)}
    assert read_step_times(tmp_path / "log")["step"].to_list() == [5, 6, 7, 8, 9]


def test_a_run_that_is_done_says_that_nothing_is_left(
    saved: tuple[dict[int, float], str], tmp_path: Path
) -> None:
    done = train(tmp_path, *SMALL, f"{saved[1]}00000010")
    assert done.returncode == 0
    assert "step 10/10 nothing left to train" in done.stdout


def test_a_checkpoint_of_another_model(saved: tuple[dict[int, float], str], tmp_path: Path) -> None:
    done = train(tmp_path, *SMALL, f"{saved[1]}00000005", "Model.num_layers=3")
    assert done.returncode == 3
    assert "a checkpoint of another model: 12 tensors differ, the first blocks.2." in done.stderr
    assert "Traceback" not in done.stderr


def test_evaluation_counts_neither_as_training_nor_as_reading(tmp_path: Path) -> None:
    # 300 batches of evaluation after step 3, forward only: as much as 100 steps.
    evaluating = ["Engine.eval_freq=3", "Engine.eval_iters=300", "Engine.max_steps=4"]
    profiling = ["Profiler.enable=True", "Profiler.timer_only=True"]
    log = f"Profiler.profiler_log={tmp_path}/profiler_log"
    done = train(tmp_path, *SMALL, *evaluating, *profiling, log)
    assert list(losses(done)) == [1, 2, 3, 4]
    assert len(re.findall(r"step 3/4 eval loss \d\.\d+", done.stdout)) == 1
    lines = (tmp_path / "profiler_log/steps/rank_00000.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    for costs in (
        [float(cost) for cost in re.findall(r"batch_cost ([\d.]+) s", done.stdout)],
        [step["batch_cost_ns"] / 1e9 for step in steps],
    ):
        assert len(costs) == 4
        assert costs[3] < 20 * max(costs[1:3])
    assert steps[3]["reader_cost_ns"] < 20 * max(step["reader_cost_ns"] for step in steps[1:3])


def test_an_evaluation_has_one_batch_at_least(tmp_path: Path) -> None:
    done = train(
        tmp_path, *SMALL, "Engine.eval_freq=1", "Engine.max_steps=1", "Engine.eval_iters=-1"
    )
    assert re.search(r"step 1/1 eval loss \d\.\d+", done.stdout), done.stderr


def test_mixed_precision_on_a_cpu_says_what_it_is(tmp_path: Path) -> None:
    done = train(tmp_path, *SMALL, "Engine.max_steps=1", "Engine.mix_precision.enable=True")
    assert done.stdout.count("Paddle's CPU build computes in float32") == 1


@pytest.mark.jobs
def test_what_cannot_work_ends_before_paddle_is_imported(tmp_path: Path) -> None:
    done = train(tmp_path, "Engine.max_step=3", "Model.hidden_size=0")
    assert done.returncode == 2
    assert "Model.hidden_size: 0: expected at least 1" in done.stderr
    assert "Traceback" not in done.stderr
    assert "ccache" not in done.stderr  # Paddle warns of this on import


@pytest.mark.parametrize("local_rank", ["0", "1"])
def test_a_rank_whose_device_is_not_there_says_so(tmp_path: Path, local_rank: str) -> None:
    done = train(tmp_path, "Global.device=gpu", PADDLE_LOCAL_RANK=local_rank)
    assert done.returncode == 2
    assert "-o Global.device=gpu: Global.device: gpu: " in done.stderr
    assert "this build of Paddle knows cpu" in done.stderr
    assert "Traceback" not in done.stderr


def test_too_little_text_to_evaluate_on_is_found_before_training(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("word " * 1000)  # 30 of 1000 shares: 150 bytes
    done = train(tmp_path, *SMALL, "Engine.eval_freq=5", "Data.Eval.dataset.input=text")
    assert done.returncode == 2
    message = "Data.Eval.dataset.input: 4 samples are fewer than the 8 of one step"
    assert f"-o Data.Eval.dataset.input=text: {message}" in done.stderr
    assert "loss" not in done.stdout


def test_fleetx_data_that_is_not_read_is_said(tmp_path: Path) -> None:
    done = train(tmp_path, *SMALL, "Engine.max_steps=1", "Data.Train.dataset.input_dir=./data")
    assert list(losses(done)) == [1]
    assert (
        "Data.Train.dataset.input_dir: ./data: FleetX's token files are not supported"
        in done.stderr
    )
    assert "Data.Eval.dataset.input_dir" not in done.stderr


def test_the_launcher_ends_too_and_rank_0_alone_speaks(tmp_path: Path) -> None:
    axes = ["Distributed.mp_degree=2", "Distributed.dp_degree=1", "Engine.logging_freq=0"]
    done = train(tmp_path, *axes, processes=2)
    assert done.returncode != 0
    logs = list(workerlogs(tmp_path).values())
    assert "Engine.logging_freq: 0: expected at least 1" in logs[0]
    assert "Traceback" not in logs[0] + logs[1]
    assert logs[1] == ""
