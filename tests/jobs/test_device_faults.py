"""Faults of a device: what the training prints, computes and exits with stays what it was."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ppprof
from tests.fixtures.c_libraries import build_library
from tests.jobs.launching import output, run, start, wait_for

pytestmark = [pytest.mark.paddle, pytest.mark.all]

Variables = Callable[..., dict[str, str]]
JOB = ("-m", "tests.jobs.device_job", "log")
RAW = """
import paddle
from paddle.base import core
paddle.set_device("testdevice")
options = core.ProfilerOptions()
options.trace_switch = 9
profiler = core._Profiler.create(options, ["testdevice"])
profiler.prepare()
print("prepared")
"""


def trained(folder: Path, *settings: str, **variables: str) -> tuple[str, ppprof.Run]:
    done = run(folder, *JOB, *settings, **variables)
    assert [line for line in done.stdout.splitlines() if line.startswith("step")] == [
        f"step {step}" for step in range(8)
    ]
    return done.stderr, ppprof.open(folder / "log")


@pytest.mark.jobs
def test_a_device_is_recorded(tmp_path: Path, test_device: Variables) -> None:
    printed, recorded = trained(tmp_path, **test_device())
    assert "is not recorded" not in printed
    kernels = recorded.summary("kernel")
    assert kernels.select("name", "calls").rows() == [("ampere_sgemm_128x64_nn", 9)]


@pytest.mark.jobs
def test_a_window_that_ends_while_the_cpu_is_the_current_device_is_recorded(
    tmp_path: Path, test_device: Variables
) -> None:
    printed, recorded = trained(tmp_path, "returns=True", "sync_steps=True", **test_device())
    assert "is not recorded" not in printed
    assert recorded.summary("kernel").select("calls").rows() == [(9,)]
    assert recorded.step_times["step"].to_list() == list(range(8))


@pytest.mark.jobs
def test_each_window_of_a_device_has_its_kernels(tmp_path: Path, test_device: Variables) -> None:
    """Paddle's profiler is created and released for each of them."""
    settings = "scheduler={closed: 1, ready: 1, record: 2, repeat: 2}"
    printed, recorded = trained(tmp_path, settings, **test_device())
    assert "is not recorded" not in printed
    assert recorded.windows() == [0, 1]
    kernels = recorded.events().filter(category="Kernel")
    assert [kernels.filter(window=window).height for window in (0, 1)] == [6, 6]


@pytest.mark.parametrize(
    ("switch", "why"),
    [
        pytest.param(
            {"REFUSES": 1},
            "the NVIDIA driver lets only administrators profile",
            marks=pytest.mark.jobs,
        ),
        ({"HOOKS": 0}, "the device's plugin has no profiler"),
        ({"EVENTS": 0}, "a window on testdevice:0 holds no kernel"),
        ({"FILES": 1}, "its profiler writes files of its own: testdevice_profiling"),
    ],
)
def test_a_profiler_that_does_not_work_costs_the_device_events_only(
    tmp_path: Path, test_device: Variables, switch: dict[str, int], why: str
) -> None:
    printed, recorded = trained(tmp_path, **test_device(**switch))
    (warning,) = (line for line in printed.splitlines() if "is not recorded" in line)
    assert f"testdevice:0 is not recorded: {why}" in warning
    assert "windows hold the host's events only, and the training goes on" in warning
    assert "what to do: " in warning
    events = recorded.events()
    assert events.filter(category="Operator").height == 9
    assert events.filter(category="Kernel").is_empty()
    assert not list(tmp_path.rglob("testdevice_profiling"))


CUPTI = """
#include <stdlib.h>
int cuptiActivityEnable(int kind) { return getenv("PPPROF_TEST_DEVICE_REFUSES") ? 35 : 0; }
int cuptiActivityDisable(int kind) { return 0; }
int cuptiGetResultString(int code, const char **text) {
    *text = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"; return 0; }
"""


def test_a_profiler_that_refuses_after_the_probe_costs_later_device_events_only(
    tmp_path: Path, test_device: Variables
) -> None:
    build_library(CUPTI, tmp_path / "libcupti.so")
    variables = test_device() | {"LD_PRELOAD": str(tmp_path / "libcupti.so")}
    windows = "scheduler={closed: 1, ready: 1, record: 2, repeat: 2}"
    printed, recorded = trained(tmp_path, windows, "refuses=4", **variables)
    (warning,) = (line for line in printed.splitlines() if "is not recorded" in line)
    assert "the NVIDIA driver lets only administrators profile" in warning
    assert recorded.windows() == [0, 1]
    kernels = recorded.events().filter(category="Kernel")
    assert kernels["window"].unique().to_list() == [0]


def test_such_a_profiler_ends_a_training_that_opens_it(
    tmp_path: Path, test_device: Variables
) -> None:
    done = run(tmp_path, "-c", RAW, code=255, **test_device(REFUSES=1))
    assert "prepared" not in done.stdout


def test_targets_that_were_asked_for_are_recorded_without_device_events(
    tmp_path: Path, test_device: Variables
) -> None:
    settings = "targets=[cpu, custom_device]"
    printed, recorded = trained(tmp_path, settings, **test_device(EVENTS=0))
    assert "is not recorded" not in printed
    assert recorded.events().filter(category="Operator").height == 9


def ends_by_sigterm(job: subprocess.Popen[bytes], folder: Path, seconds: float) -> None:
    """Send SIGTERM; the job has to die of it, with the times of its steps on disk."""
    job.terminate()
    try:
        assert job.wait(seconds) == -signal.SIGTERM
    finally:
        job.kill()
    steps = (folder / "log/steps/rank_00000.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in steps[:3]] == [0, 1, 2]


def catches_sigterm(job: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has a handler for SIGTERM, which it has not while it saves a window."""
    (mask,) = re.findall(r"^SigCgt:\s*(\w+)", Path(f"/proc/{job.pid}/status").read_text(), re.M)
    return bool(int(mask, 16) & 1 << signal.SIGTERM - 1)


@pytest.mark.jobs
def test_sigterm_ends_a_training_whose_window_waits_for_a_stuck_device(
    tmp_path: Path, test_device: Variables
) -> None:
    job = start(tmp_path, *JOB, "steps=100", **test_device(STUCK=11))
    # After step 4 the window is saved. Paddle waits for the device, and holds Python's lock.
    wait_for(lambda: "step 3" in output(tmp_path) and not catches_sigterm(job), job)
    ends_by_sigterm(job, tmp_path, 10)


def test_sigterm_ends_a_training_whose_first_window_waits_for_the_probe(
    tmp_path: Path, test_device: Variables
) -> None:
    # The probe's child is stuck in its first matmul; the training multiplies nothing.
    job = start(tmp_path, *JOB, "scheduler=[5, 8]", "matmuls=0", **test_device(STUCK=1))
    wait_for(lambda: "step 2" in output(tmp_path), job)
    time.sleep(1)
    ends_by_sigterm(job, tmp_path, 10)
    assert "is not recorded" not in output(tmp_path)


def test_sigterm_ends_a_training_that_waits_for_a_stuck_device_in_a_window(
    tmp_path: Path, test_device: Variables
) -> None:
    job = start(tmp_path, *JOB, "scheduler=[2, 90]", "reads=True", **test_device(STUCK=11))
    wait_for(lambda: "step 2" in output(tmp_path), job)
    ends_by_sigterm(job, tmp_path, 40)  # the rescue has 20 s


ENDS = pytest.mark.parametrize(
    ("settings", "switches"),
    [
        pytest.param((), {"STUCK": 11}, id="current stream"),
        pytest.param(("aside=4",), {"STUCK": 13}, id="another stream", marks=pytest.mark.jobs),
        pytest.param(("aside=4",), {"STUCK": 13, "STUCK_S": 15}, id="busy for long"),
    ],
)


@ENDS
def test_an_exception_is_reported_though_the_device_is_stuck(
    tmp_path: Path, test_device: Variables, settings: tuple[str, ...], switches: dict[str, int]
) -> None:
    """Paddle's profiler would wait for all streams; the exception needs not one of them."""
    # So short that it waits for the probe: on a busy machine, a longer one begins when the job is over.
    plan = ("scheduler=[2, 7]", "fails=6", "patience=2")
    job = start(tmp_path, *JOB, *plan, *settings, **test_device(**switches))
    wait_for(lambda: "step 5" in output(tmp_path), job)
    begin = time.monotonic()
    wait_for(lambda: "ValueError: the training fails" in output(tmp_path), job)
    assert time.monotonic() - begin < 10
    lost = "the device has not finished its work in 2 s; window 0 is lost, steps recorded: 4"
    assert lost in output(tmp_path)
    if "STUCK_S" not in switches:  # without a profiler too, Paddle waits when the process ends
        job.terminate()
    assert job.wait(30) == (1 if "STUCK_S" in switches else -signal.SIGTERM)


def test_an_exception_waits_for_another_stream_that_is_busy(
    tmp_path: Path, test_device: Variables
) -> None:
    switches = test_device(STUCK=13, STUCK_S=3)
    done = run(tmp_path, *JOB, "scheduler=[2, 90]", "fails=6", "aside=4", code=1, **switches)
    stopped = (
        "the training ends by ValueError: the training fails; first Paddle's profiler is stopped"
    )
    assert stopped in done.stderr
    assert "ValueError: the training fails" in done.stderr.splitlines()
    assert "window 0 was cut short by the end of the training: it has 4 of 88 steps" in done.stderr


@pytest.mark.parametrize(
    ("scheduler", "lost", "switches"),
    [
        ("[2, 5]", "window 0 is lost, steps", {}),
        ("[6, 8]", "", {}),
        ("[2, 5]", "window 0 is lost, steps", {"HOOKS": 0}),
    ],
    ids=["ends", "begins", "host only"],
)
def test_a_training_goes_on_beside_a_stream_that_is_stuck(
    tmp_path: Path, test_device: Variables, scheduler: str, lost: str, switches: dict[str, int]
) -> None:
    """Where a window ends, and where one begins. Paddle waits for the device also if it is not recorded."""
    plan = (f"scheduler={scheduler}", "aside=4", "patience=2")
    job = start(tmp_path, *JOB, *plan, **test_device(STUCK=13, **switches))
    wait_for(lambda: "true step" in output(tmp_path), job)
    job.terminate()
    assert job.wait(10) == -signal.SIGTERM
    assert "recording failed: " in output(tmp_path)
    assert f"the device has not finished its work in 2 s; {lost}" in output(tmp_path)
