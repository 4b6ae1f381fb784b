"""CUPTI's permission, and other profilers that use it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ppprof.capture.children import run
from ppprof.capture.doctor import cupti_child
from ppprof.capture.doctor.checks import OK, PROBLEM, WARNING, Check
from ppprof.capture.probe import PERMISSION, SUBSCRIBER

_PROC = Path("/proc")
_CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38}
_REFUSED = {
    "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES",
    "CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES",
}
_SUBSCRIBED = {"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", "CUPTI_ERROR_HARDWARE_BUSY"}


def has_driver(proc: Path = _PROC) -> bool:
    """Return whether NVIDIA's driver is loaded, whether or not its libraries are installed."""
    return (proc / "driver/nvidia/version").exists()


def ask(timeout: float) -> dict[str, Any]:
    """Return what CUPTI answers to a child process; see `ppprof.capture.doctor.cupti_child`."""
    ended = run([sys.executable, "-I", "-S", cupti_child.__file__, *_folders()], timeout)
    try:
        answers: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        answers = {}
    late = ended.exit_code is None and ended.is_started
    return {**answers, "exit_code": ended.exit_code, "is_late": late, "stderr": ended.stderr[-500:]}


def _folders() -> list[str]:
    """Return folders of Python packages that bring CUPTI."""
    return [str(Path(path) / "nvidia") for path in sys.path if (Path(path) / "nvidia").is_dir()]


def checks(answers: dict[str, Any], proc: Path = _PROC) -> Iterator[Check]:
    """Return the check of the permission, and that of other profilers.

    Args:
        answers: the result of `ask`.
        proc: the folder ``/proc``; tests pass another one.
    """
    restricted = _is_restricted(proc)
    capabilities = _capabilities(proc)
    values = {**answers, "restricted": restricted, "capabilities": capabilities}
    errors = set(answers.get("texts", {}).values())
    yield _permission(answers, errors, restricted, capabilities, values)
    injected = os.environ.get("CUDA_INJECTION64_PATH")
    if errors & _SUBSCRIBED:
        reason = f"another profiler uses the GPU ({' and '.join(sorted(errors & _SUBSCRIBED))})"
        yield Check("other profilers", PROBLEM, reason, SUBSCRIBER, values)
    elif injected:
        reason = f"CUDA loads another profiler into every process: CUDA_INJECTION64_PATH={injected}"
        yield Check("other profilers", WARNING, reason, "unset CUDA_INJECTION64_PATH")
    elif "calls" in answers:
        yield Check("other profilers", OK, "no other profiler uses CUPTI here")


def _permission(
    answers: dict[str, Any],
    errors: set[str],
    restricted: bool | None,
    capabilities: list[str],
    values: Mapping[str, Any],
) -> Check:
    name = "CUPTI permission"
    admins = "the driver lets only administrators profile (RmProfilingAdminOnly: 1)"
    if errors & _REFUSED:
        held = " and ".join(capabilities) or "neither CAP_SYS_ADMIN nor CAP_PERFMON"
        reason = f"CUPTI refuses ({' and '.join(sorted(errors & _REFUSED))}); "
        reason += f"{admins}; " if restricted else ""
        return Check(name, PROBLEM, f"{reason}this process has {held}", PERMISSION, values)
    if answers.get("is_late"):
        return Check(name, PROBLEM, "CUPTI did not answer in time", "run nvidia-smi", values)
    if "calls" not in answers:
        said = str(answers.get("stderr") or "").strip()[-200:]
        return Check(
            name,
            WARNING,
            "CUPTI's library was not found"
            if "library" in answers
            else f"CUPTI ended the process with code {answers.get('exit_code')}: {said}",
            "pip install nvidia-cuda-cupti-cu12, or add CUDA's extras/CUPTI/lib64 to "
            "LD_LIBRARY_PATH; Paddle may still find a library of its own",
            values,
        )
    other = sorted(errors - _SUBSCRIBED)
    if other:
        return Check(name, WARNING, f"CUPTI failed: {', '.join(other)}", "run nvidia-smi", values)
    if restricted and not capabilities:
        reason = f"CUPTI accepts this process, although {admins}"
        return Check(name, OK, reason, values=values)
    return Check(name, OK, "CUPTI accepts this process", values=values)


def _is_restricted(proc: Path) -> bool | None:
    """Return whether the driver lets only administrators profile; None if it is unknown."""
    for line in _lines(proc / "driver/nvidia/params"):
        key, _, value = line.partition(":")
        if key == "RmProfilingAdminOnly":
            return value.strip() == "1"
    return None


def _capabilities(proc: Path) -> list[str]:
    """Return the capabilities of this process that let it profile."""
    for line in _lines(proc / "self/status"):
        if line.startswith("CapEff:"):
            mask = int(line.split()[1], 16)
            return [name for name, bit in _CAPABILITIES.items() if mask >> bit & 1]
    return []


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
