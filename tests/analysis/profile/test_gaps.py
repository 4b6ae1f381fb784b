from __future__ import annotations

import polars as pl

import ppprof
from ppprof.analysis.profile.module_tree import OCCURRENCE, UNKNOWN, gaps
from ppprof.analysis.profile.profile import Profile
from ppprof.trace import read
from tests.fixtures.timeline import Thread, kernel, launch, span, write


def table(tmp_path, *threads):
    trace = read(write(tmp_path / "a.pb", *threads))
    found = gaps(Profile(trace)).sort("step", "start_ns")
    return found.with_columns(pl.col("path").str.replace_all(OCCURRENCE, "#"))


def test_a_gap_lies_before_the_module_behind_it(tmp_path):
    """
    ::

        ProfileStep#0    ########################      100 to 124
          A               ####                         101 to 105
            B              #                           102 to 103
          A                    #####                   106 to 111
          Backward                       ####          117 to 121
    """
    step = span("ProfileStep", "ProfileStep#0", 100, 124).around(
        span("Forward", "A", 101, 105, span("Forward", "B", 102, 103)),
        span("Forward", "A", 106, 111),
        span("Operator", "clip", 112, 114),
        span("Backward", "Loss", 117, 121),
    )
    found = table(tmp_path, Thread(1, "main", (step,)))
    assert found.select("path", "step", "start_ns", "time_ns", "self_ns", "cpu_ns").rows() == [
        (f"{UNKNOWN}#A#0", 0, 0, 1, 1, 1),
        (f"{UNKNOWN}#A#1", 0, 5, 1, 1, 1),
        (f"{UNKNOWN}#Backward#0", 0, 11, 6, 6, 6),
        (f"{UNKNOWN}#", 0, 21, 3, 3, 3),
    ]


def test_where_work_is_launched_a_gap_is_as_long_as_its_work(tmp_path):
    step = span("ProfileStep", "ProfileStep#0", 0, 60).around(
        launch(1, 2, kernel("init", 2, 9)),
        span("Forward", "A", 10, 20, launch(12, 13, kernel("gemm", 13, 30))),
        span("Operator", "clip", 25, 30, launch(26, 27, kernel("clip", 40, 45))),
        span("Forward", "B", 31, 40),
        launch(41, 42, kernel("tail", 50, 51)),
        launch(43, 44, kernel("tail", 51, 53)),
    )
    found = table(tmp_path, Thread(1, "main", (step,)))
    assert found.select("path", "time_ns", "cpu_ns", "gpu_ns").rows() == [
        (f"{UNKNOWN}#A#0", 7, 10, 7),
        (f"{UNKNOWN}#B#0", 5, 11, 5),
        (f"{UNKNOWN}#", 3, 20, 3),
    ]


def test_no_time_no_gap(tmp_path):
    step = span("ProfileStep", "ProfileStep#0", 0, 9, span("Forward", "A", 0, 9))
    assert table(tmp_path, Thread(1, "main", (step,))).is_empty()
    alone = Thread(1, "main", (span("Forward", "A", 0, 9),))
    assert table(tmp_path, alone).is_empty()


def test_a_step_without_modules_is_one_gap(tmp_path):
    found = table(tmp_path, Thread(1, "main", (span("ProfileStep", "ProfileStep#3", 5, 12),)))
    assert found.select("path", "step", "start_ns", "cpu_ns").rows() == [(f"{UNKNOWN}#", 3, 0, 7)]


def test_a_pause_between_two_modules_is_found_there(tmp_path):
    """A pause of 20 after the Backward, not at the beginning of the step."""

    def steps(pause):
        spans = []
        for step in range(6):
            start = 200 * step
            spans.append(
                span("ProfileStep", f"ProfileStep#{step}", start, start + 100 + pause).around(
                    span("Forward", "A", start + 5, start + 30),
                    span("Backward", "Backward", start + 31, start + 70),
                    span("Optimization", "Adam", start + 71 + pause, start + 99 + pause),
                )
            )
        return Thread(1, "main", tuple(spans))

    paths = [write(tmp_path / f"{pause}.pb", steps(pause)) for pause in (0, 20)]
    modules = ppprof.diff(*map(ppprof.open, paths)).modules
    columns = ("name", "delta_self_ns", "baseline_until_ns", "experiment_until_ns")
    assert modules.filter(depth=1).select(columns).rows() == [
        (UNKNOWN, 0, 5, 5),
        ("A", 0, 30, 30),
        (UNKNOWN, 0, 31, 31),
        ("Backward", 0, 70, 70),
        (UNKNOWN, 20, 71, 91),
        ("Optimization", 0, 99, 119),
        (UNKNOWN, 0, 100, 120),
    ]
