"""The devices of this machine and the software for them, for the manifest and ``ppprof doctor``.

Nothing here starts a device, raises, or takes longer than two seconds.
"""

from __future__ import annotations

import ast
import ctypes
import json
import logging
import os
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ppprof.capture import nvml
from ppprof.capture.children import lines_of, run
from ppprof.capture.output import reason
from ppprof.capture.signals import pass_interruption

log = logging.getLogger("ppprof")

_SECONDS = 2.0
_MOST_BYTES = 1 << 20
_BUILD = {
    "version": "full_version",
    "commit": "commit",
    "cuda": "cuda_version",
    "cudnn": "cudnn_version",
    "nccl": "nccl_version",
    "rocm": "hip_version",
    "xpu": "xpu_xre_version",
    "bkcl": "xpu_xccl_version",
}
"""Names in ``paddle/version/__init__.py``."""
_CUPTI_FLAG = "FLAGS_cupti_dir"

_ASCEND_DRIVER = Path("/usr/local/Ascend/driver/version.info")


def machine() -> dict[str, Any]:
    """Return Paddle's build, the devices, driver, runtime and communication library of this machine.

    All values are of this process's machine; None for a value that cannot be read::

        {"build": {"version": "3.3.1", "commit": "76884955...", "cuda": "12.6", ...},
         "device": "gpu:0", "count": 8, "driver": "550.54.15", "driver_cuda": "12.4",
         "runtime": "12.6", "communication": "NCCL 2.25.1",
         "devices": [{"name": "NVIDIA H100 80GB HBM3", "memory_bytes": ..., "clocks_mhz": ...}, ...],
         "cpu": "AMD EPYC 7742", "cores": 64, "memory_bytes": ...}
    """
    found: dict[str, Any] = {"build": paddle_build()}
    for read in (_current_device, nvidia, _loaded_libraries, _host):
        try:
            found.update(read())
        except Exception as error:  # an unknown version of Paddle or of a driver
            pass_interruption(error)
            log.debug(f"{read.__name__}: {reason(error)}")
    if "driver" not in found:
        found["driver"] = _ascend_driver()
    return found


def paddle_build(package: Path | None = None) -> dict[str, str] | None:
    """Return versions of Paddle's build from its files, without importing Paddle.

    Args:
        package: the folder ``paddle``; None means the one that Python would import.

    Returns:
        Keys of `_BUILD`, only those that the build has; None if Paddle is not installed.
    """
    try:
        package = package or _package()
    except (ValueError, ImportError):
        return {}
    if package is None:
        return None
    assigned = _version_file(package)
    values = {key: assigned.get(name) for key, name in _BUILD.items()}
    # Paddle writes "False" and "0" for a library that the build does not use.
    return {k: str(v) for k, v in values.items() if v and str(v) not in ("False", "0", "None")}


def cupti_folder_of_paddle() -> str:
    """Return the folder in which Paddle looks for CUPTI first, without importing Paddle; "" without one."""
    with suppress(ValueError, ImportError):
        package = _package()
        if package and _version_file(package).get("with_pip_cuda_libraries") == "ON":
            return str(package.parent / "nvidia/cuda_cupti/lib")
    return os.environ.get(_CUPTI_FLAG, "")


def _package() -> Path | None:
    """Return the folder ``paddle`` that Python would import; None without one."""
    spec = find_spec("paddle")
    folders = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(folders))) if folders else None


def _version_file(package: Path) -> dict[str, Any]:
    try:
        with (package / "version" / "__init__.py").open("rb") as file:
            return _assigned(file.read(_MOST_BYTES))
    except (OSError, ValueError, SyntaxError):
        return {}


def _assigned(source: bytes) -> dict[str, Any]:
    return {
        node.targets[0].id: node.value.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }


def nvidia() -> dict[str, Any]:
    """Return what NVML knows: ``driver``, ``driver_cuda``, ``devices``; {} without NVIDIA's driver.

    A child process asks NVML, since a broken driver may never answer. Its answers are kept apart in
    ``driver_error``: the number of NVML's error, or ``"late"``.
    """
    ended = run([sys.executable, "-I", "-S", nvml.__file__], _SECONDS)
    try:
        found = json.loads(ended.stdout)
    except ValueError:
        found = {"error": "late" if ended.exit_code is None else f"exit code {ended.exit_code}"}
    renamed = {"cuda": "driver_cuda", "error": "driver_error"}
    return {renamed.get(key, key): value for key, value in found.items()}


def _current_device() -> dict[str, Any]:
    """Return the device that Paddle computes on, and the number of such devices."""
    paddle = sys.modules.get("paddle")
    if paddle is None:
        return {}
    from paddle.base import core

    device = str(paddle.device.get_device())
    kind = device.partition(":")[0]
    custom_types = list(paddle.device.get_all_custom_device_type() or ())
    found: dict[str, Any] = {"device": device}
    if custom_types:
        found["custom_device_types"] = custom_types
    if kind == "gpu":  # its name comes from NVML: asking CUDA for it might start CUDA
        found["count"] = core.get_cuda_device_count()
    elif kind == "xpu":
        found["count"] = core.get_xpu_device_count()
    elif kind in custom_types:
        found["count"] = core.get_custom_device_count(kind)
    return found


def compute_device_name() -> str | None:
    """Return the vendor's name of the device that Paddle computes on; None for a CPU.

    None also for a device whose name Paddle does not know.
    """
    import paddle

    device = str(paddle.device.get_device())
    if device.startswith("cpu"):
        return None
    for ask in _NAME_FUNCTIONS:
        try:
            name = ask(paddle.device, device)
        except Exception as error:  # not for this device, or not in this version
            log.debug(f"{device}: no name: {reason(error)}")
            continue
        if name:
            return str(name)
    return None


_NAME_FUNCTIONS: tuple[Callable[[Any, str], Any], ...] = (
    lambda api, device: api.get_device_name(device),  # since 3.3
    lambda api, device: api.cuda.get_device_name(device) if device.startswith("gpu") else None,
    lambda api, device: api.get_device_properties(device).name,
)


def _loaded_libraries() -> dict[str, Any]:
    """Return versions of the CUDA runtime and of NCCL, if this process has loaded them."""
    found: dict[str, Any] = {}
    for name in ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"):
        number = _loaded_version(name, "cudaRuntimeGetVersion")
        if number:
            found["runtime"] = f"{number // 1000}.{number % 1000 // 10}"
            break
    number = _loaded_version("libnccl.so.2", "ncclGetVersion")
    if number:
        found["communication"] = f"NCCL {nccl_version(number)}"
    return found


def nccl_version(number: int) -> str:
    """Return NCCL's version as text.

    >>> nccl_version(22501), nccl_version(2708)
    ('2.25.1', '2.7.8')
    """
    major, rest = divmod(number, 10_000) if number >= 10_000 else divmod(number, 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _loaded_version(library: str, function: str) -> int:
    """Return the version number that a loaded library reports; 0 if it is not loaded."""
    number = ctypes.c_int()
    try:
        ask = getattr(ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_NOW), function)
    except (OSError, AttributeError):
        return 0
    return number.value if not ask(ctypes.byref(number)) else 0


def _host() -> dict[str, Any]:
    models = (line for line in lines_of(Path("/proc/cpuinfo")) if line.startswith("model name"))
    return {
        "cpu": next(models, "").partition(":")[2].strip() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def _ascend_driver() -> str | None:
    lines = (line for line in lines_of(_ASCEND_DRIVER) if line.startswith("Version="))
    return next(lines, "").partition("=")[2].strip() or None
