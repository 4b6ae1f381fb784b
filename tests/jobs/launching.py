"""Programs started as their users start them, alone or under Paddle's launcher, and their output.

Every test that starts a training does it through this module.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ROOT / "tools/train.py"
JOBS = ROOT / "tests/jobs"
CONFIGS = ROOT / "configs/gpt"
CONFIG = CONFIGS / "pretrain_gpt_tiny_cpu.yaml"
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


def command(
    *program: str | Path,
    processes: int = 0,
    options: tuple[str, ...] = (),
    python: str | Path = sys.executable,
) -> list[str]:
    """Return the command line of a Python program, under the launcher if ``processes`` is not 0.

    Args:
        program: a script or ``-m``, a module, and their arguments.
        processes: ranks on this machine; the launcher keeps their output in ``launch/``.
        options: more options of the launcher.
        python: an interpreter.
    """
    launcher: list[str] = []
    if processes:
        launcher = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(processes)]
        launcher += ["--log_dir", "launch", *options]
    return [str(python), *launcher, *map(str, program)]


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Return this process's variables for a program in ``folder``, without those of a launcher.

    The repository can be imported, caches go below the folder, and ranks share the cores.
    """
    own = {k: v for k, v in os.environ.items() if not k.startswith(("PADDLE_", "POD_"))}
    own.pop("PYTHONUNBUFFERED", None)
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    caches = {"XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    return {**own, "PYTHONPATH": paths, **caches, **variables}


def start(
    folder: Path,
    *program: str | Path,
    processes: int = 0,
    **variables: str,
) -> subprocess.Popen[bytes]:
    """Start a program in a folder; `output` returns what it has printed so far."""
    folder.mkdir(exist_ok=True)
    with (folder / "output").open("wb") as file:
        return subprocess.Popen(
            command(*program, processes=processes),
            cwd=folder,
            env=environment(folder, **variables),
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def output(folder: Path) -> str:
    """Return stdout and stderr of what `start` started in a folder."""
    return (folder / "output").read_text()


def run(
    folder: Path,
    *program: str | Path,
    processes: int = 0,
    options: tuple[str, ...] = (),
    code: int | None = 0,
    python: str | Path = sys.executable,
    timeout: float = 400,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder to its end.

    Args:
        folder: its working directory.
        program: as for `command`.
        processes: as for `command`.
        options: as for `command`.
        code: the exit code that is expected; None for any.
        python: as for `command`.
        timeout: seconds.
        variables: environment variables.
    """
    done = subprocess.run(
        command(*program, processes=processes, options=options, python=python),
        cwd=folder,
        env=environment(folder, **variables),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    logs = workerlogs(folder) if processes else {}
    printed = done.stdout + done.stderr + "".join(logs.values())
    # Not a tuple, which pytest shortens to a few lines.
    assert code is None or done.returncode == code, f"{done.returncode}\n{printed[-12000:]}"
    return done


def workerlogs(folder: Path) -> dict[int, str]:
    """Return what each rank of a launch in a folder printed, by rank."""
    paths = (folder / "launch").glob("workerlog.*")
    return {int(path.suffix[1:]): path.read_text() for path in sorted(paths)}


def overrides(*settings: str) -> list[str]:
    """Return ``-o`` options."""
    return [part for setting in settings for part in ("-o", setting)]


def train(
    folder: Path,
    *settings: str,
    config: str | Path = CONFIG,
    processes: int = 0,
    code: int | None = None,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run ``tools/train.py`` with overrides such as "Engine.max_steps=3"."""
    program = (TRAIN, "-c", config, *overrides(*settings))
    return run(folder, *program, processes=processes, code=code, **variables)


def losses(done: subprocess.CompletedProcess[str]) -> dict[int, float]:
    """Return the losses that `train` printed by step; that of an evaluation after step 10 as 0."""
    printed = done.stdout + done.stderr
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    found = re.findall(r"step (\d+)/\d+ loss ([\d.]+)", printed)
    evaluated = re.findall(r"step 10/10 eval loss ([\d.]+)", printed)
    by_step = {int(step): float(loss) for step, loss in found}
    return {**by_step, 0: float(evaluated[0])} if evaluated else by_step


def norms(done: subprocess.CompletedProcess[str]) -> dict[int, float]:
    """Return the gradient norms that `train` printed, by step."""
    found = re.findall(r"step (\d+)/\d+ .* grad_norm ([\d.]+)", done.stdout + done.stderr)
    return {int(step): float(norm) for step, norm in found}


def covering(case: str, *cases: str) -> Any:
    """Return a case as a parameter, marked for ``make test-jobs`` if it is one of ``cases``."""
    return pytest.param(case, marks=pytest.mark.jobs) if case in cases else case


def wait_for(
    condition: Callable[[], bool],
    job: subprocess.Popen[bytes] | None = None,
    seconds: float = 120,
) -> None:
    """Wait until a condition holds; fail after so many seconds, or when the job has ended."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert job is None or job.poll() is None, job
        assert time.monotonic() < deadline, seconds
        time.sleep(0.05)
