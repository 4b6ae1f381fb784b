"""Whether one program is faster than another, by several runs of each.

Steps of one run are alike; runs differ, by their placement in memory and by what else the machine does.
So a run counts as one sample, its mean step, and the noise is the spread between runs::

    baseline     .o..oo...........     o: the mean step of a run
    experiment   ........o.o....o.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from ppprof.analysis.diff.significance import MARGIN, student, verdict_of
from ppprof.analysis.profile.step_basis import unrecorded_steps
from ppprof.arrays import Float64
from ppprof.messages import Counted

LEAST_RUNS = 2
"""Least number of runs of either side for an interval."""
WAIT_RATIO = 0.02
"""Difference of the sides' waits for a processor that is reported, as a share of a step."""
_MOST_RUNS = 1000
_QUIET = 0.1


@dataclass(frozen=True)
class RunTime:
    """The step time of one run; steps outside windows without the first ones, means of all ranks."""

    num_steps: int
    wall_ns: float
    """Mean time of a step."""
    mean_ns: float
    """The same of adjusted steps: without the time in which the thread that calls
    ``ProfilerSession.step`` waited for a processor; ``wall_ns`` where the wait is unknown, also of a run
    that it is compared with (`run_times`)."""
    median_ns: float
    """Median of adjusted steps; it hides what only some steps do."""
    quiet_ns: float
    """The 10% quantile of adjusted steps."""
    wait_ratio: float | None
    """Share of the steps in which the thread waited for a processor; None if unknown."""


@dataclass(frozen=True)
class RunsChange:
    """The change from the baseline's runs to the experiment's: ratios, below 0 if steps are shorter."""

    ratio: float
    """Geometric mean of the experiment's step times over that of the baseline's, minus 1."""
    low: float | None
    high: float | None
    """``low`` and ``high`` are the 95% interval; None with fewer than `LEAST_RUNS` runs of a side."""
    num_runs: tuple[int, int]
    spread: float | None
    """Standard deviation of the logarithm of equal runs, of both sides together; None as ``low``."""
    needed_runs: int | None
    """About how many runs of either side would decide if the verdict is ``inconclusive``; else None, as
    above a thousand."""

    @property
    def verdict(self) -> str:
        """As `ppprof.analysis.diff.significance.Change.verdict`."""
        return verdict_of(self.low, self.high)

    def __str__(self) -> str:
        if self.low is None or self.high is None or self.spread is None:
            least = f"{LEAST_RUNS} of either side give an interval"
            few = min(self.num_runs)
            return (
                f"inconclusive: {self.ratio:+.1%}; {Counted(few):run is|runs are} too few: {least}"
            )
        interval = f"95% interval {self.low:+.1%} to {self.high:+.1%}"
        text = f"{self.verdict}: {self.ratio:+.1%} ({interval}); equal runs differ by {self.spread:.1%}"
        if self.needed_runs is not None:
            text += f"; some {Counted(self.needed_runs):run|runs} of either side would decide"
        return text


def run_times(sides: Sequence[Mapping[str, pl.DataFrame]]) -> list[dict[str, RunTime | None]]:
    """Return the step time of each run of either side, by its name, as `run_time` does.

    If the wait for a processor is unknown in one of the runs, it is left in the steps of all.

    Args:
        sides: the step times of each run, by its name; columns as for `run_time`.
    """
    times = [{name: run_time(table) for name, table in side.items()} for side in sides]
    known = {time.wait_ratio is not None for side in times for time in side.values() if time}
    if len(known) < 2:
        return times
    unknown = pl.lit(None, pl.Int64).alias("processor_wait_ns")
    return [
        {name: run_time(run.with_columns(unknown)) for name, run in each.items()} for each in sides
    ]


def run_time(times: pl.DataFrame) -> RunTime | None:
    """Return the step time of a run; None without steps outside windows.

    A wait that is read after several short steps counts for each of them by its length.

    Args:
        times: columns of `ppprof.rundir.step_times.STEP_TIMES`, sorted by rank, then step.
    """
    wait_ns = pl.col("processor_wait_ns")
    readings = wait_ns.is_not_null().cast(pl.Int64).cum_sum()
    parted = times.with_columns(
        reading=readings.shift(1, fill_value=0).over("rank"),
    )
    together = ["rank", "reading"]
    share = wait_ns.max().over(together) / pl.col("batch_cost_ns").sum().over(together)
    shares = parted.select("rank", "step", wait_ratio=share.clip(0, 1))
    steps = unrecorded_steps(times).join(shares, ["rank", "step"], "left")
    if not steps["wait_ratio"].is_null().all():
        steps = steps.drop_nulls("wait_ratio")  # the last steps have no reading
    means = steps.group_by("step").agg(
        wall_ns=pl.col("step_ns").mean(),
        own_ns=(pl.col("step_ns") * (1 - pl.col("wait_ratio").fill_null(0))).mean(),
    )
    if means.is_empty():
        return None
    wall, own = (means[name].to_numpy() for name in ("wall_ns", "own_ns"))
    is_known = not steps["wait_ratio"].is_null().all()
    ratio = 1 - float(own.sum() / wall.sum()) if is_known and wall.sum() else None
    median, quiet = (float(np.quantile(own, share)) for share in (0.5, _QUIET))
    return RunTime(len(means), float(wall.mean()), float(own.mean()), median, quiet, ratio)


def runs_change(baseline: Sequence[float], experiment: Sequence[float]) -> RunsChange:
    """Return the change of a time between two groups of runs, with its 95% interval.

    Args:
        baseline: a time of each run, above 0; at least one.
        experiment: the same of the other group.

    Source: Welch's t on the logarithms, with the degrees of freedom of Welch and Satterthwaite,
    rounded down.
    """
    sides = [np.log(np.asarray(times, float)) for times in (baseline, experiment)]
    change = float(sides[1].mean() - sides[0].mean())
    num = (len(sides[0]), len(sides[1]))
    if min(num) < LEAST_RUNS:
        return RunsChange(math.expm1(change), None, None, num, None, None)
    half = _half(*sides)
    freedom = sum(num) - 2
    spread = math.sqrt(sum(float(((side - side.mean()) ** 2).sum()) for side in sides) / freedom)
    low, high = math.expm1(change - half), math.expm1(change + half)
    needed = (
        _needed_runs(change, spread, max(num)) if verdict_of(low, high) == "inconclusive" else None
    )
    return RunsChange(math.expm1(change), low, high, num, spread, needed)


def wait_difference(baseline: Sequence[RunTime], experiment: Sequence[RunTime]) -> str:
    """Return a sentence if the waits for a processor differ by `WAIT_RATIO` of a step; else empty.

    The adjusted step hides what a program costs that needs more processors than there are. Empty if a
    wait is unknown, since then none is left out.
    """
    sides = [
        [time.wait_ratio for time in side if time.wait_ratio is not None]
        for side in (baseline, experiment)
    ]
    if not all(sides):
        return ""
    before, after = (sum(side) / len(side) for side in sides)
    if abs(after - before) < WAIT_RATIO:
        return ""
    wall = runs_change(*([time.wall_ns for time in side] for side in (baseline, experiment)))
    return (
        f"the wait for a processor differs: {before:.1%} of the baseline's steps, {after:.1%} of the "
        f"experiment's. It is left out above, also where the program causes it; with it: {wall}"
    )


def _half(baseline: Float64, experiment: Float64) -> float:
    """Return half the length of Welch's interval."""
    parts = [float(side.var(ddof=1)) / len(side) for side in (baseline, experiment)]
    variance = sum(parts)
    if not variance:
        return 0.0
    weights = [part**2 / (len(side) - 1) for part, side in zip(parts, (baseline, experiment))]
    return student(int(variance**2 / sum(weights) + 1e-9)) * math.sqrt(variance)


def _needed_runs(change: float, spread: float, num_runs: int) -> int | None:
    """Return the least number of runs whose interval excludes 0, or lies within `MARGIN`."""
    edge = math.log1p(MARGIN) if change > 0 else -math.log1p(-MARGIN)
    width = max(abs(change), edge - abs(change))
    for number in range(num_runs + 1, _MOST_RUNS + 1):
        if student(2 * number - 2) * spread * math.sqrt(2 / number) < width:
            return number
    return None
