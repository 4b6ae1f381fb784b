"""Whether one program is faster than another, by several runs of each.

Steps of one run are alike; runs differ, by their placement in memory and by what else the machine does.
So a run counts as one sample, its mean step, and the noise is the spread between runs::

    baseline     .o..oo...........     o: the mean step of a run
    experiment   ........o.o....o.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import polars as pl

from ppprof.analysis.diff.significance import MARGIN, student, verdict_of
from ppprof.analysis.profile.step_basis import LEAST_STEPS, num_first, sound_steps
from ppprof.arrays import Float64
from ppprof.errors import InputError
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
    num_left_out: int = 0
    """Number of its other steps, which some run lacks."""


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
    """Return the step time of each run of either side, by its name; None without steps outside windows.

    All are of the steps that all runs have, by the number of steps before them, so that a longer run does
    not count by steps that do other work; a run with fewer than `LEAST_STEPS` steps is ignored
    there. If the wait for a processor is unknown in one of the runs, it is left in the steps of all.

    Args:
        sides: the step times of each run, by its name: columns of
            `ppprof.rundir.step_times.STEP_TIMES`, sorted by rank, then step.

    Raises:
        InputError: the runs have fewer than `LEAST_STEPS` steps in common.
    """
    steps = [{name: _steps(table) for name, table in side.items()} for side in sides]
    known = {
        own["wait_ratio"].null_count() == 0 for side in steps for own in side.values() if own.height
    }
    if len(known) > 1:
        unknown = pl.lit(None, pl.Int64).alias("processor_wait_ns")
        whole = [{name: run.with_columns(unknown) for name, run in side.items()} for side in sides]
        steps = [{name: _steps(table) for name, table in side.items()} for side in whole]
    numbers = [set(own["num_before"]) for side in steps for own in side.values()]
    enough = [each for each in numbers if len(_without_first(each)) >= LEAST_STEPS]
    shared = set.intersection(*enough) if enough else set()
    first = num_first(max(map(len, enough), default=0))
    # All leave out as many as the longest does, unless too few would be left.
    later = {number for number in shared if number >= first}
    shared = later if len(later) >= LEAST_STEPS else _without_first(shared)
    if enough and len(shared) < LEAST_STEPS:
        raise InputError(
            f"the runs have {Counted(len(shared)):step|steps} outside windows in common; expected at least "
            f"{LEAST_STEPS}: the same steps of each run"
        )
    return [{name: _run_time(own, shared) for name, own in side.items()} for side in steps]


def run_time(times: pl.DataFrame) -> RunTime | None:
    """Return the step time of a single run, as `run_times`."""
    return run_times([{"": times}])[0][""]


def _without_first(numbers: Set[int]) -> set[int]:
    first = num_first(len(numbers))
    return {number for number in numbers if number >= first}


def _steps(times: pl.DataFrame) -> pl.DataFrame:
    """Return num_before, wall_ns, own_ns and wait_ratio (null if unknown) of each step outside windows.

    Means of all ranks. A wait that is read after several short steps counts for each of them by its
    length.
    """
    wait_ns = pl.col("processor_wait_ns")
    readings = wait_ns.is_not_null().cast(pl.Int64).cum_sum()
    parted = times.with_columns(
        reading=readings.shift(1, fill_value=0).over("rank"),
    )
    together = ["rank", "reading"]
    share = wait_ns.max().over(together) / pl.col("batch_cost_ns").sum().over(together)
    shares = parted.select("rank", "step", wait_ratio=share.clip(0, 1))
    steps = sound_steps(times).join(shares, ["rank", "step"], "left")
    if not steps["wait_ratio"].is_null().all():
        steps = steps.drop_nulls("wait_ratio")  # the last steps have no reading
    return steps.group_by("num_before").agg(
        wall_ns=pl.col("step_ns").mean(),
        own_ns=(pl.col("step_ns") * (1 - pl.col("wait_ratio").fill_null(0))).mean(),
        wait_ratio=pl.col("wait_ratio").mean(),
    )


def _run_time(steps: pl.DataFrame, shared: Set[int]) -> RunTime | None:
    """Return the time of those steps that are in ``shared``; of a run with too few, of all but the first."""
    own_numbers = _without_first(set(steps["num_before"]))
    numbers = shared if len(own_numbers) >= LEAST_STEPS else own_numbers
    steps = steps.filter(pl.col("num_before").is_in(list(numbers))).sort("num_before")
    if steps.is_empty():
        return None
    wall, own = (steps[name].to_numpy() for name in ("wall_ns", "own_ns"))
    is_known = not steps["wait_ratio"].is_null().all()
    ratio = 1 - float(own.sum() / wall.sum()) if is_known and wall.sum() else None
    median, quiet = (float(np.quantile(own, share)) for share in (0.5, _QUIET))
    means = float(wall.mean()), float(own.mean())
    return RunTime(len(wall), *means, median, quiet, ratio, len(own_numbers - numbers))


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
