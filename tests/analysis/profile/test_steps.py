"""Some steps of a trace: what is kept, what it points at, and the tables of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from polars.testing import assert_frame_equal

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.steps import WHOLE_TRACE, select_steps, with_step, without_pauses
from ppprof.analysis.ranks.step_breakdown import breakdown
from ppprof.analysis.summaries.views import summarize
from ppprof.choices import VIEWS, StepRange
from ppprof.trace import read
from tests.fixtures import gpu_traces
from tests.fixtures.random_traces import traces
from tests.fixtures.timeline import (
    EPOCH_NS,
    Span,
    Thread,
    alloc,
    free,
    kernel,
    launch,
    memset,
    span,
    write,
)


def across_steps(tmp_path):
    """
    ::

        main    |step 1                 |step 2                 |
                  op 10-20 [k1 15-30]     op 110-120 [k2 150-260: launched in 2, runs beyond]
        loader      long 40...............................170
                      short 50-60         late 130-140(inner 131-139(launch 132 memset))
        between                        free 100 (no step's time is 100 to 104)
    """
    main = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#1", 0, 100).around(
            span("Operator", "op", 10, 20).around(
                launch(11, 12, kernel("k1", 15, 30)), alloc(13, 8)
            )
        ),
        free(100, 8),
        span("ProfileStep", "ProfileStep#2", 104, 200).around(
            span("Operator", "op", 110, 120).around(
                launch(111, 112, kernel("k2", 150, 260)), alloc(113, 16)
            )
        ),
    )
    loader = Thread(2, "loader").around(
        span("UserDefined", "long", 40, 170).around(
            span("UserDefined", "short", 50, 60),
            span("UserDefined", "late", 130, 140).around(
                span("OperatorInner", "inner", 131, 139).around(
                    launch(132, 133, memset(134, 135, 4, value=9), name="cudaMemset"),
                    alloc(134, 32),
                )
            ),
            alloc(150, 64),
            alloc(205, 128),
        ),
    )
    return read(write(tmp_path / "a.pb", main, loader))


def test_rows_point_at_what_is_left(tmp_path):
    trace = select_steps(across_steps(tmp_path), StepRange.parse(2))

    rows = trace.events.select(
        pl.col("name").cast(pl.String), pl.col("start_ns") - EPOCH_NS, "parent", "depth", "step"
    )
    assert rows.rows() == [
        ("ProfileStep#2", 104, None, 0, 2),  # 0
        ("op", 110, 0, 1, 2),  # 1
        ("late", 130, None, 0, 2),  # 2: "long" began in step 1
        ("inner", 131, 2, 1, 2),  # 3
        ("cudaLaunchKernel", 111, 1, None, 2),  # 4
        ("cudaMemset", 132, 3, None, 2),  # 5
        ("k2", 150, 4, None, 2),  # 6
        ("MEMSET", 134, 5, None, 2),  # 7
    ]
    memory = trace.memory.select(pl.col("time_ns") - EPOCH_NS, "event", "bytes").sort("time_ns")
    assert memory.rows() == [(113, 1, 16), (134, 3, 32), (150, None, 64)]
    assert trace.kernels["event"].to_list() == [6]
    assert trace.memsets.rows() == [(7, 9)]
    assert trace.events.schema == across_steps(tmp_path).events.schema
    assert trace.memory.schema == across_steps(tmp_path).memory.schema


def test_everything_derived_is_of_those_steps(tmp_path):
    profile = Profile(select_steps(across_steps(tmp_path), StepRange.parse("1:2")))

    assert profile.steps == [1]
    assert summarize(profile, "device").rows() == [
        ("CPU(Process)", None),
        ("CPU(System)", None),
        ("GPU0", 15 / 100),
    ]
    assert summarize(profile, "overview").rows() == [
        ("cpu", "UserDefined", 2, 130, 1.3),
        ("cpu", "ProfileStep", 1, 100, 1.0),
        ("cpu", "Operator", 1, 10, 0.1),
        ("cpu", "CudaRuntime", 1, 1, 0.01),
        ("gpu", "Kernel", 1, 15, 0.15),
    ]
    memory = summarize(profile, "mem").select("name", "allocation_bytes", "free_bytes")
    assert memory.rows() == [("op", 8, 0)]


def loop(first: int, last: int) -> tuple[Thread, ...]:
    """Steps of `gpu_traces.training` and a loader beside them, with nothing outside of a step."""

    def loader(at: int) -> Span:
        return span("PythonUserDefined", "collate", at + 5_000, at + 4_000_000).around(
            span("Operator", "broadcast", at + 1_000_000, at + 3_000_000).around(
                launch(at + 1_100_000, at + 1_200_000).around(
                    kernel("copy", at + 1_500_000, at + 9_900_000, device=1, stream=9)
                ),
                alloc(at + 1_000_000, 512),
            )
        )

    starts = {step: step * gpu_traces.STEP_NS for step in range(first, last)}
    steps = tuple(gpu_traces._step(step, start, skew=step) for step, start in starts.items())
    return (
        Thread(gpu_traces.MAIN, "MainThread", steps),
        Thread(gpu_traces.WORKER, "loader", tuple(loader(start) for start in starts.values())),
    )


@pytest.mark.parametrize(("first", "last"), [(0, 1), (1, 2), (2, 3), (0, 2), (1, 3), (0, 3)])
def test_some_steps_are_as_if_those_alone_had_been_recorded(first, last, tmp_path):
    """All nine tables; only peaks of memory, which count from the process's start, may differ."""
    whole = read(write(tmp_path / "whole.pb", *loop(0, 3)))
    alone = read(write(tmp_path / "alone.pb", *loop(first, last), extra_info={}))
    cut = select_steps(whole, StepRange(first, last))

    peaks = pl.selectors.starts_with("peak_")
    for view in VIEWS:
        tables = [summarize(Profile(trace), view).drop(peaks) for trace in (cut, alone)]
        assert not tables[0].is_empty(), view
        assert_frame_equal(*tables)


def test_all_steps_of_a_trace_are_all_but_what_is_outside(tmp_path):
    trace = read(write(tmp_path / "a.pb", *loop(0, 3)))
    cut = select_steps(trace, StepRange.parse("0:"))

    assert_frame_equal(cut.events, trace.events)
    assert_frame_equal(cut.kernels, trace.kernels)
    assert_frame_equal(cut.memory, trace.memory)


@pytest.mark.parametrize("name", ["no_step", "nothing", "training"])
def test_steps_that_are_not_there_leave_nothing(name, tmp_path):
    trace = read(write(tmp_path / "a.pb", *getattr(gpu_traces, name)()))
    cut = select_steps(trace, StepRange.parse("100:"))
    assert [table.height for table in (cut.events, cut.memory, cut.kernels, cut.memsets)] == [0] * 4
    assert cut.events.schema == trace.events.schema


def test_a_step_whose_number_exceeds_an_int64_has_no_number(tmp_path):
    main = Thread(
        1,
        "main",
        (
            span("ProfileStep", "ProfileStep#1", 0, 100, span("Operator", "op", 10, 20)),
            span(
                "ProfileStep", f"ProfileStep#{10**20}", 100, 200, span("Operator", "op", 110, 120)
            ),
        ),
    )
    profile = Profile(read(write(tmp_path / "a.pb", main)))

    assert profile.steps == [1]
    assert profile.trace.events["step"].to_list() == [1, 1, None, None]


def linked(events):
    """Each event with the start and the name of its parent."""
    parent = events["parent"]
    return events.select("name", "start_ns", "dur_ns", "device").with_columns(
        above=events["name"].gather(parent).cast(pl.String),
        above_ns=events["start_ns"].gather(parent),
    )


def test_a_step_around_events_that_are_too_far_apart_has_the_longest_length(tmp_path):
    """As in a damaged file: the length of the span needs more than 63 bits."""
    main = Thread(1, "main").around(span("Operator", "a", 0, 1), span("Operator", "b", 5, 6))
    trace = read(write(tmp_path / "a.pb", main))
    starts = pl.Series([-(2**62), 2**63 - 10**6 - 1])
    apart = dataclasses.replace(trace, events=trace.events.with_columns(start_ns=starts))
    around = with_step(apart).events
    assert around.filter(name=WHOLE_TRACE)["dur_ns"].to_list() == [2**63 - 1]


@given(threads=traces(newer_types=True))
def test_a_step_around_a_trace_without_steps_changes_nothing_else(threads, tmp_path_factory):
    trace = read(write(tmp_path_factory.mktemp("random") / "a.pb", *threads))
    around = with_step(trace)
    if trace.events.is_empty() or trace.events["step"].count():
        assert around is trace
        return
    is_span = around.events["name"] == WHOLE_TRACE
    assert is_span.sum() == 1
    (row,) = np.flatnonzero(is_span.to_numpy())
    assert around.events["depth"][int(row)] == 0
    own = around.events["thread"] == around.events["thread"][int(row)]
    roots = around.events.filter(own & (around.events["depth"] == 1))
    assert set(roots["parent"].to_list()) <= {row}
    before, after = linked(trace.events), linked(around.events).filter(~is_span)
    is_root = (after["above"] == WHOLE_TRACE).fill_null(False)
    cleared = after.with_columns(
        pl.when(~is_root).then(pl.col(name)).alias(name) for name in ("above", "above_ns")
    )
    assert_frame_equal(cleared, before, categorical_as_str=True)
    for old, new in ((trace.memory, around.memory), (trace.kernels, around.kernels)):
        names = (
            table["event"].replace_strict(
                dict(enumerate(whole.events["start_ns"].to_list())), default=None
            )
            for table, whole in ((old, trace), (new, around))
        )
        assert len({tuple(column.to_list()) for column in names}) == 1
    assert breakdown(Profile(around)).parts["time_ns"][0] == around.events["dur_ns"][int(row)]


def test_what_happens_in_a_pause_is_left_out(tmp_path: Path) -> None:
    """
    ::

        main      ProfileStep 0-100:  op 10-20 [k1 30-50]   paused 40-80(Forward 40-60(gemm [k2]))
        loader    load 35-45          eval 50-60
    """
    main = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#1", 0, 100).around(
            span("Operator", "op", 10, 20).around(launch(11, 12, kernel("k1", 30, 50))),
            span("PythonUserDefined", "paused: evaluation", 40, 80).around(
                span("Forward", "Net", 40, 60).around(
                    span("Operator", "gemm", 41, 50).around(
                        launch(42, 43, kernel("k2", 90, 95)), alloc(44, 8)
                    )
                )
            ),
        )
    )
    loader = Thread(2, "loader").around(
        span("UserDefined", "load", 35, 45), span("UserDefined", "eval", 50, 60)
    )
    trace = read(write(tmp_path / "a.pb", main, loader))
    cut = without_pauses(trace)
    left = {"ProfileStep#1", "op", "cudaLaunchKernel", "k1", "paused: evaluation", "load"}
    assert set(cut.events["name"].cast(pl.String)) == left
    assert set(trace.events["name"].cast(pl.String)) == left | {"Net", "gemm", "k2", "eval"}
    assert cut.memory["bytes"].to_list() == [8]
    profile = Profile(trace)
    assert profile.without_pauses.without_pauses is profile.without_pauses
    assert profile.without_pauses.pauses["cpu_ns"].to_list() == [40]
