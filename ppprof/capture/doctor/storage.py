"""The run directory's disk, ``/dev/shm``, and memory for the helper process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ppprof.capture.children import available_bytes, run
from ppprof.capture.doctor import storage_child
from ppprof.capture.doctor.checks import OK, PROBLEM, WARNING, Check
from ppprof.capture.postprocess import helper_bytes

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


def measure(log_dir: Path, timeout: float) -> dict[str, Any]:
    """Return what a child process found by writing 64 MiB; see `storage_child`.

    A child does it, since a network disk may never answer.
    """
    ended = run([sys.executable, "-I", "-S", storage_child.__file__, str(log_dir)], timeout)
    try:
        found: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        is_late = ended.exit_code is None and ended.is_started
        last = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.exit_code}"]
        found = {"error": f"no answer within {timeout:.0f} s" if is_late else last[0]}
    return found


def log_directory(log_dir: Path, found: dict[str, Any]) -> Iterator[Check]:
    """Return the check of the disk that ``Profiler.profiler_log`` is on.

    Args:
        log_dir: ``Profiler.profiler_log``.
        found: the result of `measure`.
    """
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
