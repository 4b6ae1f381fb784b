"""What ``ppprof doctor`` runs in child processes, since it may hang, or end the process in C++.

    python ppprof/capture/child_programs.py disk profiler_log

Prints the result of one of `PROGRAMS` as JSON. This file imports nothing of ppprof, and Paddle only
where a program needs it, so that the others start in 30 ms. A capture calls the functions of CUPTI itself.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def child_command(program: str, *arguments: str) -> list[str]:
    """Return the command that runs one of `PROGRAMS`."""
    isolated = () if program in _WITH_PADDLE else ("-I", "-S")
    return [sys.executable, *isolated, __file__, program, *arguments]


_CUPTI_NAMES = ("libcupti.so", "libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8")
CUPTI_KINDS = (1, 2, 4, 5, 10)
"""CUPTI_ACTIVITY_KIND_MEMCPY, MEMSET, DRIVER, RUNTIME, CONCURRENT_KERNEL."""


def cupti(first: str, *folders: str) -> dict[str, Any]:
    """Call CUPTI as Paddle's profiler does, but return its codes where Paddle calls ``exit``.

    Arguments: those of `load_cupti`.

    ::

        {"library": "libcupti.so", "calls": {"cuptiActivityEnable": 35}, "texts": {...}}
    """
    library, cupti = load_cupti(first, folders)
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
    for kind in CUPTI_KINDS:
        codes.append(cupti.cuptiActivityEnable(kind))
        if codes[-1] == 0:
            cupti.cuptiActivityDisable(kind)
    calls["cuptiActivityEnable"] = next((code for code in codes if code), 0)
    texts = {
        name: cupti_text(cupti, code) for name, code in calls.items() if code and name != "cuInit"
    }
    return {"library": library, "calls": calls, "texts": texts}


def cupti_folders() -> tuple[str, ...]:
    """Return folders of Python packages that bring CUPTI."""
    return tuple(
        str(Path(path) / "nvidia") for path in sys.path if (Path(path) / "nvidia").is_dir()
    )


def load_cupti(first: str, folders: tuple[str, ...]) -> tuple[str, Any]:
    """Return CUPTI's name and the library; "" and None without one.

    Args:
        first: the folder that Paddle searches ahead of the loader's path; "" without one.
        folders: searched if the loader finds no library.
    """
    of_paddle = [str(Path(first, name)) for name in _CUPTI_NAMES] if first else []
    found = [str(path) for folder in folders for path in Path(folder).glob("**/libcupti.so*")]
    for name in (*of_paddle, *_CUPTI_NAMES, *sorted(found)):
        try:
            return name, ctypes.CDLL(name)
        except OSError:
            continue
    return "", None


def cupti_text(cupti: Any, code: int) -> str:
    """Return the name of an error of CUPTI."""
    text = ctypes.c_char_p()
    if cupti.cuptiGetResultString(code, ctypes.byref(text)) or not text.value:
        return f"CUPTI error {code}"
    return text.value.decode(errors="replace")


_DISK_BYTES, _CHUNK = 64 << 20, 4 << 20
_DISK_SECONDS = 8.0


def disk(directory: str) -> dict[str, Any]:
    """Write 64 MiB to the disk of a directory and remove them.

    ::

        {"folder": ..., "exists": ..., "free_bytes": ..., "mb_per_s": ...} or {"error": ...}

    The folder is ``directory``, or its nearest parent that exists. The file has no name while it is
    written, so that nothing stays if this process is killed.
    """
    log_dir = Path(directory)
    folder = log_dir.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    folder = folder.resolve()
    if not folder.is_dir():
        return {"error": f"{folder} is not a directory"}
    try:
        stat = os.statvfs(folder)
        free = stat.f_bavail * stat.f_frsize
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            start = time.monotonic()
            written = 0
            while written < _DISK_BYTES and time.monotonic() - start < _DISK_SECONDS:
                written += file.write(bytes(_CHUNK))
                os.fsync(file.fileno())
            seconds = time.monotonic() - start
    except OSError as error:
        return {"error": f"cannot write to {folder}: {error.strerror}"}
    return {
        "folder": str(folder),
        "exists": log_dir.exists(),
        "free_bytes": free,
        "written_bytes": written,
        "mb_per_s": written / 1e6 / max(seconds, 1e-9),
    }


_SECONDS, _LEAST_RUNS, _LEAST_RUN_SECONDS = 2.0, 5, 0.02
_SIZES = (1024, 2048, 4096, 8192, 16384)
_COPIED_BYTES = 1 << 28


def _seconds_of(work: Callable[[], Any], synchronize: Callable[[], None]) -> float:
    """Return the median time of a run, over two seconds and at least five runs."""
    import statistics

    work()
    synchronize()
    times: list[float] = []
    end = time.monotonic() + _SECONDS
    while len(times) < _LEAST_RUNS or time.monotonic() < end:
        start = time.perf_counter()
        work()
        synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _flops(dtype: str, synchronize: Callable[[], None]) -> float:
    """Return the FLOP/s of a matrix product that is large enough for the device."""
    import paddle

    for size in _SIZES:
        x = paddle.ones([size, size]).astype(dtype)
        paddle.matmul(x, x)
        synchronize()
        start = time.perf_counter()
        paddle.matmul(x, x)
        synchronize()
        if time.perf_counter() - start >= _LEAST_RUN_SECONDS:
            break
    return 2 * size**3 / _seconds_of(lambda: paddle.matmul(x, x), synchronize)


def _bytes_per_s(synchronize: Callable[[], None]) -> float:
    """Return the bytes that are read and written a second while a tensor is scaled in place."""
    import paddle

    x = paddle.ones([_COPIED_BYTES // 4], "float32")
    return 2 * _COPIED_BYTES / _seconds_of(lambda: x.scale_(1.0), synchronize)


def peaks() -> dict[str, Any]:
    """Measure how fast the device computes matrix products, and reads and writes its memory.

    ::

        {"device": "gpu:0", "flops": {"bfloat16": ..., "float32": ...}, "bytes_per_s": ...}
    """
    try:
        return _peaks()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def _peaks() -> dict[str, Any]:
    import paddle

    device = str(paddle.device.get_device())
    on_cpu = device.startswith("cpu")

    def synchronize() -> None:
        if not on_cpu:
            paddle.device.synchronize()

    flops = {}
    for dtype in ("float32",) if on_cpu else ("bfloat16", "float16", "float32"):
        try:
            flops[dtype] = _flops(dtype, synchronize)
        except (RuntimeError, ValueError, TypeError):  # the device lacks the dtype
            continue
    return {"device": device, "flops": flops, "bytes_per_s": _bytes_per_s(synchronize)}


_FLOATS = 1 << 18
_SPAN = "ppprof doctor all_reduce"


def ranks(folder: str, seconds: str) -> None:
    """Reduce 1 MiB once to connect the launched ranks, and once under a span in a window.

    Writes a line for each stage to ``folder/rank_N.json``; the last one has the result.
    """
    # The launcher may be gone by then. SIGALRM's default action needs no Python.
    signal.setitimer(signal.ITIMER_REAL, float(seconds))
    rank = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
    file = Path(folder, f"rank_{rank}.json")

    def report(**line: Any) -> None:
        with file.open("a") as lines:
            lines.write(json.dumps(line) + "\n")

    report(stage="importing Paddle")
    import paddle
    import paddle.distributed as dist
    from paddle.base import core

    report(stage="connecting")
    dist.init_parallel_env()
    data = paddle.ones([_FLOATS])
    report(stage="reducing")
    dist.all_reduce(data)
    data.numpy()
    data = paddle.full([_FLOATS], float(rank + 1))
    report(stage="recording")
    options = core.ProfilerOptions()
    options.trace_switch = 1  # the host
    profiler = core._Profiler.create(options, [])
    profiler.prepare()
    profiler.start()
    start_ns = time.perf_counter_ns()
    span = core._RecordEvent(_SPAN, core.TracerEventType.Communication)
    dist.all_reduce(data)
    first = float(data.numpy()[0])
    span.end()
    elapsed_ns = time.perf_counter_ns() - start_ns
    trace = profiler.stop()  # owns the nodes
    world_size = dist.get_world_size()
    report(
        ns=elapsed_ns,
        has_span=_has_span(list(trace.get_data().values())),
        is_correct=first == world_size * (world_size + 1) / 2,
        backend=getattr(dist, "get_backend", lambda: "unknown")(),
        device=paddle.device.get_device(),
    )


def _has_span(nodes: list[Any]) -> bool:
    while nodes:
        node = nodes.pop()
        if node.name == _SPAN:
            return True
        nodes += node.children_node
    return False


PROGRAMS: dict[str, Callable[..., Any]] = {
    "cupti": cupti,
    "disk": disk,
    "peaks": peaks,
    "ranks": ranks,
}
_WITH_PADDLE = ("peaks", "ranks")


if __name__ == "__main__":
    answer = PROGRAMS[sys.argv[1]](*sys.argv[2:])
    if answer is not None:
        json.dump(answer, sys.stdout)
