"""The bodies of the self-test, on a GPU and on the test device, whose switches are the truth."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.all]

from ppprof.analysis.profile.runtime_calls import name_of_call  # noqa: E402
from ppprof.selftest.bodies import (  # noqa: E402
    BODIES,
    REFUSED,
    kernels_of,
    last_arrivals,
    num_steps,
    outside_ns,
)
from ppprof.selftest.trained import Trained  # noqa: E402
from tests import device  # noqa: E402
from tests.jobs.devices import COVERING, EACH, Machine  # noqa: E402
from tests.oracles import paddle_tables  # noqa: E402
from tests.oracles.equal_tables import assert_equal  # noqa: E402

devices = pytest.mark.parametrize("machine", EACH, indirect=True)
covering = pytest.mark.parametrize("machine", COVERING, indirect=True)


def assert_paddles_tables(trained: Trained) -> pl.Series:
    """Check that Paddle prints our tables; return the names of the kernels."""
    (recording,) = trained.run.recordings
    theirs = paddle_tables.adopt(Path(recording.files[0]))
    for settings in ({"sorted_by": "gpu_total"}, {"sorted_by": "cpu_total", "time_unit": "ns"}):
        assert_equal(trained.run.trace(), theirs.text(**settings), settings)
    return kernels_of(trained.run)["name"]


@covering
def test_kernels_have_launches_and_tables_equal_paddles(machine: Machine) -> None:
    trained = machine.check("kernels")
    names = assert_paddles_tables(trained)
    if machine.is_simulated:
        layers = 2
        assert (names == "ampere_sgemm_128x64_nn").sum() == layers * num_steps(trained.run)


@devices
@pytest.mark.parametrize("body", ["to_static", "mixed precision", "flash attention"])
def test_other_programs_are_recorded(machine: Machine, body: str) -> None:
    assert_paddles_tables(machine.check(body))


@devices
def test_a_capture_is_not_broken_and_a_step_that_ends_in_it_has_no_device_time(
    machine: Machine,
) -> None:
    machine.check("captures")


@devices
def test_the_kernels_of_a_graph_share_its_launch(machine: Machine) -> None:
    assert_paddles_tables(machine.check("CUDA graph", KERNEL_MS=5))


@devices
def test_a_step_of_an_asynchronous_loop_lasts_as_long_as_the_device_works(
    machine: Machine,
) -> None:
    trained = machine.check("asynchronous", KERNEL_MS=20)
    if machine.is_simulated:
        assert trained.measured["step"] > 5 * 0.02
    record_overhead(
        machine,
        outside=outside_ns(trained),
        inside=trained.run.cluster().steps["step_ns"].median(),
        true=trained.measured["step"] * 1e9,
    )


def record_overhead(machine: Machine, **step_ns: object) -> None:
    """Keep the lengths of steps inside and outside of windows; benchmarks/ judges overhead."""
    target = os.environ.get("PPPROF_KEEP_CAPTURES")
    if target:
        Path(target).mkdir(parents=True, exist_ok=True)
        Path(target, f"{machine.name}-overhead.json").write_text(json.dumps(step_ns))


@devices
def test_peak_memory_is_the_devices(machine: Machine) -> None:
    machine.check("memory")


@devices
def test_windows_fit_into_max_trace_mb(machine: Machine) -> None:
    machine.check("disk budget")


@devices
def test_a_copy_that_waits_for_the_device_is_no_work_of_the_host(machine: Machine) -> None:
    calls = machine.check("copies", WAITS=1, KERNEL_MS=30).run.events()
    calls = calls.filter(category="CudaRuntime").with_columns(pl.col("name").cast(pl.String))
    waits = calls.filter(pl.col("name").map_elements(name_of_call, pl.String) == "cudaMemcpyAsync")
    if machine.is_simulated:
        assert waits["dur_ns"].min() > 2 * 25e6  # type: ignore[operator]


@devices
def test_every_communication_kernel_has_an_axis_and_spans_have_peers_and_bytes(
    machine: Machine,
) -> None:
    machine.check("communication")


COMM_MS, COMPUTE_MS = 200, 50


@devices
def test_communication_beside_computation_is_hidden_as_long_as_both_run(
    machine: Machine,
) -> None:
    """An all-reduce of 200 ms beside two matmuls of 50 ms each hides 100 ms."""
    run = machine.check("overlap", COMM_MS=COMM_MS, KERNEL_MS=COMPUTE_MS).run
    if machine.is_simulated:
        for column, planted_ms in {
            "computation_ns": 2 * COMPUTE_MS,
            "communication_dp_ns": COMM_MS,
            "hidden_dp_ns": 2 * COMPUTE_MS,
        }.items():
            planted_ns = pytest.approx(planted_ms * 1e6, rel=0.1)
            assert last_arrivals(run)[column].median() == planted_ns, column


@devices
def test_sigterm_under_a_stuck_collective_ends_every_rank(machine: Machine) -> None:
    machine.check("stuck rank")


@pytest.mark.parametrize("machine", [device.NAME], indirect=True)
def test_sigterm_under_a_stuck_device_ends_every_rank(machine: Machine) -> None:
    machine.check(replace(BODIES["stuck rank"], training="stuck"), STUCK_COMM=5)


@devices
def test_a_profiler_that_refuses_costs_the_device_events_only(machine: Machine) -> None:
    drop: list[str] = []
    if not machine.is_simulated:
        params = Path("/proc/driver/nvidia/params")
        if "RmProfilingAdminOnly: 1" not in (params.read_text() if params.exists() else ""):
            pytest.skip("needs a driver that lets only administrators profile")
        if shutil.which("setpriv") is None:
            pytest.skip("needs setpriv, to start a program that is no administrator")
        drop = ["setpriv", "--bounding-set=-sys_admin,-perfmon", "--inh-caps=-sys_admin,-perfmon"]
    trained = machine.check(REFUSED, drop, REFUSES=1)
    assert "the NVIDIA driver lets only administrators profile" in trained.output
