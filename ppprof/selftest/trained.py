"""Start a training of the self-test in child processes; its run, output and measurements."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import ppprof
from ppprof.capture.children import environment, run
from ppprof.run.run import Run
from ppprof.selftest import LAST_STEP

_SECONDS = 300.0
"""The longest time of a training; importing Paddle and starting a device take most of it."""
_END_SECONDS = 30.0
"""The longest time in which a signal ends a rank: ppprof takes at most 20 s to save a window."""
_START_SECONDS = 120.0


@dataclass(frozen=True)
class Machine:
    """A device, and how programs are started on it."""

    device: str
    """Paddle's name of the kind of device, such as ``gpu``."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables in addition to those of this process."""
    command: Sequence[str] = ()
    """The program that starts Python; empty for none."""


@dataclass(frozen=True)
class Trained:
    """A training that has ended."""

    folder: Path
    """Its working directory; the run is in ``log``."""
    exit_codes: Sequence[int | None]
    """Of the launcher, or of each rank that was started without it; None after a time-out."""
    printed: Mapping[int, str]
    """What each rank printed."""

    @property
    def output(self) -> str:
        """What rank 0 printed."""
        return self.printed.get(0, "")

    @property
    def without_device(self) -> str:
        """A rank's warning that its windows hold the host's events only; "" without one."""
        lines = (line for printed in self.printed.values() for line in printed.splitlines())
        return next((line for line in lines if "windows hold the host's events only" in line), "")

    @cached_property
    def run(self) -> Run:
        """The recorded run.

        Raises:
            InputError: there is no trace in it.
        """
        return ppprof.open(self.folder / "log")

    @cached_property
    def measured(self) -> dict[str, Any]:
        """What the training measured itself, without ppprof; empty if it failed."""
        lines = [line for line in self.output.splitlines() if line.startswith("{")]
        return dict(json.loads(lines[-1])) if lines else {}


def train(
    machine: Machine, folder: Path, training: str, settings: Sequence[str], processes: int
) -> Trained:
    """Run a training to its end.

    Args:
        machine: the device.
        folder: the working directory; it exists.
        training: a function of `ppprof.selftest.trainings`.
        settings: keys of the ``Profiler`` block: ``scheduler=[2, 5]``.
        processes: ranks, started by Paddle's launcher; 0 for one without it.
    """
    launcher: list[str] = []
    if processes:
        launcher = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(processes)]
        launcher += ["--log_dir", "launch"]
    ended = run(
        [*machine.command, sys.executable, *launcher, *_program(machine, training, settings)],
        _SECONDS,
        _environment(machine),
        folder,
    )
    printed = {0: ended.stdout + ended.stderr}
    if processes:
        logs = (folder / "launch").glob("workerlog.*")
        printed = {int(path.suffix[1:]): path.read_text(errors="replace") for path in logs}
    return Trained(folder, [ended.exit_code], printed)


def end_by_signal(machine: Machine, folder: Path, training: str) -> Trained:
    """Start two ranks, wait until both are in the step that does not end, and send SIGTERM to both.

    The ranks have no launcher, whose SIGKILL would hide how they end. A rank that does not end
    within 30 s has the exit code None.
    """
    endpoints = [f"127.0.0.1:{_free_port()}" for _ in range(2)]
    jobs = []
    for rank in range(2):
        variables = {
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_TRAINERS_NUM": "2",
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
            f"FLAGS_selected_{machine.device}s": str(rank),
        }
        if machine.device not in ("gpu", "xpu"):
            variables |= {"PADDLE_XCCL_BACKEND": machine.device, "PADDLE_DISTRI_BACKEND": "xccl"}
        with _output(folder, rank).open("wb") as file:
            jobs.append(
                subprocess.Popen(
                    [sys.executable, *_program(machine, training, ["scheduler=[2, 90]"])],
                    cwd=folder,
                    env=_environment(machine) | variables,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not all(LAST_STEP in _printed(folder, rank) for rank in range(2)):
            if time.monotonic() > deadline or any(job.poll() is not None for job in jobs):
                break
            time.sleep(0.05)
        else:
            for job in jobs:
                job.send_signal(signal.SIGTERM)
        codes = [_code(job) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    return Trained(folder, codes, {rank: _printed(folder, rank) for rank in range(2)})


def _code(job: subprocess.Popen[bytes]) -> int | None:
    try:
        return job.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _program(machine: Machine, training: str, settings: Sequence[str]) -> list[str]:
    # A file: Paddle's launcher starts no module.
    return [str(Path(__file__).with_name("trainings.py")), training, machine.device, *settings]


def _environment(machine: Machine) -> dict[str, str]:
    # The ranks share the processors.
    own = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    return {**environment(keeps_flags=True), **own, **machine.variables}


def _output(folder: Path, rank: int) -> Path:
    return folder / f"output.{rank}"


def _printed(folder: Path, rank: int) -> str:
    return _output(folder, rank).read_text(errors="replace")


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
