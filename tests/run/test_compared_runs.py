"""Runs that are compared although something in them is odd."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import ppprof
from ppprof.run.report import collect_report_data
from ppprof.trace.formats import framework_of
from tests.fixtures import gpu_traces
from tests.fixtures.run_directories import make_run, trace_name
from tests.fixtures.timeline import Thread, kernel, launch, span, write


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    """A run of three ranks, the first of which cannot be read."""
    path = make_run(tmp_path / "run", {0: 1, 1: 1, 2: 1})
    raw = path / trace_name(0).raw
    raw.unlink()
    os.mkfifo(raw)
    return path


def test_an_unreadable_first_rank_is_left_out_of_a_comparison(run_path, messages):
    run = ppprof.open(run_path)
    diff = ppprof.diff(run, run)
    assert diff.change.verdict
    assert {message.partition(": ")[0] for message in messages} == {
        str(run_path / trace_name(0).raw)
    }


def test_an_unreadable_first_rank_is_left_out_of_a_page(run_path, tmp_path, cli):
    page = tmp_path / "page.html"
    assert trace_name(0).raw in cli("report", run_path, "-o", page).err
    assert page.stat().st_size > 0


def test_a_missing_rank_is_reported_once(tmp_path, messages):
    path = make_run(tmp_path / "run", {0: 1, 1: 1})
    (path / trace_name(1).raw).unlink()
    other = write(tmp_path / "other.pb", *gpu_traces.training())
    ppprof.diff(ppprof.open(other), ppprof.open(path))
    assert [message for message in messages if "no trace of rank 1" in message] == messages[:1]


def test_warnings_of_a_page_are_shown_without_any_handler(run_path, tmp_path):
    program = "import sys, ppprof; ppprof.write_report(ppprof.open(sys.argv[1]), sys.argv[2])"
    done = subprocess.run(
        [sys.executable, "-c", program, str(run_path), str(tmp_path / "page.html")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count(trace_name(0).raw) == 1


def test_a_torch_trace_is_known_though_it_begins_with_python_functions(tmp_path):
    call = {"ph": "X", "cat": "python_function", "name": "f" * 200, "pid": 1, "tid": 1, "ts": 1.0}
    events = [{**call, "dur": 1.0}] * 20_000
    operator = {**call, "cat": "cpu_op", "name": "aten::mm", "dur": 1.0}
    path = tmp_path / "a.pt.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [*events, operator]}))
    assert path.stat().st_size > 5 << 20
    assert framework_of(path) == "torch"
    assert framework_of(write(tmp_path / "b.pb", *gpu_traces.training())) == "paddle"


def test_a_page_finds_no_change_between_equal_traces_without_steps(tmp_path):
    """A whole trace without steps counts as one step, of the run and of its baseline."""
    matmul = span("Operator", "matmul dygraph", 10, 90, launch(20, 30, kernel("gemm", 40, 80)))
    layer = span("Forward", "Linear", 0, 100, matmul)
    path = write(tmp_path / "a.pb", Thread(1, "main", (layer,)))
    data = collect_report_data(ppprof.open(path), baseline=ppprof.open(path))
    assert data.diff is not None
    assert data.diff.modules["status"].unique().to_list() == ["both"]
    assert data.diff.overview.select(is_equal=pl.col("baseline").eq_missing(pl.col("experiment")))[
        "is_equal"
    ].all()
    assert data.module_work.height
    assert data.module_work.equals(data.baseline_module_work)
