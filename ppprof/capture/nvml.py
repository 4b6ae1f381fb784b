"""Ask NVIDIA's driver for its devices, through NVML; run as a program: a driver may hang.

    python ppprof/capture/nvml.py    # {"driver": "550.54.15", "cuda": "12.4", "devices": [...]}

NVML starts no CUDA. This file imports nothing of ppprof, so that the program starts in 30 ms.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_MOST_DEVICES = 64
_CLOCKS = {"sm": 1, "memory": 2}


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def machine() -> dict[str, Any]:
    """Return the driver's version, its newest CUDA, and each device; {} without a driver.

    A device has ``name``, ``uuid``, ``memory_bytes``, ``clocks_mhz`` and ``max_clocks_mhz``, and
    only those that NVML knows. If the driver refuses, ``error`` is the number of NVML's error.
    """
    try:
        nvml = ctypes.CDLL(_LIBRARY)
    except OSError:
        return {}
    code = nvml.nvmlInit_v2()
    if code:
        return {"error": code}
    cuda, count = ctypes.c_int(), ctypes.c_uint()
    found: dict[str, Any] = {"driver": _text(nvml.nvmlSystemGetDriverVersion)}
    if not nvml.nvmlSystemGetCudaDriverVersion(ctypes.byref(cuda)):
        found["cuda"] = f"{cuda.value // 1000}.{cuda.value % 1000 // 10}"
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    found["devices"] = [_device(nvml, index) for index in range(min(count.value, _MOST_DEVICES))]
    return found


def _device(nvml: Any, index: int) -> dict[str, Any]:
    handle = ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
        return {}
    found: dict[str, Any] = {
        "name": _text(nvml.nvmlDeviceGetName, handle),
        "uuid": _text(nvml.nvmlDeviceGetUUID, handle),
    }
    memory = _Memory()
    if not nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
        found["memory_bytes"] = memory.total
    for key, ask in (
        ("clocks_mhz", nvml.nvmlDeviceGetClockInfo),
        ("max_clocks_mhz", nvml.nvmlDeviceGetMaxClockInfo),
    ):
        mhz = ctypes.c_uint()
        clocks = {}
        for name, clock in _CLOCKS.items():
            if not ask(handle, clock, ctypes.byref(mhz)):
                clocks[name] = mhz.value
        if clocks:
            found[key] = clocks
    return found


def _text(ask: Any, *arguments: Any) -> str | None:
    text = ctypes.create_string_buffer(96)
    return None if ask(*arguments, text, 96) else text.value.decode(errors="replace")


if __name__ == "__main__":
    json.dump(machine(), sys.stdout)
