"""The checks that use the device, in child processes: a window, CUPTI, an all-reduce, peaks."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ppprof.capture.child_programs import child_command, cupti_folders
from ppprof.capture.children import environment, lines_of, run, temporary_folder
from ppprof.capture.device import cupti_folder_of_paddle
from ppprof.capture.doctor.checks import OK, PROBLEM, WARNING, Check, answer_of
from ppprof.capture.probe import NO_EVENTS, NO_HOOKS, PERMISSION, SUBSCRIBER, WORKS, Probe
from ppprof.units import format_time

_STATUS = {WORKS: OK, NO_HOOKS: WARNING, NO_EVENTS: WARNING}
"""Statuses of kinds; other kinds are problems. In a warning's case, the host is recorded."""


def window_checks(probe: Probe) -> Iterator[Check]:
    """Return the check of the window, and that of the clock if there is a kernel."""
    values = asdict(probe)
    status = _STATUS.get(probe.kind, PROBLEM)
    if probe.kind == WORKS and probe.files:
        status = WARNING  # only a device that Profiler.targets names is recorded then
    yield Check("window", status, probe.reason, probe.action, values)
    if probe.ahead_ns is None:
        return
    least, most = probe.ahead_ns
    numbers = {"least_ahead_ns": least, "most_ahead_ns": most}
    if least <= 0 <= most:
        reason = (
            f"kernels start {most / 1000:.1f} us after their launch, or later, and end "
            f"{-least / 1000:.1f} us before the synchronisation returns, or earlier"
        )
        yield Check("device clock", OK, reason, values=numbers)
        return
    way = "behind" if least + most < 0 else "ahead of"
    reason = f"the device's clock is {format_time(abs(least + most) // 2)} {way} the host's"
    action = "nothing: windows measure it, too, and correct it"
    if least > most:
        reason += f", and moves by {format_time(least - most)}"
        action = "do not trust idle times of the device that are shorter; update the driver"
    yield Check("device clock", WARNING, reason, action, numbers)


_STAYS = (
    "nothing, unless a message says that steps take longer since: then record in a short job of its own, or "
    "only when asked (Profiler.trigger), or set TEARDOWN_CUPTI=1, which detaches CUPTI after each window "
    "(meant for CUDA 12.6 or later; tried once, on an H100)"
)
_PROC = Path("/proc")
_CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38}
_REFUSED = {
    "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES",
    "CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES",
}
_SUBSCRIBED = {"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", "CUPTI_ERROR_HARDWARE_BUSY"}


def has_nvidia_driver(proc: Path = _PROC) -> bool:
    """Return whether NVIDIA's driver is loaded, whether or not its libraries are installed."""
    return (proc / "driver/nvidia/version").exists()


def ask_cupti(timeout: float) -> dict[str, Any]:
    """Return what CUPTI answers to a child process; see `child_programs.cupti`."""
    ended = run(child_command("cupti", cupti_folder_of_paddle(), *cupti_folders()), timeout)
    try:
        answers: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        answers = {}
    about = {"exit_code": ended.exit_code, "is_late": ended.is_late, "stderr": ended.stderr[-500:]}
    return {**answers, **about}


def cupti_checks(answers: dict[str, Any], proc: Path = _PROC) -> Iterator[Check]:
    """Return the check of the permission, and that of other profilers."""
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
    if "calls" in answers:
        reason = (
            "CUPTI stays attached until the process ends; steps are compared with those ahead of the "
            "first window in every job"
        )
        yield Check("after a window", OK, reason, _STAYS)


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
    for line in lines_of(proc / "driver/nvidia/params"):
        key, _, value = line.partition(":")
        if key == "RmProfilingAdminOnly":
            return value.strip() == "1"
    return None


def _capabilities(proc: Path) -> list[str]:
    """Return the capabilities of this process that let it profile."""
    for line in lines_of(proc / "self/status"):
        if line.startswith("CapEff:"):
            mask = int(line.split()[1], 16)
            return [name for name, bit in _CAPABILITIES.items() if mask >> bit & 1]
    return []


_MARGIN_SECONDS = 1.0


def all_reduce(nproc: int, timeout: float) -> dict[str, Any]:
    """Launch ranks that reduce 1 MiB, and return what they reported.

    Returns:
        ``ranks``: the report of each rank, by rank; None without a report. ``is_late``
        after a time-out. ``messages``: the end of the ranks' logs.
    """
    with temporary_folder() as folder:
        command = [sys.executable, "-m", "paddle.distributed.launch"]
        command += ["--nproc_per_node", str(nproc), "--log_dir", str(Path(folder, "log"))]
        command += child_command("ranks", folder, str(timeout + _MARGIN_SECONDS))[1:]
        ended = run(command, timeout, environment(keeps_flags=True), Path(folder))
        reports = [_report(Path(folder, f"rank_{rank}.json")) for rank in range(nproc)]
        logs = sorted(Path(folder, "log").glob("workerlog.*"))
        texts = [ended.stderr, *(path.read_text(errors="replace")[-4000:] for path in logs)]
    return {
        "ranks": reports,
        "exit_code": ended.exit_code,
        "is_late": ended.is_late,
        "messages": "\n".join(texts)[-8000:],
        "seconds": timeout,
    }


def _report(file: Path) -> dict[str, Any] | None:
    """Return the last line of a rank's report."""
    try:
        lines = file.read_text().splitlines()
        return dict(json.loads(lines[-1])) if lines else None
    except (OSError, ValueError):
        return None


def all_reduce_checks(nproc: int, found: dict[str, Any]) -> Iterator[Check]:
    """Return the check of the all-reduce."""
    name = "all-reduce"
    done = [report for report in found["ranks"] if report and "ns" in report]
    values = {key: found[key] for key in ("ranks", "exit_code", "messages")}
    log = "run the job's launcher with --log_dir and read workerlog.*; check the network interface"
    if len(done) < nproc:
        stages = {
            rank: (report or {}).get("stage", "starting")
            for rank, report in enumerate(found["ranks"])
            if not (report and "ns" in report)
        }
        where = ", ".join(f"rank {rank} is {stage}" for rank, stage in stages.items())
        if found["is_late"]:
            is_slow = all(stage in ("starting", "importing Paddle") for stage in stages.values())
            reason = f"no answer within {found['seconds']:.0f} s: {where}"
            action = "the machine is busy: run doctor again" if is_slow else log
            yield Check(name, WARNING if is_slow else PROBLEM, reason, action, values)
            return
        said = _error(found["messages"])
        reason = f"{nproc - len(done)} of {nproc} ranks failed{said and ': '}{said}"
        yield Check(name, PROBLEM, reason, log, values)
        return
    slowest = max(report["ns"] for report in done)
    missing = [rank for rank, report in enumerate(done) if not report["has_span"]]
    backend, device = done[0]["backend"], done[0]["device"]
    reason = f"1 MiB between {nproc} ranks in {slowest / 1e6:.2f} ms ({backend}, {device})"
    if not all(report["is_correct"] for report in done):
        yield Check(name, PROBLEM, f"{reason}; the sum is wrong", log, values)
    elif missing:
        reason += f"; its span is missing in the trace of ranks {', '.join(map(str, missing))}"
        yield Check(name, PROBLEM, reason, "report this, with the versions below", values)
    else:
        yield Check(name, OK, f"{reason}; its span is in every rank's trace", values=values)


def _error(text: str) -> str:
    """Return the last line that names an error."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"Error\b|error:", line)]
    return lines[-1][:200] if lines else ""


_PEAK_SECONDS = 60.0
"""The longest time that the measurement may take."""


def measure_peaks() -> dict[str, Any]:
    """Return what `child_programs.peaks` measured, or its error."""
    ended = run(child_command("peaks"), _PEAK_SECONDS, environment(keeps_flags=True))
    return answer_of(ended, _PEAK_SECONDS)


def peak_checks(found: dict[str, Any]) -> Iterator[Check]:
    """Return the line with the peaks, and the keys of a config that state them."""
    if "error" in found or not found.get("flops"):
        reason = found.get("error", "the device computes in no known dtype")
        action = "state the vendor's numbers: Global.device_peak_flops and Global.device_peak_gbps"
        yield Check("peaks", WARNING, f"not measured: {reason}", action, found)
        return
    rates = ", ".join(
        f"{flops / 1e12:.3g} TFLOP/s {dtype}" for dtype, flops in found["flops"].items()
    )
    gbps = found["bytes_per_s"] / 1e9
    best = max(found["flops"].values())
    reason = f"{found['device']} reaches {rates}, and {gbps:.3g} GB/s"
    action = f"-o Global.device_peak_flops={best:.3g} -o Global.device_peak_gbps={gbps:.3g}"
    yield Check("peaks", OK, reason, f"train with {action}, if its vendor's are unknown", found)
