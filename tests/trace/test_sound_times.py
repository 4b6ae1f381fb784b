"""Times of a file that no analysis could add up."""

from __future__ import annotations

import json

import polars as pl

import ppprof
from ppprof.trace import read
from ppprof.trace.schema import Trace
from tests.fixtures.table_rules import problem
from tests.fixtures.timeline import EPOCH_NS, Thread, kernel, launch, span, write
from tests.fixtures.torch_traces import BASE_US, TorchTrace, write_events


def test_an_event_in_which_the_clock_was_set_back_has_no_negative_length(tmp_path):
    """Of the operator, its launch and the kernel, each ends before it starts; the kernel has no time."""
    gemm = launch(30, 25, kernel("gemm", 60, 55))
    relu = span("Operator", "relu", 20, 10, gemm)
    thread = Thread(1, "main", (span("ProfileStep", "ProfileStep#1", 0, 100, relu),))
    trace = read(write(tmp_path / "a.pb", thread))
    assert trace.events.select(pl.col("start_ns") - EPOCH_NS, "dur_ns").rows() == [
        (0, 100),
        (20, 0),
        (30, 0),
    ]
    assert trace.skipped == {"times out of range": 2, "device events without a time": 1}


def test_device_events_whose_times_no_integer_holds_are_left_out(tmp_path):
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
    assert trace.events["name"].to_list() == ["ProfileStep#1", "cudaLaunchKernel"]
    assert trace.skipped == {"device events without a time": 2}
    assert problem(trace) is None
    run = ppprof.open(path)
    assert run.summary("kernel", rank=0).is_empty()
    assert run.breakdown()["step_ns"].to_list() == [None]


def test_a_file_whose_times_begin_at_0_may_have_a_kernel_there(tmp_path):
    """It was launched before the window."""
    trace = TorchTrace()
    trace.op("aten::mm", 1, 20)
    trace.launch(2, "gemm", 100, 50)
    trace.span("kernel", "gemm", 0, 50, pid=0, tid=7, device=0, stream=7, correlation=99)
    for event in trace.events:
        event["ts"] -= BASE_US
    path = write_events(tmp_path / "a.json", trace.events)
    assert read(path).skipped == {}
    assert ppprof.open(path).summary("kernel")["calls"].to_list() == [2]


EVENT = """
  {{
    "name": "{name}[1.000 us]", "pid": 4, "tid": "7(C++)",
    "ts": {ts}, "dur": {dur},
    "ph": "X", "cat": "{cat}",
    "cname": "thread_state_runnable",
    "args": {{
      "start_time": "1.000 us",
      "end_time": "2.000 us"
    }}
  }},"""


def paddle(path, *events: tuple[str, str, int, str]) -> Trace:
    lines = [EVENT.format(name=name, cat=cat, ts=ts, dur=dur) for name, cat, ts, dur in events]
    text = "".join(lines).removesuffix(",")
    path.write_text(f'{{"schemaVersion": "1.0.2", "traceEvents": [{text}\n  ]}}')
    return read(path)


def test_the_tree_does_not_depend_on_sums_that_no_integer_holds(tmp_path, each_core):
    trace = paddle(
        tmp_path / "a.json",
        ("a", "Operator", 1, "9223372036854774.808"),
        ("b", "Operator", 0, "0.000"),
        ("c", "Operator", -5, "9223372036854775.000"),
    )
    assert trace.skipped == {"times out of range": 2}
    assert problem(trace) is None
    names = trace.events["name"].cast(str).to_list()
    parents = [None if row is None else names[row] for row in trace.events["parent"]]
    # Both long ones are cut to one length, so the later one, a, also ends later.
    assert dict(zip(names, parents)) == {"c": None, "b": "c", "a": None}


def test_phases_whose_sum_no_integer_holds_have_a_table(tmp_path):
    far = "4600000000000000.000"
    paddle(
        tmp_path / "a.json",
        ("ProfileStep#1", "ProfileStep", 1, far),
        ("forward", "Forward", 2, far),
        ("backward", "Backward", 3, far),
        ("step", "Optimization", 4, far),
    )
    table = ppprof.open(tmp_path / "a.json").summary("model", rank=0)
    assert table["name"].to_list()[-1] == "Others"


def test_sound_times_are_not_touched(tmp_path):
    trace = read(write(tmp_path / "a.pb", Thread(1, "main", (span("Operator", "relu", 0, 9),))))
    assert trace.skipped == {}
