"""A training on a device whose trace holds no device events: said once, and no table pretends."""

from __future__ import annotations

import json
import logging
import re

import polars as pl
import pytest

import ppprof
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.steps import select_steps
from ppprof.choices import StepRange
from ppprof.cli import main
from ppprof.report.html import render
from ppprof.run.report import collect_report_data
from ppprof.trace import read
from ppprof.trace.unrecorded_device import unrecorded_device, with_device
from tests.fixtures import gpu_traces
from tests.fixtures.timeline import (
    CPU,
    GPU0,
    Launch,
    Span,
    Thread,
    alloc,
    kernel,
    launch,
    span,
    write,
)

LAUNCHES = gpu_traces.without_device_events(gpu_traces.training(6))
NAME = "rank_{rank:05d}_dp{rank}_time_20261120T201530_000.paddle_trace.pb"


def stepping(*inside: Span) -> Thread:
    return Thread(1, "main", (span("ProfileStep", "ProfileStep#0", 0, 100, *inside),))


@pytest.fixture
def run(tmp_path):
    """Two ranks on a device without device events."""
    folder = tmp_path / "log"
    folder.mkdir()
    for rank in range(2):
        write(folder / NAME.format(rank=rank), *LAUNCHES)
    return folder


CALL, QUERY = Launch("cudaLaunchKernel", 1, 2), Launch("cudaGetDevice", 1, 2)
TRUE_NS = 70_000_000
"""Time of a step on the device; the host's is some 10 ms."""


def add_step_times(folder, *, device_timed=True):
    """Write the manifest and step times: 20 steps before the window of steps 5 to 10, as 100 to 119."""
    (folder / "manifest.json").write_text(
        json.dumps({"schema_version": 1, "versions": {"device": "gpu:0"}})
    )
    (folder / "steps").mkdir()
    windows = {**dict.fromkeys(range(5, 11), 0), **dict.fromkeys(range(100, 120))}
    for rank in range(2):
        lines = [
            {
                "step": step,
                "batch_cost_ns": TRUE_NS + rank,
                "excluded": step == 5,
                "window": window,
                "device_timed": device_timed,
            }
            for step, window in windows.items()
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "steps" / f"rank_{rank:05d}.jsonl").write_text(text)


@pytest.mark.parametrize(
    ("inside", "devices", "manifest", "expected"),
    [
        pytest.param([launch(1, 2, kernel("gemm", 3, 4))], [0], "gpu:0", "", id="kernel"),
        pytest.param([alloc(1, 8, GPU0)], [], None, "gpu:0", id="memory of a GPU"),
        pytest.param([alloc(1, 8, "Place(npu:3)")], [], "cpu", "npu:3", id="memory decides"),
        pytest.param([alloc(1, 8, CPU)], [], "gpu:0", "gpu:0", id="manifest"),
        pytest.param([alloc(1, 8, CPU)], [0], None, "", id="memory of a CPU alone"),
        pytest.param([alloc(1, 8, "Place(gpu_pinned)")], [], None, "", id="pinned is the host's"),
        pytest.param([], [0], "cpu", "", id="the manifest says CPU"),
        pytest.param([], [0], None, "a machine with Imaginary GPU 0", id="properties"),
        pytest.param([CALL], [], None, "a device", id="a launch"),
        pytest.param([CALL], [0], None, "Imaginary GPU 0", id="a launch and properties"),
        pytest.param([CALL], [0], "cpu", "Imaginary GPU 0", id="a launch decides"),
        pytest.param([QUERY], [], None, "", id="a call that launches nothing"),
        pytest.param([], [], None, "", id="nothing"),
    ],
)
def test_what_says_that_a_trace_is_of_a_device(inside, devices, manifest, expected, tmp_path):
    operator = span("Operator", "matmul dygraph", 0, 50).around(*inside)
    trace = read(write(tmp_path / "a.pb", stepping(operator), devices=devices))
    assert unrecorded_device(with_device(trace, manifest)) == expected


def test_steps_without_a_kernel_do_not_make_a_trace_of_launches(tmp_path):
    threads = [
        Thread(1, "main").around(
            span("ProfileStep", "ProfileStep#0", 0, 10).around(launch(1, 2, kernel("gemm", 3, 4))),
            span("ProfileStep", "ProfileStep#1", 10, 20, span("Operator", "matmul", 11, 19)),
        )
    ]
    trace = select_steps(read(write(tmp_path / "a.pb", *threads)), StepRange(1, 2))
    assert trace.events["device"].count() == 0
    assert Profile(trace).unrecorded_device == ""


@pytest.mark.parametrize(
    "command",
    [
        ["summary", "RUN", "--rank", "0"],
        ["summary", "RUN", "--by", "rank"],
        ["ranks", "RUN"],
        ["advise", "RUN"],
        ["diff", "RUN", "--experiment-rank", "0"],
        ["report", "RUN", "-o", "page.html"],
        ["merge", "RUN", "-o", "merged.json"],
    ],
    ids=" ".join,
)
def test_every_command_says_it_once(command, run, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    main([str(run) if word == "RUN" else word for word in command])
    errors = capfd.readouterr().err
    assert errors.count("recorded on gpu:0, gpu:1 without device events") == 1


def test_a_trace_of_a_cpu_is_said_to_be_nothing_else(tmp_path, caplog):
    path = write(tmp_path / "a.pb", stepping(span("Operator", "matmul dygraph", 0, 50)))
    with caplog.at_level(logging.WARNING):
        ppprof.open(path).summary("op")
    assert not caplog.messages


def test_the_manifest_names_the_device(run, caplog):
    for path in run.iterdir():
        write(path, stepping(span("Operator", "matmul dygraph", 0, 50)))
    (run / "manifest.json").write_text(
        json.dumps({"schema_version": 1, "versions": {"device": "npu:0"}})
    )
    with caplog.at_level(logging.WARNING):
        ppprof.open(run).summary("op", rank=0)
    assert [re.sub(".*: recorded", "recorded", text) for text in caplog.messages] == [
        "recorded on npu:0 without device events: its times are those of the host, which only "
        "launches work; times of the device are unknown, and no table shows them"
    ]


def test_the_manifest_names_the_only_axis(tmp_path):
    write(tmp_path / NAME.format(rank=0), *gpu_traces.other_makers())
    axes = {"order": ["dp", "pp", "sharding", "sep", "mp"], "degrees": [4, 1, 1, 1, 1]}
    (tmp_path / "manifest.json").write_text(json.dumps({"schema_version": 1, "axes": axes}))
    steps = ppprof.open(tmp_path).cluster().steps
    assert steps["communication_dp_ns"].to_list() == [30 + 10]
    assert "communication_?_ns" not in steps.columns


def test_the_nine_tables_show_no_time_of_the_device(run):
    run = ppprof.open(run)
    for view in ("model", "op", "memcpy", "udf"):
        table = run.summary(view, rank=0)
        columns = table.select("^gpu_.*$")
        assert table.height
        assert columns.null_count().row(0) == (table.height,) * columns.width
        assert table["cpu_total_ns"].sum()
    assert run.summary("kernel", rank=0).is_empty()
    assert run.summary("device", rank=0)["device"].to_list() == ["CPU(Process)", "CPU(System)"]
    assert run.summary("overview", rank=0).filter(side="gpu").is_empty()
    rows = run.summary("dist", rank=0).select("name", "time_ns", "computed_by").rows()
    assert rows[2:] == [
        ("Computation", None, "nothing"),
        ("Overlap", None, "nothing"),
        ("Exposed Communication", None, "nothing"),
    ]


@pytest.mark.parametrize("device_timed", [True, False, None])
def test_ranks_know_the_measured_step_alone(run, device_timed):
    """The first step of the window, 5, includes a stall of the profiler."""
    if device_timed is not None:
        add_step_times(run, device_timed=device_timed)
    result = ppprof.open(run).cluster()
    steps = result.steps
    known = [name for name in steps.columns if name.endswith("_ns") and steps[name].count()]
    assert known == (["step_ns"] if device_timed else [])
    if device_timed:
        assert steps.filter(rank=1)["step_ns"].to_list() == [None, *[TRUE_NS + 1] * 5]
    assert result.arrivals.is_empty()
    assert result.slow_ranks.is_empty()
    assert result.what_if.is_empty()


def test_a_comparison_knows_the_measured_step_alone(run):
    assert ppprof.diff(ppprof.open(run), ppprof.open(run)).ranks.is_empty()
    add_step_times(run)
    diff = ppprof.diff(ppprof.open(run), ppprof.open(run))
    known = {
        name
        for name in diff.ranks.columns
        if name.startswith("delta_") and diff.ranks[name].count()
    }
    assert known == {"delta_step_ns", "delta_ratio_step"}
    assert diff.ranks["baseline_step_ns"].to_list() == [TRUE_NS, TRUE_NS + 1]
    assert {times["step_ns"].mean() for times, _ in diff.samples} == {TRUE_NS + 0.5}
    part = ppprof.diff(ppprof.open(run), ppprof.open(run), windows=0)
    assert [(set(times["step_ns"]), basis) for times, basis in part.samples] == [
        ({TRUE_NS, TRUE_NS + 1}, "recorded")
    ] * 2


def test_the_report_shows_the_measured_step(run):
    add_step_times(run)
    report = collect_report_data(ppprof.open(run))
    assert (report.step_ns, report.costs.metrics["step_time"]) == (TRUE_NS + 0.5, TRUE_NS + 0.5)
    assert ">70 ms<" in render(report)
    (run / "steps/rank_00000.jsonl").unlink()
    (run / "steps/rank_00001.jsonl").unlink()
    assert "step_time" not in collect_report_data(ppprof.open(run)).costs.metrics
    assert "The device was not recorded" in render(collect_report_data(ppprof.open(run)))


def test_steps_are_listed_though_no_slowest_rank_is_known(run, capfd):
    add_step_times(run)
    rows = ppprof.open(run).breakdown("step").select("step", "step_ns", "slowest_rank").rows()
    assert rows == [
        (5, None, None),
        *((step, TRUE_NS + 0.5, None) for step in range(6, 11)),
    ]
    assert main(["ranks", str(run), "--by", "step"]) == 0
    assert re.search(r"\n6 +70.00 +- +- +- *\n", capfd.readouterr().out)


def test_advice_says_it_first_and_blames_no_host(run):
    findings = ppprof.advise(ppprof.open(run))
    assert findings[0].rule == "no-device-events"
    assert findings[0].evidence["rank"].to_list() == [0, 1]
    assert {finding.rule for finding in findings} == {"no-device-events"}
    assert findings[0].evidence["mean_step_ns"].to_list() == [None, None]


def test_advice_gives_the_measured_step_and_blames_no_host(run):
    add_step_times(run)
    findings = ppprof.advise(ppprof.open(run))
    assert {finding.rule for finding in findings} == {"no-device-events"}
    assert findings[0].evidence["mean_step_ns"].to_list() == [TRUE_NS, TRUE_NS + 1]


def test_a_rank_without_device_events_beside_one_with_them(tmp_path):
    write(tmp_path / NAME.format(rank=0), *gpu_traces.training(6))
    write(tmp_path / NAME.format(rank=1), *LAUNCHES)
    result = ppprof.open(tmp_path).cluster()
    parts = result.steps.group_by("rank").agg(
        pl.col("computation_ns", "rest_ns", "^exposed_.*_ns$").count().name.keep()
    )
    assert {rank: set(counts) for rank, *counts in parts.rows()} == {0: {6}, 1: {0}}
    assert result.slow_ranks["rank"].to_list() == [0]
