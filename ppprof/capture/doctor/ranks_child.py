"""A rank of ``ppprof doctor --nproc``: reduce 1 MiB under a span in a window.

    python -m paddle.distributed.launch --nproc_per_node 2 ranks_child.py FOLDER SECONDS

Writes a line for each stage to ``FOLDER/rank_N.json``; the last one has the result.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

_FLOATS = 1 << 18
_SPAN = "ppprof doctor all_reduce"


def main(folder: Path, seconds: float) -> None:
    """Reduce once to connect the ranks, and once in a window."""
    # The launcher may be gone by then. SIGALRM's default action needs no Python.
    signal.setitimer(signal.ITIMER_REAL, seconds)
    rank = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
    file = folder / f"rank_{rank}.json"

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


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
