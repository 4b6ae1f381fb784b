"""A training on a device whose trace holds no device events: said once, and no table pretends."""

from __future__ import annotations

import json
import logging
import re

import polars as pl
import pytest

import ppprof
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.steps import StepRange, select_steps
from ppprof.cli import main
from ppprof.trace import read
from ppprof.trace.unrecorded_device import unrecorded_device, with_device
from tests.fixtures import gpu_traces
from tests.fixtures.timeline import CPU, GPU0, Span, Thread, alloc, kernel, launch, span, write

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
        pytest.param([], [0], None, "Imaginary GPU 0", id="properties"),
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
        ["diff", "RUN", "RUN"],
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


def test_ranks_know_the_step_and_the_data_loading_alone(run):
    result = ppprof.open(run).cluster()
    steps = result.steps
    known = [name for name in steps.columns if name.endswith("_ns") and steps[name].count()]
    assert known == ["step_ns", "data_loading_ns"]
    assert result.arrivals.is_empty()
    assert result.slow_ranks.is_empty()
    assert result.what_if.is_empty()


def test_a_comparison_knows_no_own_time_of_ranks(run):
    table = ppprof.diff(ppprof.open(run), ppprof.open(run)).ranks
    known = {name for name in table.columns if name.startswith("delta_") and table[name].count()}
    times = {"delta_step_ns", "delta_ratio_step", "delta_data_loading_ns"}
    assert known == times | {"delta_ratio_data_loading"}


def test_advice_says_it_first_and_blames_no_host(run):
    findings = ppprof.advise(ppprof.open(run))
    assert findings[0].rule == "no-device-events"
    assert findings[0].evidence["rank"].to_list() == [0, 1]
    assert {finding.rule for finding in findings} <= {"no-device-events", "input-bound"}


def test_a_rank_without_device_events_beside_one_with_them(tmp_path):
    write(tmp_path / NAME.format(rank=0), *gpu_traces.training(6))
    write(tmp_path / NAME.format(rank=1), *LAUNCHES)
    result = ppprof.open(tmp_path).cluster()
    parts = result.steps.group_by("rank").agg(
        pl.col("computation_ns", "rest_ns", "^exposed_.*_ns$").count().name.keep()
    )
    assert {rank: set(counts) for rank, *counts in parts.rows()} == {0: {6}, 1: {0}}
    assert result.slow_ranks["rank"].to_list() == [0]
