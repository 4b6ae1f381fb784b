"""`Run.across`: which ranks a table over ranks holds, and what is reported about the others."""

from __future__ import annotations

import re

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import ppprof
from ppprof.choices import ACROSS
from ppprof.errors import InputError, UsageError
from ppprof.trace.formats import read_ranks
from tests.fixtures import gpu_traces
from tests.fixtures.run_directories import make_run, trace_name
from tests.fixtures.timeline import Thread, span, write


@pytest.mark.parametrize("view", ACROSS)
def test_by_rank_is_each_rank_s_own_table(view, tmp_path, messages):
    run = ppprof.open(make_run(tmp_path, {0: 1, 1: 1, 2: 1}))
    table = run.summary(view, by="rank")
    for rank in (0, 1, 2):
        own = run.summary(view, rank=rank).with_columns(pl.col("name").cast(pl.String))
        if view == "op":
            own = own.filter(kind="operator").drop("thread", "kind", "flops")
        rows = table.filter(rank=rank)
        assert rows["coordinate"].unique().to_list() == [f"dp{rank}_pp0_sharding0_mp0"]
        assert_frame_equal(rows.select(own.columns), own, check_row_order=False)
    assert table["rank"].unique().to_list() == [0, 1, 2]
    assert messages == []


def test_one_trace_is_held_at_a_time_and_each_is_read_once(tmp_path, monkeypatch):
    run_path = make_run(tmp_path, {0: 1, 1: 1, 2: 1})
    run, asked = ppprof.open(run_path), []
    monkeypatch.setattr(
        "ppprof.run.traces.read_ranks",
        lambda path, **_: asked.append((path, run.reader._trace)) or read_ranks(path),
    )
    run.across(ACROSS, "name")
    assert asked == [(run_path / trace_name(rank).raw, None) for rank in (0, 1, 2)]


def test_a_broken_rank_and_a_missing_one_are_reported_and_left_out(tmp_path, messages):
    run_path = make_run(tmp_path, {0: 1, 1: 1, 2: 1, 3: 1, 4: 1}, ranks="0-3")
    broken = run_path / trace_name(1).raw
    broken.write_bytes(b"\x0f" * 40)
    (run_path / trace_name(3).raw).unlink()
    (run_path / trace_name(4).raw).unlink()  # was not to be recorded
    run = ppprof.open(run_path)

    made = run.across(["op"], "name")
    assert [tables.recording.rank for tables in made.ranks] == [0, 2]
    assert made.left_out == [1, 3]
    assert made.tables["op"]["num_ranks"].unique().to_list() == [2]
    assert messages[0].startswith(f"{broken}: ")
    assert messages[1:] == [f"{run_path}: window 0: no rank 3; left out"]


def test_without_a_manifest_the_ranks_are_those_that_are_there(tmp_path, messages):
    for name in ("host_a.pb", "host_b.pb"):
        write(tmp_path / name, *gpu_traces.one_step())
    run = ppprof.open(tmp_path)
    made = run.across(["op"], "rank")
    assert made.tables["op"].select("rank", "coordinate").unique().sort("rank").rows() == [
        (0, None),
        (1, None),
    ]
    assert made.left_out == []
    (message,) = messages
    assert "nothing in them says that they are of one job" in message


def test_no_rank_that_can_be_read(tmp_path, messages):
    run_path = make_run(tmp_path, {0: 1, 1: 1})
    for rank in (0, 1):
        (run_path / trace_name(rank).raw).write_bytes(b"\x0f" * 40)
    run = ppprof.open(run_path)
    with pytest.raises(InputError) as error:
        run.summary("op", by="name")
    lines = str(error.value).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        str(run_path / trace_name(rank).raw) for rank in (0, 1)
    ]
    assert messages == []


def test_a_window_of_all_ranks(tmp_path, messages):
    run = ppprof.open(make_run(tmp_path, {0: 2, 1: 1}))
    made = run.across(["model"], "rank", window=1)
    assert (made.window, made.steps, made.left_out) == (1, [10, 11, 12], [1])
    assert made.tables["model"]["rank"].unique().to_list() == [0]
    assert messages == [f"{run.path}: window 1: no rank 1; left out"]


def test_steps_are_those_of_every_rank(tmp_path, messages):
    run_path = make_run(tmp_path, {0: 1, 1: 1})
    run = ppprof.open(run_path)
    assert run.across(["model"], "rank", steps="1:").steps == [1, 2]
    cut = run.summary("model", by="name", steps=1).filter(name="ProfileStep")
    assert cut["calls"].to_list() == [2]
    assert messages == []

    write(run_path / trace_name(1).raw, *gpu_traces.training(num_steps=2, first_step=0))
    assert run.across(["model"], "name").steps == [0, 1, 2]
    assert messages == [
        f"{run_path}: window 0: totals cover different steps: rank 0: steps 0-2; "
        "rank 1: steps 0-1; choose steps that all ranks have"
    ]
    messages.clear()
    assert run.across(["model"], "name", steps="2").left_out == [1]
    assert messages == [f"{run_path / trace_name(1).raw}: no step of 2:3; it has steps 0-1"]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda run: run.summary("op", by="name"), "it has windows 0-1: choose one"),
        (lambda run: run.summary("op", by="name", window=2), "no window 2; it has windows 0-1"),
        (lambda run: run.summary("op", 1, 1, by="name"), "no window 1 of rank 1; it has window 0"),
        (lambda run: run.across(["op"], "name", ranks=[0, 7]), "no rank 7; it has ranks 0-1"),
        (lambda run: run.summary("op", by="names"), "by 'names': expected rank or name"),
        (lambda run: run.summary("mem", by="rank"), "'mem': expected some of model, dist"),
        (lambda run: run.summary("op", by="rank", sorted_by="x"), "sorted_by 'x': expected auto"),
        (lambda run: run.summary("op", by="rank", steps="x"), "steps 'x': expected A:B"),
        (lambda run: run.summary("op", by="rank", thread_sep=True), "threads are merged"),
        (lambda run: run.across(["op"], "rank", 0, steps="9:"), "no step of 9:; it has steps 0-2"),
    ],
)
def test_what_is_missing_is_reported_with_what_exists(ask, message, tmp_path):
    run = ppprof.open(make_run(tmp_path, {0: 2, 1: 1}))
    with pytest.raises(UsageError, match=re.escape(message)):
        ask(run)


def test_some_ranks_only(tmp_path, messages):
    run = ppprof.open(make_run(tmp_path, {0: 1, 1: 1, 2: 1}))
    made = run.across(["op"], "name", ranks=[2, 1])
    assert [tables.recording.rank for tables in made.ranks] == [1, 2]
    assert (made.left_out, messages) == ([], [])


def test_auto_compares_gpu_times_where_any_rank_has_them(tmp_path):
    write(tmp_path / "a.pb", Thread(1, "main", (span("Operator", "relu", 0, 10),)))
    run = ppprof.open(tmp_path)
    assert run.across(["op"], "rank").sorted_by == "cpu_total"
    write(tmp_path / "b.pb", *gpu_traces.training())
    run = ppprof.open(tmp_path)
    assert run.across(["op"], "rank").sorted_by == "gpu_total"
    assert run.summary("op", by="name")["compared"].unique().to_list() == ["gpu_total"]


def test_a_rank_of_which_only_tables_are_left_is_compared_too(tmp_path, messages, cli):
    run_path = make_run(tmp_path, {0: 1, 1: 1})
    whole = ppprof.open(run_path).summary("op", by="rank", sorted_by="cpu_max")
    cli("finish", run_path)
    for path in run_path.glob("rank_00001*.paddle_trace.*"):
        path.unlink()
    run = ppprof.open(run_path)

    table = run.summary("op", by="rank", sorted_by="cpu_max")
    own = ["cpu_self_ns", "cpu_self_ratio"]
    assert_frame_equal(table.drop(own), whole.drop(own))
    assert table.filter(rank=1)["cpu_self_ns"].count() == 0
    assert_frame_equal(table.filter(rank=0), whole.filter(rank=0))
    assert messages == []
