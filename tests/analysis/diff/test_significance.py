from __future__ import annotations

import dataclasses
import itertools
import math
import re

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.analysis.diff.significance import (
    LEAST_STEPS,
    Change,
    _interval,
    _is_separated,
    equal_steps,
    step_change,
)

RANKS = 4


def run(seed, *, mean=100e6, steps=40, noise=0.03, of_ranks=0.01, drift=0.0, growth=0.0, first=0):
    """Step times of ranks that wait for one another: what slows a step slows all of them.

    The last third of the steps takes ``drift`` longer, as on a machine with other work; each step takes ``growth``
    longer than the one before.
    """
    random = np.random.default_rng(seed)
    number = np.arange(steps)
    slower = drift * (number > 2 / 3 * steps) + growth * (first + number)
    of_steps = mean * (1 + noise * random.standard_normal(steps) + slower)
    rows = [
        (rank, first + step, int(of_steps[step] * (1 + of_ranks * random.standard_normal())))
        for rank in range(RANKS)
        for step in range(steps)
    ]
    schema = {"rank": pl.Int64, "step": pl.Int64, "step_ns": pl.Int64}
    return pl.DataFrame(rows, schema, orient="row")


@pytest.mark.parametrize(
    ("steps", "noise"),
    [
        (12, 0.03),
        *(
            pytest.param(steps, noise, marks=pytest.mark.all)
            for steps, noise in itertools.product((5, 12, 40), (0.005, 0.03, 0.15))
            if (steps, noise) != (12, 0.03)
        ),
    ],
)
def test_the_same_thing_twice_differs_once_in_twenty_at_the_most(steps, noise):
    seen = [
        step_change(run(seed, noise=noise, steps=steps), run(seed + 1000, noise=noise, steps=steps))
        for seed in range(100)
    ]
    assert sum(change.verdict not in ("faster", "slower") for change in seen) >= 95


@pytest.mark.parametrize(("factor", "verdict"), [(1.1, "slower"), (0.9, "faster")])
def test_a_change_of_ten_percent_is_seen_above_a_noise_of_three(factor, verdict):
    for seed in range(10):
        change = step_change(run(seed), run(seed + 1000, mean=factor * 100e6))
        assert change.verdict == verdict
        assert change.low < factor - 1 < change.high
        assert change.ratio == pytest.approx(factor - 1, abs=0.03)


def heavy_tailed(seed, steps, factor=1.0):
    """Independent steps, of which a few take many times as long as most."""
    times = factor * 100e6 * np.random.default_rng(seed).lognormal(0.0, 1.0, steps)
    return pl.DataFrame({"rank": 0, "step": range(steps), "step_ns": times.astype(np.int64)})


def test_an_interval_on_the_logarithm_is_above_minus_one():
    """A quarter of the time, and an error of 3 and 4 doublings: 2**-2 / 2**5 and 2**-2 * 2**5."""
    two = math.log(2)
    assert _interval(-2 * two, 3 * two, 0.0, 4 * two) == pytest.approx((2**-7 - 1, 2**2 - 1))
    assert _interval(-2 * two, 0.0, 3 * two, 4 * two) == pytest.approx((2**-6 - 1, 2**3 - 1))
    assert _interval(0.0, 0.0, 0.0, 0.0) == (0.0, 0.0)


def test_no_change_is_below_minus_a_hundred_percent():
    """An interval of the ratio itself, which its drift of 1.1 widens, would begin at about -3.3."""

    def quarters(*means):
        times = [mean for mean in means for _ in range(3)]
        return pl.DataFrame({"rank": 0, "step": range(len(times)), "step_ns": times})

    change = step_change(quarters(1000, 1000, 1000, 6000), quarters(500, 500, 500, 3000))
    assert change.ratio == -0.5
    assert -1 < change.low < -0.9
    assert change.high > 1


def test_swapped_runs_have_the_swapped_interval():
    one, other = run(1, noise=0.3), run(2, mean=150e6, noise=0.3)
    change, back = step_change(one, other), step_change(other, one)
    assert 1 + back.ratio == pytest.approx(1 / (1 + change.ratio))
    assert 1 + back.low == pytest.approx(1 / (1 + change.high), rel=0.02)  # other draws
    assert 1 + back.high == pytest.approx(1 / (1 + change.low), rel=0.02)


@pytest.mark.parametrize("steps", [12, pytest.param(40, marks=pytest.mark.all)])
def test_the_interval_of_steps_that_vary_much_has_the_true_change(steps):
    changes = [
        step_change(heavy_tailed(seed, steps), heavy_tailed(seed + 1000, steps, 0.4))
        for seed in range(100)
    ]
    assert all(change.low > -1 for change in changes)
    assert sum(change.low <= -0.6 <= change.high for change in changes) >= 95


def test_an_experiment_of_no_time_has_no_interval():
    nothing = run(1).with_columns(step_ns=pl.lit(0, pl.Int64))
    change = step_change(run(1), nothing)
    assert str(change) == "inconclusive: -100.0%; the experiment's steps take no time"
    few = run(1).with_columns(step_ns=pl.when(pl.col("step") == 0).then("step_ns").otherwise(0))
    assert -1 <= step_change(run(1), few).low < -0.9  # most draws take no time


def test_a_run_that_drifts_says_little():
    calm = step_change(run(1), run(2, mean=108e6))
    drifting = step_change(run(1, drift=0.3), run(2, mean=108e6, drift=0.3))
    assert calm.verdict == "slower"
    assert drifting.verdict == "inconclusive"
    assert drifting.noise > 5 * calm.noise
    assert drifting.needed_steps is None
    assert "more steps would not decide: use a quieter machine" in str(drifting)


@pytest.mark.parametrize(
    ("growths", "mean", "verdict"),
    [
        ((0.05, 0.05), 100e6, "no difference seen"),
        ((0.05, 0.05), 110e6, "slower"),
        ((0.05, 0.0), 100e6, "faster"),
        ((0.0, 0.05), 100e6, "slower"),
    ],
)
def test_steps_that_grow_with_their_number_are_named_and_compared_without(growths, mean, verdict):
    one, other = run(1, growth=growths[0]), run(2, mean=mean, growth=growths[1])
    change = step_change(one, other)
    assert change.verdict == verdict
    assert [each is not None for each in change.growth_ns] == [growth > 0 for growth in growths]
    assert next(each for each in change.growth_ns if each) == pytest.approx(5e6, rel=0.15)
    assert re.search(
        r"; at equal step numbers, .* grow by \d.\d+ ms a step.* over 40 steps", str(change)
    )


def test_a_longer_run_whose_steps_grow_is_not_the_slower_one():
    """The mean of all 80 steps is half as long again as that of the first 40."""
    one, other = run(1, growth=0.05), run(2, growth=0.05, steps=80)
    assert step_change(one, other).ratio > 0.4
    change = step_change(*equal_steps(one, other))
    assert change.verdict == "no difference seen"
    assert (change.baseline_steps, change.experiment_steps) == (40, 40)
    level = run(3), run(4, steps=80)
    assert equal_steps(*level) == level


def test_steps_that_grow_are_not_compared_with_others_at_other_numbers():
    """Windows and the steps beside them: which are later is no matter of chance."""
    tables = run(1, growth=0.05), run(2, growth=0.05, first=30)
    change = step_change(*equal_steps(*tables))
    assert (change.verdict, change.low, change.high) == ("inconclusive", None, None)
    assert "the baseline's steps grow by " in str(change)
    assert "few steps of the runs have equal numbers" in str(change)


@pytest.mark.parametrize("runs", [4, pytest.param(10, marks=pytest.mark.all)])
def test_what_is_undecided_says_how_many_steps_would_decide(runs):
    """And with a few times as many it is decided, in most cases."""
    decided = 0
    for seed in range(runs):
        few, many = (
            step_change(
                run(seed, noise=0.1, steps=steps),
                run(seed + 1000, mean=104e6, noise=0.1, steps=steps),
            )
            for steps in (12, 600)
        )
        assert few.verdict == "inconclusive"
        if few.needed_steps is not None:
            assert f"some {few.needed_steps} steps of either run would decide" in str(few)
            decided += many.verdict != "inconclusive"
    assert decided > runs / 2  # 12 steps with a noise of a tenth say little about their own noise


@pytest.mark.parametrize(
    ("low", "high", "ratio", "steps"),
    [(-0.1, 0.3, 0.1, 500), (0.05, 0.15, 0.1, None), (0.001, 0.03, 0.02, None)],
)
def test_steps_decide_only_what_they_left_open(low, high, ratio, steps):
    """Not what is decided, is within what equal runs differ by, or has its interval withheld."""
    change = Change(ratio, low, high, 40, 40, 0.01, needed_steps=500)
    assert change.deciding_steps == steps
    assert ("would decide" in change.advice) == (steps is not None)
    withheld = dataclasses.replace(change, low=None, high=None, reason="too little in common")
    assert withheld.deciding_steps is None
    assert not withheld.advice


def test_steps_that_are_separated_are_no_equal_runs():
    """Each run drifts by more than the difference, so that the interval contains 0."""

    def steps(first):
        times = [first] * 6 + [first + 1000] * 6
        return pl.DataFrame({"rank": 0, "step": range(12), "step_ns": times})

    change = step_change(steps(100_000), steps(101_050))
    assert change.low < 0 < change.high < 0.05
    assert (change.is_separated, change.verdict) == (True, "inconclusive")
    assert step_change(steps(100_000), steps(100_950)).verdict == "no difference seen"


def test_three_steps_each_are_too_few_to_be_separated():
    """They are in 2 of 20 orders by chance."""
    three, others = (np.array([[first, first + 1, first + 2.0]]) for first in (1, 10))
    assert not _is_separated(three, others)
    assert _is_separated(np.arange(5.0)[None], np.arange(10.0, 15)[None])


def test_too_few_steps():
    change = step_change(run(1, steps=LEAST_STEPS - 1), run(2))
    assert (change.verdict, change.low) == ("inconclusive", None)
    assert str(change).endswith("; 4 steps are too few: 5 of either run give an interval")
    assert step_change(run(1).clear(), run(2)).verdict == "inconclusive"
    assert str(Change(None, None, None, 0, 3, reason="no step times")) == (
        "inconclusive: no step times"
    )


def test_ranks_that_have_other_steps_and_steps_that_take_no_time():
    one = run(1).filter((pl.col("rank") < 2) == (pl.col("step") < 20))
    change = step_change(one, one)
    assert change.low < 0 < change.high
    nothing = run(1).with_columns(step_ns=pl.lit(0, pl.Int64))
    assert step_change(nothing, run(1)).verdict == "inconclusive"


def test_a_sample_of_many_ranks_is_enough():
    wide = pl.concat(run(1).with_columns(pl.col("rank") + 4 * copy) for copy in range(40))
    lone = wide.filter((pl.col("step") < 30) | (pl.col("rank") == 1))
    change = step_change(lone, lone)
    assert change.low < 0 < change.high


def test_a_run_against_itself():
    change = step_change(run(1), run(1))
    assert change.ratio == 0
    assert change.low < 0 < change.high


def test_steps_and_ranks_may_have_other_numbers():
    one, other = run(1), run(1, first=100).with_columns(pl.col("rank") + 8)
    assert step_change(one, other) == step_change(one, one)


@given(scale=st.floats(0.001, 1e3))
def test_units_do_not_matter(scale):
    one, other = run(1, steps=8), run(2, steps=8)
    scaled = [t.with_columns((pl.col("step_ns") * scale).alias("step_ns")) for t in (one, other)]
    found, expected = step_change(*scaled), step_change(one, other)
    assert found.ratio == pytest.approx(expected.ratio, rel=1e-6)
    assert found.low == pytest.approx(expected.low, rel=1e-6)


@pytest.mark.parametrize(("mean", "verdict"), [(102e6, "inconclusive"), (106e6, "slower")])
def test_a_small_change_is_within_the_spread_of_equal_runs(mean: float, verdict: str) -> None:
    change = step_change(run(1, noise=0.001), run(2, mean=mean, noise=0.001))
    assert change.low is not None
    assert change.low > 0
    assert change.verdict == verdict
    assert ("ppprof bench" in str(change)) == (verdict == "inconclusive")
    back = step_change(run(2, mean=mean, noise=0.001), run(1, noise=0.001))
    assert back.verdict == {"slower": "faster"}.get(verdict, verdict)
