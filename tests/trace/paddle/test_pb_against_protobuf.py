"""The ``.pb`` reader against Google's protobuf and a plain walk over the messages."""

from __future__ import annotations

import lzma
import random
import struct
from operator import attrgetter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.errors import TraceError
from ppprof.trace import read
from tests.fixtures import gpu_traces
from tests.fixtures.paddle_proto import EVENT_TYPES, MEMORY_TYPES, NodeTrees
from tests.fixtures.random_traces import traces
from tests.fixtures.timeline import EPOCH_NS, Thread, kernel, launch, span, to_proto
from tests.fixtures.words import words

RECORDED = Path(__file__).parents[2] / "fixtures" / "paddle" / "h100"
EVENT_NAMES = {number: name for name, number in EVENT_TYPES.items()}
MEMORY_NAMES = {number: name for name, number in MEMORY_TYPES.items()}


_PLACE = attrgetter("process_id", "thread_id")
_STREAM = attrgetter("device_id", "context_id", "stream_id")
_GRID = attrgetter(*words("grid_x grid_y grid_z block_x block_y block_z registers_per_thread"))
_LOAD = attrgetter("blocks_per_sm", "warps_per_sm", "occupancy")
_MEMORY = attrgetter(
    *("place", "addr", "increase_bytes"),
    *("current_allocated", "current_reserved", "peak_allocated", "peak_reserved"),
)


def _time(event) -> tuple[int, int]:
    return event.start_ns, event.end_ns - event.start_ns


class Walk:
    """The rows that a reader must return: plain values, hosts in pre-order.

    A parent is the row of a host event; for a device event the correlation id of its launch.
    """

    def __init__(self, trees) -> None:
        self.hosts, self.launches, self.devices, self.memory = [], [], [], []
        self.kernels, self.memsets = [], []
        for tree in sorted(trees.thread_trees, key=lambda tree: tree.thread_id):
            children = {}
            for node in sorted(tree.host_nodes, key=lambda node: node.id):
                children.setdefault(node.parentid, []).append(node)
            (root,) = children[-1]
            self._add(root, None, -1, children)

    def _add(self, node, parent, depth, children) -> None:
        event = node.host_trace_event
        row = None
        if depth >= 0:
            row = len(self.hosts)
            kind = EVENT_NAMES[event.type]
            self.hosts.append((event.name, kind, *_time(event), parent, depth, *_PLACE(event)))
        for runtime in node.runtime_nodes:
            self._add_launch(runtime, row)
        for item in node.mem_nodes:
            event = item.mem_event
            kind = MEMORY_NAMES[event.type]
            self.memory.append((event.timestamp_ns, kind, row, *_PLACE(event), *_MEMORY(event)))
        for child in children.get(node.id, []):
            self._add(child, row, depth + 1, children)

    def _add_launch(self, runtime, row) -> None:
        event = runtime.runtime_trace_event
        at = (*_PLACE(event), event.correlation_id)
        self.launches.append((event.name, "CudaRuntime", *_time(event), row, *at))
        for item in runtime.device_nodes:
            device = item.device_event
            num_bytes = None
            for info in ("memcpy_info", "memset_info"):
                if device.HasField(info):
                    num_bytes = getattr(device, info).num_bytes
            kind, parent = EVENT_NAMES[device.type], event.correlation_id
            at = (*_STREAM(device), device.correlation_id)
            self.devices.append((device.name, kind, *_time(device), parent, *at, num_bytes))
            if device.HasField("kernel_info"):
                info = device.kernel_info
                shared = info.dynamic_shared_memory + info.static_shared_memory
                self.kernels.append(
                    (device.start_ns, device.name, *_GRID(info), shared, *_LOAD(info))
                )
            if device.HasField("memset_info"):
                self.memsets.append((device.start_ns, device.memset_info.value))


def assert_read_as(trace, trees) -> None:
    """The trace equals the walk's rows; rows without a promised order are compared as a set."""
    walk = Walk(trees)
    events = trace.events.with_columns(trace.events["name"].cast(str)).rows(named=True)
    num_hosts, num_launches = len(walk.hosts), len(walk.launches)
    assert len(events) == num_hosts + num_launches + len(walk.devices)

    def values(row, *columns):
        return tuple(row[column] for column in columns)

    first = ("name", "category", "start_ns", "dur_ns", "parent")
    hosts = [values(row, *first, "depth", "process", "thread") for row in events[:num_hosts]]
    assert hosts == walk.hosts
    launches = events[num_hosts : num_hosts + num_launches]
    found = [values(row, *first, "process", "thread", "correlation_id") for row in launches]
    assert sorted(found, key=repr) == sorted(walk.launches, key=repr)
    devices = [
        values(
            {**row, "parent": events[row["parent"]]["correlation_id"]},
            *first,
            *("device", "context", "stream", "correlation_id", "bytes"),
        )
        for row in events[num_hosts + num_launches :]
    ]
    assert sorted(devices, key=repr) == sorted(walk.devices, key=repr)

    assert sorted(trace.memory.rows(), key=repr) == sorted(walk.memory, key=repr)

    kernels = [
        (events[event]["start_ns"], events[event]["name"], *numbers)
        for event, *numbers in trace.kernels.rows()
    ]
    assert sorted(kernels, key=repr) == sorted(walk.kernels, key=repr)
    memsets = [(events[event]["start_ns"], value) for event, value in trace.memsets.rows()]
    assert sorted(memsets) == sorted(walk.memsets)
    assert trace.version == trees.version
    assert trace.span == trees.span_index
    assert trace.extra_info == {entry.key: entry.value for entry in trees.extra_info}
    assert [device["name"] for device in trace.devices] == [p.name for p in trees.device_property]


@pytest.mark.parametrize("name", ["copies", "reads"])
def test_a_recording_of_a_gpu(name: str, tmp_path) -> None:
    raw = lzma.decompress((RECORDED / f"{name}.pb.xz").read_bytes())
    trees = NodeTrees()
    trees.ParseFromString(raw)
    assert_read_as(read_bytes(tmp_path, raw), trees)


def read_bytes(tmp_path, raw: bytes):
    path = tmp_path / "a.pb"
    path.write_bytes(raw)
    return read(path)


@pytest.mark.parametrize("name", [*gpu_traces.SOUND, "no_step", "nothing"])
def test_fixed_traces(name, tmp_path):
    trees = to_proto(getattr(gpu_traces, name)(), devices=(0, 1), span_index=3)
    assert_read_as(read_bytes(tmp_path, trees.SerializeToString()), trees)


@given(threads=traces(newer_types=True))
def test_random_traces(threads, tmp_path):
    trees = to_proto(threads)
    assert_read_as(read_bytes(tmp_path, trees.SerializeToString()), trees)


@given(threads=traces(), seed=st.integers(0, 2**32))
def test_the_order_in_the_file_does_not_matter(threads, seed, tmp_path):
    """Siblings go by id, threads by theirs; ids need not be dense."""
    trees = to_proto(threads)
    shuffled = NodeTrees.FromString(trees.SerializeToString())
    rng = random.Random(seed)
    mixed = rng.sample(list(shuffled.thread_trees), len(shuffled.thread_trees))
    del shuffled.thread_trees[:]
    for tree in mixed:
        nodes = rng.sample(list(tree.host_nodes), len(tree.host_nodes))
        del tree.host_nodes[:]
        for node in nodes:
            node.id = node.id * 7
            node.parentid = node.parentid * 7 if node.parentid >= 0 else -1
        tree.host_nodes.extend(nodes)
        shuffled.thread_trees.append(tree)
    assert_read_as(read_bytes(tmp_path, shuffled.SerializeToString()), trees)


def test_an_event_belongs_to_the_step_in_which_it_began(tmp_path):
    trees = to_proto(gpu_traces.training())
    events = read_bytes(tmp_path, trees.SerializeToString()).events.rows(named=True)
    for event in events:
        began = events[event["parent"]] if event["device"] is not None else event
        index, inside = divmod(began["start_ns"] - EPOCH_NS, gpu_traces.STEP_NS)
        expected = 5 + index if inside < gpu_traces.STEP_NS - 500_000 else None
        assert event["step"] == expected, event


def test_annotations_of_collectives_become_columns(tmp_path):
    names = [
        "all_reduce[group=0 bytes=4198400 peers=0,1]",
        "send[group=12 bytes=0 peers=7]",
        "barrier[group=3 peers=]",
        "all_gather_object[group=0 peers=0,1]",
        "wait[op=isend group=0 bytes=4096 peers=1]",
        "all_reduce",
        "not one[group=0]",
    ]
    spans = [span("Communication", name, start, start + 1) for start, name in enumerate(names)]
    trees = to_proto([Thread(1, "t", (span("ProfileStep", "ProfileStep#0", 0, 9, *spans),))])
    events = read_bytes(tmp_path, trees.SerializeToString()).events.rows(named=True)[1:]
    columns = ("name", "group", "bytes", "peers")
    assert [tuple(event[column] for column in columns) for event in events] == [
        ("all_reduce", 0, 4198400, "0,1"),
        ("send", 12, 0, "7"),
        ("barrier", 3, None, None),
        ("all_gather_object", 0, None, "0,1"),
        ("isend.wait", 0, 4096, "1"),
        ("all_reduce", None, None, None),
        ("not one[group=0]", None, None, None),
    ]


def test_infinite_and_nan_values_are_null(tmp_path):
    values = (float("inf"), float("-inf"), float("nan"), 0.5)
    odd = [
        kernel("k", start, start + 1, blocks_per_sm=v, occupancy=v)
        for start, v in enumerate(values)
    ]
    trees = to_proto([Thread(1, "t", (launch(0, 1, *odd),))])
    kernels = read_bytes(tmp_path, trees.SerializeToString()).kernels
    assert kernels["blocks_per_sm"].to_list() == [None, None, None, 0.5]
    assert kernels["occupancy"].to_list() == [None, None, None, 0.5]


def test_a_signaling_nan_is_null(tmp_path):
    """NumPy warned of an invalid value on stderr."""
    trees = to_proto([Thread(1, "t", (launch(0, 1, kernel("k", 0, 1, occupancy=0.5)),))])
    raw = trees.SerializeToString().replace(struct.pack("<f", 0.5), b"\x01\x00\xa0\x7f")
    assert read_bytes(tmp_path, raw).kernels["occupancy"].to_list() == [None]


def test_unknown_types_keep_their_number(tmp_path):
    trees = to_proto([Thread(1, "t", (span("Operator", "a", 0, 1),))])
    trees.thread_trees[0].host_nodes[1].host_trace_event.type = 99
    events = read_bytes(tmp_path, trees.SerializeToString()).events
    assert events["category"].to_list() == ["Type99"]


def test_a_node_that_no_root_reaches_is_skipped_and_counted(tmp_path):
    trees = to_proto([Thread(1, "t", (span("Operator", "a", 0, 1), span("Operator", "b", 1, 2)))])
    trees.thread_trees[0].host_nodes[2].parentid = 40
    trace = read_bytes(tmp_path, trees.SerializeToString())
    assert trace.events["name"].to_list() == ["a"]
    assert sum(trace.skipped.values()) == 1


def trace_or_reason(tmp_path, raw: bytes):
    """Return the trace, or the message of the reader's error; any other error fails the test."""
    try:
        return read_bytes(tmp_path, raw)
    except TraceError as error:
        return str(error)


SMALL = to_proto(gpu_traces.one_step()).SerializeToString()


def test_a_truncated_file_is_rejected_or_read(tmp_path):
    """Never another error; a file cut between two top-level messages is valid and smaller."""

    def is_sound(kept):
        outcome = trace_or_reason(tmp_path, SMALL[:kept])
        if isinstance(outcome, str):
            return str(tmp_path) in outcome
        return outcome.events.height in (0, 4)

    assert [kept for kept in range(1, len(SMALL), 7) if not is_sound(kept)] == []


TRAINING = to_proto(gpu_traces.training(1)).SerializeToString()


@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(TRAINING) - 1), st.integers(0, 255)), min_size=1, max_size=4
    )
)
def test_a_damaged_file_is_rejected_or_read(changes, tmp_path):
    raw = bytearray(TRAINING)
    for offset, value in changes:
        raw[offset] = value
    outcome = trace_or_reason(tmp_path, bytes(raw))
    assert not isinstance(outcome, str) or str(tmp_path) in outcome
