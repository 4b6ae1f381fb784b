"""The flame graphs of two runs as one."""

from __future__ import annotations

import polars as pl

from ppprof.analysis.diff.flame_changes import flame_changes
from ppprof.analysis.profile.flame import FLAME


def graph(*rows: tuple[int, str, str, int, float, float]) -> pl.DataFrame:
    """A graph of rows with depth, name, key, samples, time and own time."""
    return pl.DataFrame([(*row, 0, 1) for row in rows], FLAME, orient="row")


def changes(baseline: pl.DataFrame, experiment: pl.DataFrame) -> list[tuple[object, ...]]:
    found = flame_changes(baseline, experiment.select(pl.lit(0).alias("rank"), pl.all()))
    return found.select(
        "depth", "name", "status", "baseline_time_ns", "experiment_time_ns", "delta_self_ns"
    ).rows()


def test_a_line_is_that_of_equal_text_below_equal_lines() -> None:
    baseline = graph(
        (0, "", "", 100, 10, 1),
        (1, "main (a.py:9)", "main (a.py: log())", 90, 9, 3),
        (2, "log (a.py:4)", "log (a.py: dump())", 40, 4, 4),
        (2, "save (a.py:6)", "save (a.py: write())", 20, 2, 2),
    )
    experiment = graph(
        (0, "", "", 130, 13, 1),
        (1, "main (a.py:12)", "main (a.py: log())", 120, 12, 3),
        (2, "log (a.py:7)", "log (a.py: dump())", 80, 8, 8),
        (2, "eval (a.py:2)", "eval (a.py: net())", 10, 1, 1),
    )
    assert changes(baseline, experiment) == [
        (0, "", "both", 10, 13, 0),
        (1, "main (a.py:12)", "both", 9, 12, 0),
        (2, "log (a.py:7)", "both", 4, 8, 4),
        (2, "save (a.py:6)", "gone", 2, None, -2),
        (2, "eval (a.py:2)", "new", None, 1, 1),
    ]


def test_two_lines_of_equal_text_stay_two() -> None:
    one = graph((0, "", "", 9, 9, 0), (1, "f:1", "f: x()", 5, 5, 5), (1, "f:3", "f: x()", 4, 4, 4))
    assert [row[1:5] for row in changes(one, one)][1:] == [
        ("f:1", "both", 5, 5),
        ("f:3", "both", 4, 4),
    ]


def test_lines_of_equal_text_are_paired_in_the_order_of_the_code() -> None:
    """The second line becomes longer than the first, which stays as it is."""
    step = (0, "", "", 40, 40, 0)
    one = graph(
        step, (1, "f (a.py:10)", "f: x()", 10, 10, 10), (1, "f (a.py:20)", "f: x()", 1, 1, 1)
    )
    other = graph(
        step, (1, "f (a.py:20)", "f: x()", 20, 20, 20), (1, "f (a.py:10)", "f: x()", 10, 10, 10)
    )
    assert [row[1:] for row in changes(one, other)][1:] == [
        ("f (a.py:20)", "both", 1, 20, 19),
        ("f (a.py:10)", "both", 10, 10, 0),
    ]


def test_a_node_that_one_side_lacks_may_be_too_short_to_be_kept_there() -> None:
    """Of 40,000 samples, 79 are below 0.2% and 81 above; 200 are more than 5 standard errors of 14 above it."""
    for num, is_clear in ((81, False), (200, True)):
        one = graph((0, "", "", 40_000, 40_000, 40_000))
        other = graph(
            (0, "", "", 40_000, 40_000, 40_000 - num), (1, "f:1", "f: x()", num, num, num)
        )
        for baseline, experiment in ((one, other), (other, one)):
            found = flame_changes(baseline, experiment.select(pl.lit(0).alias("rank"), pl.all()))
            assert found.filter(pl.col("depth") == 1)["is_clear"].to_list() == [is_clear]


def test_a_change_is_clear_from_five_standard_errors_of_the_samples_on() -> None:
    """100 samples of 1 have a standard error of 10, 150 or 200 one of 12 or 14; both together 16 and 17."""
    for num, is_clear in ((150, False), (200, True)):
        one, other = (graph((0, "", "", n, n, n)) for n in (100, num))
        found = flame_changes(one, other.select(pl.lit(0).alias("rank"), pl.all()))
        assert found["is_clear"].to_list() == [is_clear]


def test_a_run_without_samples_has_no_changes() -> None:
    one = graph((0, "", "", 9, 9, 9))
    assert flame_changes(one.clear(), one).is_empty()
    assert flame_changes(one, one.clear()).is_empty()
