"""Every reader's tables keep the rules of the schema, and each broken rule is found.

The trace::

    thread 1   ProfileStep ─ add ─ cudaLaunchKernel        rows 0, 1 and 2
    stream                         kernel, memset          rows 3 and 4
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import polars as pl
import pytest

from ppprof.errors import PpprofError
from ppprof.trace import Trace, read
from tests.fixtures.table_rules import problem
from tests.fixtures.timeline import Thread, alloc, kernel, launch, memset, span, write

FIXTURES = Path(__file__).parents[1] / "fixtures"
FILES = sorted(
    path for suffix in ("json", "json.gz", "pb") for path in FIXTURES.rglob(f"*.{suffix}")
)


@pytest.fixture
def trace(tmp_path) -> Trace:
    called = launch(2, 3).around(kernel("k", 4, 6), memset(6, 7, 8))
    operator = span("Operator", "add", 1, 5, called, alloc(2, 8))
    step = span("ProfileStep", "ProfileStep#0", 0, 9, operator)
    return read(write(tmp_path / "a.pb", Thread(1, "main").around(step)))


def test_the_trace_is_the_one_in_the_picture(trace):
    assert trace.events["parent"].to_list() == [None, 0, 1, 2, 2]
    assert trace.events["depth"].to_list() == [0, 1, None, None, None]
    assert problem(trace) is None


def test_every_fixture_keeps_the_rules():
    num_traces = 0
    for path in FILES:
        try:
            trace = read(path)
        except PpprofError:
            continue  # not a trace
        num_traces += 1
        assert problem(trace) is None, path
    assert num_traces > 10


@pytest.mark.parametrize(
    ("table", "column", "row", "value", "message"),
    [
        ("events", "name", 0, None, "name is null"),
        ("events", "start_ns", 0, 2**62, "a time is out of range"),
        ("events", "dur_ns", 0, -1, "a time is out of range"),
        ("events", "depth", 0, None, "the order is not"),
        ("events", "depth", 4, 0, "the order is not"),
        ("events", "device", 2, 0, "parent of a device event is not a row from 2 to 1"),
        ("events", "device", 4, None, "the order is not"),
        ("events", "thread", 2, None, "without process or thread"),
        ("events", "depth", 1, 2, "not trees in pre-order"),
        ("events", "parent", 0, 0, "not trees in pre-order"),
        ("events", "parent", 0, 1, "not trees in pre-order"),
        ("events", "parent", 1, None, "not trees in pre-order"),
        ("events", "parent", 2, 2, "parent of a launch is not a row from 0 to 1"),
        ("events", "parent", 2, -2, "parent of a launch is not a row from 0 to 1"),
        ("events", "parent", 3, 1, "parent of a device event is not a row from 2 to 2"),
        ("events", "forward", 1, 2, "forward is not a row from 0 to 1"),
        ("memory", "event", 0, 2, "event is not a row from 0 to 1"),
        ("memory", "time_ns", 0, None, "time_ns is null"),
        ("kernels", "event", 0, 2, "kernels: event is not a row from 3 to 4"),
        ("memsets", "event", 0, None, "memsets: event is null"),
        ("memsets", "event", 0, 5, "memsets: event is not a row from 3 to 4"),
    ],
)
def test_each_broken_rule_is_found(trace, table, column, row, value, message):
    assert problem(with_value(trace, table, column, row, value)) is not None
    assert message in problem(with_value(trace, table, column, row, value))


def with_value(trace: Trace, table: str, column: str, row: int, value: object) -> Trace:
    frame = getattr(trace, table)
    values = frame[column].to_list()
    values[row] = value
    changed = frame.with_columns(pl.Series(column, values, frame.schema[column]))
    return dataclasses.replace(trace, **{table: changed})


def test_two_kernels_of_one_event_are_found(trace):
    twice = dataclasses.replace(trace, kernels=pl.concat([trace.kernels, trace.kernels]))
    assert problem(twice) == "kernels: two rows of one event, or rows out of order"
