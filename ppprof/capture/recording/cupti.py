"""Ask CUPTI, NVIDIA's profiler, whether it accepts this process.

Paddle's profiler calls ``exit`` where CUPTI returns an error. The same calls return the error here, so
they are made just before Paddle's, with the library that Paddle uses. They start no process and take no
memory of the device. Libraries of plugins have the same interface, and are asked if they are loaded.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path
from typing import Any

from ppprof.capture.children import lines_of
from ppprof.capture.doctor.child_programs import (
    CUPTI_KINDS,
    cupti_folders,
    cupti_text,
    load_cupti,
)

MISSING = "libcupti.so: cannot open it"
_MAPS = Path("/proc/self/maps")


def refusal(*, loads: bool) -> str:
    """Return the name of CUPTI's error, such as CUPTI_ERROR_INSUFFICIENT_PRIVILEGES; "" if it accepts.

    No profiler may be open in this process.

    Args:
        loads: whether to load the library if the process has not; without a library, return `MISSING`.
    """
    paths = [line.split(maxsplit=5)[-1] for line in lines_of(_MAPS) if "libcupti" in line]
    cupti = ctypes.CDLL(paths[0]) if paths else load_cupti(cupti_folders())[1] if loads else None
    if cupti is None:
        return MISSING if loads else ""
    with suppress(AttributeError):  # no CUPTI in spite of its name
        return next(filter(None, (_refusal_of(cupti, kind) for kind in CUPTI_KINDS)), "")
    return MISSING if loads else ""


def _refusal_of(cupti: Any, kind: int) -> str:
    code = cupti.cuptiActivityEnable(kind)
    if code:
        return cupti_text(cupti, code)
    cupti.cuptiActivityDisable(kind)
    return ""
