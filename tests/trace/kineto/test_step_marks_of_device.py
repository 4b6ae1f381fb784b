"""Steps of a file in which only the device has copies of ProfilerStep."""

from __future__ import annotations

import pytest

from ppprof.trace import read
from tests.fixtures.torch_traces import BASE_US, TorchTrace, training, write_events


def on_the_device(num_steps: int, behind: int) -> TorchTrace:
    """Steps of 10 ms whose kernels begin ``behind`` us after their launches."""
    trace = training(num_steps)
    for kernel in trace.kernels():
        kernel["ts"] += behind
    for step, event in enumerate(each for each in trace.events if "Profiler" in each["name"]):
        own = trace.kernels()[8 * step : 8 * step + 8]
        event["cat"], event["pid"], event["tid"] = "gpu_user_annotation", 0, 7
        event["ts"] = own[0]["ts"]
        event["dur"] = own[-1]["ts"] + own[-1]["dur"] - own[0]["ts"]
    return trace


@pytest.mark.parametrize("behind", [0, 25_000])
def test_steps_begin_with_the_first_launch_of_their_kernels(behind, tmp_path, each_core):
    trace = read(write_events(tmp_path / "a.json", on_the_device(4, behind).events))
    assert trace.has_derived_steps
    ((key, values),) = trace.notes
    assert (key, values["num"]) == ("marked_steps", 4)
    assert values["mark"] == "gpu_user_annotation ProfilerStep#N"
    kernels = trace.events.filter(category="Kernel")
    assert kernels["step"].to_list() == [step for step in range(4) for _ in range(8)]
    assert trace.ignored["gpu_user_annotation"] == 4


def test_recorded_steps_come_first(tmp_path, each_core):
    trace = training(3)
    begin = trace.kernels()[0]["ts"]
    copy = trace.span("gpu_user_annotation", "ProfilerStep#0", 0, 5_000)
    copy["ts"], copy["pid"], copy["tid"] = begin, 0, 7
    read_trace = read(write_events(tmp_path / "a.json", trace.events))
    assert read_trace.notes == ()
    assert read_trace.events["step"].drop_nulls().unique().to_list() == [0, 1, 2]


def test_streams_of_one_step_are_one_step(tmp_path, each_core):
    """Each stream has its own copy. That of step 0 on stream 20 ends within step 1 on stream 7::

    stream 7    0---------  1---------
    stream 20      0-----------  1-----------
    """
    trace = TorchTrace()
    for step in range(3):
        begin = step * 100
        for launch, kernel, dur, stream in ((10, 100, 20, 7), (20, 140, 65, 20), (30, 150, 20, 7)):
            trace.launch(begin + launch, "gemm", begin + kernel, dur, stream, call_us=5)
        for stream, start, dur in ((7, 100, 80), (20, 140, 65)):
            name = f"ProfilerStep#{step}"
            trace.span("gpu_user_annotation", name, begin + start, dur, pid=0, tid=stream)
    events = read(write_events(tmp_path / "a.json", trace.events)).events
    steps = events.filter(category="ProfileStep")["start_ns"]
    assert ((steps - BASE_US * 1000) // 1000).to_list() == [10, 110, 210]
    assert events.filter(category="Kernel")["step"].to_list() == [0] * 3 + [1] * 3 + [2] * 3
