"""Times of a file that no analysis could add up."""

from __future__ import annotations

import json

import polars as pl

import ppprof
from ppprof.trace import read
from ppprof.trace.consistency import problem
from tests.fixtures.timeline import EPOCH_NS, Thread, kernel, launch, span, write

FIRST_NS, LAST_NS = -(2**62), 2**62 - 1


def test_an_event_in_which_the_clock_was_set_back_has_no_negative_length(tmp_path):
    """Of the operator, its launch and the kernel, each ends before it starts."""
    gemm = launch(30, 25, kernel("gemm", 60, 55))
    relu = span("Operator", "relu", 20, 10, gemm)
    thread = Thread(1, "main", (span("ProfileStep", "ProfileStep#1", 0, 100, relu),))
    trace = read(write(tmp_path / "a.pb", thread))
    assert trace.events.select(pl.col("start_ns") - EPOCH_NS, "dur_ns").rows() == [
        (0, 100),
        (20, 0),
        (30, 0),
        (60, 0),
    ]
    assert trace.skipped == {"times out of range": 3}


def test_times_whose_sum_no_integer_holds_are_cut(tmp_path):
    events = [
        ("user_annotation", "ProfilerStep#1", 100, 50, {}),
        ("cuda_runtime", "cudaLaunchKernel", 110, 5, {"correlation": 7}),
        ("kernel", "gemm", 9_200_000_000_000_000, 9_000_000_000_000_000, {"correlation": 7}),
        ("kernel", "far", -9_200_000_000_000_000, 4, {"correlation": 8}),
    ]
    path = tmp_path / "a.json"
    lines = [
        {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": 0,
            "tid": 7,
            "ts": ts,
            "dur": dur,
            "args": args,
        }
        for cat, name, ts, dur, args in events
    ]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": lines}))
    trace = read(path)
    assert trace.events.select("name", "start_ns", "dur_ns").rows()[2:] == [
        ("gemm", LAST_NS, LAST_NS),
        ("far", FIRST_NS, 4000),
    ]
    assert trace.skipped == {"times out of range": 3}
    assert problem(trace) is None
    run = ppprof.open(path)
    assert run.summary("kernel", rank=0)["calls"].to_list() == [1, 1]
    assert ppprof.diff(run, run).overview.height


def test_sound_times_are_not_touched(tmp_path):
    trace = read(write(tmp_path / "a.pb", Thread(1, "main", (span("Operator", "relu", 0, 9),))))
    assert trace.skipped == {}
