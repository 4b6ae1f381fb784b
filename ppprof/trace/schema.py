"""The tables a trace becomes: the only thing that analysis reads.

One `Trace` is one rank's window. Time is int64 nanoseconds of the clock that Paddle used (the
system's wall clock), rounded once, in the reader. Row numbers of ``events`` are the identity of an
event: ``parent``, ``forward`` and every ``event`` column of the side tables hold them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

CATEGORIES = (
    "Operator",
    "Dataloader",
    "ProfileStep",
    "CudaRuntime",
    "Kernel",
    "Memcpy",
    "Memset",
    "UserDefined",
    "OperatorInner",
    "Forward",
    "Backward",
    "Optimization",
    "Communication",
    "PythonOp",
    "PythonUserDefined",
    "DygraphKernelLaunch",
    "StaticKernelLaunch",
)
"""Paddle's ``TracerEventType`` in the order of its numbers (paddle 3.3, trace_event.h)."""

DEVICE_CATEGORIES = ("Kernel", "Memcpy", "Memset")
"""What runs on a device's stream."""

PYTHON_CATEGORIES = (
    "ProfileStep",
    "Forward",
    "Backward",
    "Dataloader",
    "Optimization",
    "PythonOp",
    "PythonUserDefined",
)
"""What Paddle's writer puts on the ``N(Python)`` track of a thread (chrometracing_logger.cc)."""

MEMORY_KINDS = ("Allocate", "Free", "ReservedAllocate", "ReservedFree")
"""Paddle's ``TracerMemEventType`` in the order of its numbers."""


def category_name(number: int) -> str:
    """The name of Paddle's event type ``number``; ``"Type99"`` for one this version cannot know."""
    return CATEGORIES[number] if number < len(CATEGORIES) else f"Type{number}"


EVENTS: Mapping[str, tuple[pl.DataType, str]] = {
    "name": (
        pl.Categorical(),
        "as recorded; JSON's ' [1.2 ms]' and `ppprof.trace.annotations` taken off",
    ),
    "category": (pl.Categorical(), "see `CATEGORIES`; JSON `cat`"),
    "start_ns": (pl.Int64(), "JSON `ts` and `args.start_time`; pb start_ns"),
    "dur_ns": (pl.Int64(), "end minus start; JSON `dur`"),
    "parent": (pl.Int64(), "row of the enclosing host event; of the launch for a device event"),
    "depth": (pl.Int32(), "enclosing host events; null for device events"),
    "step": (pl.Int64(), "N of the ProfileStep#N it began (device: was launched) in; null outside"),
    "process": (pl.Int64(), "process id; null for device events"),
    "thread": (pl.Int64(), "host thread id, N of JSON's 'N(C++)'; null for device events"),
    "device": (pl.Int64(), "device number; null for host events"),
    "context": (pl.Int64(), "device context; null for host events"),
    "stream": (pl.Int64(), "stream of the device; null for host events"),
    "correlation_id": (
        pl.Int64(),
        "joins a launch with what it started; null for other host events",
    ),
    "forward": (
        pl.Int64(),
        "row of the host event whose gradient this one computes; null where the trace tells none",
    ),
    "bytes": (pl.Int64(), "of a Memcpy, Memset or collective; null otherwise"),
    "axis": (
        pl.Categorical(),
        "of a collective's group, 'dp', or 'dp+sharding' over two; null for other groups and events",
    ),
    "group": (pl.Int64(), "communication group of a collective; null otherwise"),
    "dtype": (pl.Categorical(), "of a collective's elements, 'float32'; null otherwise"),
    "peers": (pl.String(), "global ranks of a collective, '0,1'; null otherwise"),
    "stage": (pl.Int64(), "pipeline stage of a pipeline span, from 0; null otherwise"),
    "chunk": (pl.Int64(), "virtual stage of that stage, from 0; null where it has but one"),
    "micro_batch": (pl.Int64(), "of a pipeline span, from 0 in each step; null otherwise"),
    "phase": (
        pl.Categorical(),
        "warm-up, steady or cool-down of the schedule, of a pipeline span; null otherwise",
    ),
}
"""Column -> dtype and meaning. Rows: host events thread by thread (ascending id) in pre-order, a
parent before its children; then launches; then device events."""

MEMORY: Mapping[str, tuple[pl.DataType, str]] = {
    "time_ns": (pl.Int64(), "when; JSON `ts`"),
    "kind": (pl.Categorical(), "see `MEMORY_KINDS`; JSON `cat`"),
    "event": (pl.Int64(), "row of the innermost host event around it; null where there is none"),
    "process": (pl.Int64(), "process id"),
    "thread": (pl.Int64(), "thread id"),
    "place": (pl.Categorical(), "device, such as Place(gpu:0)"),
    "addr": (pl.UInt64(), "address"),
    "bytes": (pl.Int64(), "change; below zero when freed"),
    "current_allocated": (pl.Int64(), "bytes in tensors after it"),
    "current_reserved": (pl.Int64(), "bytes held from the device after it"),
    "peak_allocated": (pl.Int64(), "highest current_allocated of the process so far"),
    "peak_reserved": (pl.Int64(), "highest current_reserved of the process so far"),
}
"""One row an allocation or free, thread by thread in time order."""

KERNELS: Mapping[str, tuple[pl.DataType, str]] = {
    "event": (pl.Int64(), "row of the Kernel"),
    **{f"grid_{axis}": (pl.Int64(), "blocks launched") for axis in "xyz"},
    **{f"block_{axis}": (pl.Int64(), "threads a block") for axis in "xyz"},
    "registers": (pl.Int64(), "a thread"),
    "shared_bytes": (pl.Int64(), "static and dynamic shared memory a block"),
    "blocks_per_sm": (pl.Float64(), "null where the recorder could not tell (inf or NaN)"),
    "warps_per_sm": (pl.Float64(), "null where the recorder could not tell"),
    "occupancy": (pl.Float64(), "theoretical, 0 to 1; null where the recorder could not tell"),
}
"""One row a Kernel that carries its launch configuration."""

MEMSETS: Mapping[str, tuple[pl.DataType, str]] = {
    "event": (pl.Int64(), "row of the Memset"),
    "value": (pl.Int64(), "the byte written"),
}


def empty(columns: Mapping[str, tuple[pl.DataType, str]]) -> pl.DataFrame:
    """A table of these columns and no rows."""
    return pl.DataFrame(schema={name: dtype for name, (dtype, _) in columns.items()})


def conform(table: pl.DataFrame, columns: Mapping[str, tuple[pl.DataType, str]]) -> pl.DataFrame:
    """Exactly these columns, in their order and dtypes; nulls where the table has none."""
    return table.select(
        (pl.col(name) if name in table.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, (dtype, _) in columns.items()
    )


def nullable(values: npt.NDArray[np.int64]) -> pl.Series:
    """A column of these numbers; what is below 0 becomes null."""
    return pl.Series(values).set(pl.Series(values) < 0, None)


@dataclass(frozen=True)
class Trace:
    """One rank's window."""

    events: pl.DataFrame
    """Columns of `EVENTS`."""
    memory: pl.DataFrame
    """Columns of `MEMORY`."""
    kernels: pl.DataFrame
    """Columns of `KERNELS`."""
    memsets: pl.DataFrame
    """Columns of `MEMSETS`."""
    version: str = "1.0.2"
    """Paddle's schema version."""
    span: int = 0
    """Paddle's number of the window in its process."""
    extra_info: Mapping[str, str] = field(default_factory=dict)
    """Paddle's ExtraInfo: thread id -> name, and the two CPU utilisations (ratios as text)."""
    devices: tuple[Mapping[str, object], ...] = ()
    """Device properties, keys as in Paddle's JSON ``deviceProperties``."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """What could not be used, kind -> how many; empty for a sound file."""
