"""Whether two runs differ in speed, or only as two runs of the same thing do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

Float64 = npt.NDArray[np.float64]

LEAST_STEPS = 5
"""Of either run; from fewer nothing can be said."""

_REPLICATES = 2000
_CONFIDENCE = 0.95
_SEED = 342  # the same data give the same interval
_MOST_RANKS = 64
"""Ranks of a run that are resampled: more would not make the interval narrower."""


@dataclass(frozen=True)
class Change:
    """How much longer (or shorter, below 0) a step of the experiment takes.

    >>> print(Change(0.052, 0.031, 0.074, 40, 40, 0.01))
    slower: +5.2% (95% interval +3.1% to +7.4%)
    """

    ratio: float | None
    """Mean step time of the experiment over that of the baseline, minus 1; None without steps."""
    low: float | None
    high: float | None
    """The 95% interval of ``ratio``; None from fewer than `LEAST_STEPS` steps."""
    baseline_steps: int
    experiment_steps: int
    noise: float | None = None
    """How far apart parts of one run are, as a ratio: the larger of the two runs'; what is smaller
    is not seen as a difference."""

    @property
    def verdict(self) -> str:
        """``faster``, ``slower``, ``no difference seen`` or ``inconclusive``."""
        if self.ratio is None or self.low is None or self.high is None:
            return "inconclusive"
        if self.low > 0:
            return "slower"
        if self.high < 0:
            return "faster"
        return "no difference seen"

    def __str__(self) -> str:
        if self.ratio is None:
            return "inconclusive: no step times"
        if self.low is None or self.high is None:
            fewest = min(self.baseline_steps, self.experiment_steps)
            return (
                f"inconclusive: {self.ratio:+.1%}, from {fewest} steps; an interval needs "
                f"{LEAST_STEPS} of either run"
            )
        interval = f"95% interval {self.low:+.1%} to {self.high:+.1%}"
        return f"{self.verdict}: {self.ratio:+.1%} ({interval})"


def step_change(baseline: pl.DataFrame, experiment: pl.DataFrame) -> Change:
    """The change of the mean step time, and how sure it is.

    Steps of a job are no independent samples: what slows one slows its neighbours, on all ranks.
    So blocks of steps are drawn, and ranks, each time all steps of a block on all ranks drawn; and
    the interval is widened by what parts of one run differ from one another, which another run of
    the same thing differs by at the least.

    Args:
        baseline: rank, step, step_ns: a row a rank and step.
        experiment: the same.

    Returns:
        The change with a 95% interval.

    Source: moving block bootstrap, H. R. Künsch, "The jackknife and the bootstrap for general
    stationary observations" (1989); two-level resampling, T. Kalibera and R. Jones, "Rigorous
    benchmarking in reasonable time" (2013).
    """
    sides = [_matrix(table) for table in (baseline, experiment)]
    num = [side.shape[1] for side in sides]
    if not all(num):
        return Change(None, None, None, *num)
    means = [float(np.nanmean(side)) for side in sides]
    ratio = means[1] / means[0] - 1
    if min(num) < LEAST_STEPS:
        return Change(ratio, None, None, *num)
    random = np.random.default_rng(_SEED)
    drawn = [_drawn(side, random) for side in sides]
    ratios = drawn[1] / drawn[0] - 1
    noise = max(_drift(side) for side in sides)
    tail = (1 - _CONFIDENCE) / 2
    low, high = (float(at) for at in np.quantile(ratios, [tail, 1 - tail]))
    # Independent errors add up in squares.
    low = ratio - float(np.hypot(ratio - low, 2 * noise))
    high = ratio + float(np.hypot(high - ratio, 2 * noise))
    return Change(ratio, low, high, *num, noise)


def _matrix(table: pl.DataFrame) -> Float64:
    """Step times, shape (ranks, steps); NaN where a rank has not that step."""
    wide = table.pivot("rank", index="step", values="step_ns", aggregate_function="mean")
    times: Float64 = wide.sort("step").drop("step").cast(pl.Float64).to_numpy().T
    if len(times) > _MOST_RANKS:
        times = times[np.linspace(0, len(times) - 1, _MOST_RANKS).astype(int)]
    return times.reshape(-1, wide.height)


def _drawn(times: Float64, random: np.random.Generator) -> Float64:
    """Means of `_REPLICATES` draws of ranks and blocks of steps."""
    num_ranks, num_steps = times.shape
    length = _block(num_steps)
    num_blocks = -(-num_steps // length)
    found = np.empty(_REPLICATES)
    for at in range(_REPLICATES):
        ranks = random.integers(0, num_ranks, num_ranks)
        starts = random.integers(0, num_steps - length + 1, num_blocks)
        steps = (starts[:, None] + np.arange(length)).ravel()[:num_steps]
        found[at] = np.nanmean(times[np.ix_(ranks, steps)])
    return found


def _drift(times: Float64) -> float:
    """Standard deviation of the means of a run's quarters, over its mean."""
    of_steps = np.nanmedian(times, axis=0)
    quarters = [part.mean() for part in np.array_split(of_steps, min(4, len(of_steps) // 2))]
    return float(np.std(quarters, ddof=1) / of_steps.mean()) if len(quarters) > 1 else 0.0


def _block(num_steps: int) -> int:
    """Steps of a block: as many as depend on one another, for all one knows."""
    return max(1, round(num_steps ** (1 / 2) / 1.5))
