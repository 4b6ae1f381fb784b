"""Call CUPTI as Paddle's profiler does, but report its codes where Paddle calls ``exit``.

    python ppprof/capture/doctor/cupti_child.py [FOLDER...]

Prints ``{"library": "libcupti.so", "calls": {"cuptiActivityEnable": 35}, "texts": {...}}``. FOLDERs
are searched for the library. This file imports nothing of ppprof, so that it starts in 30 ms.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

_NAMES = ("libcupti.so", "libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8")
_KINDS = (1, 2, 4, 5, 10)
"""CUPTI_ACTIVITY_KIND_MEMCPY, MEMSET, DRIVER, RUNTIME, CONCURRENT_KERNEL."""


def ask(folders: list[str]) -> dict[str, Any]:
    """Return the code of each call, and the name of each error."""
    library, cupti = _load(folders)
    if cupti is None:
        return {"library": None}
    calls: dict[str, int] = {}
    try:
        # Profilers such as nsys are loaded into the process here.
        calls["cuInit"] = ctypes.CDLL("libcuda.so.1").cuInit(0)
    except (OSError, AttributeError):
        calls["cuInit"] = -1
    callback = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p
    )(lambda *_: None)
    subscriber = ctypes.c_void_p()
    calls["cuptiSubscribe"] = cupti.cuptiSubscribe(ctypes.byref(subscriber), callback, None)
    if calls["cuptiSubscribe"] == 0:
        cupti.cuptiUnsubscribe(subscriber)
    codes = []
    for kind in _KINDS:
        codes.append(cupti.cuptiActivityEnable(kind))
        if codes[-1] == 0:
            cupti.cuptiActivityDisable(kind)
    calls["cuptiActivityEnable"] = next((code for code in codes if code), 0)
    texts = {name: _text(cupti, code) for name, code in calls.items() if code and name != "cuInit"}
    return {"library": library, "calls": calls, "texts": texts}


def _load(folders: list[str]) -> tuple[str, Any]:
    found = [str(path) for folder in folders for path in Path(folder).glob("**/libcupti.so*")]
    for name in (*_NAMES, *sorted(found)):
        try:
            return name, ctypes.CDLL(name)
        except OSError:
            continue
    return "", None


def _text(cupti: Any, code: int) -> str:
    text = ctypes.c_char_p()
    if cupti.cuptiGetResultString(code, ctypes.byref(text)) or not text.value:
        return f"CUPTI error {code}"
    return text.value.decode(errors="replace")


if __name__ == "__main__":
    json.dump(ask(sys.argv[1:]), sys.stdout)
