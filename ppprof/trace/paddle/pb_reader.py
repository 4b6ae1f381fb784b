"""Read Paddle's ``.pb`` export: exact nanoseconds, the whole tree, every event type.

Paddle 3.3 cannot load its own files when they hold its newer event types. This reader can: it keeps
a type that it does not know as its number (``Type99``). Field numbers:
paddle/fluid/platform/profiler/dump/nodetree.proto.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ppprof.arrays import Int64
from ppprof.errors import TraceError
from ppprof.paths import to_path
from ppprof.trace.annotations import split_annotated_names
from ppprof.trace.clock_jumps import ClockJump, find_clock_jumps, undo_clock_jumps
from ppprof.trace.fastpath.protobuf_decode import Buffer, ByteRanges, Fields
from ppprof.trace.incomplete_steps import rename_incomplete_steps
from ppprof.trace.operator_inputs import decode_dtypes, decode_shapes
from ppprof.trace.schema import (
    EVENTS,
    KERNELS,
    MEMORY,
    MEMORY_KINDS,
    MEMSETS,
    Trace,
    category_name,
    conform,
    empty,
    nullable,
)
from ppprof.trace.source import BLOCK_BYTES, TraceStream
from ppprof.trace.step_numbers import steps_of
from ppprof.trace.tree_arrays import pre_order

DEVICE_PROPERTIES = {
    "totalGlobalMem": 3,
    "computeMajor": 4,
    "computeMinor": 5,
    "maxThreadsPerBlock": 6,
    "maxThreadsPerMultiprocessor": 7,
    "regsPerBlock": 8,
    "regsPerMultiprocessor": 9,
    "warpSize": 10,
    "sharedMemPerBlock": 11,
    "sharedMemPerMultiprocessor": 12,
    "smCount": 13,
    "sharedMemPerBlockOptin": 14,
}
"""Key in Paddle's JSON -> field number of DevicePropertyProto."""


def read_paddle_pb(path: str | Path) -> Trace:
    """Return the trace of a ``.pb`` file, written by Paddle or ppprof, packed with gzip or not.

    Host events that are not connected to the root of their thread are left out, with their
    launches, device events and memory events. `Trace.skipped` counts them.

    Raises:
        TraceError: the file is missing, truncated, or not a ``.pb`` trace; says at which byte.
    """
    buffer = Buffer(_content(path), str(path))
    top = buffer.fields(buffer.whole())
    threads = buffer.fields(top.ranges(3))
    host = _HostTree(buffer, threads)
    events, jumps, kernels, memsets = _events(buffer, host)
    versions, _ = buffer.strings(top.ranges(1))
    return Trace(
        events=events,
        memory=_memory(buffer, host, jumps),
        kernels=kernels,
        memsets=memsets,
        version=versions[-1] if versions else "",
        span=int(top.number(2)[0]),
        extra_info=_extra_info(buffer, buffer.fields(top.ranges(4))),
        devices=_devices(buffer, buffer.fields(top.ranges(5))),
        skipped=_disconnected(buffer, host),
        ignored={"roots of threads": host.num_roots},
    )


def _disconnected(buffer: Buffer, host: _HostTree) -> dict[str, int]:
    """Return the numbers of host events without a path to a root, and of what lies in them."""
    if not host.is_disconnected.any():
        return {}
    launches, memory = host.nodes.ranges(4), host.nodes.ranges(5)
    is_lost = host.is_disconnected[launches.owner]
    lost = buffer.fields(launches[np.flatnonzero(is_lost)])
    counts = {
        "host events": int(host.is_disconnected.sum()),
        "launches": int(is_lost.sum()),
        "device events": len(lost.ranges(2)),
        "memory events": int(host.is_disconnected[memory.owner].sum()),
    }
    return {f"{kind} not connected to the root": count for kind, count in counts.items() if count}


def _content(path: str | Path) -> bytes:
    """Return the bytes of a file, unpacked if it is packed with gzip.

    Raises:
        TraceError: the file is missing, unreadable, or a damaged gzip file.
    """
    with TraceStream(path) as source:
        if not source.is_packed:
            return to_path(path).read_bytes()
        content = b"".join(iter(lambda: source.read(BLOCK_BYTES), b""))
        if source.damage:
            raise TraceError(f"{path}: {source.damage}; a damaged .pb cannot be read in part")
        return content


class _HostTree:
    """The host nodes of all threads: where they lie in the file, and their tree.

    A node's *file index* is its position among all host nodes in the file. Its *row* is its
    position in pre-order, after the root node of each thread is removed.
    """

    def __init__(self, buffer: Buffer, threads: Fields) -> None:
        nodes = threads.ranges(2)
        self.nodes = buffer.fields(nodes)
        ids = _signed(self.nodes, 1)
        parent_ids = _signed(self.nodes, 2)
        parent = _index_of(nodes.owner, parent_ids, nodes.owner, ids)
        is_root = parent_ids == -1
        parent[is_root] = -1
        # Sort threads by thread id, as Paddle's own map does; and siblings by node id.
        thread_ids = _signed(threads, 1)
        by_id = np.lexsort((ids, thread_ids[nodes.owner]))
        rank = np.empty_like(by_id)
        rank[by_id] = np.arange(len(by_id))
        sorted_parent = parent[by_id]
        has_parent = sorted_parent >= 0
        sorted_parent[has_parent] = rank[sorted_parent[has_parent]]
        order, depth = pre_order(sorted_parent)
        self.num_roots = int(is_root.sum())
        kept = depth > 0
        self.file_index: Int64 = by_id[order[kept]]
        """File index of each row, shape (rows,)."""
        self.depth: Int64 = depth[kept] - 1
        self.row = np.full(len(ids), -1, np.int64)
        """Row of each file index; -1 for roots and disconnected nodes."""
        self.row[self.file_index] = np.arange(len(self.file_index))
        above = parent[self.file_index]
        self.parent: Int64 = self.row[above]
        """Row of each row's parent; -1 at depth 0."""
        self.is_disconnected = (self.row < 0) & ~is_root
        """Whether the node of each file index is neither a root nor below one."""


def _events(
    buffer: Buffer, host: _HostTree
) -> tuple[pl.DataFrame, list[ClockJump], pl.DataFrame, pl.DataFrame]:
    """Return `EVENTS` of `ppprof.trace.schema`, the jumps undone in it, `KERNELS` and `MEMSETS`."""
    body = buffer.fields(host.nodes.range(3)[host.file_index])
    host_table = _table(
        buffer, body, {"name": 1, "category": 2, "start": 3, "end": 4, "process": 5, "thread": 6}
    )
    num_host = host_table.height

    launches = _children_of_hosts(host, host.nodes.ranges(4))
    launch_nodes = buffer.fields(launches)
    launch_body = buffer.fields(launch_nodes.range(1))
    launch_table = _table(
        buffer,
        launch_body,
        {"name": 1, "start": 2, "end": 3, "process": 4, "thread": 5, "correlation_id": 6},
    ).with_columns(category=pl.lit("CudaRuntime"), parent=nullable(host.row[launches.owner]))

    device_nodes = launch_nodes.ranges(2)
    device_body = buffer.fields(buffer.fields(device_nodes).range(1))
    device_table = _table(
        buffer,
        device_body,
        {"name": 1, "category": 2, "start": 3, "end": 4, "device": 5, "context": 6, "stream": 7}
        | {"correlation_id": 8},
    ).with_columns(parent=pl.Series(device_nodes.owner + num_host))
    copies = device_body.ranges(10)
    sets = device_body.ranges(11)
    set_body = buffer.fields(sets)
    num_bytes = np.full(device_table.height, -1, np.int64)
    num_bytes[copies.owner] = _signed(buffer.fields(copies), 1)
    num_bytes[sets.owner] = _signed(set_body, 1)
    first_device = num_host + launch_table.height

    jumps, host_table = find_clock_jumps(rename_incomplete_steps(host_table))
    host_table = split_annotated_names(host_table).with_columns(
        parent=nullable(host.parent),
        depth=pl.Series(host.depth.astype(np.int32)),
        **_inputs(buffer, host),
    )
    device_table = device_table.with_columns(bytes=nullable(num_bytes))
    events = pl.concat([host_table, launch_table, device_table], how="diagonal")
    if jumps:
        events = events.with_columns(
            undo_clock_jumps(events[column], jumps) for column in ("start_ns", "end_ns")
        )
    events = events.with_columns(
        dur_ns=pl.col("end_ns") - pl.col("start_ns"), step=steps_of(events)
    )
    return (
        conform(events, EVENTS),
        jumps,
        _kernels(buffer, device_body, first_device),
        pl.DataFrame(
            {"event": first_device + sets.owner, "value": _signed(set_body, 3)},
            schema={name: dtype for name, (dtype, _) in MEMSETS.items()},
        ),
    )


def _inputs(buffer: Buffer, host: _HostTree) -> dict[str, pl.Series]:
    """Return the columns shapes, dtypes and callstack of the host events; empty if none has any."""
    nodes = host.nodes.ranges(6)
    if not len(nodes):
        return {}
    body = buffer.fields(buffer.fields(nodes).range(1))
    row = host.row[nodes.owner]
    last = np.full(len(host.depth), -1, np.int64)
    last[row[row >= 0]] = np.flatnonzero(row >= 0)
    columns = {}
    for column, (number, decode) in _INPUTS.items():
        texts, ids = buffer.distinct(body.range(number))
        values = pl.Series([decode(text) for text in texts], dtype=pl.String).gather(ids)
        columns[column] = values.gather(nullable(last))
    return columns


_INPUTS: dict[str, tuple[int, Callable[[bytes], str | None]]] = {
    "shapes": (5, decode_shapes),
    "dtypes": (6, decode_dtypes),
    "callstack": (7, lambda text: text.decode("utf-8", "replace") or None),
}
"""Column -> field number in OperatorSupplementEventProto, and how its content is decoded."""


def _table(buffer: Buffer, body: Fields, numbers: dict[str, int]) -> pl.DataFrame:
    """Return a table with one column for each entry of ``numbers``, column -> field number.

    ``name`` is a string, ``category`` the name of an event type, every other column int64.
    ``start`` and ``end`` are returned as start_ns and end_ns.
    """
    columns: dict[str, pl.Series] = {}
    for column, number in numbers.items():
        if column == "name":
            columns[column] = _strings(buffer, body, number)
        elif column == "category":
            kinds, ids = np.unique(body.number(number), return_inverse=True)
            columns[column] = _gather([category_name(int(kind)) for kind in kinds], ids)
        else:
            name = f"{column}_ns" if column in ("start", "end") else column
            columns[name] = pl.Series(_signed(body, number))
    return pl.DataFrame(columns)


def _kernels(buffer: Buffer, device_body: Fields, first_device: int) -> pl.DataFrame:
    infos = device_body.ranges(9)
    if not len(infos):
        return empty(KERNELS)
    info = buffer.fields(infos)
    axes = {f"block_{axis}": number for number, axis in enumerate("xyz", 1)}
    axes.update({f"grid_{axis}": number for number, axis in enumerate("xyz", 4)})
    columns = {
        "event": pl.Series(first_device + infos.owner),
        **{name: pl.Series(_signed(info, number)) for name, number in axes.items()},
        "registers": pl.Series(_signed(info, 9)),
        "shared_bytes": pl.Series(_signed(info, 7) + _signed(info, 8)),
    }
    for name, number in (("blocks_per_sm", 15), ("warps_per_sm", 16), ("occupancy", 17)):
        value = info.number(number).astype(np.uint32).view(np.float32).astype(np.float64)
        columns[name] = pl.Series(np.where(np.isfinite(value), value, np.nan)).fill_nan(None)
    return conform(pl.DataFrame(columns), KERNELS)


def _memory(buffer: Buffer, host: _HostTree, jumps: list[ClockJump]) -> pl.DataFrame:
    nodes = _children_of_hosts(host, host.nodes.ranges(5))
    if not len(nodes):
        return empty(MEMORY)
    body = buffer.fields(buffer.fields(nodes).range(1))
    kinds, ids = np.unique(body.number(2), return_inverse=True)
    names = [MEMORY_KINDS[int(k)] if k < len(MEMORY_KINDS) else f"Type{k}" for k in kinds]
    numbers = {"time_ns": 1, "process": 4, "thread": 5, "bytes": 6}
    numbers.update(current_allocated=8, current_reserved=9, peak_allocated=10, peak_reserved=11)
    memory = pl.DataFrame(
        {
            **{name: pl.Series(_signed(body, number)) for name, number in numbers.items()},
            "kind": _gather(names, ids),
            "place": _strings(buffer, body, 7),
            "addr": pl.Series(body.number(3)),
            "event": nullable(host.row[nodes.owner]),
        }
    )
    if jumps:
        memory = memory.with_columns(undo_clock_jumps(memory["time_ns"], jumps))
    return conform(memory.sort("thread", "process", "time_ns", maintain_order=True), MEMORY)


def _extra_info(buffer: Buffer, entries: Fields) -> dict[str, str]:
    keys, values = _strings(buffer, entries, 1), _strings(buffer, entries, 2)
    return dict(zip(keys.to_list(), values.to_list()))


def _devices(buffer: Buffer, properties: Fields) -> tuple[dict[str, object], ...]:
    names = _strings(buffer, properties, 2).to_list()
    numbers = {key: _signed(properties, number) for key, number in DEVICE_PROPERTIES.items()}
    ids = _signed(properties, 1)
    return tuple(
        {
            "id": int(ids[device]),
            "name": names[device],
            **{key: int(values[device]) for key, values in numbers.items()},
        }
        for device in range(properties.num_messages)
    )


def _children_of_hosts(host: _HostTree, children: ByteRanges) -> ByteRanges:
    """Return messages inside host nodes, sorted by the row of their node.

    Children of a thread's root come first. Children of disconnected nodes are left out.
    """
    kept = np.flatnonzero(~host.is_disconnected[children.owner])
    order = kept[np.argsort(host.row[children.owner[kept]], kind="stable")]
    return children[order]


def _index_of(group: Int64, value: Int64, groups: Int64, values: Int64) -> Int64:
    """Return, for each pair (group, value), the index of the first equal (groups, values) pair.

    The index is -2 if there is no equal pair.
    """
    index = np.full(len(group), -2, np.int64)
    for key in np.unique(groups):
        rows, candidates = np.flatnonzero(group == key), np.flatnonzero(groups == key)
        candidates = candidates[np.argsort(values[candidates], kind="stable")]
        nearest = np.searchsorted(values[candidates], value[rows])
        nearest = np.minimum(nearest, len(candidates) - 1)
        hit = values[candidates][nearest] == value[rows]
        index[rows[hit]] = candidates[nearest[hit]]
    return index


def _strings(buffer: Buffer, body: Fields, number: int) -> pl.Series:
    texts, ids = buffer.strings(body.range(number))
    return _gather(texts, ids)


def _gather(texts: list[str], ids: npt.NDArray[Any]) -> pl.Series:
    return pl.Series(texts, dtype=pl.String).gather(ids)


def _signed(body: Fields, number: int) -> Int64:
    return body.number(number).view(np.int64)
