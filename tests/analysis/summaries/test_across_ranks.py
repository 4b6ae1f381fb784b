"""Ranks in one table: whole tables of small traces, worked out by hand."""

from __future__ import annotations

import dataclasses

import polars as pl
import pytest
from hypothesis import given
from polars.testing import assert_frame_equal

from ppprof.analysis.profile.grouping import intervals_of
from ppprof.analysis.profile.intervals import covered
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.across_ranks import (
    by_name,
    by_rank,
    comparable,
    rank_view,
    self_time,
)
from ppprof.analysis.summaries.views import summarize
from ppprof.choices import ACROSS
from ppprof.trace import read
from tests.fixtures import gpu_traces, random_traces
from tests.fixtures.timeline import Thread, kernel, launch, memcpy, span, write
from tests.fixtures.words import words

PLACES = {0: "dp0_mp0", 1: "dp0_mp1", 2: None}


def profile_of(directory, *threads):
    return Profile(read(write(directory / "a.pb", *threads)))


def step(*inside):
    return Thread(1, "main", (span("ProfileStep", "ProfileStep#0", 0, 200, *inside),))


RANKS = {
    # ProfileStep  # # # # # # # # # # # # # # # # # # # #   0 to 200
    # relu           [10              50]                    with compute, which calls add
    # add                 [25   35]            [60   70]
    0: step(
        span("Operator", "relu", 10, 50).around(
            span("OperatorInner", "compute", 20, 40, span("Operator", "add", 25, 35))
        ),
        span("Operator", "add", 60, 70),
    ),
    # relu           [10  20]
    # embed                   [30          90]
    1: step(span("Operator", "relu", 10, 20), span("Operator", "embed", 30, 90)),
    # nothing but its own span
    2: step(span("PythonUserDefined", "wait", 5, 195)),
}


def tables_of(view, directory, threads=RANKS):
    return {
        rank: comparable(view, rank_view(profile_of(directory, thread), view))
        for rank, thread in threads.items()
    }


def test_a_row_an_operator_and_rank(tmp_path):
    table = by_rank("op", tables_of("op", tmp_path), PLACES, "cpu_total")
    assert table.schema["rank"] == pl.Int64
    assert table.columns == words(
        "rank coordinate name calls",
        "cpu_total_ns cpu_avg_ns cpu_max_ns cpu_min_ns",
        "gpu_total_ns gpu_avg_ns gpu_max_ns gpu_min_ns",
        "cpu_ratio gpu_ratio node cpu_self_ns cpu_self_ratio",
    )
    assert table.drop(pl.selectors.starts_with("gpu_"), "node").rows() == [
        (1, "dp0_mp1", "embed", 1, 60, 60.0, 60, 60, 60 / 70, 60, 60 / 70),
        (0, "dp0_mp0", "relu", 1, 40, 40.0, 40, 40, 40 / 60, 30, 30 / 50),
        (1, "dp0_mp1", "relu", 1, 10, 10.0, 10, 10, 10 / 70, 10, 10 / 70),
        (0, "dp0_mp0", "add", 2, 20, 10.0, 10, 10, 20 / 60, 20, 20 / 50),
    ]


def test_a_row_an_operator_with_what_differs_most_on_top(tmp_path):
    table = by_name("op", tables_of("op", tmp_path), PLACES, "cpu_total")
    assert table.schema["median_ns"] == pl.Float64
    assert table.schema["spread_ns"] == table.schema["max_rank"] == pl.Int64
    assert table.columns == words(
        "name num_ranks calls total_ns compared",
        "min_ns median_ns max_ns spread_ns max_rank max_coordinate",
    )
    assert table.rows() == [
        ("embed", 1, 1, 60, "cpu_total", 0, 0.0, 60, 60, 1, "dp0_mp1"),
        ("relu", 2, 2, 50, "cpu_total", 0, 10.0, 40, 40, 0, "dp0_mp0"),
        ("add", 1, 2, 20, "cpu_total", 0, 0.0, 20, 20, 0, "dp0_mp0"),
    ]


def test_a_rank_without_a_call_has_no_average_and_no_lone_rank_stands_out(tmp_path):
    table = by_name("op", tables_of("op", tmp_path), PLACES, "cpu_avg")
    assert table.schema["spread_ns"] == pl.Float64
    assert table.drop("compared", "max_coordinate").rows() == [
        ("relu", 2, 2, 50, 10.0, 25.0, 40.0, 30.0, 0),
        ("embed", 1, 1, 60, 60.0, 60.0, 60.0, 0.0, None),
        ("add", 1, 2, 20, 10.0, 10.0, 10.0, 0.0, None),
    ]


def test_the_smallest_first_where_minima_are_asked_for(tmp_path):
    table = by_rank("op", tables_of("op", tmp_path), PLACES, "cpu_min")
    assert table.select("name", "rank", "cpu_min_ns").rows() == [
        ("relu", 0, 40),
        ("relu", 1, 10),
        ("add", 0, 10),
        ("embed", 1, 60),
    ]


def test_of_several_ranks_with_the_maximum_the_first_is_named(tmp_path):
    threads = {
        rank: step(span("Operator", "relu", 0, end)) for rank, end in {5: 30, 3: 30, 1: 10}.items()
    }
    (row,) = by_name("op", tables_of("op", tmp_path, threads), {}, "cpu_total").rows(named=True)
    assert (row["max_rank"], row["spread_ns"], row["median_ns"]) == (3, 20, 30.0)


def on_device(*durations):
    """Operators ``mul``, each with a kernel, and a copy from a span: gpu times as given."""
    calls = [
        span(
            "Operator",
            "mul",
            start,
            start + 5,
            launch(start + 1, start + 2, kernel("gemm", start, start + dur)),
        )
        for start, dur in zip(range(20, 200, 10), durations)
    ]
    copy = span("PythonUserDefined", "Memcpy x", 1, 9, launch(2, 3, memcpy(4, 8, 64)))
    return step(copy, *calls)


@pytest.mark.parametrize("sorted_by", ["cpu_total", "gpu_total"])
def test_kernels_have_gpu_times_only(tmp_path, sorted_by):
    tables = tables_of("kernel", tmp_path, {0: on_device(7, 9), 1: on_device(50)})
    assert by_rank("kernel", tables, {}, sorted_by).rows() == [
        (0, None, "gemm", 2, 16, 8.0, 9, 7, 1.0),
        (1, None, "gemm", 1, 50, 50.0, 50, 50, 1.0),
    ]
    assert by_name("kernel", tables, {}, sorted_by).rows() == [
        ("gemm", 2, 3, 66, "gpu_total", 16, 33.0, 50, 34, 1, None)
    ]


def test_copies_and_spans_of_ranks(tmp_path):
    threads = {0: on_device(7), 1: step(span("PythonUserDefined", "Memcpy x", 1, 3))}
    copies = by_name("memcpy", tables_of("memcpy", tmp_path, threads), {}, "cpu_total")
    assert copies.select("name", "calls", "min_ns", "max_ns", "max_rank").rows() == [
        ("Memcpy x", 2, 2, 8, 0)
    ]
    spans = by_rank("udf", tables_of("udf", tmp_path), PLACES, "cpu_total")
    assert spans.select("rank", "coordinate", "name", "cpu_total_ns", "cpu_ratio").rows() == [
        (2, None, "wait", 190, 190 / 200)
    ]


def test_phases_and_communication_keep_their_order(tmp_path):
    """
    ::

        rank 0   Forward [0    40]  all_reduce [50 60]
        rank 1   Forward [0 20]     all_reduce [50     90]  Backward [100 110]
    """
    threads = {
        0: step(span("Forward", "f", 0, 40), span("Communication", "all_reduce", 50, 60)),
        1: step(
            span("Forward", "f", 0, 20),
            span("Communication", "all_reduce", 50, 90),
            span("Backward", "b", 100, 110),
        ),
    }
    phases = by_rank("model", tables_of("model", tmp_path, threads), {}, "cpu_total")
    assert phases.select("name", "rank", "calls", "cpu_total_ns").rows() == [
        ("ProfileStep", 0, 1, 200),
        ("ProfileStep", 1, 1, 200),
        ("Forward", 0, 1, 40),
        ("Forward", 1, 1, 20),
        ("Backward", 1, 1, 10),
        ("Others", 0, None, 160),
        ("Others", 1, None, 170),
    ]
    differ = by_name("model", tables_of("model", tmp_path, threads), {}, "cpu_total")
    assert differ.select("name", "calls", "min_ns", "max_ns", "max_rank").rows() == [
        ("Forward", 2, 20, 40, 0),
        ("Others", None, 160, 170, 1),
        ("Backward", 1, 0, 10, 1),
        ("ProfileStep", 2, 200, 200, None),
    ]
    communication = tables_of("dist", tmp_path, threads)
    assert by_rank("dist", communication, {}, "cpu_total").rows()[2:4] == [
        (0, None, "Communication", 10, 10 / 200, None),
        (1, None, "Communication", 40, 40 / 200, None),
    ]
    differ = by_name("dist", communication, {}, "gpu_avg")
    assert differ.rows()[0] == ("Communication", 2, None, 50, "time", 10, 25.0, 40, 30, 1, None)


def test_a_time_that_is_unknown_is_not_0(tmp_path):
    """Rank 0 lacks the events of its device; rank 1 ran on a CPU: it computes from 10 to 40.

    ::

        Operator       [10          50]
        all_reduce           [40       55]
    """
    relu, reduced = span("Operator", "relu", 10, 50), span("Communication", "all_reduce", 40, 55)
    trace = read(write(tmp_path / "a.pb", step(relu, reduced)))
    traces = {0: dataclasses.replace(trace, unrecorded_device="gpu:0"), 1: trace}
    tables = {
        rank: comparable("dist", rank_view(Profile(each), "dist")) for rank, each in traces.items()
    }
    known = by_name("dist", tables, {}, "cpu_total").filter(name="Computation")
    assert known.drop("name", "num_ranks", "calls", "compared").rows() == [
        (None, 30, 30.0, 30, 0, None, None)
    ]


def test_nothing_anywhere_is_a_table_without_rows(tmp_path):
    nothing = {0: gpu_traces.nothing(), 1: gpu_traces.nothing()}
    for view in ACROSS:
        tables = {
            rank: comparable(view, rank_view(profile_of(tmp_path, *threads), view))
            for rank, threads in nothing.items()
        }
        for join in (by_rank, by_name):
            assert join(view, tables, {}, "cpu_total").is_empty()


def test_rows_are_those_of_the_rank(tmp_path):
    """Of a whole training, each view holds what the rank's own table says, and nothing else."""
    profile = profile_of(tmp_path, *gpu_traces.training())
    for view in ACROSS:
        table = by_rank(view, {4: comparable(view, rank_view(profile, view))}, {}, "gpu_total")
        own = summarize(profile, view).with_columns(pl.col("name").cast(pl.String))
        if view == "op":
            own = own.filter(kind="operator").drop("thread", "kind", "flops")
        assert own.height > 0
        assert_frame_equal(table.select(own.columns), own)


def test_tables_that_a_capture_left_say_nothing_of_self_time(tmp_path):
    table = comparable("op", summarize(profile_of(tmp_path, RANKS[0]), "op"))
    assert table.select("name", "cpu_self_ns", "cpu_self_ratio").rows() == [
        ("relu", None, None),
        ("add", None, None),
    ]


@given(threads=random_traces.traces())
def test_self_times_add_up_to_the_time_in_operators(threads, tmp_path):
    profile = profile_of(tmp_path, *threads)
    operators = profile.tree.of_category("Operator")
    in_operators = sum(
        covered(*intervals_of(of_thread)) for _, of_thread in operators.group_by("thread")
    )
    assert self_time(profile)["cpu_self_ns"].sum() == in_operators
