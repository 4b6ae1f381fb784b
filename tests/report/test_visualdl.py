"""A real VisualDL 2.5.3 opens our traces and shows Paddle's numbers."""

from __future__ import annotations

import dataclasses
import re

import pytest

from ppprof import rundir
from ppprof.trace import read, write_paddle_json
from tests.fixtures import gpu_traces
from tests.fixtures.run_directories import make_run, trace_name
from tests.fixtures.timeline import Thread, span, write

pytestmark = [pytest.mark.all, pytest.mark.visualdl, pytest.mark.paddle]
pytest.importorskip("visualdl", reason="needs the visualdl wheel")
pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")

from tests.oracles import paddle_tables, visualdl_server  # noqa: E402

ROUNDING_MS = 0.011
"""VisualDL cuts times to the microsecond and prints two decimals, as Paddle's tables do."""


def by_name(rows):
    return {row["name"]: row for row in rows}


def printed(text):
    """Return name -> (calls, first number of the last cell with a number) of the unindented rows."""
    rows = re.findall(
        r"^(\S.*?) +(\d+) +([\d.]+) /.*?([\d.]+) / [^/]*/ [^/]*/ [^/]*/ \S+ +0 *$", text, re.M
    )
    return {name: (int(calls), float(cpu), float(gpu)) for name, calls, cpu, gpu in rows}


@pytest.fixture(scope="module")
def gpu_run(tmp_path_factory):
    """Two ranks of the GPU training, rank 1 a little slower; stem -> its ``.pb``."""
    directory = tmp_path_factory.mktemp("gpu_run")
    raw = tmp_path_factory.mktemp("raw")
    files = {}
    for rank in range(2):
        worker = f"rank_{rank:05}_dp{rank}_pp0_sharding0_mp0"
        files[worker] = write(raw / f"{worker}.pb", *gpu_traces.training(skew=rank * 40_000))
        name = f"{worker}_time_20261120T201530_000.paddle_trace.json"
        write_paddle_json(read(files[worker]), directory / name)
    with visualdl_server.serve(directory) as server:
        yield (
            visualdl_server.check_run(server, directory, list(files), visualdl_server.GPU_VIEWS),
            files,
        )


def test_operators_are_paddles(gpu_run):
    run, files = gpu_run
    for worker, path in files.items():
        rows = run.get(
            "operator/table",
            worker=worker,
            span=run.span(worker),
            group_by="op_name",
            search_name="",
            time_unit="ms",
        )["events"]
        shown = {
            row["name"]: (row["calls"], row["cpu_total_time"], row["gpu_total_time"])
            for row in rows
        }
        theirs = printed(paddle_tables.load(path).text(["op"]))
        assert shown.keys() == theirs.keys()
        for name, numbers in theirs.items():
            assert shown[name] == pytest.approx(numbers, abs=ROUNDING_MS), name


def test_kernels_are_paddles(gpu_run):
    run, files = gpu_run
    for worker in files:
        rows = by_name(
            run.get(
                "kernel/table",
                worker=worker,
                span=run.span(worker),
                group_by="kernel_name",
                search_name="",
                time_unit="ms",
            )["events"]
        )
        gemm = rows[gpu_traces.GEMM]
        assert (gemm["calls"], gemm["tensor core used"]) == (12, True)
        assert gemm["total_time"] == pytest.approx(3 * (2 * 0.44 + 0.65 + 0.8), abs=ROUNDING_MS)
        assert rows[gpu_traces.ADD]["calls"] == 3


def test_phases_are_those_of_the_timeline(gpu_run):
    run, files = gpu_run
    for worker, skew_ms in zip(files, (0, 0.04)):
        rows = run.get("overview/model_perspective", worker=worker, span="0", time_unit="ms")
        cpu = {row["name"]: (row["calls"], row["total_time"]) for row in rows["cpu"]}
        assert cpu["ProfileStep"] == pytest.approx((3, 3 * (9.5 + skew_ms)), abs=ROUNDING_MS)
        assert cpu["Forward"] == pytest.approx((3, 3 * (2.4 + skew_ms)), abs=ROUNDING_MS)
        assert cpu["Backward"] == pytest.approx((3, 3 * 3.2), abs=ROUNDING_MS)


def test_both_ranks_are_in_the_distributed_view(gpu_run):
    run, files = gpu_run
    at = {"worker": "All", "span": "0"}
    assert run.get("distributed/steps", **at) == ["All", 5, 6, 7]
    histogram = run.get("distributed/histogram", step="All", time_unit="ms", **at)
    assert sorted(histogram["worker_name"]) == sorted(files)
    rows = dict(zip(histogram["order"], histogram["data"]))
    for kind in ("ProfileStep", "Communication", "Computation", "Overlap"):
        assert len(rows[kind]) == 2
        assert min(rows[kind]) > 0
    assert rows["ProfileStep"] == pytest.approx(
        [3 * (9.5 + 0.04 * list(files).index(worker)) for worker in histogram["worker_name"]],
        abs=ROUNDING_MS,
    )


def test_device_properties_are_shown(gpu_run):
    run, files = gpu_run
    gpu = run.get("overview/environment", worker=next(iter(files)), span="0")["GPU"]
    assert (gpu["name"], gpu["compute_capability"]) == ("Imaginary GPU 0", "9.0")


def test_an_incomplete_step_is_no_step_there_either(tmp_path):
    """SIGTERM cut step 8: the thread that saved the window ended its span."""
    cut = Thread(99, "sigterm").around(
        span("ProfileStep", "ProfileStep#8", 30_000_000, 70_000_000).around(
            span("UserDefined", rundir.INCOMPLETE_MARKER, 69_000_000, 69_000_001)
        )
    )
    trace = read(write(tmp_path / "cut.pb", *gpu_traces.training(), cut))
    worker = "rank_00000_dp0_pp0_sharding0_mp0"
    folder = tmp_path / "log"
    folder.mkdir()
    write_paddle_json(trace, folder / f"{worker}_time_20261120T201530_000.paddle_trace.json")
    with visualdl_server.serve(folder) as server:
        run = visualdl_server.check_run(server, folder, [worker], visualdl_server.GPU_VIEWS)
        rows = run.get("overview/model_perspective", worker=worker, span="0", time_unit="ms")
        steps = run.get("distributed/steps", worker="All", span="0")
    cpu = {row["name"]: (row["calls"], row["total_time"]) for row in rows["cpu"]}
    assert cpu["ProfileStep"] == pytest.approx((3, 3 * 9.5), abs=ROUNDING_MS)
    assert steps == ["All", 5, 6, 7]


MS = 1_000_000


def several_forwards(number):
    """46 ms of a model, 0.7 ms of its loss; and in step 1 three micro-batches of 12 ms."""
    at = 100 * MS * number
    ends = (0, 12, 24, 36) if number == 1 else (0, 46, 46.7)
    forwards = (
        span("Forward", "Net", at + int(start * MS), at + int(end * MS)).around(
            span("Forward", "Linear", at + int(start * MS), at + int(end * MS))
        )
        for start, end in zip(ends, ends[1:])
    )
    backward = span("Backward", "Backward", at + 47 * MS, at + 90 * MS)
    name = f"ProfileStep#{number}"
    return span("ProfileStep", name, at, at + 100 * MS, *forwards, backward)


@pytest.mark.jobs
def test_the_chart_of_steps_and_its_totals_add_up_to_the_recorded_spans(tmp_path):
    steps = tuple(map(several_forwards, range(3)))
    trace = read(write(tmp_path / "a.pb", Thread(1, "main", steps)))
    worker = "rank_00000_dp0_pp0_sharding0_mp0"
    folder = tmp_path / "log"
    folder.mkdir()
    write_paddle_json(trace, folder / f"{worker}_time_20261120T201530_000.paddle_trace.json")
    with visualdl_server.serve(folder) as server:
        run = server.run_of(folder, 1)
        rows = run.get("overview/model_perspective", worker=worker, span="0", time_unit="ms")
        chart = run.get(
            "overview/model_perspective_perstep",
            worker=worker, span="0", device_type="cpu", time_unit="ms",
        )  # fmt: skip
    by_step = {0: 46.7, 1: 36.0, 2: 46.7}
    cpu = by_name(rows["cpu"])
    assert cpu["Forward"]["total_time"] == pytest.approx(sum(by_step.values()), abs=ROUNDING_MS)
    forward = chart["data"][chart["order"].index("Forward")]
    assert dict(zip(chart["steps"], forward)) == pytest.approx(by_step, abs=ROUNDING_MS)


@pytest.mark.jobs
def test_a_real_cpu_capture_opens(cpu_capture, tmp_path):
    """The capture includes newer event types, which VisualDL ignores."""
    trace = read(cpu_capture / "capture.pb")
    workers = ["rank_00000_dp0_pp0_sharding0_mp0", "rank_00001_dp1_pp0_sharding0_mp0"]
    for worker in workers:
        write_paddle_json(trace, tmp_path / f"{worker}_time_20261120T201530_000.paddle_trace.json")
    with visualdl_server.serve(tmp_path) as server:
        run = visualdl_server.check_run(server, tmp_path, workers)
        rows = run.get("overview/model_perspective", worker=workers[0], span="0", time_unit="ms")
    steps = trace.events.filter(trace.events["category"] == "ProfileStep")
    shown = by_name(rows["cpu"])["ProfileStep"]
    assert shown["calls"] == steps.height
    assert shown["total_time"] == pytest.approx(steps["dur_ns"].sum() / 1e6, abs=2 * ROUNDING_MS)


def test_visualdl_opens_files_with_any_name(tmp_path):
    (thread,) = gpu_traces.odd_names()
    operators = thread.inside[0].inside[0].inside
    path = write(tmp_path / "a.pb", thread)
    directory = tmp_path / "run"
    directory.mkdir()
    write_paddle_json(read(path), directory / "rank_00000_time_0_000.paddle_trace.json")
    with visualdl_server.serve(directory) as server:
        run = server.run_of(directory, 1)
        rows = run.get(
            "operator/table",
            worker="rank_00000",
            span="0",
            group_by="op_name",
            search_name="",
            time_unit="ms",
        )["events"]
    assert len(rows) == len(operators)
    assert set(gpu_traces.ODD_NAMES[:3]) <= {row["name"] for row in rows}


def test_segments_of_a_window_are_spans(tmp_path, cli):
    run = make_run(tmp_path / "log", {0: 1})
    steps = [3]
    for number in range(1, 4):
        name = dataclasses.replace(trace_name(0), segment=number)
        threads = gpu_traces.training(num_steps=number, first_step=10 * number)
        write(run / name.raw, *threads, span_index=number)
        steps.append(number)
    cli("finish", run)
    worker = trace_name(0).stem.partition("_time_")[0]
    with visualdl_server.serve(run) as server:
        shown = visualdl_server.check_run(server, run, [worker], visualdl_server.GPU_VIEWS)
        spans = sorted(shown.spans(worker), key=int)
        calls = [
            by_name(
                shown.get("overview/model_perspective", worker=worker, span=span, time_unit="ms")[
                    "cpu"
                ]
            )["ProfileStep"]["calls"]
            for span in spans
        ]
    assert calls == steps
