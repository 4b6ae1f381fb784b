"""Decode the messages of Paddle's ``.pb`` export into columns. All field numbers are here.

Columns are as narrow as their values, because the bytes of the file are in memory at the same time.

Source: paddle/fluid/platform/profiler/dump/nodetree.proto
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ppprof.arrays import Array, Int32, Int64
from ppprof.trace.fastpath.protobuf_messages import (
    MESSAGE,
    MESSAGES,
    NUMBER,
    TEXT,
    ByteRanges,
    Fields,
    MessageBuffer,
    Texts,
)
from ppprof.trace.tree_arrays import parents_by_id, pre_order_of_groups

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

_Numbers = Mapping[str, int]
"""Column -> field number."""
_HOST: _Numbers = {"category": 2, "start_ns": 3, "end_ns": 4, "process": 5, "thread": 6}
_LAUNCH: _Numbers = {
    **{"start_ns": 2, "end_ns": 3, "process": 4, "thread": 5, "correlation_id": 6},
}
_DEVICE: _Numbers = {
    **{"category": 2, "start_ns": 3, "end_ns": 4, "device": 5, "context": 6, "stream": 7},
    "correlation_id": 8,
}
_KERNEL: _Numbers = {
    **{f"block_{axis}": number for number, axis in enumerate("xyz", 1)},
    **{f"grid_{axis}": number for number, axis in enumerate("xyz", 4)},
    **{"dynamic_bytes": 7, "static_bytes": 8, "registers": 9},
    **{"blocks_per_sm": 15, "warps_per_sm": 16, "occupancy": 17},
}
_MEMORY: _Numbers = {
    **{"time_ns": 1, "kind": 2, "addr": 3, "process": 4, "thread": 5, "bytes": 6},
    **{"current_allocated": 8, "current_reserved": 9, "peak_allocated": 10, "peak_reserved": 11},
}
_SUPPLEMENT: _Numbers = {"shapes": 5, "dtypes": 6, "callstack": 7}


class Columns(NamedTuple):
    """N messages of one type."""

    numbers: dict[str, Array]
    """Column -> values of any integer dtype, shape (N,)."""
    texts: dict[str, Texts]


class Messages(NamedTuple):
    """The messages of a ``.pb`` file. Each row of a table is one message.

    A host event's row is its position in pre-order, without the root of each thread.
    """

    hosts: Columns
    """name, `_HOST`, parent (row, -1 outermost), depth."""
    launches: Columns
    """name, `_LAUNCH`, parent (row of the host event; -1: the root of a thread); sorted by parent."""
    devices: Columns
    """name, `_DEVICE`, parent (row of the launch), bytes (int64, -1: not recorded)."""
    kernels: Columns
    """`_KERNEL`, the last three as the bits of a float32; event (row of the device event)."""
    memsets: Columns
    """value, event (row of the device event)."""
    copies: Columns
    """source and target, texts, the kinds of the two memories; event (row of the device event)."""
    memory: Columns
    """place, `_MEMORY`, event (row of the host event; -1: the root of a thread); sorted by event."""
    inputs: Columns
    """`_SUPPLEMENT`, texts; event (row of the host event; -1: the root of a thread)."""
    version: str
    span: int
    extra_info: dict[str, str]
    device_properties: tuple[dict[str, object], ...]
    num_roots: int
    """Number of roots of threads."""
    disconnected: dict[str, int]
    """Kind -> number of host events without a path to a root, and of what lies in them."""


def decode_messages(buffer: MessageBuffer) -> Messages:
    """Return all messages of a file.

    Byte ranges are deleted as soon as they are read: those of all events take half of the file.

    Raises:
        TraceError: a message is damaged; it says at which byte.
    """
    top = buffer.fields(buffer.whole(), {1: TEXT, 2: NUMBER, 3: MESSAGES, 4: MESSAGES, 5: MESSAGES})
    host = _HostTree(buffer, top.ranges(3))
    nodes = buffer.fields(host.nodes, {3: MESSAGE, 4: MESSAGES, 5: MESSAGES, 6: MESSAGES})
    host.nodes = _NO_RANGES
    launch_ranges, memory_ranges, input_ranges = (nodes.ranges(field) for field in (4, 5, 6))
    bodies = nodes.range(3)[host.num_roots :]
    del nodes
    hosts = _columns(buffer, bodies, _HOST, {"name": 1})
    hosts.numbers.update(parent=host.parent, depth=host.depth)
    del bodies

    nodes = buffer.fields(launch_ranges, {1: MESSAGE, 2: MESSAGES})
    launch_parent = host.row_of(launch_ranges.owner)
    bodies, device_ranges = nodes.range(1), nodes.ranges(2)
    del nodes, launch_ranges
    launches = _columns(buffer, bodies, _LAUNCH, {"name": 1})
    launches.numbers["parent"] = launch_parent
    del bodies

    device_body = buffer.fields(
        buffer.fields(device_ranges, {1: MESSAGE}).range(1),
        _wanted(_DEVICE, {"name": 1}) | {9: MESSAGES, 10: MESSAGES, 11: MESSAGES},
    )
    kernel_ranges, copy_ranges, set_ranges = (
        device_body.ranges(field).last_of_each() for field in (9, 10, 11)
    )
    devices = _named(device_body, _DEVICE, {"name": 1})
    devices.numbers["parent"] = device_ranges.owner
    sets = buffer.fields(set_ranges, {1: NUMBER, 3: NUMBER})
    num_bytes = np.full(len(device_ranges), -1, np.int64)
    copies = buffer.fields(copy_ranges, {1: NUMBER, 3: TEXT, 4: TEXT})
    num_bytes[copy_ranges.owner] = signed(copies.number(1))
    num_bytes[set_ranges.owner] = signed(sets.number(1))
    devices.numbers["bytes"] = num_bytes
    kernels = _columns(buffer, kernel_ranges, _KERNEL, {})
    kernels.numbers["event"] = kernel_ranges.owner

    memory = _columns(buffer, _inside(buffer, memory_ranges), _MEMORY, {"place": 7})
    memory.numbers["event"] = host.row_of(memory_ranges.owner)
    inputs = _columns(buffer, _inside(buffer, input_ranges), {}, _SUPPLEMENT)
    inputs.numbers["event"] = host.row_of(input_ranges.owner)
    return Messages(
        hosts=hosts,
        launches=launches,
        devices=devices,
        kernels=kernels,
        memsets=Columns({"value": sets.number(3), "event": set_ranges.owner}, {}),
        copies=Columns(
            {"event": copy_ranges.owner}, {"source": copies.texts(3), "target": copies.texts(4)}
        ),
        memory=memory,
        inputs=inputs,
        version=top.texts(1).decoded()[0],
        span=int(top.number(2)[0]),
        extra_info=_extra_info(buffer, top.ranges(4)),
        device_properties=_device_properties(buffer, top.ranges(5)),
        num_roots=host.num_roots,
        disconnected=_disconnected(buffer, host.lost),
    )


def signed(numbers: Array) -> Int64:
    """Return numbers as int64; unsigned ones of 64 bits are two's complement."""
    return numbers.view(np.int64) if numbers.dtype == np.uint64 else numbers.astype(np.int64)


_NO_RANGES = ByteRanges(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32))


class _HostTree:
    """The host nodes of all threads: where they lie in the file, and their tree.

    A node's *file index* is its position among all host nodes in the file. Its *row* is its
    position in pre-order, after the root node of each thread is removed.
    """

    def __init__(self, buffer: MessageBuffer, thread_ranges: ByteRanges) -> None:
        threads = buffer.fields(thread_ranges, {1: NUMBER, 2: MESSAGES})
        nodes = threads.ranges(2)
        fields = buffer.fields(nodes, {1: NUMBER, 2: NUMBER})
        ids, parent_ids = fields.number(1), signed(fields.number(2))
        if ids.dtype == np.uint64:  # there may be negative ones
            ids = signed(ids)
        parent = parents_by_id(nodes.owner, ids, parent_ids)
        del fields, parent_ids
        roots = np.flatnonzero(parent == -1)
        # Sort threads by thread id, as Paddle's own map does; and siblings by node id.
        thread_ids = signed(threads.number(1))
        order, depth = pre_order_of_groups(thread_ids, nodes.owner, ids, parent)
        del ids
        kept = depth > 0
        file_index = order[kept]
        self.num_roots = len(roots)
        self.depth: Int32 = depth[kept] - np.int32(1)
        """Number of host events around each row, shape (rows,)."""
        del order, depth, kept
        row = np.full(len(nodes), -1, np.int32)
        row[file_index] = np.arange(len(file_index), dtype=np.int32)
        self.parent: Int32 = row[parent[file_index]]
        """Row of each row's parent, shape (rows,); -1 at depth 0."""
        row[roots] = 0
        self.lost = nodes[np.flatnonzero(row < 0)]
        """The nodes that are neither a root nor below one."""
        self.nodes = nodes[np.concatenate((roots, file_index))]
        """The nodes of all roots, then of all rows."""

    def row_of(self, owner: Int32) -> Int32:
        """Return the row of each node, given its index in ``nodes``; -1 for roots."""
        rows: Int32 = np.maximum(owner - np.int32(self.num_roots), np.int32(-1))
        return rows


def _columns(
    buffer: MessageBuffer, ranges: ByteRanges, numbers: _Numbers, texts: _Numbers
) -> Columns:
    """Return columns of the messages at ``ranges``."""
    return _named(buffer.fields(ranges, _wanted(numbers, texts)), numbers, texts)


def _wanted(numbers: _Numbers, texts: _Numbers) -> dict[int, int]:
    return {**dict.fromkeys(numbers.values(), NUMBER), **dict.fromkeys(texts.values(), TEXT)}


def _named(fields: Fields, numbers: _Numbers, texts: _Numbers) -> Columns:
    return Columns(
        {column: fields.number(field) for column, field in numbers.items()},
        {column: fields.texts(field) for column, field in texts.items()},
    )


def _inside(buffer: MessageBuffer, ranges: ByteRanges) -> ByteRanges:
    """Return the message in the field 1 of each message."""
    return buffer.fields(ranges, {1: MESSAGE}).range(1)


def _disconnected(buffer: MessageBuffer, nodes: ByteRanges) -> dict[str, int]:
    """Return the numbers of nodes and of what lies in them, by kind; no kind with number 0."""
    lost = buffer.fields(nodes, {4: MESSAGES, 5: MESSAGES})
    launches = buffer.fields(lost.ranges(4), {2: MESSAGES})
    counts = {
        "host events": len(nodes),
        "launches": len(lost.ranges(4)),
        "device events": len(launches.ranges(2)),
        "memory events": len(lost.ranges(5)),
    }
    return {kind: count for kind, count in counts.items() if count}


def _extra_info(buffer: MessageBuffer, ranges: ByteRanges) -> dict[str, str]:
    entries = buffer.fields(ranges, {1: TEXT, 2: TEXT})
    return dict(zip(entries.texts(1).each(), entries.texts(2).each()))


def _device_properties(buffer: MessageBuffer, ranges: ByteRanges) -> tuple[dict[str, object], ...]:
    numbers = {"id": 1, **DEVICE_PROPERTIES}
    properties = buffer.fields(ranges, _wanted(numbers, {"name": 2}))
    columns = [signed(properties.number(field)).tolist() for field in numbers.values()]
    return tuple(
        {"id": id, "name": name, **dict(zip(DEVICE_PROPERTIES, values))}
        for name, id, *values in zip(properties.texts(2).each(), *columns)
    )
