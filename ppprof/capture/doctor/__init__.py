"""What this machine can record, and what is missing: all checks of ``ppprof doctor``, side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from ppprof.capture import device
from ppprof.capture.doctor import checks, device_checks
from ppprof.capture.doctor.checks import OK, PROBLEM, WARNING, Check
from ppprof.capture.doctor.device_checks import measure_peaks, peak_checks
from ppprof.capture.output import reason
from ppprof.capture.probe import probe

__all__ = ["OK", "PROBLEM", "WARNING", "Check", "examine", "measure_peaks", "peak_checks"]

T = TypeVar("T")

_SECONDS = 24.0
"""The longest time of all checks together; killing and reading take a moment more."""
_REAP_SECONDS = 3.0
_CUPTI_SECONDS = 15.0
_STORAGE_SECONDS = 15.0


def examine(log_dir: Path, nproc: int = 1) -> list[Check]:
    """Return the result of every check that applies to this machine. Never raises.

    ::

        this process  | files | memory | profiler_log ...
        child         | a window of one kernel .......... |
        child         | CUPTI .... |
        N children    | an all-reduce of 1 MB ............... |

    Args:
        log_dir: ``Profiler.profiler_log``.
        nproc: ranks of the all-reduce; 1 skips it.
    """
    deadline = time.monotonic() + _SECONDS
    build = device.paddle_build()
    driver = _driver()
    has_nvidia = bool(driver) or device_checks.has_nvidia_driver()
    with ThreadPoolExecutor(4) as pool:
        probed = pool.submit(probe, None, _SECONDS) if build is not None else None
        asked = pool.submit(device_checks.ask_cupti, _CUPTI_SECONDS) if has_nvidia else None
        reduced: Future[dict[str, Any]] | None = None
        if nproc > 1 and build is not None:
            reduced = pool.submit(device_checks.all_reduce, nproc, _SECONDS)
        found: list[Check] = []

        def add(name: str, check: Callable[[], Iterator[Check]]) -> None:
            try:
                found.extend(check())
            except Exception as error:  # an unknown system, which the other checks may know
                found.append(Check(name, WARNING, f"the check failed: {reason(error)}"))

        files = pool.submit(checks.measure_disk, log_dir, _STORAGE_SECONDS)
        add("Paddle", lambda: checks.paddle_checks(build, driver))
        if probed is not None:
            add("window", lambda: device_checks.window_checks(_result(probed, deadline)))
        if asked is not None:
            add("CUPTI", lambda: device_checks.cupti_checks(_result(asked, deadline)))
        if reduced is not None:
            add(
                "all-reduce",
                lambda: device_checks.all_reduce_checks(nproc, _result(reduced, deadline)),
            )
        add("profiler_log", lambda: checks.log_directory(log_dir, _result(files, deadline)))
        add("/dev/shm", checks.shared_memory)
        add("helper memory", lambda: checks.helper_memory(nproc))
        add("viewers", checks.viewer_checks)
        add("versions", lambda: checks.version_checks(build, driver))
    return found


def _result(future: Future[T], deadline: float) -> T:
    """Return the result of a child, which ends itself before ``deadline``."""
    return future.result(max(1.0, deadline + _REAP_SECONDS - time.monotonic()))


def _driver() -> Mapping[str, Any]:
    try:
        return device.nvidia()
    except Exception as error:
        return {"driver_error": reason(error)}
