"""Write step times to disk, one JSON line per step, on every attached rank.

``{"step":4,"batch_cost_ns":31245000,"reader_cost_ns":120400,"num_samples":8,"num_tokens":1024,
"num_micro_batches":2,"num_flops":1400000000,"device_peak_bytes":null,"host_peak_bytes":412516352,
"stall_ns":0,"excluded":false,"window":0,"device_timed":null,
"device_peak_reserved_bytes":null,"device_total_bytes":null,"processor_wait_ns":81000,
"processors_busy_ratio":0.52,"processors_own_ratio":0.49,"communication_ns":4310000,
"host_peak_allocated_bytes":18350080,"paused_ns":612000000,"paused_for":"evaluation",
"started_workers":0,"starting_ns":0,"num_collections":0,"slow_line":null,"slow_inner_line":null,
"slow_line_ns":null,"loss":2.75}``
"""

from __future__ import annotations

import functools
import json
import logging
import operator
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ppprof.rundir.run_file import RunFile

log = logging.getLogger("ppprof")


_FLUSH_NS = 10_000_000_000
"""A killed run loses at most the step times of this period."""


class StepRecord(NamedTuple):
    """One line of the log: the times and sizes of a step. Unknown values are null."""

    step: int
    """Number of the step; that of the first one is ``first_step`` of `attach`."""
    batch_cost_ns: int
    """Wall time of the step; includes ``stall_ns``, excludes time in `ProfilerSession.paused`. On a
    device, a step ends when the host has ended it and the device has done its work."""
    reader_cost_ns: int | None
    """Time for which the host waited for Paddle's DataLoaders between the two calls of
    `ProfilerSession.step`; null if no batch was read."""
    num_samples: int | None
    """Samples of this rank's data-parallel replica, as given to `ProfilerSession.step`."""
    num_tokens: int | None
    """Tokens of this rank's data-parallel replica, as given to `ProfilerSession.step`. The tokens of
    a job are the sum over its replicas, not over its ranks: ranks that differ in mp or pp only share
    a replica and report the same tokens."""
    num_micro_batches: int | None
    """Forward and backward passes of the step, as given to `ProfilerSession.step`."""
    num_flops: int | None
    """Model FLOPs of this rank alone, as given to `ProfilerSession.step`. The FLOPs of a job are the
    sum over all ranks."""
    device_peak_bytes: int | None
    """Peak memory allocated on the device so far (``paddle.device.max_memory_allocated``); null on a
    CPU and for a device that does not count it."""
    host_peak_bytes: int
    """Peak resident memory of the process so far (``ru_maxrss``), of at most 10 ms ago."""
    stall_ns: int
    """Part of ``batch_cost_ns`` in which this rank opened or saved a window, or printed tables."""
    excluded: bool
    """Whether the step includes a stall of the profiler, on this rank or on another rank, or has no
    exact end on the device. If so, its time should not count as time of the training."""
    window: int | None
    """Number of the job's window that the step is in, even if this rank does not record it; null
    outside windows. Provisional steps have the number of the window that they precede, even if they
    are dropped: they were recorded."""
    device_timed: bool | None = None
    """Whether the step ended when the device had done its work. False if it ended when the host ended
    it, because the device's time is not known; null on a CPU."""
    device_peak_reserved_bytes: int | None = None
    """Peak memory that Paddle has taken from the device so far (``paddle.device.max_memory_reserved``);
    null as ``device_peak_bytes``."""
    device_total_bytes: int | None = None
    """Size of the device's memory; null on a CPU and for a device that does not report it."""
    processor_wait_ns: int | None = None
    """Time in which the thread that calls `ProfilerSession.step` could run and had no processor
    (``/proc/thread-self/schedstat``), since the last step with this value. It is read at most every
    2 ms; null at steps without a reading, and where the system does not count it."""
    processors_busy_ratio: float | None = None
    """Share of the time of all processors of the machine in which they were busy (``/proc/stat``),
    since the last step with this value, 0 to 1. It is read at most twice a second; null at other
    steps."""
    processors_own_ratio: float | None = None
    """The part of ``processors_busy_ratio`` of this process and its descendants, such as workers of a
    DataLoader; null at the same steps."""
    communication_ns: int | None = None
    """Time in which the thread that calls `ProfilerSession.step` was in calls of communication or waited for
    them, as `ppprof.capture.ranks.flight_recorder` sees them; null without it, and where paddle.DataParallel
    reduces gradients, in C++. On a device that queues
    its work, transfers take longer than their calls."""
    host_peak_allocated_bytes: int | None = None
    """Peak memory of tensors on the host so far: what Paddle's allocator for the CPU has given out; null
    where Paddle does not count it."""
    paused_ns: int | None = None
    """Time in `ProfilerSession.paused` from the end of the step before to the end of this one: evaluations,
    checkpoints. It is in no step; null in a log of an older version."""
    paused_for: str | None = None
    """What these pauses were for, as their caller has named them: ``evaluation, checkpoint``; null without
    a name."""
    started_workers: int | None = None
    """Worker processes that Paddle's DataLoaders started in the step, in the thread that calls
    `ProfilerSession.step`: each pass over the data starts them anew, unless they persist. Null where it
    is unknown, as in a log of an older version."""
    starting_ns: int | None = None
    """Time that this took, with that of stopping workers at the end of a pass, and of waiting until
    persistent ones have begun anew; null as ``started_workers``."""
    num_collections: int | None = None
    """Garbage collections of Python's oldest generation in the step, in any thread, but not in pauses: all threads stand
    still meanwhile. Null as ``started_workers``."""
    slow_line: str | None = None
    """The outermost line of the user's code that other steps hardly spend time in and that has half of what this step takes
    longer, if it is slow: ``train.py:20, main(): evaluate(model)``. Null in other steps, in windows, and where looks at
    the stack (`ppprof.capture.steps.slow_lines`) have found no such line."""
    slow_inner_line: str | None = None
    """The innermost line with half of what a slow step takes longer; null as ``slow_line``, but other steps may spend time
    in it, too."""
    slow_line_ns: int | None = None
    """Time of ``slow_line`` in the step; what ``slow_inner_line`` has more than in other steps if that is null."""
    loss: float | None = None
    """The loss, if `ProfilerSession.step` was given a number, or one that a rank with scalars has read. In the file it is the text "nan", "inf" or "-inf" if it
    is not finite."""


_JSON = {
    **{"None": "null", "True": "true", "False": "false"},
    **{f":{value}": f':"{value}"' for value in ("nan", "inf", "-inf")},
}
_TEXTS = ("paused_for", "slow_line", "slow_inner_line")
_NAME = "\0"
"""Stands for each of these texts while words are replaced, which may be in it."""
_LINE = "{" + ",".join(f'"{name}":%s' for name in StepRecord._fields) + "}\n"


class StepLog:
    """Collects step records in memory and appends them to a file.

    Records are not written at once, since the disk must not slow steps down.
    """

    def __init__(self, file: RunFile, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._file = file
        self._clock = clock
        self._records: list[StepRecord] = []
        self._flushed = clock()
        self._failed = False

    def add(self, record: StepRecord) -> None:
        """Add a record; write all collected records if the last write was at least 10 s ago."""
        self._records.append(record)
        if self._clock() - self._flushed >= _FLUSH_NS:
            self.flush()

    def flush(self) -> None:
        """Write all collected records. The first disk error is logged and ends the log.

        After a disk error, records are dropped.
        """
        records, self._records, self._flushed = self._records, [], self._clock()
        if self._failed or not records:
            return
        names: list[str] = []
        for row, each in enumerate(records):
            own = {name: text for name in _TEXTS if (text := getattr(each, name)) is not None}
            if own:
                names += map(json.dumps, own.values())
                stands: dict[str, Any] = dict.fromkeys(own, _NAME)
                records[row] = each._replace(**stands)
        text = "".join([_LINE % record for record in records])  # json.dumps takes ten times as long
        for value, name in _JSON.items():
            text = text.replace(value, name)
        first, *others = text.split(_NAME)
        text = first + "".join(map(operator.add, names, others))
        try:
            self._file.append(text.encode())
        except OSError as error:
            self._failed = True
            log.warning(
                f"{self._file}: {error.strerror or error}; step times are no longer written"
            )


class DeviceMemory(NamedTuple):
    """The memory of a device, in bytes. None: the device does not report the value."""

    peak_bytes: int | None = None
    """Peak of the memory in tensors so far."""
    peak_reserved_bytes: int | None = None
    """Peak of the memory that Paddle has taken from the device so far: tensors and free memory."""
    total_bytes: int | None = None
    """Size of the device's memory."""


_Ask = Callable[[Any, str], Any]

# Without a device, Paddle 3.3.1 asks the first device of a plugin, whichever the training computes on.
_PEAK: tuple[_Ask, ...] = (
    lambda paddle, device: paddle.device.max_memory_allocated(device),
    lambda paddle, device: paddle.device.cuda.max_memory_allocated(device),  # Paddle 2.6, GPUs only
)
_PEAK_RESERVED: tuple[_Ask, ...] = (
    lambda paddle, device: paddle.device.max_memory_reserved(device),
    lambda paddle, device: paddle.device.cuda.max_memory_reserved(device),
)
_TOTAL: tuple[_Ask, ...] = (
    lambda paddle, device: paddle.device.get_device_properties(device).total_memory,
    # Paddle 3.3.1 refuses the function above for a plugin that was loaded after paddle.device.
    lambda paddle, device: _properties(paddle, device).total_memory,
    lambda paddle, device: paddle.device.cuda.get_device_properties(device).total_memory,
    lambda paddle, device: paddle.device.xpu.memory_total(device),
)


def memory_reader(paddle: Any, device: str) -> Callable[[], DeviceMemory] | None:
    """Return a function that reads the memory of a device; None for a CPU. It never raises.

    The size is asked for by the first call only: asking may start the device.

    Args:
        paddle: the module.
        device: the device that Paddle computes on, such as ``gpu:0``.
    """
    if device.startswith("cpu"):
        return None

    @functools.cache
    def total_bytes() -> int | None:
        return _first_answer(_TOTAL, paddle, device) or None  # 0: the plugin is silent

    def read() -> DeviceMemory:
        return DeviceMemory(
            _first_answer(_PEAK, paddle, device),
            _first_answer(_PEAK_RESERVED, paddle, device),
            total_bytes(),
        )

    return read


def host_peak_allocated_bytes(paddle: Any) -> int | None:
    """Return the peak memory of tensors on the host; None where Paddle does not count it."""
    try:
        return int(paddle.base.core.host_memory_stat_peak_value("Allocated", 0))
    except Exception:  # not in this version
        return None


def _first_answer(functions: tuple[_Ask, ...], paddle: Any, device: str) -> int | None:
    for ask in functions:
        try:
            return int(ask(paddle, device))
        except Exception:  # not for this device, or not in this version
            continue
    return None


def _properties(paddle: Any, device: str) -> Any:
    kind, _, number = device.partition(":")
    return paddle.base.core.get_device_properties(kind, int(number or 0))
