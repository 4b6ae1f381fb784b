"""Parts are not negative and add up to the whole; no share is above 100%."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ppprof
from ppprof.report.text.advice import render_findings
from ppprof.run.advise import collect_evidence_of_run
from tests.fixtures.torch_traces import TorchTrace

STEP, EVALUATE = 10_000.0, "autograd::engine::evaluate_function: "


def backward_on_two_threads(
    folder: Path, num_steps: int = 5, on_caller: tuple[bool, ...] = (True,) * 4
) -> Path:
    """Four products; then a backward pass whose nodes run on the engine's and the calling thread."""
    trace = TorchTrace()
    for number in range(num_steps):
        at = number * STEP
        trace.step(number, at, STEP)
        for i in range(4):
            trace.span("cpu_op", "aten::mm", at + 50 + i * 1000, 100)
            trace.launch(at + 70 + i * 1000, "forward", at + 90 + i * 1000, 900)
        begin = at + 4200
        trace.span("user_annotation", "backward", begin, 4800)
        trace.span("cpu_op", f"{EVALUATE}torch::autograd::GraphRoot", begin + 20, 10)
        trace.span("cpu_op", "torch::autograd::GraphRoot", begin + 22, 2)
        for i, is_on_caller in enumerate(on_caller):
            start = begin + 100 + i * 1100
            trace.span("cpu_op", f"{EVALUATE}MmBackward0", start, 200, tid=101)
            trace.span("cpu_op", "MmBackward0", start + 2, 190, tid=101)
            ids = {"correlation": 10**6 + len(trace.events)}
            trace.span("cuda_runtime", "cudaLaunchKernel", start + 20, 10, tid=101, **ids)
            trace.span(
                "kernel", "backward", start + 40, 1000, pid=0, tid=7, device=0, stream=7, **ids
            )
            if is_on_caller:
                name = f"{EVALUATE}torch::autograd::AccumulateGrad"
                trace.span("cpu_op", name, start + 150, 20)
        trace.span("user_annotation", "Optimizer.step#SGD.step", at + 9100, 300)
        trace.span("cpu_op", "aten::add_", at + 9110, 50)
        trace.launch(at + 9120, "sgd", at + 9160, 200)
    return trace.write(folder / "a.json")


def rows(path: Path, view: str) -> dict[str, dict[str, float]]:
    return {row["name"]: row for row in ppprof.open(path).summary(view).rows(named=True)}


def test_a_backward_pass_on_two_threads_is_one(tmp_path: Path):
    path = backward_on_two_threads(tmp_path)
    model = rows(path, "model")
    assert model["ProfileStep"]["gpu_total_ns"] == 39_000_000
    assert (model["Backward"]["calls"], model["Backward"]["gpu_total_ns"]) == (5, 20_000_000)
    # From the first node to the end of the last on either thread: 3.58 ms.
    assert model["Backward"]["cpu_total_ns"] == pytest.approx(5 * 3_580_000)
    assert model["Others"]["gpu_total_ns"] == 18_000_000
    assert rows(path, "udf")["backward"]["gpu_total_ns"] == 20_000_000


@given(st.lists(st.booleans(), min_size=1, max_size=4))
def test_phases_and_others_add_up_to_the_steps(
    tmp_path_factory: pytest.TempPathFactory, on_caller: list[bool]
):
    path = backward_on_two_threads(tmp_path_factory.mktemp("a"), 3, tuple(on_caller))
    model = rows(path, "model")
    kernels_ns = 3 * (4 * 900 + len(on_caller) * 1000 + 200) * 1000  # counted from the trace's text
    assert model["ProfileStep"]["gpu_total_ns"] == kernels_ns
    for side in ("cpu", "gpu"):
        parts = [row[f"{side}_total_ns"] for name, row in model.items() if name != "ProfileStep"]
        assert min(parts) >= 0
        assert sum(parts) == model["ProfileStep"][f"{side}_total_ns"]


@given(st.integers(1, 12), st.sampled_from([100.0, 600.0, 998.0]), st.sampled_from([0, 3]))
def test_no_utilization_is_above_the_whole(
    tmp_path_factory: pytest.TempPathFactory, num: int, length: float, before: int
):
    """The host launches a step in 6 ms, the device needs ``num`` ms for it; some work came before."""
    trace = TorchTrace()
    for i in range(before):
        trace.span("cpu_op", "aten::mm", -5000 + i * 20, 15)
        trace.launch(-4999 + i * 20, "gemm", -4000 + i * 1000, 990, call_us=5)
    for number in range(5):
        at = number * 6000.0
        trace.step(number, at, 6000)
        for i in range(num):
            start = at + 50 + i * 100
            trace.span("cpu_op", "aten::mm", start, 50)
            trace.launch(start + 10, "gemm", 100 + (number * num + i) * 1000.0, length)
    path = trace.write(tmp_path_factory.mktemp("a") / "a.json")
    run = ppprof.open(path)
    (share,) = run.summary("device").filter(device="GPU0")["utilization"]
    assert 0 < share <= 1
    kernels = run.summary("overview").filter(side="gpu", event_type="Kernel")
    assert (kernels["ratio"] <= 1 + 1e-9).all()
    if not before and num > 6:  # the device is the slower one
        assert share == pytest.approx(length / 1000, abs=0.02)


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 3))
def test_ratios_count_what_lies_beside_the_steps(
    tmp_path_factory: pytest.TempPathFactory, before: int, after: int, num_steps: int
):
    """As in torch's traces of whole functions: spans of 1 ms, 0.8 ms of each on the device."""
    trace = TorchTrace()
    num = before + num_steps + after
    for i in range(num):
        at = i * 1000.0
        if before <= i < before + num_steps:
            trace.step(i - before, at, 1000)
        trace.span("user_annotation", "work", at + 10, 900)
        trace.span("cpu_op", "aten::mm", at + 20, 500)
        trace.launch(at + 30, "gemm", at + 100, 800)
    run = ppprof.open(trace.write(tmp_path_factory.mktemp("a") / "a.json"))
    whole_ms = num_steps + 0.9 * (num - num_steps)
    overview = {
        (row["side"], row["event_type"]): row for row in run.summary("overview").rows(named=True)
    }
    assert overview["cpu", "ProfileStep"]["ratio"] == pytest.approx(num_steps / whole_ms)
    assert overview["cpu", "Operator"]["ratio"] == pytest.approx(0.5 * num / whole_ms)
    assert overview["gpu", "Kernel"]["time_ns"] == num * 800_000
    assert overview["gpu", "Kernel"]["ratio"] <= 1
    (work,) = run.summary("udf").rows(named=True)
    assert work["calls"] == num
    assert work["cpu_ratio"] == pytest.approx(0.9 * num / whole_ms)
    assert work["gpu_ratio"] == pytest.approx(1)


@pytest.mark.parametrize("num_steps", [0, 1])
def test_kernels_launched_outside_of_host_events_are_in_all_tables(tmp_path: Path, num_steps: int):
    """As of a graph that is replayed::

    host     graph            step with an operator
    compute    ##########       ##
    comm            ##########
    """
    trace = TorchTrace()
    gemm = trace.launch(0, "gemm", 10, 100, call="cudaGraphLaunch")
    trace.launch(0, "ncclDevKernel_AllReduce", 60, 100, stream=20, call="cudaGraphLaunch")
    trace.events[-2:] = trace.events[-1:]
    trace.events[-1]["args"]["correlation"] = gemm["args"]["correlation"]
    for number in range(num_steps):
        trace.step(number, 300, 200)
    trace.op("aten::mm", 300, 50)
    trace.launch(310, "gemm", 330, 20)
    run = ppprof.open(trace.write(tmp_path / "a.json"))
    times = {
        row["event_type"]: (row["calls"], row["time_ns"], row["ratio"])
        for row in run.summary("overview").rows(named=True)
        if row["side"] == "gpu"
    }
    share = pytest.approx(170 / 350) if num_steps else None
    communication = pytest.approx(100 / 350) if num_steps else None
    assert times == {
        "Kernel": (3, 170_000, share),
        "Communication": (1, 100_000, communication),
    }
    dist = dict(run.summary("dist").select("name", "time_ns").iter_rows())
    assert dist["Computation"] == 120_000
    assert dist["Overlap"] == dist["Exposed Communication"] == 50_000


def test_a_cost_names_the_step_that_it_is_a_part_of(tmp_path: Path):
    """The steps of four ranks take 10, 12, 14 and 20 ms, and no rank waits for another."""
    folder = tmp_path / "d"
    folder.mkdir()
    for rank, length in enumerate((10_000.0, 12_000.0, 14_000.0, 20_000.0)):
        trace = TorchTrace(device=rank, world_size=4)
        for number in range(6):
            at = number * length
            trace.step(number, at, length)
            for i in range(8):
                start = at + 50 + i * (length - 200) / 8
                trace.span("cpu_op", "aten::mm", start, 100)
                trace.launch(start + 20, "gemm", start + 40, 900)
        trace.write(folder / f"rank{rank}.pt.trace.json")
    text = render_findings(ppprof.advise(ppprof.open(folder)))
    assert "of a step of 14 ms, recorded (" in text


@given(st.integers(0, 900), st.integers(0, 900), st.integers(100, 900))
def test_dist_and_ranks_expose_as_much(
    tmp_path_factory: pytest.TempPathFactory, begin: int, computes: int, length: int
):
    """A product, and an all-reduce of its own stream that it hides in part."""
    trace = TorchTrace()
    for number in range(4):
        at = number * STEP
        trace.step(number, at, STEP)
        trace.span("cpu_op", "aten::mm", at + 10, 30)
        trace.launch(at + 15, "gemm", at + 1000, computes + 1)
        trace.span("cpu_op", "c10d::allreduce_", at + 50, 40)
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        trace.launch(at + 60, name, at + 1000 + begin, length, stream=20)
    run = ppprof.open(trace.write(tmp_path_factory.mktemp("a") / "a.json"))
    exposed = run.summary("dist").filter(name="Exposed Communication")["time_ns"][0]
    hidden_us = max(0, min(computes + 1, begin + length) - begin)
    assert exposed == 4 * (length - hidden_us) * 1000
    steps = collect_evidence_of_run(run).all_steps
    assert exposed == sum(
        steps[name].sum() for name in steps.columns if name.startswith("exposed_")
    )
