"""Memory over time."""

from __future__ import annotations

import polars as pl
import pytest

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.report_data.memory_timeline import memory_levels
from ppprof.trace import read
from tests.fixtures.timeline import (
    CPU,
    EPOCH_NS,
    GPU0,
    Thread,
    alloc,
    free,
    reserve,
    span,
    write,
)


def profile_of(tmp_path, *threads):
    return Profile(read(write(tmp_path / "a.pb", *threads)))


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
