"""Whether two runs differ in speed by more than the noise between equal runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from ppprof.analysis.profile.step_basis import LEAST_STEPS
from ppprof.arrays import Float64
from ppprof.messages import Counted
from ppprof.units import format_time

MARGIN = 0.05
"""Changes up to this are no difference: they are within the noise between two runs of one config on a
shared machine, as `ppprof.analysis.advice.finding.MODERATE_RATIO`."""

BETWEEN_RUNS = 0.03
"""What a pair of runs has to exceed: the interval knows the noise within a run, and the medians of equal runs
spread by 3.3% on a quiet machine (standard deviation of 190 pairs)."""

_CHANCE = 2.6
"""The 95% quantile of a variance of 4 means over its expectation (chi-square, 3 degrees of freedom)."""
_MOST_NEEDED = 1_000_000
_REPLICATES = 2000
_SHORTEST_NS = 1.0
"""Drawn mean step times below this count as this, since 0 has no logarithm."""
_AT_ONCE = 100
_CONFIDENCE = 0.95
_PARTS = 4
"""Number of parts of a run that are compared to find its drift."""
_SEED = 342  # the same data give the same interval
_CLEAR_TREND = 5.0
"""A trend of steps is clear from this many standard errors on."""
_EVEN = 0.5
"""Most that the trend of half a run differs from that of the whole, as a share of this."""
_LEAST_OF_TREND = 12
"""Least number of steps that can have a trend."""
_MOST_RANKS = 64
"""Maximum number of ranks of a run that are resampled. More ranks do not narrow the interval."""


@dataclass(frozen=True)
class Change:
    """The change of the step time from the baseline to the experiment; below 0 if it decreased.

    >>> print(Change(0.052, 0.031, 0.074, 40, 40, 0.01))
    slower: +5.2% (95% interval +3.1% to +7.4%)
    """

    ratio: float | None
    """Mean step time of the experiment over that of the baseline, minus 1. None if a run has no
    steps, or if the baseline's steps take no time."""
    low: float | None
    high: float | None
    """``low`` and ``high`` are the 95% interval of ``ratio``; None if there is no interval, such as
    with fewer than `LEAST_STEPS` steps in a run."""
    baseline_steps: int
    experiment_steps: int
    noise: float | None = None
    """The drift between parts of one run, as a ratio: the larger value of the two runs. Smaller
    changes cannot be detected. None if no interval was computed."""
    reason: str = ""
    """Why there is no interval; empty if there is one."""
    is_separated: bool = False
    """Whether all steps of one run take longer than all steps of the other, and that would happen by
    chance in less than 5% of equal runs (exact rank test)."""
    growth_ns: tuple[float | None, float | None] = (None, None)
    """What the steps of the baseline and of the experiment grow by from one to the next, below 0 if they
    shrink, if that is clear. Both runs are then compared without it, in steps of equal numbers."""
    needed_steps: int | None = None
    """About how many steps of either run would decide, if the verdict is ``inconclusive``. None if
    more steps of these runs would not, because each of them drifts too much."""

    @property
    def verdict(self) -> str:
        """``slower`` if the interval is above 0, ``faster`` if below, and the change exceeds `BETWEEN_RUNS`.

        Else ``no difference seen`` if the interval lies within `MARGIN` of 0, and the steps are not
        separated; else ``inconclusive``, also without an interval.
        """
        verdict = verdict_of(self.low, self.high)
        is_small = verdict == "no difference seen" and self.is_separated
        return "inconclusive" if is_small or self.is_within_runs else verdict

    @property
    def is_within_runs(self) -> bool:
        """Whether there is a change, which equal runs may have, too."""
        is_change = verdict_of(self.low, self.high) in ("slower", "faster")
        return is_change and self.ratio is not None and abs(self.ratio) <= BETWEEN_RUNS

    @property
    def deciding_steps(self) -> int | None:
        """``needed_steps`` if more steps would decide what is ``inconclusive``; else None."""
        is_open = self.verdict == "inconclusive" and self.low is not None
        return self.needed_steps if is_open and not self.is_within_runs else None

    @property
    def advice(self) -> str:
        """What would decide an ``inconclusive`` verdict that has an interval; else empty."""
        if self.verdict != "inconclusive" or self.low is None or self.noise is None:
            return ""
        if self.is_within_runs:
            return f"equal runs differ by {BETWEEN_RUNS:.0%}, too: ppprof bench compares several"
        if self.deciding_steps is not None:
            return f"some {Counted(self.deciding_steps):step|steps} of either run would decide"
        return (
            f"parts of one run differ by {self.noise:.1%}, so more steps would not decide: use a "
            "quieter machine"
        )

    def __str__(self) -> str:
        if self.ratio is None:
            return f"inconclusive: {self.reason}"
        if self.low is None or self.high is None:
            return f"inconclusive: {self.ratio:+.1%}; {self.reason}"
        interval = f"95% interval {self.low:+.1%} to {self.high:+.1%}"
        further = "".join(f"; {text}" for text in (self.advice, self._growth) if text)
        return f"{self.verdict}: {self.ratio:+.1%} ({interval}){further}"

    @property
    def _growth(self) -> str:
        """What is said about steps that grow; empty if neither run's do."""
        over = f" over {Counted(self.baseline_steps):step|steps}"
        grow = _growth_text(self.growth_ns)
        return f"at equal step numbers, {grow}{over}" if grow else ""


def _growth_text(growth_ns: Sequence[float | None]) -> str:
    return " and ".join(
        f"the {name}'s steps {'grow' if ns > 0 else 'shrink'} by {format_time(abs(ns))} a step"
        for name, ns in zip(("baseline", "experiment"), growth_ns)
        if ns is not None
    )


def verdict_of(low: float | None, high: float | None) -> str:
    """Return the verdict on a change by its 95% interval, see `Change.verdict`.

    >>> verdict_of(0.01, 0.2), verdict_of(-0.01, 0.02), verdict_of(-0.01, 0.2)
    ('slower', 'no difference seen', 'inconclusive')
    """
    if low is None or high is None:
        return "inconclusive"
    if low > 0:
        return "slower"
    if high < 0:
        return "faster"
    return "no difference seen" if low >= -MARGIN and high <= MARGIN else "inconclusive"


def step_change(baseline: pl.DataFrame, experiment: pl.DataFrame) -> Change:
    """Return the change of the mean step time, with its interval.

    The bootstrap draws ranks and blocks of steps, and takes each drawn block on all drawn ranks,
    because steps are not independent samples: a delay affects neighbouring steps, on all ranks. It
    also draws single steps, and uses the lower of the two low ends and the higher of the two high
    ends. Then the interval is widened by the drift between parts of one run, since two equal runs
    differ at least that much.

    If both runs have the same step numbers, and the steps of one grow with them (`equal_steps`), the
    interval and the drift are those of the steps without this growth.

    The interval is computed for the logarithm of the ratio of the means, and its ends are converted
    to changes. The ratio itself has a skewed distribution, which a symmetric error does not fit: it
    would allow changes below -100%. On the logarithm, twice and half as long are equally far from
    no change, so swapping the runs swaps the ends.

    Args:
        baseline: one row per rank and step: rank, step, step_ns.
        experiment: a table like ``baseline``.

    Returns:
        The change with a 95% interval. There is no interval, and ``reason`` says why, if a run has
        fewer than `LEAST_STEPS` steps or if the baseline's steps take no time.

    Source: moving block bootstrap, H. R. Künsch, "The jackknife and the bootstrap for general
    stationary observations" (1989); two-level resampling, T. Kalibera and R. Jones, "Rigorous
    benchmarking in reasonable time" (2013); interval of a ratio through its logarithm, B. Efron and
    R. Tibshirani, "An Introduction to the Bootstrap" (1993), 12.6, 13.6 and 13.7. (Fieller's interval, 1954,
    needs normal means, and is unbounded if the baseline's mean is uncertain.)
    """
    numbers, sides = map(list, zip(*map(_matrix, (baseline, experiment))))
    num = (sides[0].shape[1], sides[1].shape[1])
    if not all(num):
        return Change(None, None, None, *num, reason="no step times")
    means = [float(np.nanmean(side)) for side in sides]
    if not means[0]:
        return Change(None, None, None, *num, reason="the baseline's steps take no time")
    ratio = means[1] / means[0] - 1
    if min(num) < LEAST_STEPS:
        reason = f"{Counted(min(num)):step is|steps are} too few: {LEAST_STEPS} of either run give an interval"
        return Change(ratio, None, None, *num, reason=reason)
    if not means[1]:
        return Change(ratio, None, None, *num, reason="the experiment's steps take no time")
    growth = [_growth_ns(*side) for side in zip(numbers, sides)]
    if np.array_equal(*numbers):
        sides = [_without(*side) for side in zip(growth, numbers, sides)]
    elif any(growth):
        grow = _growth_text(growth)
        reason = f"{grow}, and few steps of the runs have equal numbers"
        return Change(ratio, None, None, *num, growth_ns=(growth[0], growth[1]), reason=reason)
    random = np.random.default_rng(_SEED)
    tail = (1 - _CONFIDENCE) / 2
    log_ratio = math.log(means[1] / means[0])
    low, high = log_ratio, log_ratio
    for is_single in (False, True):  # blocks hide alternating step times
        lengths = [1 if is_single else _block(number) for number in num]
        draws = [_draw_means(side, length, random) for side, length in zip(sides, lengths)]
        logs = [np.log(np.maximum(draw, _SHORTEST_NS)) for draw in draws]
        ends = np.quantile(logs[1] - logs[0], [tail, 1 - tail])
        low, high = min(low, float(ends[0])), max(high, float(ends[1]))
    noise, lasting = map(max, zip(*map(_drifts, sides)))
    # Few blocks underestimate the variance: widen by Student's factor.
    num_blocks = min(number // _block(number) for number in num)
    few = student(num_blocks - 1) / student(None) * math.sqrt(num_blocks / (num_blocks - 1))
    drifted = student(2 * (_PARTS - 1)) * noise
    below, above = few * (log_ratio - low), few * (high - log_ratio)
    return Change(
        ratio,
        *_interval(log_ratio, below, above, drifted),
        *num,
        noise,
        is_separated=_is_separated(*sides),
        growth_ns=(growth[0], growth[1]),
        needed_steps=_needed_steps(
            log_ratio,
            below if ratio > 0 else above,
            drifted,
            student(2 * (_PARTS - 1)) * lasting,
            min(num),
        ),
    )


def equal_steps(
    baseline: pl.DataFrame, experiment: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of the steps that both runs have, if the steps of one of them grow with their number.

    ::

        baseline     1 2 3 4 5 6 7 8       3 4 5 6 7 8      the mean of all would depend on how many there are
        experiment       5 5 5 5 5 5 5     5 5 5 5 5 5

    Both tables as they are if neither grows, or with fewer than `_LEAST_OF_TREND` such steps: then there is no interval.

    Args:
        baseline: one row per rank and step: rank, step, step_ns.
        experiment: a table like ``baseline``.
    """
    if all(_growth_ns(*_matrix(table)) is None for table in (baseline, experiment)):
        return baseline, experiment
    one = baseline.join(experiment, "step", "semi")
    other = experiment.join(baseline, "step", "semi")
    return (one, other) if one["step"].n_unique() >= _LEAST_OF_TREND else (baseline, experiment)


def _growth_ns(numbers: Float64, times: Float64) -> float | None:
    """Return what steps grow by from one to the next; None unless that is a clear straight line.

    It is, if nothing that lasts is left without it (`_drifts`): a machine that becomes slower rarely does so
    evenly. The growth over all steps is at least `MARGIN` of their mean.
    """
    medians = np.nanmedian(times, axis=0) if times.size else np.empty(0)
    if len(medians) < _LEAST_OF_TREND or not medians.mean():
        return None
    slope, error = _line(numbers, medians)
    parts = np.array_split(np.arange(len(medians)), 2)
    is_even = all(
        abs(_line(numbers[part], medians[part])[0] / slope - 1) < _EVEN for part in parts if slope
    )
    is_large = abs(slope) * float(np.ptp(numbers)) >= MARGIN * medians.mean()
    is_straight = is_large and is_even and not _drifts(_without(slope, numbers, medians)[None])[1]
    return slope if is_straight and abs(slope) >= _CLEAR_TREND * error else None


def _line(numbers: Float64, values: Float64) -> tuple[float, float]:
    """Return the slope of values over numbers, and its standard error, by least squares."""
    apart = numbers - numbers.mean()
    slope = float((apart * values).sum() / (apart**2).sum())
    rest = values - values.mean() - slope * apart
    return slope, math.sqrt(float((rest**2).sum() / (apart**2).sum()) / (len(values) - 2))


def _without(growth_ns: float | None, numbers: Float64, times: Float64) -> Float64:
    """Return step times without their growth, with the same mean."""
    detrended: Float64 = times - (growth_ns or 0.0) * (numbers - numbers.mean())
    return detrended


def _interval(log_ratio: float, below: float, above: float, drifted: float) -> tuple[float, float]:
    """Return the interval of the change, which is above -1 whatever the noise.

    All lengths are differences of logarithms. Independent errors add up in squares: 3 and 4 make 5.

    >>> low, high = _interval(math.log(2), 3 * math.log(2), 3 * math.log(2), 4 * math.log(2))
    >>> round(low, 4), round(high, 4)  # 2 / 2**5 - 1 and 2 * 2**5 - 1
    (-0.9375, 63.0)
    """
    low = math.expm1(log_ratio - math.hypot(below, drifted))
    return low, math.expm1(log_ratio + math.hypot(above, drifted))


def _is_separated(baseline: Float64, experiment: Float64) -> bool:
    """Return whether an exact rank test separates the steps of two runs completely.

    Of all orders of n + m equal steps, 2 in C(n + m, n) have all of one run first (Wilcoxon, 1945).
    """
    one, other = (np.nanmedian(side, axis=0) for side in (baseline, experiment))
    apart = one.max() < other.min() or other.max() < one.min()
    return bool(apart) and 2 / math.comb(len(one) + len(other), len(one)) < 1 - _CONFIDENCE


def _needed_steps(
    log_ratio: float, half: float, drifted: float, lasting: float, num_steps: int
) -> int | None:
    """Return about how many steps an interval needs that excludes 0, or that lies within `MARGIN`.

    All lengths are differences of logarithms.

    Returns:
        Two significant digits, rounded up; None if the lasting drift is too large, or above a
        million.
    """
    edge = math.log1p(MARGIN) if log_ratio > 0 else -math.log1p(-MARGIN)
    shrinks = half**2 + drifted**2 - lasting**2  # with the number of steps
    needed = [
        num_steps * shrinks / (width**2 - lasting**2)
        for width in (abs(log_ratio), edge - abs(log_ratio))
        if width > lasting
    ]
    if not needed or min(needed) > _MOST_NEEDED:
        return None
    steps = max(min(needed), num_steps + 1)
    digit = int(10 ** max(0, math.floor(math.log10(steps)) - 1))
    return math.ceil(steps / digit) * digit


def _matrix(table: pl.DataFrame) -> tuple[Float64, Float64]:
    """Return step numbers, and step times in nanoseconds, shape (ranks, steps); NaN for a missing step of a rank.

    Of more than `_MOST_RANKS` ranks, evenly spaced ones are taken. Steps without any time are
    removed.
    """
    if table.is_empty():
        return np.empty(0), np.empty((0, 0))
    wide = table.pivot("rank", index="step", values="step_ns", aggregate_function="mean")
    wide = wide.sort("step")
    times: Float64 = wide.drop("step").cast(pl.Float64).to_numpy().T
    if len(times) > _MOST_RANKS:
        times = times[np.linspace(0, len(times) - 1, _MOST_RANKS).astype(int)]
    is_known = ~np.isnan(times).all(axis=0)
    return wide["step"].cast(pl.Float64).to_numpy()[is_known], times[:, is_known]


def _draw_means(times: Float64, length: int, random: np.random.Generator) -> Float64:
    """Return the mean step times of `_REPLICATES` draws of ranks and blocks of steps."""
    num_ranks, num_steps = times.shape
    is_known = ~np.isnan(times)
    known = np.where(is_known, times, 0.0)
    means = []
    for _ in range(0, _REPLICATES, _AT_ONCE):
        ranks = random.multinomial(num_ranks, np.full(num_ranks, 1 / num_ranks), _AT_ONCE)
        starts = random.integers(0, num_steps - length + 1, (_AT_ONCE, -(-num_steps // length), 1))
        drawn = (starts + np.arange(length)).reshape(_AT_ONCE, -1)[:, :num_steps]
        cells = (drawn + num_steps * np.arange(_AT_ONCE)[:, None]).ravel()
        # How many times each step was drawn.
        steps = np.bincount(cells, minlength=_AT_ONCE * num_steps).reshape(_AT_ONCE, num_steps)
        num = ((ranks @ is_known) * steps).sum(1)  # 0 if no drawn rank has a drawn step
        means.append(((ranks @ known) * steps).sum(1)[num > 0] / num[num > 0])
    return random.choice(np.concatenate(means), _REPLICATES)


def _drifts(times: Float64) -> tuple[float, float]:
    """Return the drift of a run, and the part of it that lasts: what more steps would not shrink.

    The drift is the standard deviation of the mean step times of the run's quarters, over its mean. Runs
    of fewer than 8 steps have fewer parts, of at least 2 steps. Means of parts differ by chance, too, by
    the variance of their steps over their number: the drift lasts if its variance is `_CHANCE` times that.
    """
    medians = np.nanmedian(times, axis=0)
    parts = np.array_split(medians, min(_PARTS, len(medians) // 2))
    drift = float(np.std([part.mean() for part in parts], ddof=1) / medians.mean())
    chance = float(np.mean([float(part.var(ddof=1)) / len(part) for part in parts]))
    chance /= medians.mean() ** 2
    lasting = math.sqrt(drift**2 - chance) if drift**2 > _CHANCE * chance else 0.0
    return drift, lasting


def student(freedom: int | None) -> float:
    """Return the 97.5% quantile of Student's t with ``freedom`` degrees of freedom.

    For None, that of the normal distribution.

    >>> round(student(1), 3), round(student(2), 3), round(student(10), 2), round(student(None), 2)
    (12.706, 4.303, 2.23, 1.96)

    Source: with 1 and 2 degrees the quantile in closed form, else the Cornish-Fisher expansion,
    Abramowitz and Stegun 26.7.5, which is 24% and 3% too short there.
    """
    z = 1.959964
    if freedom == 1:
        return math.tan(math.pi * _CONFIDENCE / 2)
    if freedom == 2:
        return _CONFIDENCE * math.sqrt(2 / (1 - _CONFIDENCE**2))
    if freedom is None:
        return z
    terms: tuple[float, ...] = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum((term / freedom**power for power, term in enumerate(terms, 1)), 0.0)


def _block(num_steps: int) -> int:
    """Return the number of steps in a block: an estimate of how many steps depend on each other."""
    return max(1, round(math.sqrt(num_steps) / 1.5))
