"""What a GPU does and what the test device does alike: one body for both, and the switches as truth."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.all]

import ppprof  # noqa: E402
from ppprof.analysis.profile.profile import Profile  # noqa: E402
from ppprof.analysis.profile.runtime_calls import name_of_call  # noqa: E402
from ppprof.analysis.ranks.rank_communication import communication_events  # noqa: E402
from ppprof.rundir.step_times import read_step_times  # noqa: E402
from tests.jobs.devices import COVERING, EACH, ON_GPU, PROGRAM, Machine  # noqa: E402
from tests.jobs.launching import command, environment, wait_for  # noqa: E402
from tests.oracles import paddle_tables  # noqa: E402
from tests.oracles.equal_tables import assert_equal  # noqa: E402

devices = pytest.mark.parametrize("machine", EACH, indirect=True)
covering = pytest.mark.parametrize("machine", COVERING, indirect=True)
only_gpu = pytest.mark.parametrize("machine", [ON_GPU], indirect=True)


def kernels_of(run: ppprof.Run) -> pl.DataFrame:
    """Return the kernels with their launches: columns launch, launch_ns and launch_id."""
    events = run.events().with_columns(
        name=pl.col("name").cast(pl.String),
        row=pl.int_range(pl.len()).over("rank", "window"),
        end_ns=pl.col("start_ns") + pl.col("dur_ns"),
    )
    launches = events.filter(category="CudaRuntime").select(
        *("rank", "window"),
        parent="row",
        launch="name",
        launch_ns="start_ns",
        launch_id="correlation_id",
        thread_of_launch="thread",
    )
    return events.filter(category="Kernel").join(
        launches, on=["rank", "window", "parent"], how="left"
    )


def check_kernels(run: ppprof.Run) -> pl.DataFrame:
    """Check that each kernel starts after its launch, and that Paddle prints our tables."""
    kernels = kernels_of(run)
    assert not kernels.is_empty()
    assert kernels["launch"].null_count() == 0
    assert kernels["correlation_id"].to_list() == kernels["launch_id"].to_list()
    assert (kernels["start_ns"] - kernels["launch_ns"]).min() >= 0  # type: ignore[operator]
    (recording,) = run.recordings
    theirs = paddle_tables.adopt(Path(recording.files[0]))
    for settings in ({"sorted_by": "gpu_total"}, {"sorted_by": "cpu_total", "time_unit": "ns"}):
        assert_equal(run.trace(), theirs.text(**settings), settings)
    return kernels


@covering
def test_kernels_have_launches_and_tables_equal_paddles(machine: Machine) -> None:
    run, _, _ = machine.train("kernels")
    names = check_kernels(run)["name"]
    assert names.str.contains("(?i)adamw").sum() == 4 * 3  # parameters x steps
    if machine.is_simulated:
        assert (names == "ampere_sgemm_128x64_nn").sum() == 2 * 3  # layers x steps


@devices
def test_a_compiled_program_is_recorded(machine: Machine) -> None:
    run, _, _ = machine.train("static")
    names = check_kernels(run)["name"]
    if machine.is_simulated:
        assert (names == "ampere_sgemm_128x64_nn").sum() == 2 * 3
    operators = run.summary("op").filter(pl.col("name").str.contains("matmul"))
    assert operators["calls"].max() == 2 * 3


@only_gpu  # auto_cast has no effect on the test device
def test_mixed_precision_is_recorded(machine: Machine) -> None:
    run, _, _ = machine.train("mixed_precision")
    assert check_kernels(run).filter(pl.col("name").str.contains("(?i)bf16|bfloat16")).height >= 3


@devices
def test_flash_attention_is_recorded(machine: Machine) -> None:
    run, _, _ = machine.train("flash_attention")
    names = check_kernels(run)["name"]
    assert (
        names.str.contains("(?i)flash.*fwd").sum()
        == names.str.contains("(?i)flash.*bwd_dq_dk_dv").sum()
        == 3
    )


@devices
def test_a_capture_is_not_broken_and_a_step_that_ends_in_it_has_no_device_time(
    machine: Machine,
) -> None:
    """Steps 4 to 7 end in captures; window 0 ends ahead of them, window 1 would begin in one."""
    settings = "scheduler={closed: 1, ready: 0, record: 2, repeat: 2}"
    run, _, printed = machine.train("captures", settings)
    assert "step 7" in printed
    assert run.windows() == [0]
    assert "Paddle's profiler would break the capture" in printed
    steps = run.step_times.sort("step")
    assert steps["device_timed"].to_list() == [True] * 4 + [False] * 4
    assert steps["excluded"].to_list()[4:] == [True] * 4


@devices
def test_the_kernels_of_a_graph_share_its_launch(machine: Machine) -> None:
    run, _, _ = machine.train("graph", KERNEL_MS=5)
    kernels = check_kernels(run)
    assert all("GraphLaunch" in name_of_call(name) for name in kernels["launch"])
    replays = kernels.group_by("step", "correlation_id").agg(pl.len(), pl.col("dur_ns").sum())
    assert replays["step"].sort().to_list() == [2, 3, 4]
    assert replays["correlation_id"].n_unique() == 3
    assert replays["len"].n_unique() == 1
    assert replays["len"][0] >= 3
    # No time counts twice.
    table = run.summary("kernel")
    assert table["calls"].sum() == kernels.height
    steps = run.cluster().steps
    assert steps["computation_ns"].sum() == pytest.approx(kernels["dur_ns"].sum(), rel=0.01)
    assert (steps["computation_ns"] <= steps["step_ns"]).all()


@devices
def test_a_step_of_an_asynchronous_loop_lasts_as_long_as_the_device_works(
    machine: Machine,
) -> None:
    run, measured, _ = machine.train("asynchronous", KERNEL_MS=20)
    if machine.is_simulated:
        assert measured["step"] > 5 * 0.02
    in_trace = run.cluster().steps["step_ns"].median()
    times = read_step_times(machine.folder / "log").filter(~pl.col("excluded"))
    outside = times.filter(pl.col("window").is_null())["batch_cost_ns"].median()
    record_overhead(machine, outside=outside, inside=in_trace, true=measured["step"] * 1e9)
    expected = pytest.approx(measured["step"] * 1e9, rel=0.2)
    assert (in_trace, outside) == (expected, expected)


def record_overhead(machine: Machine, **step_ns: object) -> None:
    """Keep the lengths of steps inside and outside of windows; benchmarks/ judges overhead."""
    target = os.environ.get("PPPROF_KEEP_CAPTURES")
    if target:
        Path(target).mkdir(parents=True, exist_ok=True)
        Path(target, f"{machine.name}-overhead.json").write_text(json.dumps(step_ns))


@devices
def test_peak_memory_is_the_devices(machine: Machine) -> None:
    _, measured, _ = machine.train("memory")
    peaks = measured["peaks"]
    assert [peaks[step + 1] - peaks[step] for step in range(3)] == [1 << 22] * 3
    logged = read_step_times(machine.folder / "log")["device_peak_bytes"].to_list()
    assert logged == peaks


@devices
def test_windows_fit_into_max_trace_mb(machine: Machine) -> None:
    schedule = "scheduler={closed: 0, ready: 1, record: 4, repeat: 10}"
    limit = 0.1
    run, _, printed = machine.train("long", schedule, f"max_trace_mb={limit}")
    windows = {recording.window for recording in run.recordings}
    assert 0 in windows
    assert len(windows) < 10
    assert f"rank 0: window {max(windows) + 1} is not recorded on this rank" in printed
    assert f"Profiler.max_trace_mb {limit}" in printed
    assert sum(recording.files[0].stat().st_size for recording in run.recordings) <= limit * 1e6


@devices
def test_a_copy_that_waits_for_the_device_is_no_work_of_the_host(machine: Machine) -> None:
    """From memory that is not pinned, a copy returns when the stream has reached it."""
    run, _, _ = machine.train("copies", WAITS=1, KERNEL_MS=30)
    calls = run.events().filter(category="CudaRuntime")
    waits = calls.filter(pl.col("name").cast(str) == "cudaMemcpyAsync")["dur_ns"]
    assert len(waits) == 3
    if machine.is_simulated:
        assert waits.min() > 2 * 25e6  # type: ignore[operator]
    steps = run.cluster().steps
    assert (steps["host_launch_ns"] < 0.5 * steps["computation_ns"]).all()
    assert (steps["host_bound_ns"] < 0.5 * steps["computation_ns"]).all()


@devices
def test_every_communication_kernel_has_an_axis_and_spans_have_peers_and_bytes(
    machine: Machine,
) -> None:
    run, _, _ = machine.train("communicate", processes=2)
    kernels = kernels_of(run).filter(pl.col("name").str.contains("(?i)nccl"))
    spans = run.events().filter(category="Communication")
    spans = spans.filter(~pl.col("name").cast(str).str.contains(".", literal=True))
    own = spans.select(
        *("rank", "name", "axis", "peers", "bytes", "dtype"),
        thread_of_launch="thread",
        start="start_ns",
        end=pl.col("start_ns") + pl.col("dur_ns"),
    )
    inside = kernels.join(own, on=["rank", "thread_of_launch"], suffix="_span").filter(
        pl.col("launch_ns").is_between(pl.col("start"), pl.col("end"))
    )
    per_step = inside.group_by("rank", "name_span").agg(pl.len() / 3)
    found = {(rank, str(name)): count for rank, name, count in per_step.iter_rows()}
    for rank, alone in ((0, "send"), (1, "recv")):
        names = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", alone)
        assert [found[rank, name] for name in names] == [1] * 5
        assert found[rank, "batch_isend_irecv"] >= 1
    rows = {
        (rank, str(name)): values
        for rank, name, *values in spans.select(
            *("rank", "name", "axis", "peers", "bytes", "dtype")
        ).iter_rows()
    }
    size = 1 << 16
    for rank, name in rows:
        peers, num_bytes = "0,1", size
        if name in ("send", "recv"):
            peers = str(1 - rank)
        if name == "batch_isend_irecv":
            peers, num_bytes = f">{1 - rank}:{size},<{1 - rank}:{size}", 2 * size
        assert rows[rank, name] == ["dp", peers, num_bytes, "float32"]
    # C++ launches those of the reducer, outside of spans: the group's stream says their axis.
    assert kernels.height > inside.height
    for recording in run.recordings:
        trace = run.trace(recording.rank)
        communication = communication_events(Profile(trace))
        of_rank = kernels.filter(rank=recording.rank)
        assert communication.height == of_rank.height
        assert communication["axis"].unique().to_list() == ["dp"]
    exposed = run.cluster().steps["exposed_dp_ns"]
    assert (exposed > 0).all()


COMM_MS, COMPUTE_MS = 200, 50


@devices
def test_communication_beside_computation_is_hidden_as_long_as_both_run(
    machine: Machine,
) -> None:
    """An all-reduce of 200 ms beside two matmuls of 50 ms each::

    compute  ##########_
    dp       ####################
    hidden   ##########             100 ms
    """
    run, measured, _ = machine.train("overlap", processes=2, COMM_MS=COMM_MS, KERNEL_MS=COMPUTE_MS)
    steps = run.cluster().steps.select(
        *("rank", "step", "computation_ns", "communication_dp_ns", "hidden_dp_ns")
    )
    # The rank that comes last does not wait for the other one.
    last = steps.group_by("step").agg(pl.all().sort_by("communication_dp_ns").first()).drop("step")
    both_ns = last["computation_ns"] + last["communication_dp_ns"] - last["hidden_dp_ns"]
    assert both_ns.median() == pytest.approx(measured["both"] * 1e9, rel=0.15)
    saved = measured["compute"] + measured["communicate"] - measured["both"]
    assert last["hidden_dp_ns"].median() >= 0.85 * saved * 1e9  # type: ignore[operator]
    if machine.is_simulated:
        for column, planted_ms in {
            "computation_ns": 2 * COMPUTE_MS,
            "communication_dp_ns": COMM_MS,
            "hidden_dp_ns": 2 * COMPUTE_MS,
        }.items():
            assert last[column].median() == pytest.approx(planted_ms * 1e6, rel=0.1), column


@contextmanager
def ranks(
    machine: Machine, training: str, **switches: object
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start two ranks without a launcher, whose SIGKILL would hide how they end."""
    variables = machine.environment(2, **switches)
    ports = [free_port(), free_port()]
    endpoints = [f"127.0.0.1:{port}" for port in ports]
    jobs = []
    for rank in range(2):
        own = {
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_TRAINERS_NUM": "2",
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
            f"FLAGS_selected_{machine.name}s": str(rank),
        }
        if machine.is_simulated:
            own |= {"PADDLE_XCCL_BACKEND": machine.name, "PADDLE_DISTRI_BACKEND": "xccl"}
        with (machine.folder / f"output.{rank}").open("wb") as file:
            jobs.append(
                subprocess.Popen(
                    command(PROGRAM, training, machine.name, "scheduler=[2, 90]"),
                    cwd=machine.folder,
                    env=environment(machine.folder, **variables, **own),
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        yield jobs
    finally:
        for job in jobs:
            job.kill()
            job.wait()


def free_port() -> int:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@devices
@pytest.mark.parametrize("switch", [{}, {"STUCK_COMM": 5}], ids=["left alone", "stuck"])
def test_sigterm_under_a_stuck_collective_ends_every_rank(
    machine: Machine, switch: dict[str, int]
) -> None:
    """With exit code 143, within the 20 s of the rescue, and with the step times on disk."""
    if switch and not machine.is_simulated:
        pytest.skip("a switch of the test device")

    def printed(rank: int) -> str:
        return (machine.folder / f"output.{rank}").read_text()

    with ranks(machine, "stuck", **switch) as jobs:
        ready = ["the next one is stuck", "stuck" if switch else "does not communicate"]
        for rank, job in enumerate(jobs):
            wait_for(lambda rank=rank: ready[rank] in printed(rank), job)  # type: ignore[misc]
        for job in jobs:
            job.send_signal(signal.SIGTERM)
        assert [job.wait(30) for job in jobs] == [-signal.SIGTERM] * 2
    times = read_step_times(machine.folder / "log")
    for rank in range(2):
        assert times.filter(rank=rank)["step"].to_list()[:3] == [0, 1, 2], printed(rank)


@only_gpu
def test_a_refusing_cupti_costs_the_device_events_only(machine: Machine) -> None:
    params = Path("/proc/driver/nvidia/params")
    if "RmProfilingAdminOnly: 1" not in (params.read_text() if params.exists() else ""):
        pytest.skip("needs a driver that lets only administrators profile")
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv, to start a program that is no administrator")
    drop = ["setpriv", "--bounding-set=-sys_admin,-perfmon", "--inh-caps=-sys_admin,-perfmon"]
    done = subprocess.run(
        [*drop, *command(PROGRAM, "kernels", machine.name)],
        cwd=machine.folder,
        env=environment(machine.folder),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert "the NVIDIA driver lets only administrators profile" in done.stderr
    assert "step 7" in done.stdout
    events = ppprof.open(machine.folder / "log").events()
    assert events.filter(category="Kernel").is_empty()
    assert events.filter(category="Operator").height > 0
