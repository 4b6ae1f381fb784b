"""A cost, its share and the step are of the same steps, by the same estimator."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.findings import US, by_rule, op, thread
from tests.fixtures.run_directories import run, step_lines
from tests.fixtures.torch_traces import TorchTrace

LENGTH, KERNEL, NUM = 10_000.0, 1150.0, 8


def paused(folder: Path, pauses: list[float]) -> Path:
    """Steps with 8 kernels, each with a pause of the host in the middle."""
    trace, at = TorchTrace(), 0.0
    for number, pause in enumerate(pauses):
        trace.step(number, at, LENGTH + pause)
        for i in range(NUM):
            start = at + 20 + i * 1200 + (pause if i >= NUM // 2 else 0)
            trace.span("cpu_op", "aten::mm", start, 100)
            trace.launch(start + 20, "gemm", start + 40, KERNEL)
        at += LENGTH + pause
    return trace.write(folder / "a.json")


def test_a_pause_of_one_step_is_a_finding_of_its_own(tmp_path: Path):
    """The device works for 9.2 of 10 ms; step 5 pauses for 200 ms."""
    found = by_rule(paused(tmp_path, [0.0] * 5 + [200_000.0] + [0.0] * 4))
    assert set(found) == {"host-bound", "slow-steps"}
    assert found["host-bound"].share == pytest.approx(0.072, abs=0.001)
    slow = found["slow-steps"]
    assert (slow.facts["slow_steps"], slow.facts["num_steps"]) == ("5", 10)
    assert slow.facts["gap_ns"] == pytest.approx(200e6, rel=0.01)
    assert slow.facts["gap"] == "step, after aten::mm, before aten::mm"
    assert slow.facts["step_ns"] == pytest.approx(30e6)


@given(
    st.lists(st.sampled_from([0.0, 50.0, 400.0, 3000.0, 8000.0, 60_000.0]), min_size=4, max_size=12)
)
def test_idle_time_is_that_of_the_steps_it_is_compared_with(
    tmp_path_factory: pytest.TempPathFactory, pauses: list[float]
):
    """Each step idles for its length less 8 kernels; the steps within 1.5 times the median count."""
    found = by_rule(paused(tmp_path_factory.mktemp("a"), pauses))
    lengths = [LENGTH + pause for pause in pauses]
    typical = [length for length in lengths if length <= 1.5 * median(lengths)]
    step_ns = sum(typical) / len(typical) * US
    host_bound = found["host-bound"]
    assert host_bound.facts["step_ns"] == pytest.approx(step_ns, rel=1e-3)
    # A launch of 10 us is on the way to the device before each kernel.
    assert host_bound.cost_ns == pytest.approx(
        step_ns - NUM * (KERNEL + 10) * US, rel=0.05, abs=1e5
    )
    slow = found.get("slow-steps")
    if slow is not None:
        first, *others = lengths
        if first > max(others) and first >= 1.5 * median(others):
            lengths = others  # a warm-up
        assert slow.facts["step_ns"] == pytest.approx(sum(lengths) / len(lengths) * US)
    assert all((finding.share or 0) <= 1 for finding in found.values())


def test_an_evaluation_every_few_steps_is_found_in_the_steps_of_the_whole_run(tmp_path: Path):
    """Every fifth of 40 steps takes 300 ms, the others 18; the window holds one of them."""
    (lines,) = ([{**line, "step": line["step"] + 10} for line in step_lines(18_000 * US, noise=0)],)
    lines = [
        {**line, "batch_cost_ns": 300_000 * US} if line["step"] % 5 == 0 else line for line in lines
    ]
    made = thread(lambda at: (op(at, 0, 17_990),), lengths=[18_000] * 6)
    path = run(tmp_path / "log", [made], step_lines=[lines])
    slow = by_rule(path)["slow-steps"]
    assert (slow.severity, slow.confidence, slow.facts["every"]) == ("major", "sure", 5)
    assert slow.facts["basis"] == "outside the window"
    mean = (8 * 300 + 32 * 18) / 40
    assert slow.facts["step_ns"] == pytest.approx(mean * 1e6)
    assert slow.share == pytest.approx((mean - 18) / mean)


@pytest.mark.parametrize(("waits_in", "is_named"), [(7, True), (8, False), (9, False)])
def test_the_place_of_slow_steps_is_that_of_the_recorded_ones(
    waits_in: int, is_named: bool, tmp_path: Path
):
    """A slow recorded step, 8, pauses for 2 ms; steps that were not recorded are slower by 19 ms.

    A wait for a processor in this step, or at its end, explains the pause.
    """
    lines = step_lines(1000 * US, noise=0)
    lines[waits_in]["processor_wait_ns"] = 1500 * US
    for step in (20, 23, 31):
        lines[step]["batch_cost_ns"] = 20_000 * US
    lines += [{**lines[0], "step": step, "window": 0} for step in range(40, 49)]
    made = thread(lambda at: (op(at, 0, 990),), lengths=[*[1000] * 8, 3000])
    slow = by_rule(run(tmp_path / "log", [made], step_lines=[lines]))["slow-steps"]
    assert slow.facts["gap"] == ("step, after matmul dygraph" if is_named else None)
    assert slow.facts["gap_ns"] == (pytest.approx(2010 * US) if is_named else None)


@pytest.mark.parametrize(("waited", "is_slow"), [(0.4, True), (0.6, False)])
def test_steps_that_wait_for_a_processor_are_no_slow_steps(
    tmp_path: Path, waited: float, is_slow: bool
):
    """Three steps take 200 ms more: other processes have the processors for a share of that."""
    lines = step_lines(18_000 * US, noise=0)
    for step in (20, 23, 31):
        more = {"batch_cost_ns": 218_000 * US, "processor_wait_ns": int(waited * 200_000) * US}
        lines[step] |= more
    lines = [{"processor_wait_ns": 0, **line} for line in lines]
    made = thread(lambda at: (op(at, 0, 17_990),), lengths=[18_000] * 6)
    found = by_rule(run(tmp_path / "log", [made], step_lines=[lines]))
    assert ("slow-steps" in found) == is_slow


def test_workers_that_deliver_together_are_data_loading(tmp_path: Path):
    """Every fourth step waits 3000 us for data: that is usual, and no slow step."""
    waits = [3000 if step % 4 == 0 else 0 for step in range(16)]
    lengths = [1000 + wait for wait in waits]
    starts = {sum(lengths[:step]) * US: waits[step] for step in range(16)}

    def make(at: int):
        wait = starts[at]
        if wait:
            yield op(at, 0, wait, "DataLoader", category="Dataloader")
        yield op(at, wait, wait + 990)

    found = by_rule(run(tmp_path / "log", [thread(make, lengths=lengths)]))
    assert "slow-steps" not in found
    assert found["input-bound"].share == pytest.approx(750 / 1750)
