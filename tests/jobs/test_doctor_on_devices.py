"""``ppprof doctor`` on a GPU and on the test device: its lines, its reasons and its exit code."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.all]

from tests import device  # noqa: E402
from tests.jobs.devices import COVERING, ON_GPU, Machine  # noqa: E402
from tests.jobs.launching import command, environment  # noqa: E402


def examined(
    machine: Machine, *options: str, code: int = 0, **switches: object
) -> dict[str, dict[str, Any]]:
    """Run ``ppprof doctor``; return its lines by name."""
    variables = machine.environment(2 if "--nproc" in options else 1, **switches)
    done = subprocess.run(
        command("-m", "ppprof", "doctor", "log", "--format", "json", *options),
        cwd=machine.folder,
        env=environment(machine.folder, **variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def check_window(machine: Machine, lines: dict[str, dict[str, Any]]) -> None:
    window, clock = lines["window"], lines["device clock"]
    place = f"{machine.name}:0"
    assert (window["status"], window["reason"]) == ("ok", f"a window on {place} holds its kernel")
    assert window["values"]["num_kernels"] >= 1
    assert clock["status"] == "ok"
    assert clock["values"]["least_ahead_ns"] <= 0 <= clock["values"]["most_ahead_ns"]


@pytest.mark.parametrize("machine", COVERING, indirect=True)
def test_a_device_that_works(machine: Machine) -> None:
    check_window(machine, examined(machine))


@pytest.mark.parametrize("machine", [device.NAME, ON_GPU], indirect=True)
def test_ranks_that_reduce(machine: Machine) -> None:
    lines = examined(machine, "--nproc", "2")
    check_window(machine, lines)
    check = lines["all-reduce"]
    assert check["status"] == "ok", check
    ranks = check["values"]["ranks"]
    assert [(rank["is_correct"], rank["has_span"]) for rank in ranks] == [(True, True)] * 2
    assert [rank["device"] for rank in ranks] == [f"{machine.name}:{rank}" for rank in range(2)]


@pytest.mark.parametrize("machine", [device.NAME], indirect=True)
@pytest.mark.parametrize(
    ("switch", "code", "status", "reason", "action"),
    [
        (
            {"REFUSES": 1},
            1,
            "problem",
            "the NVIDIA driver lets only administrators profile",
            "NVreg_RestrictProfilingToAdminUsers=0",
        ),
        ({"HOOKS": 0}, 0, "warning", "the device's plugin has no profiler", "device's maker"),
        ({"EVENTS": 0}, 0, "warning", "holds no kernel", "device's maker"),
    ],
    ids=["refuses", "no profiler", "no events"],
)
def test_a_profiler_that_does_not_work(
    machine: Machine,
    switch: dict[str, int],
    code: int,
    status: str,
    reason: str,
    action: str,
) -> None:
    lines = examined(machine, code=code, **switch)
    window = lines["window"]
    assert window["status"] == status
    assert reason in window["reason"]
    assert action in window["action"]
    assert "device clock" not in lines
