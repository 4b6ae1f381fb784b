"""Each check of ``ppprof doctor``: with real libraries, disks and processes that fail, where possible."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ppprof.capture.doctor import checks, device_checks
from ppprof.capture.doctor.checks import Check
from ppprof.capture.probe import KINDS, PERMISSION, SUBSCRIBER, Probe
from tests.fixtures.c_libraries import build_library

GPU = {"version": "3.3.1", "cuda": "12.6"}
CPU = {"version": "3.3.1"}
H100 = {"driver": "550.54", "driver_cuda": "12.4", "devices": [{"name": "NVIDIA H100"}] * 8}


def only(checks: Iterator[Check]) -> Check:
    (check,) = checks
    return check


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder that holds installed distributions."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    return tmp_path


def install(site: Path, name: str, number: str) -> None:
    folder = site / f"{name.replace('-', '_')}-{number}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")


def test_two_wheels_of_paddle(site: Path) -> None:
    install(site, "paddlepaddle", "3.3.1")
    install(site, "paddlepaddle-gpu", "2.6.2")
    check = only(checks.paddle_checks(CPU, {}))
    assert check.status == "problem"
    assert check.reason == (
        "paddlepaddle and paddlepaddle-gpu are both installed and overwrite each other's files"
    )
    assert check.action.startswith("pip uninstall -y paddlepaddle paddlepaddle-gpu, then")


@pytest.mark.parametrize(
    ("build", "driver", "status", "reason"),
    [
        (None, {}, "warning", "not installed: ppprof reads traces and runs here, but records"),
        (CPU, {}, "ok", "3.3.1, built for CPU"),
        (GPU, H100, "ok", "3.3.1, built for CUDA 12.6; 8 x NVIDIA H100, driver 550.54"),
        (CPU, H100, "warning", "this machine has 8 NVIDIA GPUs, which this build cannot use"),
        (GPU, {}, "warning", "no NVIDIA driver was found"),
        (GPU, {**H100, "driver_cuda": "11.8"}, "problem", "driver 550.54 supports CUDA up to 11.8"),
        (GPU, {"driver_error": "late"}, "problem", "NVIDIA's driver does not answer (NVML: late)"),
        ({"version": "2.5.2"}, {}, "warning", "2.5.2, built for CPU; ppprof is tested with 2.6.2"),
        ({"version": "4.0.0"}, {}, "warning", "4.0.0, built for CPU; ppprof is tested with 2.6.2"),
        ({}, {}, "ok", "of unknown version"),
    ],
)
def test_the_build_against_the_driver(
    site: Path, build: Any, driver: dict[str, Any], status: str, reason: str
) -> None:
    check = only(checks.paddle_checks(build, driver))
    assert check.status == status
    assert reason in check.reason
    assert bool(check.action) == (status != "ok")


def test_the_versions_of_a_bug_report(site: Path) -> None:
    install(site, "numpy", "2.1.0")
    check = only(checks.version_checks({"commit": "abc"}, {"driver": "550.54"}))
    assert check.reason.startswith("numpy 2.1.0, python 3.")
    assert check.reason.endswith("paddle commit abc, driver 550.54")


WORKING = Probe("works", "a window on gpu:0 holds its kernel", num_kernels=1)


@pytest.mark.parametrize(
    ("ahead_ns", "status", "reason"),
    [
        ((-3_000, 2_000), "ok", "start 2.0 us after their launch, or later, and end 3.0 us before"),
        ((6_000, 8_000), "warning", "the device's clock is 7 us ahead of the host's"),
        ((-8_000, -6_000), "warning", "the device's clock is 7 us behind the host's"),
        ((9_000, 5_000), "warning", "is 7 us ahead of the host's, and moves by 4 us"),
    ],
)
def test_the_devices_clock(ahead_ns: tuple[int, int], status: str, reason: str) -> None:
    probe = replace(WORKING, ahead_ns=ahead_ns)
    window_check, clock = device_checks.window_checks(probe)
    assert (window_check.name, window_check.status) == ("window", "ok")
    assert (clock.name, clock.status) == ("device clock", status)
    assert reason in clock.reason


def test_a_profiler_that_writes_files_is_a_warning() -> None:
    probe = Probe("works", "writes files", "name its target", num_kernels=1, files=("out",))
    assert only(device_checks.window_checks(probe)).status == "warning"


def test_a_window_that_loses_data_is_a_problem() -> None:
    status = {
        kind: only(device_checks.window_checks(Probe(kind, "why", "do"))).status for kind in KINDS
    }
    assert status.pop("works") == "ok"
    assert status.pop("no hooks") == status.pop("no events") == "warning"
    assert set(status.values()) == {"problem"}


CUPTI = r"""
#include <unistd.h>
int cuptiSubscribe(void **s, void *f, void *u) { return CODE_1; }
int cuptiUnsubscribe(void *s) { return 0; }
int cuptiActivityEnable(int kind) { return kind == 10 ? CODE_2 : 0; }
int cuptiActivityDisable(int kind) { return 0; }
int cuptiGetResultString(int code, const char **text) {
    *text = code == 35 ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
        : code == 39 ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" : "CUPTI_ERROR_OTHER";
    return 0; }
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """``/proc`` of a container without capabilities, whose driver is restricted."""
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/driver/nvidia/params").write_text("X: 0\nRmProfilingAdminOnly: 1\n")
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: 550.54\n")
    (tmp_path / "proc/self/status").write_text("Name: x\nCapEff:\t00000000a80425fb\n")
    return tmp_path / "proc"


def answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subscribe: str = "0", enable: str = "0"
) -> dict[str, Any]:
    """Answers of a libcupti.so that returns these codes, asked for as on a GPU machine."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "lib"))
    source = CUPTI.replace("CODE_1", subscribe).replace("CODE_2", enable)
    build_library(source, tmp_path / "lib/libcupti.so")
    return device_checks.ask_cupti(2)


def test_cupti_without_permission(
    tmp_path: Path, proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    permission, others, attached = device_checks.cupti_checks(
        answers(tmp_path, monkeypatch, enable="35"), proc
    )
    assert (permission.status, permission.action) == ("problem", PERMISSION)
    assert permission.reason == (
        "CUPTI refuses (CUPTI_ERROR_INSUFFICIENT_PRIVILEGES); the driver lets only administrators "
        "profile (RmProfilingAdminOnly: 1); this process has neither CAP_SYS_ADMIN nor CAP_PERFMON"
    )
    assert "options nvidia NVreg_RestrictProfilingToAdminUsers=0" in permission.action
    assert "docker run --cap-add=SYS_ADMIN" in permission.action
    assert others.status == "ok"
    assert (attached.name, attached.status) == ("after a window", "ok")
    assert "Profiler.trigger" in attached.action
    assert "TEARDOWN_CUPTI=1" in attached.action
    assert device_checks.has_nvidia_driver(proc)


def test_another_subscriber(tmp_path: Path, proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    permission, others, _ = device_checks.cupti_checks(
        answers(tmp_path, monkeypatch, subscribe="39"), proc
    )
    assert permission.status == "ok"
    assert (others.status, others.action) == ("problem", SUBSCRIBER)
    assert "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" in others.reason


def test_cupti_that_works_although_the_driver_is_restricted(
    tmp_path: Path, proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/nsys/libToolsInjection64.so")
    permission, others, _ = device_checks.cupti_checks(answers(tmp_path, monkeypatch), proc)
    assert permission.status == "ok"
    assert "although the driver lets only administrators profile" in permission.reason
    assert (others.status, others.action) == ("warning", "unset CUDA_INJECTION64_PATH")


@pytest.mark.parametrize(
    ("enable", "status", "reason"),
    [
        ("(_exit(255), 0)", "warning", "CUPTI ended the process with code 255"),
        ("(sleep(60), 0)", "problem", "CUPTI did not answer in time"),
        ("7", "warning", "CUPTI failed: CUPTI_ERROR_OTHER"),
    ],
)
def test_cupti_that_fails(
    tmp_path: Path,
    proc: Path,
    monkeypatch: pytest.MonkeyPatch,
    enable: str,
    status: str,
    reason: str,
) -> None:
    check = next(device_checks.cupti_checks(answers(tmp_path, monkeypatch, enable=enable), proc))
    assert check.status == status
    assert reason in check.reason


def test_no_cupti(proc: Path) -> None:
    check = only(device_checks.cupti_checks({"library": None, "exit_code": 0}, proc))
    assert (check.status, check.reason) == ("warning", "CUPTI's library was not found")
    assert "LD_LIBRARY_PATH" in check.action


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory with 8 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs a user who may mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def log_check(log_dir: Path) -> Check:
    return only(checks.log_directory(log_dir, checks.measure_disk(log_dir, 20)))


def test_a_disk_that_works_keeps_no_file(tmp_path: Path) -> None:
    check = log_check(tmp_path / "a" / "profiler_log")
    assert "can be created on" in check.reason
    assert check.values["folder"] == str(tmp_path)
    assert check.values["written_bytes"] == 64 << 20
    assert check.values["mb_per_s"] > 0
    assert list(tmp_path.iterdir()) == []
    assert "exists on" in log_check(tmp_path).reason


def test_a_full_disk(small_disk: Path) -> None:
    check = log_check(small_disk / "profiler_log")
    assert check.status == "problem"
    assert check.reason.endswith(f"cannot write to {small_disk}: No space left on device")
    assert check.action == "set Profiler.profiler_log to a writable directory with free space"


def test_a_read_only_disk(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    check = log_check(small_disk)
    assert check.status == "problem"
    assert check.reason.endswith(f"cannot write to {small_disk}: Read-only file system")


def test_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check = log_check(tmp_path / "file")
    assert check.status == "problem"
    assert "is not a directory" in check.reason


@pytest.mark.parametrize(
    ("free_gib", "speed", "kind", "status", "texts"),
    [
        (500, 800, "ext4", "ok", ["on a local file system (ext4)", "500.0 GiB", "800 MB/s"]),
        (500, 800, "lustre", "ok", ["on a network file system (lustre)"]),
        (500, 800, "fuse.s3fs", "ok", ["on a network file system (fuse.s3fs)"]),
        (1, 800, "ext4", "warning", ["Profiler.max_trace_mb"]),
        (0.01, 800, "ext4", "problem", ["with free space"]),
        (500, 5, "nfs4", "warning", ["use a faster disk"]),
        (500, 800, "tmpfs", "warning", ["in memory"]),
    ],
)
def test_what_is_said_of_a_disk(
    monkeypatch: pytest.MonkeyPatch,
    free_gib: float,
    speed: float,
    kind: str,
    status: str,
    texts: list[str],
) -> None:
    monkeypatch.setattr(checks, "file_system", lambda _: kind)
    free = int(free_gib * (1 << 30))
    found = {"folder": "/x", "exists": True, "free_bytes": free, "mb_per_s": speed}
    check = only(checks.log_directory(Path("log"), found))
    assert check.status == status
    assert all(text in f"{check.reason} {check.action}" for text in texts)


def test_the_type_of_a_file_system(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "overlay / overlay rw 0 0\nserver:/x /data nfs4 rw 0 0\nd /data/my\\040disk ext4 rw 0 0\n"
        "new /data/my\\040disk xfs rw 0 0\nbroken\n"
    )
    expected = {"/data/runs": "nfs4", "/data/my disk/a": "xfs", "/database": "overlay"}
    assert {path: checks.file_system(Path(path), mounts) for path in expected} == expected
    assert checks.file_system(Path("/x"), tmp_path / "missing") == "unknown"


def test_shared_memory(small_disk: Path, tmp_path: Path) -> None:
    small = only(checks.shared_memory(small_disk))
    assert (small.status, small.reason) == (
        "warning",
        "8 of 8 MiB are free for DataLoader workers",
    )
    assert "docker run --shm-size=8g" in small.action
    missing = only(checks.shared_memory(tmp_path / "missing"))
    assert missing.status == "warning"
    assert missing.reason.startswith("No such file or directory")


def test_memory_of_the_helper() -> None:
    short = only(checks.helper_memory(8, 1 << 30))
    assert short.status == "warning"
    assert short.reason == (
        "1024 MiB are available; the helper processes of 8 ranks take up to 2880 MiB for usual "
        "windows"
    )
    assert only(checks.helper_memory(1, 1 << 30)).status == "ok"


DONE = {"ns": 5_200_000, "has_span": True, "is_correct": True, "backend": "GLOO", "device": "cpu"}


@pytest.mark.parametrize(
    ("ranks", "late", "status", "reason"),
    [
        ([DONE, DONE], False, "ok", "1 MiB between 2 ranks in 5.20 ms (GLOO, cpu); its span is in"),
        ([DONE, {**DONE, "has_span": False}], False, "problem", "missing in the trace of ranks 1"),
        ([DONE, {**DONE, "is_correct": False}], False, "problem", "the sum is wrong"),
        ([DONE, {"stage": "connecting"}], True, "problem", "no answer within 9 s: rank 1 is conn"),
        ([None, {"stage": "importing Paddle"}], True, "warning", "rank 0 is starting, rank 1 is"),
        ([None, DONE], False, "problem", "1 of 2 ranks failed: ValueError: no"),
    ],
)
def test_what_is_said_of_an_all_reduce(
    ranks: list[Any], late: bool, status: str, reason: str
) -> None:
    messages = "Traceback\nValueError: no\nlast line"
    found = {"ranks": ranks, "exit_code": 1, "is_late": late, "messages": messages, "seconds": 9.0}
    check = only(device_checks.all_reduce_checks(2, found))
    assert check.status == status
    assert reason in check.reason
    assert bool(check.action) == (status != "ok")
