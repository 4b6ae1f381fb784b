"""Protobuf's own code and Paddle read a written file as it was meant."""

from __future__ import annotations

import dataclasses

import polars as pl
import pytest
from hypothesis import given

from ppprof.trace import read, write_paddle_pb
from tests.fixtures import gpu_traces
from tests.fixtures.paddle_proto import NodeTrees
from tests.fixtures.random_traces import traces
from tests.fixtures.same_traces import assert_same
from tests.fixtures.timeline import write

NOT_IN_A_TRACE = {
    "callback_id",
    "copy_kind",
    "memory_kind",
    "dynamic_shared_memory",
    "static_shared_memory",
    "local_memory_per_thread",
    "local_memory_total",
}
"""Fields that no table has; the reader adds the two kinds of shared memory up."""


@pytest.mark.parametrize("name", [*gpu_traces.SOUND, "no_step", "nothing"])
def test_every_field_as_protobuf_reads_it(name, tmp_path):
    source = write(tmp_path / "a.pb", *getattr(gpu_traces, name)())
    write_paddle_pb(read(source), tmp_path / "b.pb")
    before, after = (
        NodeTrees.FromString((tmp_path / file).read_bytes()) for file in ("a.pb", "b.pb")
    )
    assert list(_leaves(after)) == list(_leaves(before))


def _leaves(trees):
    """Return every field of each event, thread by thread in the order of their time."""
    yield trees.version, trees.span_index
    yield {entry.key: entry.value for entry in trees.extra_info}
    yield [str(device) for device in trees.device_property]
    for tree in trees.thread_trees:
        nodes = {node.id: node for node in tree.host_nodes}
        rows = []
        for node in tree.host_nodes:
            above = nodes[node.parentid].host_trace_event if node.parentid != -1 else None
            rows.append(
                (
                    str(node.host_trace_event),
                    str(above),
                    [
                        (
                            _known_lines(launch.runtime_trace_event),
                            [_known_lines(device.device_event) for device in launch.device_nodes],
                        )
                        for launch in node.runtime_nodes
                    ],
                    sorted(_known_lines(memory.mem_event) for memory in node.mem_nodes),
                )
            )
        if len(rows) > 1 or rows[0][2] or rows[0][3]:  # a trace has no empty threads
            yield tree.thread_id, sorted(rows)


def _known_lines(message) -> str:
    lines = str(message).splitlines()
    return "\n".join(line for line in lines if line.split(":")[0].strip() not in NOT_IN_A_TRACE)


@given(threads=traces(newer_types=True))
def test_random_traces_come_back(threads, tmp_path):
    exact = read(write(tmp_path / "a.pb", *threads))
    write_paddle_pb(exact, tmp_path / "b.pb")
    assert_same(read(tmp_path / "b.pb"), exact)


@pytest.mark.paddle
@pytest.mark.parametrize("name", gpu_traces.SOUND)
def test_paddle_makes_the_same_tables(name, tmp_path):
    from tests.oracles import paddle_tables

    source = write(tmp_path / "a.pb", *gpu_traces.SOUND[name]())
    write_paddle_pb(read(source), tmp_path / "b.pb")
    assert paddle_tables.load(tmp_path / "b.pb").text() == paddle_tables.load(source).text()


def with_first_collective(trace, **columns):
    """The trace with other values in the first collective."""
    is_first = pl.int_range(pl.len()) == trace.events["category"].eq("Communication").arg_max()
    plain = trace.events.with_columns(pl.col("name").cast(pl.String))
    changed = plain.with_columns(
        pl.when(is_first).then(pl.lit(value)).otherwise(pl.col(column)).alias(column)
        for column, value in columns.items()
    )
    return dataclasses.replace(trace, events=changed.cast(trace.events.schema))


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("all_reduce", "all_reduce[group=3 bytes=64 peers=0,1]"),
        ("isend.wait", "wait[op=isend group=3 bytes=64 peers=0,1]"),
        ("c10d::allreduce_", "c10d::allreduce_[group=3 bytes=64 peers=0,1]"),
        ("a.b.c", "a.b.c[group=3 bytes=64 peers=0,1]"),
    ],
)
def test_annotations_of_collectives_are_written_into_names_and_read_back(name, written, tmp_path):
    exact = read(write(tmp_path / "a.pb", *gpu_traces.training()))
    trace = with_first_collective(exact, name=name, group=3, bytes=64, peers="0,1")
    assert write_paddle_pb(trace, tmp_path / "b.pb") == {}
    assert_same(read(tmp_path / "b.pb"), trace)
    assert written.encode() in (tmp_path / "b.pb").read_bytes()


@pytest.mark.parametrize("name", ["x[]", "not one", ""])
def test_annotations_that_a_name_cannot_hold_are_counted(name, tmp_path):
    exact = read(write(tmp_path / "a.pb", *gpu_traces.training()))
    trace = with_first_collective(exact, name=name, group=3, bytes=64, peers="0,1")
    assert write_paddle_pb(trace, tmp_path / "b.pb") == {"event annotations": 1}
    bare = with_first_collective(exact, name=name, group=None, bytes=None, peers=None)
    assert_same(read(tmp_path / "b.pb"), bare)


def test_a_failure_leaves_no_file(tmp_path, monkeypatch):
    exact = read(write(tmp_path / "a.pb", *gpu_traces.training()))
    monkeypatch.setattr("ppprof.trace.paddle.pb_writer._threads", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_paddle_pb(exact, tmp_path / "b.pb")
    assert [path.name for path in tmp_path.iterdir()] == ["a.pb"]
