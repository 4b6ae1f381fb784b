"""What a profiler lost: counted on the raw objects of the file, said first, and in no average."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ppprof
from ppprof.analysis.profile.wholeness import LEAST_WHOLE, LOST_RATIO, MANY_WHOLE
from ppprof.messages import Message
from ppprof.report.text.advice import finding_rows
from tests.fixtures.torch_traces import BASE_US, TorchTrace, training, write_events

NUM_STEPS, NUM_KERNELS, STEP_US, KERNEL_US = 5, 8, 10_000, 900
LARGEST = 2**63 - 1
GEMM = "ampere_sgemm_128x64_tn"

UNTIMED = {
    "both zero": {"ts": 0, "dur": 0},
    "no end": {"dur": 0},
    "negative": {"dur": -5},
    "of another day": {"ts": BASE_US - 10**12},
    "largest": {"dur": LARGEST / 1000},
    "larger": {"dur": LARGEST},
}
"""How the time of a kernel gets lost."""


class Said:
    """The messages about a run, by key."""

    def __init__(self) -> None:
        self.by_key: dict[str, Message] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.args[0] if isinstance(record.args, tuple) and record.args else None
        if isinstance(message, Message):
            self.by_key[message.key] = message
        return True


def advised(path: Path) -> tuple[ppprof.Findings, dict[str, Message]]:
    said = Said()
    logger = logging.getLogger("ppprof")
    logger.addFilter(said)
    try:
        return ppprof.advise(ppprof.open(path)), said.by_key
    finally:
        logger.removeFilter(said)


@pytest.mark.parametrize("how", UNTIMED)
def test_half_of_the_kernels_without_a_time(how, tmp_path):
    """Case 07 of the issue: 20 of 40 kernels; steps 0 and 1 are whole, and idle for 2.8 of 10 ms."""
    trace = training()
    for kernel in trace.kernels()[20:]:
        kernel.update(UNTIMED[how])
    path = write_events(tmp_path / "a.json", trace.events)
    run = ppprof.open(path)
    (kernels,) = run.summary("kernel").iter_rows(named=True)
    assert kernels["gpu_avg_ns"] == kernels["gpu_max_ns"] == 900_000
    assert kernels["calls"] == 16
    steps = run.breakdown()
    assert steps["step"].to_list() == [0, 1]
    assert steps["computation_ns"].to_list() == [7_200_000] * 2
    assert run.events()["dur_ns"].max() == 10_000_000
    findings, said = advised(path)
    assert "host-bound" not in [finding.rule for finding in findings]
    assert findings.withheld == ("host-bound", "short-window")
    assert "20 of 40 launches" in said["lost_events"]
    assert "steps 2-4 (3 of 5)" in said["lost_events"]


def test_kernels_that_overlap_their_stream_are_cut(tmp_path):
    """Case 09: five kernels claim 1.6 s; their sum with the others is at most 37.6 ms."""
    trace = training()
    for kernel in trace.kernels()[2::8]:
        kernel["dur"] = 1_600_000
    path = write_events(tmp_path / "a.json", trace.events)
    run = ppprof.open(path)
    (kernels,) = run.summary("kernel").iter_rows(named=True)
    assert kernels["calls"] == 40
    assert kernels["gpu_total_ns"] == 35 * 900_000 + 5 * 1_225_000
    assert run.breakdown()["step_ns"].to_list() == [10_000_000] * 5
    findings, said = advised(path)
    assert "in order: 5 (ampere_sgemm_128x64_tn)" in said["overlaps"]
    assert not {"warm-up", "slow-product", "slow-steps"}.intersection(f.rule for f in findings)


def test_thirty_steps_without_device_events(tmp_path):
    """Case 11: device events in 2 of 32 steps, the last of which lasts 1.754 s."""
    trace = training(num_steps=32)
    kept = trace.kernels()[:16]
    kept[-1]["dur"] = 1_754_000
    events = [event for event in trace.events if event.get("cat") != "kernel" or event in kept]
    path = write_events(tmp_path / "a.json", events)
    findings, said = advised(path)
    assert "240 of 256 launches" in said["unusable"]
    assert "30 of 32 steps are lost (steps 2-31)" in said["unusable"]
    assert [(finding.rule, finding.facts["wording"]) for finding in findings] == [
        ("no-device-events", "lost")
    ]
    steps = ppprof.open(path).breakdown()
    assert steps["step_ns"].null_count() == steps.height == 32


@pytest.mark.parametrize("fraction", [0, 0.25])
@pytest.mark.parametrize("own_name", [False, True])
def test_a_length_of_0_is_a_short_kernel_in_files_of_whole_microseconds(
    fraction, own_name, tmp_path
):
    """As in the samples of torch's TensorBoard plugin: 636 of 8,772 kernels take less than 1 us."""
    trace = training()
    fill, least = "fill_kernel", 1 + fraction
    for number, kernel in enumerate(trace.kernels()[::2]):
        is_zero = number % 4 == 0
        kernel.update(name="zero_kernel" if is_zero and own_name else fill, dur=least)
        if is_zero:
            kernel["dur"] = 0
    _, said = advised(write_events(tmp_path / "a.json", trace.events))
    if fraction:
        assert "5 of 40 launches" in said["unusable"]
    else:
        assert said == {}
        kernels = ppprof.open(tmp_path / "a.json").summary("kernel").filter(pl.col("name") != GEMM)
        assert int(kernels["calls"].sum()) == 20
        assert int(kernels["gpu_total_ns"].sum()) == 15 * 1_000


@pytest.mark.parametrize("form", ["list", "text", "at the end"])
def test_records_that_kineto_dropped_are_counted(form, tmp_path):
    line = (
        "WARNING:2026-01-08 08:51:50 865:3386 CuptiActivityApi.cpp:303] Dropped {} activity records"
    )
    lines = [line.format(num) for num in (1, 6)] + ["WARNING: Dropped by a user"]
    warning = {"WARNING": str(lines) if form == "text" else lines}
    path = tmp_path / "a.json"
    if form == "at the end":
        path.write_text(
            json.dumps({"schemaVersion": 1, "traceEvents": training().events, **warning})
        )
    else:
        write_events(path, training().events, **warning)
    findings, said = advised(path)
    assert [*said] == ["dropped"]
    assert "dropped 7 records" in said["dropped"]
    assert findings.withheld == ("host-bound",)


def test_an_intact_recording_has_nothing_to_say(tmp_path):
    path = write_events(tmp_path / "a.json", training().events)
    findings, said = advised(path)
    assert said == {}
    assert [finding.rule for finding in findings] == ["host-bound"]
    assert findings.withheld == ()


def test_a_step_after_a_lost_one_has_its_own_length_if_the_device_is_behind(tmp_path):
    """The host takes 1 ms for a step of 5 ms on the device; the kernels of step 1 are lost::

    host     |0|1|2|3|
    device    0000 .... 2222 3333
    """
    trace = TorchTrace()
    for step in range(4):
        trace.step(step, step * 1_000, 1_000)
        trace.op("aten::mm", step * 1_000 + 10, 900)
        for number in range(5):
            begin = 100 + step * 5_000 + number * 1_000
            trace.launch(step * 1_000 + 20 + number * 100, "gemm", begin, 1_000)
    lost = trace.kernels()[5:10]
    events = [event for event in trace.events if event not in lost]
    steps = ppprof.open(write_events(tmp_path / "a.json", events)).breakdown()
    assert steps["step"].to_list() == [0, 2, 3]
    assert steps["step_ns"].to_list() == [5_100_000, 5_000_000, 5_000_000]
    assert steps["computation_ns"].to_list() == [5_000_000] * 3


def test_missing_ranks_are_counted(tmp_path):
    for rank in (0, 2):
        where = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 4}}
        write_events(tmp_path / f"rank{rank}.pt.trace.json", training(device=rank).events, **where)
    _, said = advised(tmp_path)
    assert "2 of the 4 ranks" in said["missing_ranks"]


def test_device_events_without_a_launch_are_counted(tmp_path):
    trace = training()
    for kernel in trace.kernels()[::2]:
        kernel["args"]["correlation"] += 1_000
    _, said = advised(write_events(tmp_path / "a.json", trace.events))
    # The first one begins after the first launch, too.
    assert "20 of 40 device events have no recorded launch" in said["no_launch"]


def test_nothing_is_said_about_queues_whose_launches_are_unknown(tmp_path):
    """As in HTA's trace of an MTIA: 22,221 of 25,677 device events have no launch."""
    trace = training()
    ids = {kernel["args"]["correlation"] for kernel in trace.kernels()[::2]}
    events = [
        event
        for event in trace.events
        if event.get("cat") != "cuda_runtime" or event["args"]["correlation"] not in ids
    ]
    findings, said = advised(write_events(tmp_path / "a.json", events))
    assert "of 40 device events have no recorded launch" in said["no_launch"]
    assert [*said] == ["no_launch"]
    assert findings.withheld == ("host-bound",)


def test_a_trace_without_steps_is_to_be_marked(tmp_path):
    events = [each for each in training(num_steps=30).events if "Step" not in each["name"]]
    findings, _ = advised(write_events(tmp_path / "a.json", events))
    (finding,) = [each for each in findings if each.rule == "short-window"]
    (row,) = finding_rows([finding])
    assert row.title == "Nothing says where steps begin"
    assert "--step-mark" in row.do
    assert "5 steps" not in row.what + row.do


def test_a_trace_of_torch_without_operators_has_torchs_words(tmp_path):
    events = [each for each in training().events if each.get("cat") in (None, "cuda_runtime")]
    events.append({**events[-1], "cat": "Trace", "name": "PyTorch Profiler (0)"})
    rows = finding_rows(advised(write_events(tmp_path / "a.json", events))[0])
    assert rows
    assert not [row.do for row in rows if "paddle" in row.do]


@pytest.mark.parametrize(
    "num_launches", [20, 1], ids=["launches in the file", "launches before it"]
)
def test_two_branches_of_a_graph_may_overlap(tmp_path, num_launches):
    """One launch started both kernels, and the first one ends last."""
    trace = training()
    for first, second in zip(trace.kernels()[::2], trace.kernels()[1::2]):
        second["args"]["correlation"] = first["args"]["correlation"]
        first["dur"] = second["ts"] + second["dur"] - first["ts"] + 50
    events = [
        event
        for event in trace.events
        if event.get("cat") != "cuda_runtime" or event["args"]["correlation"] % 2
    ]
    launches = [event for event in events if event.get("cat") == "cuda_runtime"]
    events = [event for event in events if event not in launches[: 20 - num_launches]]
    _, said = advised(write_events(tmp_path / "a.json", events))
    assert said == {}


@pytest.mark.parametrize("thread", [100, 101], ids=["own thread", "autograd's thread"])
@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("cudaStreamBeginCapture", "cudaStreamEndCapture"),
        ("hipStreamBeginCapture", "hipStreamEndCapture"),
        ("Runtime API 315", "Runtime API 319"),
    ],
)
def test_launches_into_a_captured_graph_are_not_lost(begin, end, thread, tmp_path):
    trace = TorchTrace()
    for number in range(3):
        trace.launch(number * 20, "gemm", number * 20 + 10, 5)
    trace.span("cuda_runtime", begin, 60, 2, correlation=1_001)
    for number in range(3):
        call = {"correlation": 1_002 + number, "tid": thread}
        trace.span("cuda_runtime", "cudaLaunchKernel", 65 + number * 5, 2, **call)
    trace.span("cuda_runtime", end, 80, 2, correlation=1_005)
    for number in range(100):
        trace.launch(100 + number * 50, "gemm", 110 + number * 50, 5, call="cudaGraphLaunch")
    path = write_events(tmp_path / "a.json", trace.events)
    _, said = advised(path)
    assert [*said] == ["one_step"]
    assert ppprof.open(path).summary("kernel")["calls"].to_list() == [103]
    trace.span("cuda_runtime", "cudaLaunchKernel", 90, 2, correlation=1_006)
    trace.span("cuda_runtime", "cudaLaunchKernel", 55, 2, correlation=1_007)
    _, said = advised(write_events(tmp_path / "a.json", trace.events))
    assert "2 of 105 launches" in said["unusable"]


@st.composite
def losses(draw: st.DrawFn) -> dict[int, str]:
    """Number of a kernel -> how it is lost; whole steps, single kernels, or any of them."""
    total = NUM_STEPS * NUM_KERNELS
    kernels = draw(st.sets(st.integers(0, total - 1), max_size=total - 1))
    steps = draw(st.sets(st.integers(0, NUM_STEPS - 1), max_size=2))
    whole = set(range(total)) - {number for number in range(total) if number // 8 in steps}
    chosen = draw(st.sampled_from([kernels, set(range(total)) - whole, kernels - whole]))
    return {number: draw(st.sampled_from(["dropped", *UNTIMED])) for number in sorted(chosen)}


@given(lost=losses())
def test_what_is_lost_equals_the_count_of_raw_objects(lost, tmp_path_factory):
    trace = training(NUM_STEPS, STEP_US, NUM_KERNELS, KERNEL_US)
    kernels = trace.kernels()
    for number, how in lost.items():
        kernels[number].update(UNTIMED.get(how, {}))
    dropped = [kernels[number] for number, how in lost.items() if how == "dropped"]
    events = [event for event in trace.events if not any(event is each for each in dropped)]
    path = write_events(tmp_path_factory.mktemp("lost") / "a.json", events)

    num_lost = [sum(number // NUM_KERNELS == step for number in lost) for step in range(NUM_STEPS)]
    bad = [step for step, num in enumerate(num_lost) if num > LOST_RATIO * NUM_KERNELS]
    num_whole = NUM_STEPS - len(bad)
    findings, said = advised(path)
    total = f"{len(lost)} of {NUM_STEPS * NUM_KERNELS} launches"
    if not lost:
        assert said == {}
    elif num_whole < LEAST_WHOLE * NUM_STEPS:
        assert total in said["unusable"]
        assert {finding.rule for finding in findings} == {"no-device-events"}
    else:
        assert total in said["lost_events"]
        assert f"({len(bad)} of {NUM_STEPS})" in said["lost_events"]
        run = ppprof.open(path)
        assert run.breakdown()["step"].to_list() == sorted({*range(NUM_STEPS)} - {*bad})
        (row,) = run.summary("kernel").iter_rows(named=True)
        assert row["calls"] == num_whole * NUM_KERNELS
        assert row["gpu_total_ns"] == row["calls"] * KERNEL_US * 1000
        is_reported = "host-bound" in {finding.rule for finding in findings}
        assert is_reported == (num_whole >= MANY_WHOLE * NUM_STEPS)
