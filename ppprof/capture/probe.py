"""Find out in a child process whether a window can be recorded on this process's device.

A device's profiler may end the process in C++ (``exit(-1)``, no exception): without the permission
of the driver, beside another profiler, without a driver. Here it ends the child.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ppprof.capture.children import Ended, environment, run, temporary_folder
from ppprof.units import escape_control_chars

TIMEOUT_SECONDS = 60.0
"""Importing Paddle and starting a device took 3 to 20 s on busy machines."""

WORKS, REFUSED, NO_HOOKS = "works", "refused", "no hooks"
NO_EVENTS, NO_DEVICE, LATE, FAILED = "no events", "no device", "late", "failed"
KINDS = {
    WORKS: "the window holds the kernel; without a device, the operator",
    REFUSED: "the device's profiler ended the child, or could not be created",
    NO_HOOKS: "the plugin of the custom device has no profiler",
    NO_EVENTS: "the window opened and closed, but holds no kernel of the device",
    NO_DEVICE: "Paddle cannot use the device at all",
    LATE: "the child did not end in time",
    FAILED: "the child failed for another reason, such as a broken installation",
}
"""Values of `Probe.kind`."""

_STAGES = {
    "import": "importing Paddle",
    "device": "starting the device",
    "create": "creating Paddle's profiler",
    "prepare": "preparing Paddle's profiler",
    "start": "opening the window",
    "kernel": "running a kernel in the window",
    "stop": "closing the window",
}
_OF_PROFILER = ("create", "prepare", "start", "stop")

PERMISSION = (
    "let every user profile: as root, write the line 'options nvidia "
    "NVreg_RestrictProfilingToAdminUsers=0' into /etc/modprobe.d/nvidia-profiling.conf on the host, "
    "rebuild the initramfs if it holds the driver, and reboot; or give the container the capability: "
    "docker run --cap-add=SYS_ADMIN, in Kubernetes securityContext.capabilities.add: [SYS_ADMIN]"
)
"""How to give CUPTI the permission of NVIDIA's driver."""
SUBSCRIBER = (
    "end the other profiler of this process or GPU: start the job without nsys or ncu, remove other "
    "libraries from CUDA_INJECTION64_PATH and LD_PRELOAD, and pause the GPU's monitoring: "
    "dcgmi profile --pause"
)
"""How to end another profiler that uses CUPTI."""
_CUPTI_LIBRARY = (
    "install the CUPTI of Paddle's CUDA version (pip install nvidia-cuda-cupti-cu12, or CUDA's "
    "extras/CUPTI/lib64) and add its folder to LD_LIBRARY_PATH"
)
_DRIVER = "check that nvidia-smi works here, and that its CUDA version is not below Paddle's"

_CAUSES: tuple[tuple[str, str, str, str], ...] = (
    (
        r"CUPTI_ERROR_(VIRTUALIZED_DEVICE_)?INSUFFICIENT_PRIVILEGES",
        REFUSED,
        "the NVIDIA driver lets only administrators profile",
        PERMISSION,
    ),
    (
        r"CUPTI_ERROR_(MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED|HARDWARE_BUSY)",
        REFUSED,
        "another profiler uses the GPU (nsys, ncu, DCGM)",
        SUBSCRIBER,
    ),
    (
        r"CUPTI_ERROR_\w*(MIG_DEVICE|VIRTUALIZED_DEVICE|CONFIDENTIAL_COMPUTING|WSL_DEVICE)\w*",
        REFUSED,
        "CUPTI does not support this kind of GPU partition or machine",
        "record on a whole GPU of a machine without virtualisation; the host is recorded anyway",
    ),
    (
        r"CUDA driver version is insufficient|cudaErrorInsufficientDriver|CUDA error\(35\)",
        NO_DEVICE,
        "the NVIDIA driver is older than the CUDA that Paddle was built for",
        "update the driver, or install the Paddle that was built for an older CUDA",
    ),
    (
        r"no CUDA-capable device|CUDA error\(100\)|cudaErrorNoDevice|CUPTI_ERROR_NOT_INITIALIZED",
        NO_DEVICE,
        "there is no usable GPU",
        _DRIVER + "; in a container: docker run --gpus all",
    ),
    (
        r"devices are busy or unavailable|CUDA error\(46\)",
        NO_DEVICE,
        "the GPU accepts one process only",
        "nvidia-smi --compute-mode=DEFAULT; otherwise the probe cannot run beside the training",
    ),
    (
        r"Out of memory error|out of memory|CUDA error\(2\)",
        NO_DEVICE,
        "the GPU has too little free memory for the probe",
        "end other processes on the GPU (nvidia-smi lists them)",
    ),
    (
        r"\(libcupti\.so\)|libcupti[\w.]*: cannot open",
        REFUSED,
        "Paddle does not find libcupti.so",
        _CUPTI_LIBRARY,
    ),
    (
        r"libcuda\.so|libcudart|libxpuapi|libxpurt|libascendcl",
        NO_DEVICE,
        "a library of the device's driver or runtime is missing",
        _DRIVER,
    ),
    (r"CUPTI_ERROR_\w+|CUPTI error \d+", REFUSED, "CUPTI failed", _DRIVER),
    (r"XPTI\w*", REFUSED, "the profiler of the XPU failed", "check the XPU's driver and XPTI"),
)
"""(pattern of the child's message, kind, reason, action); the first match counts."""


@dataclass(frozen=True)
class Probe:
    """What a window of a few kernels showed in a child process."""

    kind: str
    """One of `KINDS`."""
    reason: str
    action: str = ""
    """What to do about it; empty if nothing is to be done."""
    device: str = ""
    """The device of the kernel, as Paddle names it: ``gpu:0``, ``cpu``."""
    num_operators: int = 0
    num_kernels: int = 0
    """Device kernels in the trace."""
    num_launches: int = 0
    """Runtime calls in the trace."""
    ahead_ns: tuple[int, int] | None = None
    """The least and the most that the device's clock is ahead of the host's, below 0 if it is behind::

        host    launch |                  | synchronized
        device           | kernel |                          most: start - launch, least: end - synchronized

    The least is above the most if the clock moves against the host's. None without a kernel.
    """
    files: tuple[str, ...] = ()
    """Files that a profiler wrote into the working directory unasked."""
    exit_code: int | None = None
    messages: str = field(default="", repr=False)
    """The end of the child's stderr, which holds the messages of C++."""


def probe(
    targets: Sequence[str] | None = None, timeout: float = TIMEOUT_SECONDS, device: str = ""
) -> Probe:
    """Record a window of a few kernels in a child process and return what it holds.

    The child sees the same devices as this process: it inherits the environment, but no variable of
    the launcher other than ``FLAGS_*``. It runs in a temporary folder. Never raises.

    Args:
        targets: names as in ``Profiler.targets``: cpu, gpu, xpu, custom_device. None means the host
            and the kind of the device.
        timeout: seconds after which the child is killed.
        device: the device that runs the kernel, as ``paddle.device.get_device()`` returns it; empty
            for Paddle's default device.
    """
    command = [sys.executable, "-m", "ppprof.capture.probe_child"]
    command += ["--seconds", str(timeout), "--device", device, *(targets or ())]
    try:
        # A plugin's profiler may still write there when the child has been killed.
        with temporary_folder() as folder:
            ended = run(command, timeout, environment(keeps_flags=True), Path(folder))
            return interpret(ended, timeout)
    except OSError as error:
        return Probe(FAILED, f"the probe cannot start: {error}", "make TMPDIR writable")


def interpret(ended: Ended, timeout: float) -> Probe:
    """Return the meaning of a child's exit code and output."""
    if not ended.is_started:
        return Probe(FAILED, f"the child process cannot start: {ended.stderr}")
    lines = [line for line in map(_mapping, ended.stdout.splitlines()) if line is not None]
    stage = next((str(line["stage"]) for line in reversed(lines) if "stage" in line), "import")
    result = next((line["result"] for line in lines if "result" in line), None)
    device = next((str(line["device"]) for line in reversed(lines) if line.get("device")), "")
    messages = ended.stderr[-4000:]
    common: dict[str, Any] = {
        "device": device,
        "exit_code": ended.exit_code,
        "messages": messages,
    }
    if isinstance(result, Mapping):
        return _of_window(result, common)
    while_ = f"while {_STAGES.get(stage, stage)}"
    if ended.exit_code is None or ended.exit_code == -14:  # SIGALRM: the child's own time-out
        return Probe(
            LATE,
            f"no answer within {timeout:.0f} s {while_}",
            "check that the device works: run one matmul on it; end processes that hang on it",
            **common,
        )
    error = next((str(line["error"]) for line in lines if "error" in line), "")
    return _of_failure(stage, f"{error}\n{ended.stderr}", while_, common)


def _of_window(result: Mapping[str, Any], common: Mapping[str, Any]) -> Probe:
    known = {name: result.get(name) for name in _NUMBERS}
    numbers: dict[str, Any] = {k: v for k, v in known.items() if isinstance(v, int)}
    ahead_ns = result.get("ahead_ns")
    files = tuple(str(name) for name in result.get("files") or ())
    found = {**common, **numbers, "files": files, "ahead_ns": ahead_ns and tuple(ahead_ns)}
    device = common["device"]
    if device.partition(":")[0] == "cpu" and numbers.get("num_operators"):
        return Probe(WORKS, "a window on the host holds its operator", **found)
    beside = f"its profiler writes files of its own: {', '.join(files[:3])}" if files else ""
    if beside and numbers.get("num_kernels"):
        action = "name its target in Profiler.targets, such as [cpu, custom_device]"
        return Probe(WORKS, beside, action, **found)
    if device.partition(":")[0] != "cpu" and numbers.get("num_kernels"):
        return Probe(WORKS, f"a window on {device} holds its kernel", **found)
    if device.partition(":")[0] == "cpu":
        return Probe(NO_EVENTS, "a window on the host holds no operator", "report this", **found)
    lacks = f"a window on {device} holds no kernel"
    if numbers.get("num_launches"):
        lacks += f" of {numbers['num_launches']} launches: lost, or the device's clock is behind the host's"
    return Probe(NO_EVENTS, "; ".join(filter(None, (lacks, beside))), _OWN_PROFILER, **found)


_OWN_PROFILER = "use the profiler of the device's maker"


_NUMBERS = ("num_operators", "num_kernels", "num_launches")


def _of_failure(stage: str, text: str, while_: str, common: Mapping[str, Any]) -> Probe:
    code = common["exit_code"]
    how = (
        f"the child ended with signal {-code}" if code < 0 else f"the child ended with code {code}"
    )
    if code == 0:
        how = "Paddle raised an error"
    cause = cause_of(text)
    if cause is not None:
        name, kind, reason, action = cause
        return Probe(kind, f"{reason} ({name}; {how} {while_})", action, **common)
    last = _last_message(text)
    said = f": {last}" if last else ""
    if stage == "create" and code == 0:
        # Paddle's C++ raises for a plugin without hooks, and returns None for a second profiler.
        return Probe(
            NO_HOOKS,
            f"the device's plugin has no profiler{said}",
            _OWN_PROFILER,
            **common,
        )
    if stage in _OF_PROFILER:
        action = "report the message"
        return Probe(REFUSED, f"{how} {while_}{said}", action, **common)
    if stage == "device":
        action = "check the device's driver, and that Paddle's build is for this device"
        return Probe(NO_DEVICE, f"{how} {while_}{said}", action, **common)
    return Probe(FAILED, f"{how} {while_}{said}", "run it again to see the message", **common)


def cause_of(text: str) -> tuple[str, str, str, str] | None:
    """Return the part of an error message that names its cause, kind, reason and action; None if unknown."""
    for pattern, kind, reason, action in _CAUSES:
        match = re.search(pattern, text)
        if match:
            return match[0], kind, reason, action
    return None


def _last_message(text: str) -> str:
    """Return the line of a message that names the cause, at most 200 characters."""
    # Paddle's errors: a C++ stack, this heading, the cause, the place in Paddle's source.
    _, heading, summary = text.partition("Error Message Summary:")
    lines = [line.strip() for line in (summary or text).splitlines() if re.search(r"\w", line)]
    wanted = [line for line in lines if _MESSAGE.search(line) and "Traceback" not in line]
    cause = (wanted[:1] if heading else wanted[-1:]) or lines[-1:] or [""]
    return escape_control_chars(cause[0])[:200]


_MESSAGE = re.compile(r"error|fail|denied|not ", re.IGNORECASE)


def _mapping(line: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
