"""Idle time of a device counts for the recorded cause: the profiler, an allocation, a copy."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.findings import US, by_rule
from tests.fixtures.torch_traces import TorchTrace

STEP = 10_000.0


def idling(folder: Path, causes: list[tuple[str, float]]) -> Path:
    """In each step gaps of these causes and lengths, and kernels of 900 between them."""
    trace = TorchTrace()
    for number in range(6):
        at = number * STEP
        trace.step(number, at, STEP)
        now = at
        for cause, length in [("host", 0.0), *causes]:
            start = now + 5
            if cause == "overhead":
                trace.span("overhead", "Activity Buffer Request", start, length, pid=-1, tid=0)
            elif cause == "cudaDeviceSynchronize":  # until the kernel before it is over
                trace.span("cuda_runtime", cause, now - 500, 500)
            elif cause == "cudaStreamSynchronize":  # nothing runs that it could wait for
                trace.span("cuda_runtime", cause, start + 50, 1)
            elif cause != "host":
                ids = {"correlation": 10**6 + len(trace.events)}
                trace.span("cuda_runtime", cause, start, length, **ids)
            now += length + 20
            trace.span("cpu_op", "aten::mm", now - 5, 100)
            trace.launch(now - 4, "gemm", now, 900, call_us=4)
            now += 900
        trace.span("cpu_op", "aten::mm", now - 5, 100)
        trace.launch(now - 4, "gemm", now, at + STEP - now, call_us=4)
    return trace.write(folder / "a.json")


RULES = {
    "overhead": "profiler-overhead",
    "cudaMalloc": "allocation",
    "cuModuleLoadData": "allocation",
    "cudaDeviceSynchronize": "blocking-copies",
}


def test_time_of_the_profiler_is_not_the_hosts(tmp_path: Path):
    """4 of 4.54 ms that the device idles are the profiler's own."""
    trace = TorchTrace()
    for number in range(6):
        at = number * STEP
        trace.step(number, at, STEP)
        trace.span("cpu_op", "aten::mm", at + 50, 4300)
        trace.span("overhead", "Activity Buffer Request", at + 100, 4000, pid=-1, tid=0)
        trace.launch(at + 4200, "gemm", at + 4240, 900, call_us=20)
        for i in range(5):
            start = at + 5100 + i * 950
            trace.span("cpu_op", "aten::mm", start, 100)
            trace.launch(start + 20, "gemm", start + 40, 900)
    found = by_rule(trace.write(tmp_path / "a.json"))
    assert found["profiler-overhead"].cost_ns == pytest.approx(4000 * US)
    assert found["host-bound"].cost_ns == pytest.approx(540 * US)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*RULES, "cudaStreamSynchronize", "host"]),
            st.sampled_from([200.0, 500.0, 1000.0]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_each_gap_counts_for_its_cause(
    tmp_path_factory: pytest.TempPathFactory, causes: list[tuple[str, float]]
):
    found = by_rule(idling(tmp_path_factory.mktemp("a"), causes))
    # Without a wait of 500, the host would be 500 ahead: longer gaps are its own.
    longer = sum(
        max(0, length - 500) for cause, length in causes if cause == "cudaDeviceSynchronize"
    )
    for rule in {*RULES.values(), "host-bound"}:
        expected = sum(length for cause, length in causes if RULES.get(cause, "host-bound") == rule)
        expected += longer * ((rule == "host-bound") - (rule == "blocking-copies"))
        cost = found[rule].cost_ns if rule in found else 0
        # Before each kernel, 20 us are the host's.
        assert cost == pytest.approx(expected * US, abs=25 * (len(causes) + 1) * US), rule


@pytest.mark.parametrize("ahead", [300, 3000])
def test_a_read_costs_no_more_than_the_host_waits(ahead: int, tmp_path: Path):
    """torch's .item() waits inside the copy for the kernel, and 5 ms of Python follow it.

    ::

        host     item|copy#####|sync  Python                 #: waits for the kernel
        device   kernel########       ______________________
    """
    trace = TorchTrace()
    for number in range(8):
        at = number * STEP
        trace.step(number, at, STEP)
        trace.span("cpu_op", "aten::mm", at + 5, 15)
        trace.launch(at + 10, "gemm", at + 20, ahead, call_us=4)
        trace.span("cpu_op", "aten::item", at + 25, ahead + 5)
        name, end = "Memcpy DtoH (Device -> Pageable)", at + 20 + ahead
        copy = {"category": "gpu_memcpy", "call": "cudaMemcpyAsync"}
        trace.launch(at + 28, name, end, 2, call_us=end + 2 - at - 28, **copy)
        trace.span("cuda_runtime", "cudaStreamSynchronize", end + 3, 4)
        trace.span("cpu_op", "aten::mm", end + 5000, 15)
        trace.launch(end + 5002, "gemm", end + 5010, at + STEP - end - 5010, call_us=4)
    found = by_rule(trace.write(tmp_path / "a.json"))
    # The device idles for 5 ms, and the copy takes 2 us.
    assert found["blocking-copies"].cost_ns == pytest.approx(min(ahead, 5000) * US, abs=30 * US)
    assert found["host-bound"].cost_ns == pytest.approx((5000 - ahead) * US, abs=60 * US)


def test_copies_from_pageable_memory_are_to_be_pinned(tmp_path: Path):
    """3 of 10 ms are a copy that no kernel hides."""
    trace = TorchTrace()
    for number in range(8):
        at = number * STEP
        trace.step(number, at, STEP)
        trace.span("cpu_op", "aten::copy_", at + 30, 3070)
        name = "Memcpy HtoD (Pageable -> Device)"
        trace.launch(
            at + 40,
            name,
            at + 50,
            3000,
            call_us=3020,
            category="gpu_memcpy",
            call="cudaMemcpyAsync",
        )
        trace.span("cuda_runtime", "cudaStreamSynchronize", at + 3062, 20)
        for i in range(6):
            start = at + 3150 + i * 20
            trace.span("cpu_op", "aten::mm", start, 18)
            trace.launch(start + 2, "gemm", at + 3200 + i * 1100, 1100)
        trace.span("cuda_runtime", "cudaDeviceSynchronize", at + 3300, 6600)
    found = by_rule(trace.write(tmp_path / "a.json"))["pageable-copies"]
    assert found.share == pytest.approx(0.3)
    assert (found.facts["num_copies"], found.facts["copies_ns"]) == (1, 3000 * US)


def test_a_long_gap_between_tiny_kernels_is_the_hosts(tmp_path: Path):
    """Python for 5 of 10 ms between the last kernel of a step and the first of the next: both are tiny."""
    trace = TorchTrace()
    for number in range(8):
        at = number * STEP
        trace.step(number, at, STEP)
        for start, length in [(at + 5000, 5), (at + 5010, 4970), (at + 9990, 5)]:
            trace.span("cpu_op", "aten::mm", start - 4, 6)
            trace.launch(start - 3, "gemm", start, length, call_us=2)
    found = by_rule(trace.write(tmp_path / "a.json"))
    assert found["host-bound"].cost_ns == pytest.approx(5000 * US, rel=0.02)
    assert "tiny-kernels" not in found


def test_a_copy_in_the_wait_for_data_is_the_loaders(tmp_path: Path):
    """3 of 10 ms are a copy from pageable memory, in 3.5 of the loader."""
    trace = TorchTrace()
    for number in range(8):
        at = number * STEP
        trace.step(number, at, STEP)
        trace.span("user_annotation", "enumerate(DataLoader)#_Single.__next__", at + 10, 3500)
        name = "Memcpy HtoD (Pageable -> Device)"
        copy = {"category": "gpu_memcpy", "call": "cudaMemcpyAsync"}
        trace.launch(at + 40, name, at + 50, 3000, call_us=3020, **copy)
        trace.span("cpu_op", "aten::mm", at + 3520, 50)
        trace.launch(at + 3530, "gemm", at + 3560, 6400)
    found = by_rule(trace.write(tmp_path / "a.json"))
    assert found["input-bound"].cost_ns == pytest.approx(3500 * US, rel=0.02)
    assert "pageable-copies" not in found
