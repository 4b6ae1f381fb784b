"""The machine as the manifest names it, with drivers that answer, refuse, crash and hang."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ppprof.capture import device
from tests.fixtures.c_libraries import build_library

NVML = r"""
#include <string.h>
#include <unistd.h>
typedef struct { unsigned long long total, free, used; } memory_t;
int nvmlInit_v2(void) { START }
int nvmlSystemGetDriverVersion(char *t, unsigned n) { strncpy(t, "550.54.15", n); return 0; }
int nvmlSystemGetCudaDriverVersion(int *v) { *v = 12040; return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetName(void *h, char *t, unsigned n) {
    strncpy(t, "NVIDIA H100 80GB HBM3", n); return 0; }
int nvmlDeviceGetUUID(void *h, char *t, unsigned n) { strncpy(t, "GPU-1", n); return h == (void *)2; }
int nvmlDeviceGetMemoryInfo(void *h, memory_t *m) { m->total = 80ULL << 30; return 0; }
int nvmlDeviceGetClockInfo(void *h, int kind, unsigned *mhz) { *mhz = 1000 + kind; return 0; }
int nvmlDeviceGetMaxClockInfo(void *h, int kind, unsigned *mhz) { *mhz = 1980; return kind == 2; }
"""


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of libraries that children load first."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "lib"))
    return tmp_path / "lib"


def test_the_devices_that_the_driver_names(libraries: Path) -> None:
    build_library(NVML.replace("START", "return 0;"), libraries / "libnvidia-ml.so.1")
    common = {
        "name": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 80 << 30,
        "clocks_mhz": {"sm": 1001, "memory": 1002},
        "max_clocks_mhz": {"sm": 1980},
    }
    expected = {
        "driver": "550.54.15",
        "driver_cuda": "12.4",
        "devices": [{**common, "uuid": "GPU-1"}, {**common, "uuid": None}],
    }
    assert device.nvidia() == expected
    machine = device.machine()
    assert {key: machine[key] for key in expected} == expected
    json.dumps(machine)


@pytest.mark.parametrize(
    ("start", "error"),
    [
        ("return 9;", 9),
        ("_exit(255);", "exit code 255"),
        ("sleep(60); return 0;", "late"),
    ],
)
def test_a_driver_that_does_not_answer(libraries: Path, start: str, error: object) -> None:
    build_library(NVML.replace("START", start), libraries / "libnvidia-ml.so.1")
    before = time.monotonic()
    assert device.nvidia() == {"driver_error": error}
    assert time.monotonic() - before < 8


def test_a_machine_without_a_driver() -> None:
    machine = device.machine()
    assert machine["cores"] >= 1
    assert machine["memory_bytes"] > 0
    assert machine["cpu"]


def test_the_build_is_read_from_paddles_files(tmp_path: Path) -> None:
    version = tmp_path / "version" / "__init__.py"
    version.parent.mkdir()
    version.write_text(
        "import os\nfull_version = '3.3.1'\ncommit = 'abc'\ncuda_version = '12.6'\n"
        "cudnn_version = '9.5.1'\nnccl_version = '22501'\nhip_version = None\n"
        "xpu_xre_version = 'False'\n"
    )
    assert device.paddle_build(tmp_path) == {
        "version": "3.3.1",
        "commit": "abc",
        "cuda": "12.6",
        "cudnn": "9.5.1",
        "nccl": "22501",
    }
    version.write_text("not python (")
    assert device.paddle_build(tmp_path) == {}
    assert device.paddle_build(tmp_path / "missing") == {}


@pytest.mark.paddle
def test_the_machine_of_this_process() -> None:
    paddle = pytest.importorskip("paddle")
    machine = device.machine()
    assert machine["device"] == "cpu"
    assert machine["build"]["version"] == paddle.version.full_version
    assert machine["build"]["commit"] == paddle.version.commit
