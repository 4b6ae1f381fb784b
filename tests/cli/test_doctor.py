"""``ppprof doctor``: its lines, its exit code, and what it says of faults that end its children."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ppprof.capture.doctor import Check
from ppprof.cli import main
from tests.capture.simulated_paddle import make, plant

BEFORE = "import sys; from ppprof.cli import main; "


def examined(*arguments: object, code: int, before: str = BEFORE) -> dict[str, dict[str, Any]]:
    """Run ``ppprof doctor --format json`` in a process, and return its lines by name."""
    words = ["doctor", "--format", "json", *map(str, arguments)]
    command = [sys.executable, "-c", f"{before}sys.exit(main({words!r}))"]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    assert time.monotonic() - start < 35
    checks = json.loads(done.stdout)["checks"]
    assert all(list(check) == ["name", "status", "reason", "action", "values"] for check in checks)
    return {check["name"]: check for check in checks}


@pytest.mark.paddle
def test_a_machine_without_a_device(tmp_path: Path) -> None:
    pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    found = examined(tmp_path / "log", code=0)
    names = [
        "Paddle",
        "window",
        "profiler_log",
        "/dev/shm",
        "helper_memory",
        "VisualDL",
        "browser",
        "versions",
    ]
    assert [name.replace(" ", "_") for name in found] == names
    depends = ("profiler_log", "/dev/shm", "helper memory")  # on the machine that runs the tests
    assert {found[name]["status"] for name in found if name not in depends} == {"ok"}
    assert found["window"]["reason"] == "a window on the host holds its operator"
    assert found["window"]["values"]["num_operators"] == 1
    assert "paddle commit" in found["versions"]["values"]
    assert list(tmp_path.iterdir()) == []


def test_without_paddle_the_other_checks_run(tmp_path: Path) -> None:
    before = f"import sys; sys.modules['paddle'] = None; {BEFORE}"
    found = examined(tmp_path, "--nproc", 2, code=0, before=before)
    assert found["Paddle"]["status"] == "warning"
    assert found["Paddle"]["reason"].startswith("not installed: ppprof reads traces")
    assert "window" not in found
    assert "all-reduce" not in found
    assert found["profiler_log"]["values"]["mb_per_s"] > 0


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package named paddle, in which a test plants one fault."""
    package = make(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", f"{package.parent}:{Path(__file__).parents[2]}")
    return package


def test_a_kernel_and_its_clock(simulated: Path, tmp_path: Path) -> None:
    found = examined(tmp_path, code=0)
    assert found["window"]["reason"] == "a window on gpu:0 holds its kernel"
    assert found["device clock"]["values"]["most_ahead_ns"] == 100


def test_a_profiler_that_ends_the_process(simulated: Path, tmp_path: Path) -> None:
    text = "failed with error CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
    plant(simulated, f"FAULTS['prepare'] = die({text!r})")
    window = examined(tmp_path, code=1)["window"]
    assert window["status"] == "problem"
    assert window["reason"] == (
        "the NVIDIA driver lets only administrators profile (CUPTI_ERROR_INSUFFICIENT_PRIVILEGES; "
        "the child ended with code 255 while preparing Paddle's profiler)"
    )
    assert "NVreg_RestrictProfilingToAdminUsers=0" in window["action"]
    assert text in window["values"]["messages"]


@pytest.mark.all  # tests/capture/test_probe.py has it for the probe
def test_a_device_that_hangs(
    simulated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(simulated, "FAULTS['prepare'] = lambda: time.sleep(60)")
    quick = f"{BEFORE}from ppprof.capture import doctor as e; "
    quick += "e._SECONDS = 4.0; "
    window = examined(tmp_path, code=1, before=quick)["window"]
    assert window["reason"] == "no answer within 4 s while preparing Paddle's profiler"


def test_the_text(monkeypatch: pytest.MonkeyPatch, cli) -> None:
    found = [
        Check("Paddle", "ok", "3.3.1, built for CPU"),
        Check("/dev/shm", "warning", "64 of 64 MiB are free", "docker run --shm-size=8g"),
        Check("profiler_log", "problem", "disk full " * 9, "free space"),
    ]
    monkeypatch.setattr("ppprof.capture.doctor.examine", lambda *_: found)
    printed = cli("doctor", code=1)
    assert printed.out == (
        "ok       Paddle        3.3.1, built for CPU\n"
        "warning  /dev/shm      64 of 64 MiB are free\n"
        "                   Do: docker run --shm-size=8g\n"
        "PROBLEM  profiler_log  disk full disk full disk full disk full disk full disk full disk full"
        " disk\n"
        "                       full disk full\n"
        "                   Do: free space\n"
        "\n"
        "1 problem, 1 warning, 1 ok\n"
    )
    assert printed.err == "checking this machine; this takes up to 30 seconds\n"


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("Model: {hidden_size: x}\nProfiler: {profiler_log: elsewhere}", "elsewhere"),
        ("profiler_log: elsewhere", "elsewhere"),
        ("Global: {device: cpu}", "profiler_log"),
    ],
)
def test_the_directory_of_a_config(
    text: str,
    folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tmp_path / "profiler.yaml"
    config.write_text(text)
    asked: list[tuple[Path, int]] = []
    monkeypatch.setattr("ppprof.capture.doctor.examine", lambda *a: asked.append(a) or [_OK])
    assert main(["doctor", "-c", str(config)]) == 0
    assert main(["doctor", "here", "--nproc", "4"]) == 0
    assert asked == [(Path(folder), 1), (Path("here"), 4)]
    assert "no problems, no warnings, 1 ok" in capsys.readouterr().out


_OK = Check("Paddle", "ok", "3.3.1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nproc", "0"], "--nproc: '0': expected a whole number from 1\n"),
        (["--nproc", "1000"], "--nproc: 1000: expected at most 256\n"),
        (["log", "-c", "x"], "-c: has no effect beside PROFILER_LOG; give one of them\n"),
        (
            ["s3://b/log"],
            "s3://b/log: a training writes to a local directory; copy the run later\n",
        ),
    ],
)
def test_bad_usage(arguments: list[str], message: str, cli) -> None:
    assert cli("doctor", *arguments, code=2).err == message
