"""Timelines thinned out, and memory over time."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.report_data import timeline
from ppprof.analysis.report_data.memory_timeline import memory_levels
from ppprof.analysis.report_data.timeline import _thinned, lanes
from ppprof.trace import read
from tests.fixtures.timeline import (
    CPU,
    EPOCH_NS,
    GPU0,
    Thread,
    alloc,
    free,
    kernel,
    launch,
    reserve,
    span,
    write,
)


def profile_of(tmp_path, *threads):
    return Profile(read(write(tmp_path / "a.pb", *threads)))


def test_every_lane_of_a_step(tmp_path):
    """
    ::

        main     ProfileStep#0  ##############################   0 to 30
                  Forward        ########                        1 to 9
                    linear        ######                         2 to 8
                      matmul       ####                          3 to 7
                  all_reduce               ###                   12 to 15
        loader   read           #####                            not on the thread that steps
        stream 7 gemm                ######                      6 to 12
        stream 9 nccl                      #####                 13 to 18
    """
    main = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#0", 0, 30).around(
            span("Forward", "GPT", 1, 9).around(
                span("Operator", "linear", 2, 8).around(
                    span("Operator", "matmul", 3, 7, launch(4, 5, kernel("gemm", 6, 12)))
                )
            ),
            span("Communication", "all_reduce", 12, 15).around(
                launch(13, 14, kernel("ncclAllReduce", 13, 18, stream=9))
            ),
        ),
    )
    loader = Thread(2, "loader", (span("Operator", "read", 0, 5),))
    found = lanes(profile_of(tmp_path, main, loader), 100).with_columns(
        pl.col("start_ns", "end_ns") - EPOCH_NS
    )
    assert found.rows() == [
        ("steps", "ProfileStep", "ProfileStep#0", 0, 30, 1, 30),
        ("phases", "Forward", "GPT", 1, 9, 1, 8),
        ("operators", "Operator", "linear", 2, 8, 1, 6),
        ("communication", "Communication", "all_reduce", 12, 15, 1, 3),
        ("GPU 0 stream 7", "Kernel", "gemm", 6, 12, 1, 6),
        ("GPU 0 stream 9", "Communication", "ncclAllReduce", 13, 18, 1, 5),
    ]


def test_short_neighbours_become_one_and_long_ones_stay():
    """
    ::

        a=========  b c d   e=========      three spans: a; b, c and d; e
    """
    times = [
        ("a", 0, 900),
        ("b", 1000, 1010),
        ("c", 1020, 1050),
        ("d", 1060, 1070),
        ("e", 2000, 2900),
    ]
    found = _thinned(spans(times), 3)
    assert found.rows() == [
        ("Kernel", "a", 0, 900, 1, 900),
        ("Kernel", "c", 1000, 1070, 3, 50),
        ("Kernel", "e", 2000, 2900, 1, 900),
    ]


def spans(times):
    schema = {"name": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64}
    table = pl.DataFrame(times, schema, orient="row")
    return table.select(pl.lit("Kernel").alias("category"), pl.all())


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000)), min_size=1, max_size=60),
    st.integers(1, 40),
)
def test_thinning_loses_no_event_and_no_time(lengths, budget):
    gaps, durs = np.array(lengths).T
    end = np.cumsum(gaps + durs)
    table = spans([(str(index), int(e - d), int(e)) for index, (d, e) in enumerate(zip(durs, end))])
    found = _thinned(table, budget)
    assert found.height <= budget
    assert found["num"].sum() == table.height
    assert found["busy_ns"].sum() == durs.sum()
    assert (found["start_ns"][0], found["end_ns"].max()) == (table["start_ns"][0], end[-1])
    assert (found["start_ns"].to_numpy()[1:] >= found["end_ns"].to_numpy()[:-1]).all()
    longest = int(durs[int(found["name"][0])])
    assert longest == max(durs[: found["num"][0]])


def test_a_trace_without_steps_shows_its_busiest_thread(tmp_path):
    busy = Thread(1, "main", (span("Operator", "a", 0, 5), span("Operator", "b", 6, 9)))
    other = Thread(2, "other", (span("Operator", "c", 0, 50),))
    assert lanes(profile_of(tmp_path, busy, other), 10)["name"].to_list() == ["a", "b"]


def test_of_too_many_streams_the_busiest_have_lanes(tmp_path, monkeypatch):
    """The other streams share one span, which says so.

    ::

        stream 1   ##              2 ns
        stream 2     ####          4 ns
        stream 3          #####    5 ns
        stream 4                #  1 ns
    """
    monkeypatch.setattr(timeline, "MOST_STREAMS", 2)
    times = {1: (10, 12), 2: (12, 16), 3: (17, 22), 4: (23, 24)}
    kernels = [kernel("k", *time, stream=stream) for stream, time in times.items()]
    main = Thread(1, "main").around(span("Operator", "a", 1, 9, launch(2, 3, *kernels)))
    drawn = lanes(profile_of(tmp_path, main), 100)
    shown = drawn.select("lane", "name", pl.col("start_ns", "end_ns") - EPOCH_NS)
    assert shown.rows()[1:] == [
        ("GPU 0 stream 2", "k", 12, 16),
        ("GPU 0 stream 3", "k", 17, 22),
        ("other streams", "2 streams with less work are not drawn", 10, 24),
    ]


def test_nothing_recorded_is_no_lane(tmp_path):
    assert lanes(profile_of(tmp_path, Thread(1, "main", ())), 10).is_empty()


def test_memory_over_time_its_peak_and_who_allocated(tmp_path):
    """
    ::

        ProfileStep#3  ############################
          Forward       ##########
            linear       #######      allocates 100 at 3; its matmul 50 at 5
          Backward                 ########   linear_grad allocates 200 at 23, frees 100 at 25
        outside every span: 10 at 60
    """
    main = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#3", 0, 50).around(
            span("Forward", "GPT", 1, 12).around(
                span("Operator", "linear", 2, 10).around(
                    alloc(3, 100),
                    reserve(3, 512),
                    span("OperatorInner", "linear compute", 4, 8, alloc(5, 50)),
                )
            ),
            span("Backward", "Backward", 20, 40).around(
                span("Operator", "linear_grad", 21, 30, alloc(23, 200), free(25, 100))
            ),
        ),
        alloc(60, 10),
        alloc(61, 5, CPU),
    )
    found = memory_levels(profile_of(tmp_path, main), 3)
    on_gpu = found.levels.filter(place=GPU0)
    # Thirds of 3 to 61: from 3, from 22.3 and from 41.7.
    assert on_gpu.select(
        pl.col("time_ns") - EPOCH_NS, "allocated_bytes", "reserved_bytes"
    ).rows() == [
        (5, 150, 512),
        (23, 350, 512),
        (60, 260, 512),
    ]
    assert [(p.place, p.time_ns - EPOCH_NS, *p[2:]) for p in found.peaks] == [
        (GPU0, 23, 350, 3, "Backward", "linear_grad"),
        (CPU, 61, 5, None, None, None),
    ]
    assert found.allocators.rows() == [
        (GPU0, "linear_grad", 1, 200, 200),
        (GPU0, "linear", 2, 150, 100),
        (GPU0, "-", 1, 10, 10),
        (CPU, "-", 1, 5, 5),
    ]


@pytest.mark.parametrize("budget", [1, 400])
def test_no_memory_event_is_no_level(tmp_path, budget):
    found = memory_levels(profile_of(tmp_path, Thread(1, "main", ())), budget)
    assert (found.levels.height, found.peaks, found.allocators.height) == (0, [], 0)
