"""The harness as its users start it: real processes, the real launcher, real text."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs/gpt/pretrain_gpt_tiny_cpu.yaml"
SMALL = [
    "Model.hidden_size=32",
    "Data.Train.dataset.max_seq_len=32",
    "Data.Eval.dataset.max_seq_len=32",
    "Engine.logging_freq=1",
    "Engine.max_steps=10",
    "Engine.eval_freq=-1",
    "Optimizer.lr.decay_steps=20",
]
NO_DROPOUT = ["Model.hidden_dropout_prob=0", "Model.attention_probs_dropout_prob=0"]
EVAL = "Engine.eval_freq=10"
pytestmark = pytest.mark.paddle


def _run(
    folder: Path, *overrides: str, processes: int = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """tools/train.py alone, or ``processes`` of it under Paddle's launcher."""
    launcher: list[str] = []
    if processes:
        launcher = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(processes)]
        launcher += ["--log_dir", str(folder / "log")]
    flags = [part for override in overrides for part in ("-o", override)]
    clean = {key: os.environ[key] for key in os.environ if not key.startswith("PADDLE_")}
    return subprocess.run(
        [sys.executable, *launcher, str(ROOT / "tools/train.py"), "-c", str(CONFIG), *flags],
        cwd=folder,
        env={**clean, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def _with_eval(run: subprocess.CompletedProcess[str]) -> dict[int, float]:
    """Losses by step, and that of the evaluation after the last under 0."""
    (found,) = re.findall(r"step 10/10 eval loss ([\d.]+)", run.stdout + run.stderr)
    return {**_losses(run), 0: float(found)}


def _losses(run: subprocess.CompletedProcess[str]) -> dict[int, float]:
    assert run.returncode == 0, run.stderr[-2000:] + run.stdout[-2000:]
    found = re.findall(r"step (\d+)/\d+ loss ([\d.]+)", run.stdout + run.stderr)
    return {int(step): float(loss) for step, loss in found}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of one process with batches of 8 and no dropout."""
    return _with_eval(_run(tmp_path_factory.mktemp("alone"), *SMALL, *NO_DROPOUT, EVAL))


def test_it_learns(alone: dict[int, float]) -> None:
    assert list(alone) == [*range(1, 11), 0]
    assert alone[10] < alone[1] - 0.2


@pytest.mark.launch
def test_two_ranks_train_what_one_does(alone: dict[int, float], tmp_path: Path) -> None:
    two = ["Distributed.dp_degree=2", "Global.local_batch_size=4", "Global.micro_batch_size=2"]
    run = _run(tmp_path, *SMALL, *NO_DROPOUT, EVAL, *two, processes=2)
    assert _with_eval(run) == pytest.approx(alone, rel=1e-5)


def test_micro_batches_train_what_a_batch_does(alone: dict[int, float], tmp_path: Path) -> None:
    run = _run(tmp_path, *SMALL, *NO_DROPOUT, EVAL, "Global.micro_batch_size=2")
    assert _with_eval(run) == pytest.approx(alone, rel=1e-5)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, float], str]:
    """Losses of a run with dropout and shuffled data, and where it saved steps 5 and 10."""
    folder = tmp_path_factory.mktemp("saved")
    saving = ["Engine.save_load.save_steps=5", f"Engine.save_load.output_dir={folder}/out"]
    return _losses(_run(folder, *SMALL, *saving)), f"Engine.save_load.ckpt_dir={folder}/out/step_"


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(
    saved: tuple[dict[int, float], str], tmp_path: Path
) -> None:
    losses, ckpt = saved
    resumed = _losses(_run(tmp_path, *SMALL, f"{ckpt}00000005"))
    assert resumed == {step: losses[step] for step in range(6, 11)}


def test_a_run_that_is_done_says_that_nothing_is_left(
    saved: tuple[dict[int, float], str], tmp_path: Path
) -> None:
    run = _run(tmp_path, *SMALL, f"{saved[1]}00000010")
    assert run.returncode == 0
    assert "step 10/10 nothing left to train" in run.stdout


def test_a_checkpoint_of_another_model(saved: tuple[dict[int, float], str], tmp_path: Path) -> None:
    run = _run(tmp_path, *SMALL, f"{saved[1]}00000005", "Model.num_layers=3")
    assert run.returncode == 3
    assert "a checkpoint of another model: 12 tensors differ, the first blocks.2." in run.stderr
    assert "Traceback" not in run.stderr


def test_evaluation_counts_neither_as_training_nor_as_reading(tmp_path: Path) -> None:
    # 300 batches of evaluation after step 3, forward only: as much as 100 steps.
    evaluating = ["Engine.eval_freq=3", "Engine.eval_iters=300", "Engine.max_steps=4"]
    profiling = ["Profiler.enable=True", "Profiler.timer_only=True"]
    log = f"Profiler.profiler_log={tmp_path}/profiler_log"
    run = _run(tmp_path, *SMALL, *evaluating, *profiling, log)
    assert list(_losses(run)) == [1, 2, 3, 4]
    assert len(re.findall(r"step 3/4 eval loss \d\.\d+", run.stdout)) == 1
    lines = (tmp_path / "profiler_log/steps/rank_00000.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    for costs in (
        [float(cost) for cost in re.findall(r"batch_cost ([\d.]+) s", run.stdout)],
        [step["batch_cost_ns"] / 1e9 for step in steps],
    ):
        assert len(costs) == 4
        assert costs[3] < 20 * max(costs[1:3])
    assert steps[3]["reader_cost_ns"] < 20 * max(step["reader_cost_ns"] for step in steps[1:3])


def test_an_evaluation_has_one_batch_at_least(tmp_path: Path) -> None:
    run = _run(tmp_path, *SMALL, "Engine.eval_freq=1", "Engine.max_steps=1", "Engine.eval_iters=-1")
    assert re.search(r"step 1/1 eval loss \d\.\d+", run.stdout), run.stderr


def test_mixed_precision_on_a_cpu_says_what_it_is(tmp_path: Path) -> None:
    run = _run(tmp_path, *SMALL, "Engine.max_steps=1", "Engine.mix_precision.enable=True")
    assert run.stdout.count("Paddle's CPU build computes in float32 whatever the setting") == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["Engine.max_step=3", "Model.hidden_size=0"], "Model.hidden_size: 0: expected at least 1"),
        (["Data.Train.dataset.input=/nowhere"], "/nowhere: no text there; expected a file"),
        (["Distributed.mp_degree=2", "Distributed.dp_degree=1"], "but 1 processes were launched"),
        (["Model.vocab_size=100"], "Model.vocab_size: 100: bytes need 256 at least"),
        (["Profiler.enable=True", "Profiler.profiler_log=file/log"], "is a file; expected a dir"),
        (["Data.Train.dataset.max_seq_len=65"], "65: more than Model.max_position_embeddings 64"),
        (["Data.Train.dataset.split=[0, 0, 0]"], "(0.0, 0.0, 0.0): expected three shares: train"),
        (["Data.Eval.dataset.split=[9, -1, 0]"], "(9.0, -1.0, 0.0): expected three shares: train"),
        (["Engine.save_load.ckpt_dir=gone"], "gone: no such directory; expected a checkpoint"),
        (
            ["Optimizer.name=Lamb", "Model.module=MoEModule"],
            "Model.module: MoEModule: expected GPTModule\n"
            "-o Optimizer.name=Lamb: Optimizer.name: Lamb: expected AdamW or FusedAdamW",
        ),
        (
            ["Optimizer.lr.name=Linear", "Optimizer.grad_clip.name=ByValue"],
            "Optimizer.lr.name: Linear: expected CosineAnnealingWithWarmupDecay\n"
            "-o Optimizer.grad_clip.name=ByValue: Optimizer.grad_clip.name: ByValue: "
            "expected ClipGradByGlobalNorm",
        ),
    ],
)
def test_what_cannot_work_ends_before_it_starts(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    (tmp_path / "file").write_text("")
    run = _run(tmp_path, *overrides)
    assert run.returncode == 2
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    assert "ccache" not in run.stderr  # Paddle was not even imported: it warns of this


@pytest.mark.parametrize("local_rank", ["0", "1"])
def test_a_rank_whose_device_is_not_there_says_so(tmp_path: Path, local_rank: str) -> None:
    run = _run(tmp_path, "Global.device=gpu", PADDLE_LOCAL_RANK=local_rank)
    assert run.returncode == 2
    assert "-o Global.device=gpu: Global.device: gpu: " in run.stderr
    assert "Traceback" not in run.stderr


def test_too_little_text_to_evaluate_on_is_found_before_training(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("word " * 1000)  # 30 of 1000 shares: 150 bytes
    run = _run(tmp_path, *SMALL, "Engine.eval_freq=5", "Data.Eval.dataset.input=text")
    assert run.returncode == 2
    message = "Data.Eval.dataset.input: 4 samples are fewer than one step's 8"
    assert f"-o Data.Eval.dataset.input=text: {message}" in run.stderr
    assert "loss" not in run.stdout


def test_fleetx_data_that_is_not_read_is_said(tmp_path: Path) -> None:
    run = _run(tmp_path, *SMALL, "Engine.max_steps=1", "Data.Train.dataset.input_dir=./data")
    assert list(_losses(run)) == [1]
    assert "Data.Train.dataset.input_dir: ./data: FleetX's token files are not read" in run.stderr
    assert "Data.Eval.dataset.input_dir" not in run.stderr


@pytest.mark.launch
def test_the_launcher_ends_too_and_rank_0_alone_speaks(tmp_path: Path) -> None:
    axes = ["Distributed.mp_degree=2", "Distributed.dp_degree=1", "Engine.logging_freq=0"]
    run = _run(tmp_path, *axes, processes=2)
    assert run.returncode != 0
    logs = [(tmp_path / f"log/workerlog.{rank}").read_text() for rank in (0, 1)]
    assert "Engine.logging_freq: 0: expected at least 1" in logs[0]
    assert "Traceback" not in logs[0] + logs[1]
    assert logs[1] == ""
