"""The tables that a trace is read into. Analysis reads nothing else.

One `Trace` is one window of one rank. Times are int64 nanoseconds of the clock that Paddle used
(the system's wall clock), rounded once, in the reader. The row number in ``events`` identifies an
event: ``parent``, ``forward`` and the ``event`` column of the other tables hold row numbers. They are
int32: a trace of more than 2**31 events needs more than 100 GB of memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import polars as pl

from ppprof.arrays import Array
from ppprof.rundir.python_stacks import PythonStacks
from ppprof.trace.communication_names import CommunicationNames, is_communication
from ppprof.trace.labels import Labels

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
"""Categories of events on a device's stream. Events of kinds that ppprof does not know are device
events too: their category is the file's own text (``hpu_op``) or number (``Type99``)."""

COPIES = ("Memcpy", "Memset")
"""Those of them that are no kernels."""

PYTHON_CATEGORIES = (
    "ProfileStep",
    "Forward",
    "Backward",
    "Dataloader",
    "Optimization",
    "PythonOp",
    "PythonUserDefined",
)
"""Categories that Paddle puts on a thread's ``N(Python)`` track (chrometracing_logger.cc)."""

MEMORY_KINDS = ("Allocate", "Free", "ReservedAllocate", "ReservedFree")
"""Paddle's ``TracerMemEventType`` in the order of its numbers."""


def category_name(number: int) -> str:
    """Return the name of Paddle's event type ``number``; ``"Type99"`` for an unknown type."""
    return CATEGORIES[number] if number < len(CATEGORIES) else f"Type{number}"


def memory_kind_name(number: int) -> str:
    """Return the name of Paddle's kind ``number`` of memory events; ``"Type9"`` if unknown."""
    return MEMORY_KINDS[number] if number < len(MEMORY_KINDS) else f"Type{number}"


EVENTS: Mapping[str, tuple[pl.DataType, str]] = {
    "name": (
        pl.Categorical(),
        "as recorded, without JSON's ' [1.2 ms]' and without `ppprof.trace.annotations`",
    ),
    "category": (pl.Categorical(), "see `CATEGORIES`; JSON `cat`"),
    "start_ns": (pl.Int64(), "JSON `ts` and `args.start_time`; pb start_ns"),
    "dur_ns": (pl.Int64(), "end minus start; JSON `dur`"),
    "parent": (pl.Int32(), "row of the enclosing host event; of the launch for a device event"),
    "depth": (pl.Int32(), "enclosing host events; null for device events"),
    "step": (
        pl.Int64(),
        "N of the ProfileStep#N in which it began (device: was launched); null outside",
    ),
    "process": (pl.Int64(), "process id; null for device events"),
    "thread": (pl.Int64(), "host thread id, N of JSON's 'N(C++)'; null for device events"),
    "device": (pl.Int64(), "device number; null for host events"),
    "context": (pl.Int64(), "device context; null for host events"),
    "stream": (pl.Int64(), "stream of the device; null for host events"),
    "correlation_id": (
        pl.Int64(),
        "joins a launch and the device events it started; null for other host events",
    ),
    "forward": (
        pl.Int32(),
        "row of the host event whose gradient this one computes; null if not recorded",
    ),
    "bytes": (pl.Int64(), "size of a Memcpy, Memset or collective; null otherwise"),
    "axis": (
        pl.Categorical(),
        "axis of a collective's group: 'dp', or 'dp+sharding' for two; null otherwise",
    ),
    "group": (pl.Int64(), "communication group of a collective; null otherwise"),
    "dtype": (pl.Categorical(), "element type of a collective, 'float32'; null otherwise"),
    "peers": (
        pl.String(),
        "global ranks of a collective, '0,1'; of a batch, each transfer: '>1:8,<3:4' for 8 bytes to "
        "rank 1 and 4 from rank 3; null otherwise",
    ),
    "stage": (pl.Int64(), "pipeline stage of a pipeline span, from 0; null otherwise"),
    "chunk": (pl.Int64(), "virtual stage of that stage, from 0; null if that stage has only one"),
    "micro_batch": (
        pl.Int64(),
        "micro-batch of a pipeline span, from 0 in each step; null otherwise",
    ),
    "phase": (
        pl.Categorical(),
        "schedule phase of a pipeline span: warm-up, steady or cool-down; null otherwise",
    ),
    "shapes": (
        pl.Categorical(),
        "shapes of an operator's inputs, see `ppprof.trace.operator_inputs`; null if not recorded",
    ),
    "dtypes": (pl.Categorical(), "their element types, likewise"),
    "attributes": (
        pl.Categorical(),
        "an operator's arguments that are no tensors, likewise; of a layer its name in the model; of a "
        "copy the kinds of its memories, source and target",
    ),
    "callstack": (
        pl.Categorical(),
        "lines of source that called an operator, of a gradient those of its operator; null likewise",
    ),
    "line": (
        pl.Categorical(),
        "line of the training's own code around a host event, 'train.py:41'; null if unknown",
    ),
    "line_is_sampled": (
        pl.Boolean(),
        "true if samples of Python stacks gave the line, false if callstack did; null without a line",
    ),
}
"""Column -> dtype and meaning.

Order of rows: host events, thread by thread (ascending id) in pre-order, each parent before its
children; then launches; then device events.
"""

MEMORY: Mapping[str, tuple[pl.DataType, str]] = {
    "time_ns": (pl.Int64(), "time of the change; JSON `ts`"),
    "kind": (pl.Categorical(), "see `MEMORY_KINDS`; JSON `cat`"),
    "event": (
        pl.Int32(),
        "row of the innermost enclosing host event; null if there is no such event",
    ),
    "process": (pl.Int64(), "process id"),
    "thread": (pl.Int64(), "thread id"),
    "place": (pl.Categorical(), "device, such as Place(gpu:0)"),
    "addr": (pl.UInt64(), "address"),
    "bytes": (pl.Int64(), "change in bytes; negative for a free"),
    "current_allocated": (pl.Int64(), "bytes in tensors after the change"),
    "current_reserved": (pl.Int64(), "bytes held from the device after the change"),
    "peak_allocated": (pl.Int64(), "highest current_allocated of the process so far"),
    "peak_reserved": (pl.Int64(), "highest current_reserved of the process so far"),
}
"""Column -> dtype and meaning. One row per allocation or free, thread by thread in time order."""

KERNELS: Mapping[str, tuple[pl.DataType, str]] = {
    "event": (pl.Int32(), "row of the Kernel"),
    **{f"grid_{axis}": (pl.Int64(), "launched blocks") for axis in "xyz"},
    **{f"block_{axis}": (pl.Int64(), "threads per block") for axis in "xyz"},
    "registers": (pl.Int64(), "registers per thread"),
    "shared_bytes": (pl.Int64(), "static and dynamic shared memory per block"),
    "blocks_per_sm": (
        pl.Float64(),
        "resident blocks per SM; null if unknown (recorded as inf or NaN)",
    ),
    "warps_per_sm": (pl.Float64(), "resident warps per SM; null if unknown"),
    "occupancy": (pl.Float64(), "theoretical occupancy, 0 to 1; null if unknown"),
}
"""Column -> dtype and meaning. One row per Kernel with a recorded launch configuration."""

MEMSETS: Mapping[str, tuple[pl.DataType, str]] = {
    "event": (pl.Int32(), "row of the Memset"),
    "value": (pl.Int64(), "the byte that it wrote"),
}
"""Column -> dtype and meaning. One row per Memset whose value was recorded."""


FRAMES: Mapping[str, tuple[pl.DataType, str]] = {
    "name": (pl.Categorical(), "file, first line and name of the function: 'train.py(31): step'"),
    "thread": (pl.Int64(), "host thread id"),
    "start_ns": (pl.Int64(), "as in `EVENTS`"),
    "dur_ns": (pl.Int64(), "as in `EVENTS`"),
}
"""Column -> dtype and meaning. One row per recorded call of a Python function that takes at least
`ppprof.trace.kineto.names.LEAST_FRAME_NS`; only torch records them (with_stack)."""


RUN_OF_PROGRAM = "interpreter_core_run"
"""Name of Paddle's span around the run of a program, of ``to_static`` or of an Executor."""
RUN_OF_EXECUTOR = "StandaloneExecutor::run"
"""Name of Paddle's span around the run of an Executor's program, also of ``distributed.to_static``."""
OPERATOR_OF_PROGRAM = "pd_op."
"""Beginning of the names of operators in a program. They may run on other threads than it."""


OVERHEADS: Mapping[str, tuple[pl.DataType, str]] = {
    "name": (pl.Categorical(), "what the profiler does: 'Activity Buffer Request'"),
    "start_ns": (pl.Int64(), "as in `EVENTS`"),
    "dur_ns": (pl.Int64(), "as in `EVENTS`"),
}
"""Column -> dtype and meaning. One row per time that the profiler itself takes; only torch records them."""


def is_kernel() -> pl.Expr:
    """Return an expression that is true for kernels, and for device events of unknown kinds.

    Reads category and device.
    """
    return pl.col("device").is_not_null() & ~pl.col("category").is_in(COPIES)


def unknown_device_kinds(events: pl.DataFrame) -> dict[str, int]:
    """Return the number of device events by category, for categories outside `DEVICE_CATEGORIES`.

    Args:
        events: columns of `EVENTS`.
    """
    kinds = events["category"].filter(events["device"].is_not_null()).value_counts(sort=True)
    counts = kinds.with_columns(pl.col("category").cast(pl.String)).iter_rows()
    return {kind: count for kind, count in counts if kind not in DEVICE_CATEGORIES}


def with_pieces(events: pl.DataFrame, *columns: pl.Series) -> pl.DataFrame:
    """Return the events with further columns, each cut into the pieces that the others have.

    Polars copies a whole table, each time, if its columns are cut differently.
    """
    lengths = events["name"].chunk_lengths()
    starts = np.cumsum([0, *lengths]).tolist()
    return events.with_columns(
        pl.concat([column.slice(*piece) for piece in zip(starts, lengths)], rechunk=False)
        for column in columns
    )


def empty(columns: Mapping[str, tuple[pl.DataType, str]]) -> pl.DataFrame:
    """Return a table without rows that has the columns ``columns``."""
    return pl.DataFrame(schema={name: dtype for name, (dtype, _) in columns.items()})


def conform(table: pl.DataFrame, columns: Mapping[str, tuple[pl.DataType, str]]) -> pl.DataFrame:
    """Return the table with exactly the columns ``columns``, in their order and dtypes.

    A column that the table lacks is null. Other columns are dropped.
    """
    own = table.schema

    def expression(name: str, dtype: pl.DataType) -> pl.Expr | str:
        if name not in own:
            return _null(name, dtype)
        return name if own[name] == dtype else pl.col(name).cast(dtype)

    return table.select(expression(name, dtype) for name, (dtype, _) in columns.items())


@lru_cache(128)
def _null(name: str, dtype: pl.DataType) -> pl.Expr:
    return pl.lit(None, dtype).alias(name)


def nullable(values: Array) -> pl.Series:
    """Return a column of integers, with null for values below 0."""
    if not (values < 0).any():
        return pl.Series(values)
    return pl.Series(values).set(pl.Series(values) < 0, None)


Note = tuple[str, Mapping[str, object]]
"""What a user of a trace should know: key of `ppprof.messages`, and the values of its placeholders
other than ``path``."""


@dataclass(frozen=True)
class Trace:
    """The tables of one window of one rank: events, memory, kernels, memsets and Python frames.

    Times are int64 nanoseconds of the rank's own clock.
    """

    events: pl.DataFrame
    """Columns of `EVENTS`."""
    memory: pl.DataFrame
    """Columns of `MEMORY`."""
    kernels: pl.DataFrame
    """Columns of `KERNELS`."""
    memsets: pl.DataFrame
    """Columns of `MEMSETS`."""
    frames: pl.DataFrame = field(default_factory=lambda: empty(FRAMES))
    """Columns of `FRAMES`. They are no events: ``ignored`` counts them."""
    overheads: pl.DataFrame = field(default_factory=lambda: empty(OVERHEADS))
    """Columns of `OVERHEADS`. They are no events: ``ignored`` counts them."""
    stacks: PythonStacks | None = None
    """The samples of Python stacks; None if none were taken."""
    version: str = "1.0.2"
    """Paddle's schema version."""
    span: int = 0
    """Paddle's number of the window in its process."""
    extra_info: Mapping[str, str] = field(default_factory=dict)
    """Thread id -> name, and the two CPU utilisations (ratios as text), as Paddle's ExtraInfo.

    Kineto's traces have rank, world_size, backend and host_name instead of the utilisations.
    """
    devices: tuple[Mapping[str, object], ...] = ()
    """Device properties; the keys are those of Paddle's JSON ``deviceProperties``."""
    unrecorded_device: str | None = None
    """The result of `ppprof.trace.unrecorded_device.unrecorded_device` for the whole window; None
    if it is not computed yet."""
    only_axis: str | None = None
    """The axis of every group in the job, if its topology has a single axis with a degree above 1;
    None if it has several or is unknown."""
    stated_flops: float | None = None
    """Peak FLOP/s of one device as the job states it; None if it does not."""
    stated_bytes_per_s: float | None = None
    """Bandwidth of one device's memory, likewise."""
    uses_tf32: bool = False
    """Whether the job's framework may compute products of float32 in TF32; False if unknown."""
    communicates: CommunicationNames = is_communication
    """The rule for the names of kernels that communicate."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Kind -> number of unreadable parts of the file; empty for an intact file."""
    ignored: Mapping[str, int] = field(default_factory=dict)
    """Kind -> number of readable objects of the file that the tables do not need, such as metadata
    and the arrows of a timeline."""

    notes: tuple[Note, ...] = ()
    """What the reader found out or decided, such as the spans that it took for steps."""
    lost_steps: tuple[int, ...] = ()
    """Steps whose device events are not all in the file, ascending: `Profile` leaves them out. The
    result of ``ppprof.analysis.profile.wholeness``, as are ``doubts``."""
    doubts: tuple[str, ...] = ()
    """What is wrong: device events are ``lost``, ``few``, ``cut`` or ``unlaunched``, or steps ``unmarked``."""
    has_derived_steps: bool = False
    """Whether the ProfileSteps were not recorded: they lie between other events."""
    has_format_of_kineto: bool = False
    """Whether the file is one of Kineto, or of a writer that is read as Kineto's, such as rocprof."""

    @cached_property
    def framework(self) -> str:
        """``torch`` or ``paddle``: whose profiler wrote the file, or whose operators it has.

        Kineto adds an event of category Trace to each file. A file of its format without any operator
        is torch's: files that were converted have those of Paddle.
        """
        if self.ignored.get("Trace"):
            return "torch"
        names = self.events.filter(pl.col("category") == "Operator")["name"].unique()
        is_bare = self.has_format_of_kineto and names.is_empty()
        is_torch = is_bare or names.cast(pl.String).str.starts_with("aten::").any()
        return "torch" if is_torch else "paddle"

    @cached_property
    def used_devices(self) -> tuple[Mapping[str, object], ...]:
        """Those of ``devices`` that have events; all of them if none has, or if ids are unknown.

        A machine may have more devices than the process uses, and of other kinds.
        """
        ids = self.events["device"].drop_nulls().unique().to_list()
        return tuple(each for each in self.devices if each.get("id") in ids) or self.devices

    def unheld(self, *written: str, num_frames: int = 0) -> dict[str, int]:
        """Return kind -> number of events of the file that a writer of the tables cannot write.

        Args:
            written: kinds that the writer derives from the tables.
            num_frames: number of Python frames that it writes.
        """
        known = {
            "metadata",
            "flows",
            "empty objects",
            "folded phases",
            "roots of threads",
            *written,
        }
        counts = Counter({kind: num for kind, num in self.ignored.items() if kind not in known})
        counts["python_function"] -= num_frames
        return {
            kind if " " in kind or kind.endswith("s") else f"{kind} events": num
            for kind, num in counts.items()
            if num > 0
        }

    @cached_property
    def names(self) -> Labels:
        """The names of the events. Made when it is first read."""
        return Labels.of(self.events["name"])

    @cached_property
    def categories(self) -> Labels:
        """The categories of the events. Made when it is first read."""
        return Labels.of(self.events["category"])
