"""Read Paddle's ``.pb`` export: exact nanoseconds, the whole tree, every event type.

Paddle 3.3 cannot load its own files when they hold its newer event types. This reader can: it keeps
a type that it does not know as its number (``Type99``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import polars as pl

from ppprof.arrays import Array, Int64
from ppprof.errors import TraceError
from ppprof.trace.annotations import split_annotated_names
from ppprof.trace.clock_jumps import ClockJump, find_clock_jumps, undo_clock_jumps
from ppprof.trace.consistency import with_sound_times
from ppprof.trace.fastpath.protobuf_messages import PADDING, Bytes
from ppprof.trace.fastpath.protobuf_native import message_buffer
from ppprof.trace.operator_inputs import memories_of_copies
from ppprof.trace.paddle.pb_inputs import decode_dtypes, decode_shapes
from ppprof.trace.paddle.pb_messages import Columns, Messages, decode_messages
from ppprof.trace.schema import (
    EVENTS,
    KERNELS,
    MEMORY,
    MEMSETS,
    Trace,
    category_name,
    conform,
    empty,
    memory_kind_name,
    nullable,
)
from ppprof.trace.source import BLOCK_BYTES, TraceStream
from ppprof.trace.steps import rename_incomplete_steps, step_spans, steps_at

_FEW_KINDS = 64
"""Above all event types that are known. Only numbers below it are looked up in a list."""


def read_paddle_pb(path: str | Path) -> Trace:
    """Return the trace of a ``.pb`` file, written by Paddle or ppprof, packed with gzip or not.

    Host events that are not connected to the root of their thread are left out, with their
    launches, device events and memory events. `Trace.skipped` counts them. `Trace.ignored` counts the queries
    of threads that do nothing else but query: capture's own, which asks when steps end, and NCCL's.

    Raises:
        TraceError: the file is missing, truncated, or not a ``.pb`` trace; says at which byte.
    """
    messages = _messages(path)
    num_queries = _leave_out_queries(messages)
    first_launch = len(messages.hosts.numbers["parent"])
    first_device = first_launch + len(messages.launches.numbers["parent"])
    jumps, events = _events(messages, first_launch)
    trace = Trace(
        events=events,
        memory=_memory(messages.memory, jumps),
        kernels=_kernels(messages.kernels, first_device),
        memsets=conform(_with_event(_table(messages.memsets), first_device), MEMSETS),
        version=messages.version,
        span=messages.span,
        extra_info=messages.extra_info,
        devices=messages.device_properties,
        skipped={
            f"{kind} not connected to the root": count
            for kind, count in messages.disconnected.items()
        },
        ignored={
            "roots of threads": messages.num_roots,
            **({"queries of events": num_queries} if num_queries else {}),
        },
    )
    return with_sound_times(trace)


def _messages(path: str | Path) -> Messages:
    """Return all messages of a file. Its bytes are freed before the tables are made."""
    with TraceStream(path, is_text=False) as source:
        return decode_messages(message_buffer(*_content(source), str(path)))


def _content(source: TraceStream) -> tuple[Bytes, int]:
    """Return the bytes of a file, unpacked, with `PADDING` zeros after them; and their number."""
    if source.is_packed:
        content = bytearray()
        for block in iter(lambda: source.read(BLOCK_BYTES), b""):
            content += block
        if source.damage:
            raise TraceError(
                f"{source.path}: {source.damage}; a damaged .pb cannot be read in part"
            )
        content += bytes(PADDING)
        return content, len(content) - PADDING
    data = np.empty(source.size + PADDING, np.uint8).data
    num_read = source.read_into(data[: source.size])
    if num_read < source.size:
        raise TraceError(
            f"{source.path}: only {num_read} of {source.size} bytes could be read: the file became "
            "shorter meanwhile; read it again when it is complete"
        )
    data[source.size :] = bytes(PADDING)
    return data, source.size


_QUERY = re.compile(r"[a-z]+(Event|Stream)Query(_v\d+)?")


def _leave_out_queries(messages: Messages) -> int:
    """Remove the launches of threads that only query events and streams; return how many there were."""
    launches, of_devices = messages.launches, messages.devices.numbers
    names = launches.texts["name"]
    queries = [_QUERY.fullmatch(name) is not None for name in names.decoded()]
    if not any(queries):
        return 0
    is_query = np.array(queries)[names.ids]
    is_query[of_devices["parent"]] = False
    thread = launches.numbers["thread"]
    keep = ~is_query | np.isin(thread, thread[~is_query])
    of_devices["parent"] = (np.cumsum(keep) - 1)[of_devices["parent"]]
    launches.texts["name"] = names._replace(ids=names.ids[keep])
    for column, values in launches.numbers.items():
        launches.numbers[column] = values[keep]
    return int(np.count_nonzero(~keep))


def _events(messages: Messages, first_launch: int) -> tuple[list[ClockJump], pl.DataFrame]:
    """Return the clock jumps undone in the events, and `EVENTS` of `ppprof.trace.schema`.

    Most columns are three chunks, of host events, launches and device events. So a column that is
    null in all rows of a chunk takes no memory there.
    """
    inputs = _inputs(messages.inputs, first_launch)
    names = messages.hosts.texts["name"].decoded()
    hosts = rename_incomplete_steps(_table(messages.hosts), names)
    jumps, hosts = find_clock_jumps(hosts, names)
    hosts = _on_one_clock(split_annotated_names(hosts).with_columns(**inputs), jumps)
    spans = step_spans(hosts)
    hosts = _with_step(hosts, steps_at(spans, hosts["start_ns"].to_numpy()))

    launches = _on_one_clock(_table(messages.launches), jumps).with_columns(
        category=pl.lit("CudaRuntime", pl.Categorical())
    )
    launch_step = steps_at(spans, launches["start_ns"].to_numpy())
    launches = _with_step(launches, launch_step)

    step = launch_step[messages.devices.numbers["parent"]]
    num_bytes = nullable(messages.devices.numbers.pop("bytes"))
    devices = _on_one_clock(_table(messages.devices), jumps).with_columns(
        pl.col("parent") + first_launch,
        bytes=num_bytes,
        attributes=memories_of_copies(_table(messages.copies), len(num_bytes)),
    )
    return jumps, pl.concat([hosts, launches, _with_step(devices, step)])


def _on_one_clock(events: pl.DataFrame, jumps: list[ClockJump]) -> pl.DataFrame:
    """Return the events without the clock's jumps, and with their durations."""
    if jumps:
        events = events.with_columns(
            undo_clock_jumps(events[column], jumps) for column in ("start_ns", "end_ns")
        )
    return events.with_columns(dur_ns=events["end_ns"] - events["start_ns"])


def _with_step(events: pl.DataFrame, step: Int64) -> pl.DataFrame:
    """Return `EVENTS` with the column step, null for values below 0."""
    return conform(events.with_columns(step=nullable(step)), EVENTS)


def _inputs(inputs: Columns, num_hosts: int) -> dict[str, pl.Series]:
    """Return the columns shapes, dtypes and callstack of the host events; empty if none has any."""
    row = inputs.numbers["event"]
    if not len(row):
        return {}
    last = np.full(num_hosts, -1, np.int64)
    last[row[row >= 0]] = np.flatnonzero(row >= 0)
    columns = {}
    for column, decode in _INPUTS.items():
        texts, ids = inputs.texts[column]
        columns[column] = _gather([decode(text) for text in texts], ids).gather(nullable(last))
    return columns


_INPUTS: dict[str, Callable[[bytes], str | None]] = {
    "shapes": decode_shapes,
    "dtypes": decode_dtypes,
    "callstack": lambda text: text.decode("utf-8", "replace") or None,
}
"""Column -> how its content is decoded."""


def _kernels(kernels: Columns, first_device: int) -> pl.DataFrame:
    if not len(kernels.numbers["event"]):
        return empty(KERNELS)
    for name in ("blocks_per_sm", "warps_per_sm", "occupancy"):
        value = kernels.numbers[name].astype(np.uint32).view(np.float32)
        finite = np.where(np.isfinite(value), value, np.float32(np.nan))
        kernels.numbers[name] = finite.astype(np.float64)
    shared_bytes = pl.col("dynamic_bytes") + pl.col("static_bytes")
    table = _table(kernels).with_columns(
        pl.col(pl.Float64).fill_nan(None), shared_bytes=shared_bytes
    )
    return conform(_with_event(table, first_device), KERNELS)


def _memory(memory: Columns, jumps: list[ClockJump]) -> pl.DataFrame:
    if not len(memory.numbers["event"]):
        return empty(MEMORY)
    addresses = pl.Series(memory.numbers.pop("addr")).cast(pl.UInt64)
    table = conform(_table(memory).with_columns(addr=addresses), MEMORY)
    if jumps:
        table = table.with_columns(undo_clock_jumps(table["time_ns"], jumps))
    return table.sort("thread", "process", "time_ns", maintain_order=True)


def _with_event(table: pl.DataFrame, first_device: int) -> pl.DataFrame:
    """Return a table whose column event is a row of the device events as one of all events."""
    return table.with_columns(pl.col("event") + first_device)


def _table(columns: Columns) -> pl.DataFrame:
    """Return columns as a table, and remove them from ``columns``, so that their memory is freed.

    Texts and kinds become categorical, other numbers int64. Rows below 0 become null.
    """
    table: dict[str, pl.Series] = {}
    while columns.texts:
        column, texts = columns.texts.popitem()
        table[column] = _gather(texts.decoded(), texts.ids)
    while columns.numbers:
        column, values = columns.numbers.popitem()
        if column in _NAMES_OF_KINDS:
            table[column] = _names(values, _NAMES_OF_KINDS[column])
        elif column in ("parent", "event"):
            table[column] = nullable(values.astype(np.int32, copy=False))
        else:
            is_wide = values.dtype == np.uint64
            series = pl.Series(values.view(np.int64) if is_wide else values)
            table[column] = series if values.dtype.kind == "f" else series.cast(pl.Int64)
    return pl.DataFrame(table)


_NAMES_OF_KINDS = {"category": category_name, "kind": memory_kind_name}
"""Column of kinds -> function that returns the name of a kind."""


def _names(numbers: Array, name_of: Callable[[int], str]) -> pl.Series:
    """Return the names of numbers as a categorical column."""
    if int(numbers.max(initial=0)) < _FEW_KINDS:
        return _few_names(name_of).gather(numbers.astype(np.uint32))
    kinds, ids = np.unique(numbers, return_inverse=True)
    return _gather([name_of(kind) for kind in kinds.tolist()], ids)


@lru_cache(2)
def _few_names(name_of: Callable[[int], str]) -> pl.Series:
    """Return the names of the numbers below `_FEW_KINDS` as a categorical column."""
    return pl.Series([name_of(kind) for kind in range(_FEW_KINDS)], dtype=pl.Categorical())


def _gather(names: Sequence[str | None], ids: Array) -> pl.Series:
    """Return the names at the indices ``ids`` as a categorical column."""
    return pl.Series(names, dtype=pl.Categorical()).gather(ids.astype(np.uint32))
