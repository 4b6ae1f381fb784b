"""The result of one check; and the checks of what is installed, of disks and of memory."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ppprof.capture.child_programs import child_command
from ppprof.capture.children import Ended, available_bytes, run
from ppprof.capture.postprocess import helper_bytes
from ppprof.packages import installed_version

OK, WARNING, PROBLEM = "ok", "warning", "problem"
"""Values of `Check.status`. A problem loses data: a recording, or the training itself."""


@dataclass(frozen=True)
class Check:
    """One line of ``ppprof doctor``."""

    name: str
    status: str
    reason: str
    """What was found, with its numbers."""
    action: str = ""
    """What to do; empty if nothing is to be done."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The measured values, for ``--format json``."""


_WHEELS = ("paddlepaddle", "paddlepaddle-gpu", "paddlepaddle-xpu", "paddlepaddle-dcu")
_OLDEST, _NEWEST = (2, 6, 2), (3, 4)
_PACKAGES = ("ppprof", *_WHEELS, "numpy", "polars", "protobuf", "visualdl")


def paddle_checks(build: Mapping[str, str] | None, driver: Mapping[str, Any]) -> Iterator[Check]:
    """Compare Paddle's build with the devices and with the driver."""
    wheels = {name: number for name in _WHEELS if (number := installed_version(name))}
    values = {"wheels": wheels, "build": build, "driver": dict(driver)}
    yield Check("Paddle", *_judged(wheels, build, driver), values)


def _judged(
    wheels: Mapping[str, str], build: Mapping[str, str] | None, driver: Mapping[str, Any]
) -> tuple[str, str, str]:
    """Return status, reason and action."""
    if len(wheels) > 1:
        return (
            PROBLEM,
            f"{' and '.join(wheels)} are both installed and overwrite each other's files",
            f"pip uninstall -y {' '.join(wheels)}, then install only the one for this machine",
        )
    if build is None:
        return (
            WARNING,
            "not installed: ppprof reads traces and runs here, but records nothing",
            "to record: pip install 'ppprof[train]' for CPU, 'ppprof[gpu]' for GPU",
        )
    number, cuda = build.get("version", "of unknown version"), build.get("cuda")
    kind = next((f"{key} {build[key]}" for key in ("cuda", "rocm", "xpu") if key in build), "CPU")
    what = f"{number}, built for {kind.replace('cuda', 'CUDA')}"
    gpus = driver.get("devices") or []
    problem = _mismatch(cuda, gpus, driver)
    if problem:
        status, reason, action = problem
        return status, f"{what}; {reason}", action
    if not _is_tested(number):
        return (
            WARNING,
            f"{what}; ppprof is tested with 2.6.2 to 3.3",
            "install a version between these, or expect warnings instead of recordings",
        )
    if gpus and cuda:
        names = {str(gpu.get("name")) for gpu in gpus}
        what += f"; {len(gpus)} x {', '.join(sorted(names))}, driver {driver.get('driver')}"
    return OK, what, ""


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


def version_checks(build: Mapping[str, str] | None, driver: Mapping[str, Any]) -> Iterator[Check]:
    """Return the versions that a bug report needs."""
    found = {name: number for name in _PACKAGES if (number := installed_version(name))}
    found["python"] = platform.python_version()
    found["platform"] = platform.platform()
    if build and "commit" in build:
        found["paddle commit"] = build["commit"]
    if driver.get("driver"):
        found["driver"] = str(driver["driver"])
    text = ", ".join(f"{name} {number}" for name, number in found.items())
    yield Check("versions", OK, text, values=found)


_MIB, _GIB = 1 << 20, 1 << 30
_LEAST_FREE, _LITTLE_FREE = 64 * _MIB, 2 * _GIB
"""A window of one rank takes 1 to 300 MiB."""
_LEAST_SHM = _GIB
"""Docker's default is 64 MiB, which DataLoader workers exceed."""
_SLOW_MB_PER_S = 20
_RAW_BYTES = 16 * _MIB
"""A usual raw capture of a window."""
_SHM = Path("/dev/shm")
_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "afs", "9p"),
    *("glusterfs", "pvfs2", "orangefs", "virtiofs", "ocfs2", "gfs2", "panfs"),
}


def measure_disk(log_dir: Path, timeout: float) -> dict[str, Any]:
    """Return what a child process found by writing 64 MiB; see `child_programs.disk`.

    A child does it, since a network disk may never answer.
    """
    return answer_of(run(child_command("disk", str(log_dir)), timeout), timeout)


def answer_of(ended: Ended, timeout: float) -> dict[str, Any]:
    """Return the last line that a child printed, which is JSON; without it, the reason as ``error``."""
    try:
        return dict(json.loads(ended.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        last = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.exit_code}"]
        late = f"no answer within {timeout:.0f} s"
        return {"error": late if ended.is_late else last[0][:300]}


def log_directory(log_dir: Path, found: dict[str, Any]) -> Iterator[Check]:
    """Return the check of the disk that ``Profiler.profiler_log`` is on."""
    elsewhere = "set Profiler.profiler_log to a writable directory with free space"
    if "error" in found:
        reason = f"{log_dir}: {found['error']}"
        yield Check("profiler_log", PROBLEM, reason, elsewhere, found)
        return
    free, speed = found["free_bytes"], found["mb_per_s"]
    kind = file_system(Path(found["folder"]))
    is_shared = kind in _NETWORK or kind.startswith("fuse.")
    place = "a network file system" if is_shared else "a local file system"
    values = {**found, "file_system": kind, "is_shared": is_shared}
    exists = "exists" if found["exists"] else "can be created"
    reason = (
        f"{log_dir} {exists} on {place} ({kind}); {free / _GIB:.1f} GiB are free; "
        f"writes {speed:.0f} MB/s"
    )
    if free < _LEAST_FREE:
        yield Check("profiler_log", PROBLEM, reason, elsewhere, values)
        return
    actions = []
    if free < _LITTLE_FREE:
        actions.append("free space, or bound the traces: Profiler.max_trace_mb")
    if kind == "tmpfs":
        actions.append("this file system is in memory: copy runs to a disk before a reboot")
    if speed < _SLOW_MB_PER_S:
        actions.append("use a faster disk: the end of each window waits for it")
    status = WARNING if actions else OK
    yield Check("profiler_log", status, reason, "; ".join(actions), values)


def file_system(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """Return the type of the file system that holds a folder, such as ``ext4``; "unknown" if so.

    Args:
        folder: an absolute path.
        mounts: the table of the kernel; tests pass another one.
    """
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return "unknown"
    depth, found = 0, "unknown"
    for line in lines:
        _, point, kind = (*line.split(), "", "", "")[:3]
        path = Path(point.replace("\\040", " "))
        # Of two mounts at one point, the later one is visible.
        if point and (path == folder or path in folder.parents) and len(path.parts) >= depth:
            depth, found = len(path.parts), kind
    return found


def shared_memory(folder: Path = _SHM) -> Iterator[Check]:
    """Return the check of ``/dev/shm``, through which DataLoader workers send their batches."""
    action = "docker run --shm-size=8g, or mount -o remount,size=8g /dev/shm; or use num_workers: 0"
    name = "/dev/shm"
    try:
        stat = os.statvfs(folder)
    except OSError as error:
        reason = f"{error.strerror}: DataLoader workers cannot send batches through shared memory"
        yield Check(name, WARNING, reason, action)
        return
    size, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
    values = {"bytes": size, "free_bytes": free}
    reason = f"{free / _MIB:.0f} of {size / _MIB:.0f} MiB are free for DataLoader workers"
    if free < _LEAST_SHM:
        yield Check(name, WARNING, reason, action, values)
    else:
        yield Check(name, OK, reason, values=values)


def helper_memory(ranks: int = 1, left: int | None = None) -> Iterator[Check]:
    """Return the check of the memory for the processes that make tables beside the training.

    Args:
        ranks: ranks on this machine; each has one such process at a time.
        left: available bytes; None means those of this machine or container.
    """
    left = available_bytes() if left is None else left
    needed = helper_bytes(_RAW_BYTES, ranks)
    values = {"available_bytes": left, "needed_bytes": needed}
    if left is None:
        yield Check("helper memory", OK, "the available memory is unknown", values=values)
        return
    reason = (
        f"{left / _MIB:.0f} MiB are available; the helper processes of {ranks} "
        f"rank{'s' * (ranks != 1)} take up to {needed / _MIB:.0f} MiB for usual windows"
    )
    if left >= needed:
        yield Check("helper memory", OK, reason, values=values)
        return
    action = "record fewer steps or ranks at once, or make the tables elsewhere: ppprof finish RUN"
    yield Check("helper memory", WARNING, reason, action, values)


_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "firefox", "microsoft-edge")
_TRACE_PAGE = "its Trace page needs the internet: ppprof report and Perfetto show timelines, too"


def viewer_checks() -> Iterator[Check]:
    """Return a line for VisualDL and one for the browsers of this machine."""
    # VisualDL is not imported: that writes to ~/.visualdl.
    if number := installed_version("visualdl"):
        reason = f"{number} is installed; {_TRACE_PAGE}"
        yield Check("VisualDL", OK, reason, values={"version": number})
    else:
        reason = f"not installed; only VisualDL's own page needs it; {_TRACE_PAGE}"
        yield Check("VisualDL", OK, reason, "pip install 'ppprof[view]'")
    paths = [path for path in map(shutil.which, _BROWSERS) if path]
    reason = ", ".join(paths) or "none on this machine; pages open on any other machine"
    yield Check("browser", OK, reason, values={"paths": paths})
