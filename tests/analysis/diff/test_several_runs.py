from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.analysis.diff.several_runs import (
    RunTime,
    run_time,
    run_times,
    runs_change,
    wait_difference,
)
from ppprof.rundir.step_times import STEP_TIMES

times = st.lists(st.floats(1e3, 1e12), min_size=2, max_size=6)


def of_steps(walls, waits):
    """Steps of one rank; the first is left out."""
    rows = {"step": range(len(walls)), "batch_cost_ns": walls, "processor_wait_ns": waits}
    table = pl.DataFrame(rows).with_columns(rank=0, excluded=pl.lit(value=False))
    missing = [pl.lit(None).alias(name) for name in STEP_TIMES if name not in table.columns]
    return table.with_columns(missing).select(pl.col(n).cast(t) for n, t in STEP_TIMES.items())


def test_a_wait_is_taken_off_its_steps():
    assert run_time(of_steps([9, 100, 140, 100], [None, 0, 40, 0])) == RunTime(
        3, pytest.approx(340 / 3), 100.0, 100.0, 100.0, pytest.approx(40 / 340)
    )


def test_a_wait_read_after_several_steps_counts_for_each():
    """The reading at step 3 covers steps 1 to 3; the last step has none, and is left out."""
    time = run_time(of_steps([9, 100, 200, 300, 50], [0, None, None, 60, None]))
    assert (time.num_steps, time.wall_ns) == (3, 200)
    assert time.mean_ns == time.median_ns == pytest.approx(180)
    assert time.quiet_ns == pytest.approx(90 + 0.2 * 90)
    assert time.wait_ratio == pytest.approx(0.1)


def test_an_unknown_wait_takes_nothing_off():
    assert run_time(of_steps([9, 100, 200], [None] * 3)) == RunTime(2, 150, 150, 150, 110, None)
    assert run_time(of_steps([9], [None])) is None


def test_welch_by_hand():
    """Variances 1 and 4 of 3 runs each: error sqrt(5/3), (5/3)^2 / (1/18 + 16/18) = 2.9 degrees."""
    baseline, experiment = (
        [math.exp(mean + step) for step in steps]
        for mean, steps in ((0, (-1, 0, 1)), (3, (-2, 0, 2)))
    )
    change = runs_change(baseline, experiment)
    half = 4.3027 * math.sqrt(5 / 3)  # 97.5% quantile with 2 degrees, from a printed table
    assert math.log1p(change.ratio) == pytest.approx(3)
    assert math.log1p(change.low) == pytest.approx(3 - half, abs=1e-3)
    assert math.log1p(change.high) == pytest.approx(3 + half, abs=1e-3)
    assert change.spread == pytest.approx(math.sqrt(2.5))
    assert change.verdict == "inconclusive"


@pytest.mark.parametrize("noises", [(0.03, 0.03), (0.01, 0.2)])
@pytest.mark.parametrize("num", [2, 3, 5])
def test_equal_programs_rarely_differ(num, noises):
    """Of 2,000 comparisons of equal programs at most 6% are called faster or slower."""
    random = np.random.default_rng(7)
    wrong = sum(
        runs_change(*(np.exp(noise * random.standard_normal(num)) for noise in noises)).verdict
        in ("faster", "slower")
        for _ in range(2000)
    )
    assert wrong <= 0.06 * 2000


def test_slower_programs_are_seen():
    random = np.random.default_rng(7)
    seen = sum(
        runs_change(*(mean * np.exp(0.03 * random.standard_normal(5)) for mean in (1, 1.1))).verdict
        == "slower"
        for _ in range(500)
    )
    assert seen >= 0.9 * 500


@given(times, times)
def test_swapping_the_sides_swaps_the_ends(baseline, experiment):
    one, other = runs_change(baseline, experiment), runs_change(experiment, baseline)
    assert 1 + one.low == pytest.approx(1 / (1 + other.high))
    assert one.low <= one.ratio <= one.high
    assert (one.needed_runs is None) or one.verdict == "inconclusive"


def test_one_run_of_a_side_decides_nothing():
    assert str(runs_change([1.0], [2.0, 2.0, 2.0])) == (
        "inconclusive: +100.0%; 1 run is too few: 2 of either side give an interval"
    )


def test_the_needed_runs_decide():
    """With this spread 5 runs leave it open, and as many as are needed do not; both are even."""

    def runs(mean, spread, num):
        distance = spread * math.sqrt((num - 1) / num)
        return [mean * math.exp(sign * distance) for sign in (-1, 1) for _ in range(num // 2)]

    change = runs_change(runs(1, 0.08, 4), runs(1.08, 0.08, 4))
    needed = change.needed_runs
    assert change.verdict == "inconclusive"
    assert change.spread == pytest.approx(0.08)
    verdicts = [
        runs_change(runs(1, 0.08, num), runs(1.08, 0.08, num)).verdict
        for num in (2 * (needed // 2) - 2, 2 * -(-needed // 2))
    ]
    assert verdicts == ["inconclusive", "slower"]


def test_a_different_wait_is_said():
    quiet, busy = (
        RunTime(9, wall, 100, 100, 100, wait) for wall, wait in ((100, 0.0), (145, 0.31))
    )
    text = wait_difference([quiet, quiet], [busy, busy])
    assert "0.0% of the baseline's steps, 31.0% of the experiment's" in text
    assert "slower: +45.0%" in text
    assert wait_difference([busy, quiet], [quiet, busy]) == ""


def test_a_wait_that_one_run_does_not_know_is_left_in_all():
    knows = of_steps([9, 100, 140, 100], [None, 0, 40, 0])
    unknown = of_steps([9, 100, 140, 100], [None] * 4)
    assert run_times([{"a": knows}, {"b": knows}]) == [
        {"a": run_time(knows)},
        {"b": run_time(knows)},
    ]
    for one in ([{"a": knows}, {"b": unknown}], [{"a": knows, "b": unknown}, {"c": knows}]):
        times = [time for side in run_times(one) for time in side.values()]
        assert times == [run_time(unknown)] * len(times)
