"""Ask CUPTI, NVIDIA's profiler, whether it accepts this process; and detach it after a window, on request.

Paddle's profiler calls ``exit`` where CUPTI returns an error. The same calls return the error here, so
they are made just before Paddle's, with the library that Paddle uses. They start no process and take no
memory of the device. Libraries of plugins have the same interface, and are asked if they are loaded.

Paddle leaves CUPTI attached after a window, which may slow all later steps down. With ``TEARDOWN_CUPTI=1``, the
variable of PyTorch's profiler, it is detached as there: NVIDIA recommends to call ``cuptiFinalize`` while
a call of CUDA returns. Paddle registers and enables everything again ahead of each window::

    training's thread   window | subscribe | cuCtxSynchronize ...... | steps
    CUPTI                                    callback: finalize
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from ppprof.capture.child_programs import (
    CUPTI_KINDS,
    cupti_folders,
    cupti_text,
    load_cupti,
)
from ppprof.capture.children import lines_of
from ppprof.capture.device import cupti_folder_of_paddle

log = logging.getLogger("ppprof")

MISSING = "libcupti.so: cannot open it"
_MAPS = Path("/proc/self/maps")


def refusal(*, loads: bool) -> str:
    """Return the name of CUPTI's error, such as CUPTI_ERROR_INSUFFICIENT_PRIVILEGES; "" if it accepts.

    No profiler may be open in this process.

    Args:
        loads: whether to load the library if the process has not; without a library, return `MISSING`.
    """
    try:
        cupti = _loaded()
        if cupti is None and loads:
            _, cupti = load_cupti(cupti_folder_of_paddle(), cupti_folders())
    except OSError:  # replaced on disk, as by an update: Paddle keeps what it has loaded
        return ""
    if cupti is None:
        return MISSING if loads else ""
    with suppress(AttributeError):  # no CUPTI in spite of its name
        return next(filter(None, (_refusal_of(cupti, kind) for kind in CUPTI_KINDS)), "")
    return MISSING if loads else ""


def _loaded() -> Any:
    """Return the CUPTI that this process has loaded; None without one.

    Raises:
        OSError: its file has been removed, and its name is not that of the library.
    """
    paths = [line.split(maxsplit=5)[-1] for line in lines_of(_MAPS) if "libcupti" in line]
    if not paths:
        return None
    path = paths[0].removesuffix(" (deleted)")
    with suppress(OSError):
        return ctypes.CDLL(Path(path).name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    return ctypes.CDLL(path)


def _refusal_of(cupti: Any, kind: int) -> str:
    code = cupti.cuptiActivityEnable(kind)
    if code:
        return cupti_text(cupti, code)
    cupti.cuptiActivityDisable(kind)
    return ""


VARIABLE = "TEARDOWN_CUPTI"
"""The environment variable that asks to detach CUPTI after each window: 1."""
_DRIVER_DOMAIN, _SYNCHRONIZE = 1, 17
"""CUPTI_CB_DOMAIN_DRIVER_API, and the number of cuCtxSynchronize in it."""
_EXIT = 1
"""CUPTI_API_EXIT, a value of the first field of CUpti_CallbackData."""
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
_callbacks: list[Any] = []
"""Callbacks that another thread may still be in."""


def detach_on_request() -> None:
    """Detach CUPTI from this process, if `VARIABLE` asks for it. No profiler may be open in the process."""
    if os.environ.get(VARIABLE) != "1":
        return
    with suppress(AttributeError, OSError):  # no CUPTI, or no driver
        cupti = _loaded()
        driver = ctypes.CDLL(_DRIVER, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        if not _detach(cupti, driver):
            log.warning(f"{VARIABLE}: CUPTI stays attached: it accepts no subscriber")


_DRIVER = "libcuda.so.1"


def _detach(cupti: Any, driver: Any) -> bool:
    """Call ``cuptiFinalize`` while a call of CUDA's driver by this thread returns; return whether it was called."""
    thread, subscriber = threading.get_ident(), ctypes.c_void_p()
    is_over = threading.Event()

    def finalize(_user: Any, _domain: int, _call: int, info: int) -> None:
        is_exit = ctypes.c_int.from_address(info).value == _EXIT
        if is_exit and threading.get_ident() == thread and not is_over.is_set():
            is_over.set()
            cupti.cuptiUnsubscribe(subscriber)
            cupti.cuptiFinalize()

    callback = _CALLBACK(finalize)
    if cupti.cuptiSubscribe(ctypes.byref(subscriber), callback, None):
        return False
    _callbacks.append(callback)
    if not cupti.cuptiEnableCallback(1, subscriber, _DRIVER_DOMAIN, _SYNCHRONIZE):
        driver.cuCtxSynchronize()
    if not is_over.is_set():
        cupti.cuptiUnsubscribe(subscriber)
    return is_over.is_set()
