"""Paddle's build against the devices and their driver, and the versions for a bug report."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ppprof.capture.doctor.checks import OK, PROBLEM, WARNING, Check

_WHEELS = ("paddlepaddle", "paddlepaddle-gpu", "paddlepaddle-xpu", "paddlepaddle-dcu")
_OLDEST, _NEWEST = (2, 6, 2), (3, 4)
_PACKAGES = ("ppprof", *_WHEELS, "numpy", "polars", "protobuf", "visualdl")


def paddle(build: Mapping[str, str] | None, driver: Mapping[str, Any]) -> Iterator[Check]:
    """Compare Paddle's build with the devices and with the driver.

    Args:
        build: the result of `ppprof.capture.device.paddle_build`.
        driver: the result of `ppprof.capture.device.nvidia`.
    """
    wheels = {name: number for name in _WHEELS if (number := _version(name))}
    values = {"wheels": wheels, "build": build, "driver": dict(driver)}
    name = "Paddle"
    if len(wheels) > 1:
        yield Check(
            name,
            PROBLEM,
            f"{' and '.join(wheels)} are both installed and overwrite each other's files",
            f"pip uninstall -y {' '.join(wheels)}, then install only the one for this machine",
            values,
        )
        return
    if build is None:
        yield Check(
            name,
            WARNING,
            "not installed: ppprof reads traces and runs here, but records nothing",
            "to record: pip install 'ppprof[train]' for CPU, 'ppprof[gpu]' for GPU",
            values,
        )
        return
    number, cuda = build.get("version", "of unknown version"), build.get("cuda")
    kind = next((f"{key} {build[key]}" for key in ("cuda", "rocm", "xpu") if key in build), "CPU")
    what = f"{number}, built for {kind.replace('cuda', 'CUDA')}"
    gpus = driver.get("devices") or []
    problem = _mismatch(cuda, gpus, driver)
    if problem:
        status, reason, action = problem
        yield Check(name, status, f"{what}; {reason}", action, values)
        return
    if not _is_tested(number):
        yield Check(
            name,
            WARNING,
            f"{what}; ppprof is tested with 2.6.2 to 3.3",
            "install a version between these, or expect warnings instead of recordings",
            values,
        )
        return
    on = ""
    if gpus and cuda:
        names = {str(gpu.get("name")) for gpu in gpus}
        on = f"; {len(gpus)} x {', '.join(sorted(names))}, driver {driver.get('driver')}"
    yield Check(name, OK, f"{what}{on}", values=values)


def _mismatch(
    cuda: str | None, gpus: list[Any], driver: Mapping[str, Any]
) -> tuple[str, str, str] | None:
    """Return status, reason and action if the build does not suit the driver; else None."""
    if "driver_error" in driver:
        reason = f"NVIDIA's driver does not answer (NVML: {driver['driver_error']})"
        return PROBLEM if cuda else WARNING, reason, "run nvidia-smi; restart the driver or machine"
    if gpus and not cuda:
        return (
            WARNING,
            f"this machine has {len(gpus)} NVIDIA GPUs, which this build cannot use",
            "pip uninstall -y paddlepaddle, then pip install 'ppprof[gpu]'",
        )
    if cuda and not gpus:
        return (
            WARNING,
            "no NVIDIA driver was found: this build runs on the CPU alone here",
            "install the driver; in a container: docker run --gpus all",
        )
    newest = str(driver.get("driver_cuda") or "")
    if cuda and newest and _numbers(newest)[:1] < _numbers(cuda)[:1]:
        return (
            PROBLEM,
            f"driver {driver.get('driver')} supports CUDA up to {newest}",
            f"update the driver, or install the Paddle for CUDA {newest}",
        )
    return None


def _is_tested(number: str) -> bool:
    numbers = _numbers(number)
    return not numbers or _OLDEST <= numbers < _NEWEST


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def versions(build: Mapping[str, str] | None, driver: Mapping[str, Any]) -> Iterator[Check]:
    """Return the versions that a bug report needs."""
    found = {name: number for name in _PACKAGES if (number := _version(name))}
    found["python"] = platform.python_version()
    found["platform"] = platform.platform()
    if build and "commit" in build:
        found["paddle commit"] = build["commit"]
    if driver.get("driver"):
        found["driver"] = str(driver["driver"])
    text = ", ".join(f"{name} {number}" for name, number in found.items())
    yield Check("versions", OK, text, values=found)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
