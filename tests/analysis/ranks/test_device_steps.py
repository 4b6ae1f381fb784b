"""The step of a device that works behind its host, against the period that its kernels have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ppprof
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.ranks.device_steps import host_steps, steps_of_rank
from ppprof.trace import read
from tests.fixtures.random_traces import traces
from tests.fixtures.timeline import Thread, kernel, launch, span, write

US = 1000
LAUNCH_US, PERIOD_US = 10, 190


def asynchronous(num_steps: int, waits: bool = False) -> Thread:
    """The host launches a kernel of 190 us in 10 us, step after step; with ``waits`` it then waits."""
    steps, host, device = [], 0, 0
    for number in range(num_steps):
        start = max(host + 2, device)
        device = start + PERIOD_US
        inside = [
            span("Operator", "matmul dygraph", host + 1, host + 5).around(
                launch(host + 2, host + 3, kernel("gemm", start, device))
            )
        ]
        end = host + LAUNCH_US
        if waits:
            inside.append(
                span("Operator", "numpy", host + 6, device + 2).around(
                    launch(host + 6, device + 1, name="cudaStreamSynchronize")
                )
            )
            end = device + 4
        name = f"ProfileStep#{number}"
        steps.append(span("ProfileStep", name, host, end, *inside))
        host = end
    thread = Thread(1, "main", tuple(steps))
    return _scaled(thread)


def _scaled(thread: Thread) -> Thread:
    """Microseconds as nanoseconds."""

    def scaled(item):
        inside = tuple(map(scaled, getattr(item, "inside", ())))
        times = {"start": item.start * US, "end": item.end * US}
        return replace(item, **times, **({"inside": inside} if hasattr(item, "inside") else {}))

    return Thread(thread.id, thread.name, tuple(map(scaled, thread.inside)))


def test_a_host_that_runs_ahead_has_steps_as_long_as_the_devices(tmp_path: Path) -> None:
    run = ppprof.open(write(tmp_path / "a.pb", asynchronous(10)))
    steps = run.breakdown()
    assert steps["step_ns"].to_list()[1:] == [PERIOD_US * US] * 9
    assert steps["computation_ns"].to_list() == [PERIOD_US * US] * 10
    assert steps["host_bound_ns"].sum() <= 2 * US  # before the first launch
    hosts = host_steps(Profile(run.trace()))
    assert (hosts["end_ns"] - hosts["start_ns"]).to_list() == [LAUNCH_US * US] * 10


def test_steps_that_overlap_by_rounding_are_as_long_as_the_devices(tmp_path: Path) -> None:
    """As in files of whole microseconds: each step ends 1 us after the next one begins."""
    main = asynchronous(10)
    steps = tuple(replace(step, end=step.end + US) for step in main.inside)
    run = ppprof.open(write(tmp_path / "a.pb", replace(main, inside=steps)))
    assert run.breakdown()["step_ns"].to_list()[1:] == [PERIOD_US * US] * 9


def test_a_host_that_waits_has_its_own_steps(tmp_path: Path) -> None:
    profile = Profile(read(write(tmp_path / "a.pb", asynchronous(10, waits=True))))
    steps = steps_of_rank(profile)
    assert steps.drop("outlived_ns").equals(host_steps(profile).sort("start_ns"))
    assert steps["outlived_ns"].sum() == 0


def test_work_from_before_the_window_belongs_to_no_step(tmp_path: Path) -> None:
    """A kernel launched before the recording began runs until 500: the first step begins then."""
    main = Thread(1, "main").around(
        span("Operator", "earlier", -100, -50).around(
            launch(-90, -80, kernel("earlier", -70, 500))
        ),
        span("ProfileStep", "ProfileStep#0", 0, 50).around(
            launch(10, 20, kernel("gemm", 500, 800))
        ),
        span("ProfileStep", "ProfileStep#1", 50, 100).around(
            launch(60, 70, kernel("gemm", 800, 1100))
        ),
    )
    steps = steps_of_rank(Profile(read(write(tmp_path / "a.pb", main))))
    assert (steps["end_ns"] - steps["start_ns"]).to_list() == [300, 300]
    assert steps["outlived_ns"].to_list() == [750, 1000]


def test_a_step_without_device_work_is_the_hosts(tmp_path: Path) -> None:
    main = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#0", 0, 50).around(launch(10, 20, kernel("gemm", 30, 80))),
        span("ProfileStep", "ProfileStep#1", 50, 200),
        span("ProfileStep", "ProfileStep#2", 200, 250),
    )
    steps = steps_of_rank(Profile(read(write(tmp_path / "a.pb", main))))
    assert (steps["end_ns"] - steps["start_ns"]).to_list() == [80, 120, 50]


@given(threads=traces(newer_types=True), data=st.data())
def test_steps_follow_each_other_and_end_no_earlier_than_the_hosts(
    threads: tuple[Thread, ...], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    profile = Profile(read(write(tmp_path_factory.mktemp("random") / "a.pb", *threads)))
    steps, hosts = steps_of_rank(profile), host_steps(profile).sort("start_ns", maintain_order=True)
    assert steps["step"].equals(hosts["step"])
    assert (steps["end_ns"] >= steps["start_ns"]).all()
    if steps["end_ns"].equals(hosts["end_ns"]):
        return
    assert (steps["end_ns"] >= hosts["end_ns"]).all()
    assert steps["start_ns"].slice(1).equals(steps["end_ns"].head(steps.height - 1))
    launched = profile.trace.events.filter(pl.col("device").is_not_null()).drop_nulls("step")
    last = (launched["start_ns"] + launched["dur_ns"]).max()
    assert steps["end_ns"][-1] >= last


def test_the_first_step_is_idle_for_as_long_as_the_others_at_its_begin(tmp_path: Path) -> None:
    """The profiler has waited for the device: the first kernel comes 25 after the step, the later ones 2 after the last.

    ::

        host    |1 |2 |3 |
        device      ....111111..222222..333333
    """
    main = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#0", 0, 40).around(launch(10, 20, kernel("gemm", 25, 85))),
        span("ProfileStep", "ProfileStep#1", 40, 60).around(
            launch(45, 50, kernel("gemm", 87, 147))
        ),
        span("ProfileStep", "ProfileStep#2", 60, 80).around(
            launch(65, 70, kernel("gemm", 149, 209))
        ),
    )
    steps = steps_of_rank(Profile(read(write(tmp_path / "a.pb", main))))
    assert (steps["end_ns"] - steps["start_ns"]).to_list() == [62, 62, 62]
