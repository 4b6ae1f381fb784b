"""The child of `ppprof.capture.probe`: record a window of a few kernels, report each stage as JSON.

    python -m ppprof.capture.probe_child --seconds 60 --device gpu:0 cpu gpu

Lines on stdout: ``{"stage": "prepare"}`` before each stage, then ``{"result": {...}}`` or
``{"error": "..."}``. The process may end in any stage: C++ code may call ``exit``.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

_SIZE = 256
"""Rows and columns of the matrices."""
_PAUSES_S = (0.0, 0.05, 0.05, 0.0, 0.0)
"""Pauses ahead of the kernels in the window: Paddle drops a kernel that begins ahead of the window, as the
first ones do by the clock of a device that is behind the host's."""
_SET_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of sys/prctl.h."""
TRACE_SWITCH = {"cpu": 1, "gpu": 2, "xpu": 4, "custom_device": 8}
"""Numbers of the targets in ``ProfilerOptions.trace_switch``."""


def main(argv: list[str] | None = None) -> None:
    """Run the stages and end the process, without the destructors of C++."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--device", default="")
    parser.add_argument("targets", nargs="*")
    args = parser.parse_args(argv)
    # The thread that started this process blocks all signals.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    _end_with_parent()
    # SIGALRM's default action needs no Python.
    signal.setitimer(signal.ITIMER_REAL, args.seconds + 1)
    report = _Report()
    try:
        report.write(result=_window(args.device, args.targets, report))
    except BaseException as error:
        # Paddle's error messages begin with the C++ stack; the cause is at the end.
        report.write(error=f"{type(error).__name__}: {error}"[-4000:])
    os._exit(0)


def _end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, even by SIGKILL; only on Linux.

    Otherwise it would use the device for a minute after a training that has ended.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


class _Report:
    """Writes lines to stdout; everything else that the process prints goes to stderr."""

    def __init__(self) -> None:
        self._fd = os.dup(1)
        os.dup2(2, 1)

    def write(self, **line: Any) -> None:
        """Write one line, at once."""
        os.write(self._fd, json.dumps(line).encode() + b"\n")


def _window(device: str, targets: list[str], report: _Report) -> dict[str, Any]:
    report.write(stage="import")
    import paddle
    from paddle.base import core

    report.write(stage="device")
    custom_types = paddle.device.get_all_custom_device_type() or []
    if not device and custom_types and paddle.device.get_device() == "cpu":
        device = custom_types[0]  # a plugin's device is not always Paddle's default
    if device:
        paddle.set_device(device)
    device = paddle.device.get_device()
    report.write(stage="device", device=device)
    kind = _kind(device, custom_types)
    matrix = paddle.ones([_SIZE, _SIZE])
    paddle.matmul(matrix, matrix).numpy()  # libraries load their kernels before the window

    report.write(stage="create")
    options = core.ProfilerOptions()
    for target in targets or dict.fromkeys(["cpu", kind]):
        options.trace_switch |= TRACE_SWITCH[target]
    profiler = core._Profiler.create(options, custom_types)
    if profiler is None:
        raise RuntimeError("Paddle returned no profiler")
    report.write(stage="prepare")
    profiler.prepare()
    report.write(stage="start")
    profiler.start()
    report.write(stage="kernel")
    spans = []
    for pause_s in _PAUSES_S[: 1 if kind == "cpu" else None]:
        time.sleep(pause_s)
        before_ns = time.time_ns()
        paddle.matmul(matrix, matrix)
        if kind != "cpu":
            paddle.device.synchronize()
        spans.append((before_ns, time.time_ns()))
    report.write(stage="stop")
    trace = profiler.stop()  # owns the nodes
    return {
        "files": sorted(path.name for path in Path().iterdir()),
        **_counts(trace.get_data(), spans),
    }


def _kind(device: str, custom_types: list[str]) -> str:
    """Return the target of a device."""
    name = device.partition(":")[0]
    return "custom_device" if name in custom_types else name


def _counts(trees: dict[Any, Any], spans: list[tuple[int, int]]) -> dict[str, Any]:
    """Return the numbers of events, and `_ahead_ns`."""
    num_operators = num_launches = 0
    kernels = []
    for node in _nodes(trees):
        num_operators += _type(node) == "Operator"
        for call in node.runtime_node:
            num_launches += 1
            kernels += [(k.start_ns, k.end_ns, call.start_ns) for k in call.device_node if _is(k)]
        kernels += [(k.start_ns, k.end_ns, None) for k in node.device_node if _is(k)]
    return {
        "num_operators": num_operators,
        "num_kernels": len(kernels),
        "num_launches": num_launches,
        "ahead_ns": _ahead_ns(kernels, spans) if kernels else None,
    }


def _ahead_ns(
    kernels: list[tuple[int, int, int | None]], spans: list[tuple[int, int]]
) -> tuple[int, int]:
    """Return the least and the most that the device's clock is ahead of the host's.

    Args:
        kernels: start, end, and the host's time of the launch; None if it is unknown.
        spans: when the host was about to launch a kernel, and had waited for it.
    """
    least, most = [], []
    for start_ns, end_ns, launch_ns in kernels:
        whole = (spans[0][0], spans[-1][1])
        own = (span for span in spans if launch_ns and span[0] <= launch_ns <= span[1])
        before_ns, after_ns = next(own, whole)
        least.append(end_ns - after_ns)
        most.append(start_ns - (launch_ns or before_ns))
    return max(least), min(most)


def _nodes(trees: dict[Any, Any]) -> Iterator[Any]:
    waiting = list(trees.values())
    while waiting:
        node = waiting.pop()
        waiting += node.children_node
        yield node


def _is(event: Any) -> bool:
    return _type(event) == "Kernel"


def _type(event: Any) -> str:
    return str(event.type).rpartition(".")[2]


if __name__ == "__main__":
    main(sys.argv[1:])
