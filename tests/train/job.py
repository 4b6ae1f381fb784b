"""Starts ``tools/train.py`` as its users do, and reads what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs/gpt/pretrain_gpt_tiny_cpu.yaml"
SMALL = (
    "Model.hidden_size=32",
    "Data.Train.dataset.max_seq_len=32",
    "Data.Eval.dataset.max_seq_len=32",
    "Engine.logging_freq=1",
    "Engine.max_steps=10",
    "Engine.eval_freq=-1",
    "Optimizer.lr.decay_steps=20",
)
NO_DROPOUT = ("Model.hidden_dropout_prob=0", "Model.attention_probs_dropout_prob=0")


def run(
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


def losses(done: subprocess.CompletedProcess[str]) -> dict[int, float]:
    """Losses by step; those of an evaluation after the tenth under 0."""
    said = done.stdout + done.stderr
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    found = re.findall(r"step (\d+)/\d+ loss ([\d.]+)", said)
    evaluated = re.findall(r"step 10/10 eval loss ([\d.]+)", said)
    by_step = {int(step): float(loss) for step, loss in found}
    return {**by_step, 0: float(evaluated[0])} if evaluated else by_step


def norms(done: subprocess.CompletedProcess[str]) -> dict[int, float]:
    """Gradient norms by step."""
    found = re.findall(r"step (\d+)/\d+ .* grad_norm ([\d.]+)", done.stdout + done.stderr)
    return {int(step): float(norm) for step, norm in found}
