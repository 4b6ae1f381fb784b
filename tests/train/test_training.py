"""The harness as its users start it: real processes, the real launcher, real text."""

from __future__ import annotations

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
    "Engine.eval_freq=-1",
    "Engine.max_steps=10",
    "Optimizer.lr.decay_steps=20",
]
NO_DROPOUT = ["Model.hidden_dropout_prob=0", "Model.attention_probs_dropout_prob=0"]
pytestmark = pytest.mark.paddle


def _run(folder: Path, *overrides: str, processes: int = 0) -> subprocess.CompletedProcess[str]:
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
        env={**clean, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def _losses(run: subprocess.CompletedProcess[str]) -> dict[int, float]:
    assert run.returncode == 0, run.stderr[-2000:] + run.stdout[-2000:]
    found = re.findall(r"step (\d+)/\d+ loss ([\d.]+)", run.stdout + run.stderr)
    return {int(step): float(loss) for step, loss in found}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of one process with batches of 8 and no dropout."""
    return _losses(_run(tmp_path_factory.mktemp("alone"), *SMALL, *NO_DROPOUT))


def test_it_learns(alone: dict[int, float]) -> None:
    assert list(alone) == list(range(1, 11))
    assert alone[10] < alone[1] - 0.2


@pytest.mark.launch
def test_two_ranks_train_what_one_does(alone: dict[int, float], tmp_path: Path) -> None:
    two = ["Distributed.dp_degree=2", "Global.local_batch_size=4", "Global.micro_batch_size=4"]
    assert _losses(_run(tmp_path, *SMALL, *NO_DROPOUT, *two, processes=2)) == pytest.approx(
        alone, rel=1e-5
    )


def test_micro_batches_train_what_a_batch_does(alone: dict[int, float], tmp_path: Path) -> None:
    micro = _run(tmp_path, *SMALL, *NO_DROPOUT, "Global.micro_batch_size=2")
    assert _losses(micro) == pytest.approx(alone, rel=1e-5)


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    # Dropout is on, and the order of the data is shuffled.
    saving = ["Engine.save_load.save_steps=5", f"Engine.save_load.output_dir={tmp_path}/out"]
    whole = _losses(_run(tmp_path, *SMALL, *saving))
    resumed = _losses(
        _run(tmp_path, *SMALL, f"Engine.save_load.ckpt_dir={tmp_path}/out/step_00000005")
    )
    assert resumed == {step: whole[step] for step in range(6, 11)}


def test_evaluation_counts_neither_as_training_nor_as_reading(tmp_path: Path) -> None:
    run = _run(tmp_path, *SMALL, "Engine.eval_freq=5", "Engine.eval_iters=3")
    _losses(run)
    assert len(re.findall(r"eval loss \d+\.\d+", run.stdout)) == 2


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


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    run = _run(tmp_path, "Global.device=gpu")
    assert run.returncode == 2
    assert "-o Global.device=gpu: Global.device: gpu: " in run.stderr
    assert "Traceback" not in run.stderr


def test_too_little_text_to_evaluate_on_is_found_before_training(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("word " * 1000)  # 30 of 1000 shares: 150 bytes
    run = _run(tmp_path, *SMALL, "Engine.eval_freq=5", "Data.Eval.dataset.input=text")
    assert run.returncode == 2
    assert "4 samples are fewer than one step's 8" in run.stderr
    assert "loss" not in run.stdout


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    saving = ["Engine.save_load.save_steps=1", f"Engine.save_load.output_dir={tmp_path}/out"]
    _losses(_run(tmp_path, *SMALL, *saving, "Engine.max_steps=1"))
    other = [f"Engine.save_load.ckpt_dir={tmp_path}/out/step_00000001", "Model.num_layers=3"]
    run = _run(tmp_path, *SMALL, *other)
    assert run.returncode == 3
    assert "a checkpoint of another model: 12 tensors differ, the first blocks.2." in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.launch
def test_the_launcher_ends_too_and_rank_0_alone_speaks(tmp_path: Path) -> None:
    axes = ["Distributed.mp_degree=2", "Distributed.dp_degree=1", "Engine.logging_freq=0"]
    run = _run(tmp_path, *axes, processes=2)
    assert run.returncode != 0
    logs = [(tmp_path / f"log/workerlog.{rank}").read_text() for rank in (0, 1)]
    assert "Engine.logging_freq: 0: expected at least 1" in logs[0]
    assert "Traceback" not in logs[0] + logs[1]
    assert logs[1] == ""
