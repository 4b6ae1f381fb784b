"""The device's copies by direction and memory, counted on the raw objects of the file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ppprof
from tests.fixtures.timeline import Thread, kernel, launch, memcpy, span, write
from tests.fixtures.torch_traces import TorchTrace, training, write_events

KINDS = {
    "Memcpy HtoD (Pageable -> Device)": ("HtoD", "pageable"),
    "Memcpy HtoD (Pinned -> Device)": ("HtoD", "pinned"),
    "Memcpy DtoH (Device -> Pageable)": ("DtoH", "pageable"),
    "Memcpy DtoD (Device -> Device)": ("DtoD", "device"),
    "Memcpy PtoP (Device -> Device)": ("PtoP", "device"),
    "Memcpy HtoD (Host -> Device)": ("HtoD", None),
    "Memcpy DtoH (Device -> Host)": ("DtoH", None),
    "Memcpy DtoD (Device Static -> Device)": ("DtoD", "device"),
    "Memcpy DtoA (Device -> Array)": ("DtoA", "device"),
    "Memcpy DtoD (Managed -> Device)": ("DtoD", None),
    "Memset (Device)": ("memset", "device"),
    "copy of another maker": ("copy of another maker", None),
}
"""Name of a copy -> its direction and memory."""

STEP_US, NUM_STEPS = 10_000, 4


def copied(copies: list[tuple[str, int, int | None, int]]) -> TorchTrace:
    """Copies one after another on a stream: name, length in us, bytes and the pause before it."""
    trace = TorchTrace()
    for step in range(NUM_STEPS):
        trace.step(step, step * STEP_US, STEP_US)
        trace.op("aten::mm", step * STEP_US + 1, 5)
        trace.launch(step * STEP_US + 2, "gemm", step * STEP_US + 4, 50)
    at = 100
    for name, length, num_bytes, pause in copies:
        at += pause
        size = {} if num_bytes is None else {"bytes": num_bytes}
        copy = trace.launch(at - 5, name, at, length, stream=9, **size)
        copy["cat"] = "gpu_memset" if "Memset" in name else "gpu_memcpy"
        at += length
    return trace


@given(
    copies=st.lists(
        st.tuples(
            st.sampled_from(sorted(KINDS)),
            st.integers(1, 300),
            st.one_of(st.none(), st.integers(0, 2**33)),
            st.integers(10, 400),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_copies_equal_the_count_of_raw_objects(copies, tmp_path_factory):
    events = copied(copies).events
    path = write_events(tmp_path_factory.mktemp("copies") / "a.json", events)
    rows = ppprof.open(path).summary("copies").rows(named=True)
    raw = [event for event in events if event.get("cat") in ("gpu_memcpy", "gpu_memset")]
    assert sum(row["calls"] for row in rows) == len(raw)
    for row in rows:
        own = [event for event in raw if KINDS[event["name"]] == (row["direction"], row["memory"])]
        sizes = [event["args"]["bytes"] for event in own if "bytes" in event["args"]]
        timed = sum(event["dur"] for event in own if "bytes" in event["args"])
        assert row["calls"] == len(own)
        assert row["gpu_total_ns"] == 1000 * sum(event["dur"] for event in own)
        assert row["bytes"] == (sum(sizes) if sizes else None)
        rate = row["bytes_per_s"]
        assert rate == (pytest.approx(sum(sizes) / timed * 1e6) if sizes else None)
        assert 0 <= row["step_ratio"] <= 1
    assert sum(row["step_ratio"] for row in rows) == pytest.approx(
        sum(event["dur"] for event in raw) / (NUM_STEPS * STEP_US)
    )


def test_pageable_copies_of_the_issue(tmp_path, cli):
    """Case 16: 8 copies, 24 ms, 30% of the step; the host has no span of a copy."""
    trace = TorchTrace()
    for step in range(8):
        at = step * STEP_US
        trace.step(step, at, STEP_US)
        trace.op("aten::copy_", at + 30, 3_070)
        copy = trace.launch(
            at + 40, "Memcpy HtoD (Pageable -> Device)", at + 50, 3_000, bytes=48_000_000
        )
        copy["cat"] = "gpu_memcpy"
        for number in range(6):
            trace.op("aten::mm", at + 3_150 + number * 20, 18)
            trace.launch(at + 3_152 + number * 20, "gemm", at + 3_200 + number * 1_100, 1_100)
    path = write_events(tmp_path / "a.json", trace.events)
    (row,) = ppprof.open(path).summary("copies").rows(named=True)
    assert (row["direction"], row["memory"], row["calls"]) == ("HtoD", "pageable", 8)
    assert (row["gpu_total_ns"], row["step_ratio"], row["bytes_per_s"]) == (24_000_000, 0.3, 16e9)
    text = cli.quiet("summary", path, "--views", "memcpy,copies")
    assert "memcpy: no spans of copies on the host in this trace; --views copies lists" in text
    assert "HtoD        pageable      8         366 MiB     24.00" in text


def test_paddles_copies_say_their_memory_beside_their_name(tmp_path, cli):
    """The protobuf holds the kinds of both memories; the name is MEMCPY_HtoD, as in Paddle's tables."""
    steps = [
        span("ProfileStep", f"ProfileStep#{n}", n * 10_000_000, (n + 1) * 10_000_000).around(
            span("Operator", "memcpy_h2d", begin + 100_000, begin + 400_000).around(
                launch(
                    begin + 150_000,
                    begin + 200_000,
                    memcpy(begin + 300_000, begin + 3_300_000, 4096),
                )
            ),
            span("Operator", "relu", begin + 500_000, begin + 600_000).around(
                launch(
                    begin + 550_000,
                    begin + 560_000,
                    kernel("k", begin + 3_400_000, begin + 9_900_000),
                )
            ),
        )
        for n in range(6)
        for begin in [n * 10_000_000]
    ]
    path = write(tmp_path / "a.pb", Thread(100, "MainThread").around(*steps))
    (row,) = ppprof.open(path).summary("copies").rows(named=True)
    assert (row["direction"], row["memory"], row["calls"]) == ("HtoD", "pageable", 6)
    assert row["gpu_total_ns"] == 18_000_000
    (finding,) = (
        each for each in ppprof.advise(ppprof.open(path)) if each.rule == "pageable-copies"
    )
    assert finding.cost_ns == 3_000_000
    err = cli("convert", path, tmp_path / "a.json").err
    assert "the format cannot hold 6 memories of copies" in err


def test_a_trace_without_copies_says_so(tmp_path, cli):
    path = write_events(tmp_path / "a.json", training().events)
    text = cli.quiet("summary", path, "--views", "copies")
    assert "copies: no copies of a device in this trace" in text


def test_steps_of_no_length_have_no_share(tmp_path):
    step = span("ProfileStep", "ProfileStep#0", 10, 10)
    copy = span("PythonUserDefined", "collate", 20, 50).around(launch(21, 22, memcpy(30, 40, 64)))
    path = write(tmp_path / "a.pb", Thread(1, "main", (step, copy)))
    (row,) = ppprof.open(path).summary("copies").rows(named=True)
    assert (row["gpu_total_ns"], row["step_ratio"]) == (10, None)
