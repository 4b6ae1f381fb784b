"""Notes below the tables of ``ppprof summary``, and lines in place of empty tables.

All but `DISTRIBUTED_HOST_NOTE`, `DISTRIBUTED_LAUNCH_NOTE` and the line on Exposed Communication are Paddle's own text, from
``_build_table`` of paddle 3.3's profiler_statistic.py, kept word for word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

DEVICE_NOTE = """\
CPU(Process) Utilization = Current process CPU time over all cpu cores / elapsed time, so max \
utilization can be reached 100% * number of cpu cores.
CPU(System) Utilization = All processes CPU time over all cpu cores(busy time) / (busy time + \
idle time).
GPU Utilization = Current process GPU time / elapsed time."""

OVERVIEW_NOTE = """\
In this table, We sum up all collected events in terms of event type.
The time of events collected on host are presented as CPU Time, and as GPU Time if on device.
Events with different types may overlap or inclusion, e.g. Operator includes OperatorInner, so \
the sum of ratios is not 100%.
The time of events in the same type with overlap will not calculate twice, and all time is summed \
after merged.
Example:
Thread 1:
  Operator: |___________|     |__________|
Thread 2:
  Operator:   |____________|     |___|
After merged:
  Result:   |______________|  |__________|
"""

MODEL_NOTE = """\
In this table, GPU time is the sum of all device(GPU) events called in the phase.
Unlike overview summary, if two device(GPU) events execute on different streams with overlap \
time, we sum them directly here.
"""

DISTRIBUTED_NOTE = """\
Communication time: Communication Event time, Communication Op time and its kernel time on gpu.
Computation time: Kernel time, except kernels belong to communication(nccl kernels).
Overlap time: Communication time intersects with computation time.
Exposed Communication time: Communication time minus overlap time (ppprof's own row).
Example:
Communication:
  CPU:              |_________________|
  GPU:                                  |______________|
  Total:            |_________________| |______________|
Computation time(Kernel):
  GPU:         |________________|
Overlap time:       |___________|
"""

DISTRIBUTED_HOST_NOTE = """\
This trace holds no device events. Paddle counts kernels only, so its Computation and Overlap are 0; \
here operators stand for kernels.
Communication time: Communication Event time and Communication Op time.
Computation time: Time in which a thread runs an operator and does not communicate itself.
Overlap time: One thread communicates while another computes.
Exposed Communication time: Communication time minus overlap time (ppprof's own row).
Example:
Thread 1:
  Operator:         |____________________|
  Communication:           |______|
Thread 2:
  Communication:                    |_________|
Communication time:        |______| |_________|
Computation time:   |______|      |______|
Overlap time:                       |____|
Exposed time:              |______|      |____|
"""

DISTRIBUTED_LAUNCH_NOTE = """\
This trace was recorded on a device, but holds no device events.
Communication time: Communication Event time and Communication Op time on the host, which only launches.
Computation, overlap and exposed communication time: unknown.
"""

_WHY_EMPTY = {
    "model": "at most one of steps, Dataloader, Forward, Backward and Optimization in this trace",
    "dist": "no communication in this trace",
    "op": "no operators in this trace",
    "kernel": "no kernels of a device in this trace",
    "memcpy": "no copies in this trace",
    "udf": "no spans of the training's own in this trace",
    "mem": "no memory events in this trace; Profiler.profile_memory: True records them",
    "shape": "no operators in this trace",
    "layer": "no layers in this trace, or no times of their device",
    "efficiency": "no operator times of the device in this trace",
}


def explain_empty(tables: Mapping[str, Sequence[object]]) -> str:
    """Return a line for each table without rows that says why; "" if every table has rows.

    Args:
        tables: rows of `ppprof.analysis.summaries.views.summarize`, keyed by view.
    """
    lines = [
        f"{view}: {_WHY_EMPTY.get(view, 'nothing recorded')}\n"
        for view, rows in tables.items()
        if not rows
    ]
    return "".join([*lines, "\n"]) if lines else ""
