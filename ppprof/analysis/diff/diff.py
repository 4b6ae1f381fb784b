"""Compare two runs: what changed, the biggest change on top, and whether it is real.

Takes small tables of both runs and returns small tables. All numbers are per rank and step, so windows
of different length and jobs of different size compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import polars as pl

from ppprof.analysis.diff.changes import changes
from ppprof.analysis.diff.module_changes import module_changes
from ppprof.analysis.diff.run_costs import (
    INSIDE,
    KERNEL_VALUES,
    METRICS,
    OPERATOR_VALUES,
    OUTSIDE,
    PARTS,
    RunCosts,
    metric_of,
)
from ppprof.analysis.diff.significance import Change, step_change
from ppprof.topology import AXES

_COMPARABLE = 0.5
"""Runs with a lower score have too little in common for a verdict."""

_PART_OF_METRIC = {metric_of(part): part for part in PARTS}


class Comparability(NamedTuple):
    """How much two runs have in common."""

    score: float
    """0 to 1: the mean of the shares."""
    shares: Mapping[str, float]
    """The share of config keys, versions, topology and operators that both runs have in common; known
    ones only."""
    differences: Sequence[str]
    """``Model.num_layers: 4 -> 5``."""


@dataclass(frozen=True)
class Diff:
    """What changed from the baseline to the experiment."""

    baseline: RunCosts
    experiment: RunCosts

    @property
    def _runs(self) -> tuple[RunCosts, RunCosts]:
        return self.baseline, self.experiment

    @cached_property
    def change(self) -> Change:
        """The change of the step time, with its interval."""
        (baseline, words), (experiment, other_words) = self.step_times
        change = step_change(baseline, experiment)
        reason = ""
        if words != other_words:
            reason = f"steps {words} against steps {other_words}: a profiler slows those in windows"
        elif self.comparability.score < _COMPARABLE:
            reason = f"the runs have too little in common ({self.comparability.score:.0%})"
        if reason and change.low is not None:
            return replace(change, low=None, high=None, reason=reason)
        return change

    @cached_property
    def step_times(self) -> tuple[tuple[pl.DataFrame, str], tuple[pl.DataFrame, str]]:
        """rank, step, step_ns of either run, and which steps these are, in words.

        No profiler slows the steps outside windows, so these are compared if both runs have enough of
        them; else the steps inside windows.
        """
        one, other = self._runs
        outside = (one.times_outside, OUTSIDE), (other.times_outside, OUTSIDE)
        if one.has_times_outside and other.has_times_outside:
            return outside
        have_inside = [not run.times_inside.is_empty() for run in self._runs]
        have_outside = [not run.times_outside.is_empty() for run in self._runs]
        if all(have_outside) and not all(have_inside):
            return outside
        inside = (one.times_inside, INSIDE), (other.times_inside, INSIDE)
        return (
            inside[0] if have_inside[0] else outside[0],
            inside[1] if have_inside[1] else outside[1],
        )

    @cached_property
    def overview(self) -> pl.DataFrame:
        """The metrics of both runs.

        Returns:
            metric, unit (ns, bytes, ratio, per_s or text), baseline, experiment, delta float64,
            delta_ratio float64 (of the baseline; null if that is 0), and for text baseline_text and
            experiment_text. Metrics that neither run has are left out.
        """
        metrics = [run.metrics_over(times) for run, (times, _) in zip(self._runs, self.step_times)]
        rows = []
        for metric, unit in METRICS.items():
            pair = tuple(values.get(metric) for values in metrics)
            if pair != (None, None):
                nothing = (None, None)
                texts, numbers = (pair, nothing) if unit == "text" else (nothing, pair)
                rows.append((metric, unit, *numbers, *texts))
        names = ("metric", "unit", "baseline", "experiment", "baseline_text", "experiment_text")
        types = (pl.String, pl.String, pl.Float64, pl.Float64, pl.String, pl.String)
        table = pl.DataFrame(rows, dict(zip(names, types)), orient="row")
        delta = pl.col("experiment") - pl.col("baseline")
        ratio = pl.when(pl.col("baseline") != 0).then(delta / pl.col("baseline"))
        return table.with_columns(delta=delta, delta_ratio=ratio).select(
            *names[:4], "delta", "delta_ratio", *names[4:]
        )

    def noise_of(self, metric: str) -> float | None:
        """Return the standard error of a delta of `overview`, from step to step.

        None if it is unknown, and for metrics that are not parts of a step.
        """
        part = _PART_OF_METRIC.get(metric)
        if part is None:
            return None
        variances = []
        for run in self._runs:
            means = run.steps.group_by("step").agg(pl.col(part).cast(pl.Float64).mean())[part]
            variance = means.drop_nulls().var()
            if not isinstance(variance, float):
                return None
            variances.append(variance / means.count())
        return float(sum(variances) ** 0.5)

    @cached_property
    def operators(self) -> pl.DataFrame:
        """Operators by name, the biggest change first.

        Returns:
            name, status (both, new or gone); for each of `OPERATOR_VALUES`, per rank and step,
            float64: ``baseline_cpu_self_ns``, ``experiment_…``, ``delta_…``,
            ``delta_ratio_cpu_self`` (null if the baseline is 0) and ``noise_…``, the standard error
            of the delta (null with one step); and is_clear, whether the delta that sorts the table
            is at least 5 standard errors. Sorted by the absolute delta of GPU self time if either
            run has device events, else of CPU self time.
        """
        return self._operators_by(f"{self.clock}_self_ns")

    def operators_by(self, value: str) -> pl.DataFrame:
        """Return `operators`, sorted by the absolute delta of ``value``, the biggest first.

        Args:
            value: one of `OPERATOR_VALUES`.
        """
        return self.operators if value == f"{self.clock}_self_ns" else self._operators_by(value)

    def _operators_by(self, value: str) -> pl.DataFrame:
        baseline, experiment = self.baseline.operator_means, self.experiment.operator_means
        return changes(baseline, experiment, ["name"], OPERATOR_VALUES, value)

    @cached_property
    def kernels(self) -> pl.DataFrame:
        """Kernels by name: like `operators`, with `KERNEL_VALUES`, by GPU total."""
        return self._kernels_by("gpu_total_ns")

    def kernels_by(self, value: str) -> pl.DataFrame:
        """Return `kernels`, sorted by the absolute delta of ``value``, the biggest first.

        Args:
            value: one of `KERNEL_VALUES`.
        """
        return self.kernels if value == "gpu_total_ns" else self._kernels_by(value)

    def _kernels_by(self, value: str) -> pl.DataFrame:
        baseline, experiment = self.baseline.kernel_means, self.experiment.kernel_means
        return changes(baseline, experiment, ["name"], KERNEL_VALUES, value)

    @cached_property
    def ranks(self) -> pl.DataFrame:
        """Ranks by coordinate, the biggest change of the own time first.

        Returns:
            baseline_rank and experiment_rank int64 (null if that run has no rank there),
            coordinate (null if the topology is unknown: ranks are then joined by their numbers),
            status; for step_ns, own_ns (the step without exposed communication and bubble) and
            each of `PARTS`, mean over recorded steps, float64: baseline_, experiment_, delta_,
            delta_ratio_ and noise_; is_clear of delta_own_ns. Sorted by the absolute delta_own_ns,
            ranks of both runs first. If both runs have a single rank, these two are compared,
            whatever their coordinates.
        """
        labels = _labels(self._runs)
        one, other = (_by_rank(run, names) for run, names in zip(self._runs, labels))
        table = changes(one, other, ["label"], ("step_ns", "own_ns", *PARTS), "own_ns")
        for means, side in ((one, "baseline"), (other, "experiment")):
            numbers = means.select("label", pl.col("rank").alias(f"{side}_rank"))
            table = table.join(numbers, on="label", how="left")
        has_labels = all(run.coordinates for run in self._runs) and "" not in labels[0].values()
        coordinate = pl.col("label") if has_labels else pl.lit(None, pl.String)
        return table.sort(
            pl.col("status") != "both",
            pl.col("delta_own_ns").abs(),
            "baseline_rank",
            descending=[False, True, False],
        ).select(
            "baseline_rank",
            "experiment_rank",
            coordinate.alias("coordinate"),
            pl.exclude("label", "baseline_rank", "experiment_rank"),
        )

    @cached_property
    def clock(self) -> str:
        """``gpu`` if either run has device events, else ``cpu``."""
        return "gpu" if "gpu" in (self.baseline.clock, self.experiment.clock) else "cpu"

    @cached_property
    def modules(self) -> pl.DataFrame:
        """The two module trees, aligned.

        Returns:
            In pre-order, stage by stage: stage (null unless both runs are pipelines), depth, name,
            status; baseline_, experiment_ and delta_ of `MODULE_VALUES`, float64, per rank and
            step, null in a gap; delta_ratio of time_ns; noise_time_ns and noise_self_ns, standard
            errors of these deltas (null with one step); is_clear of delta_self_ns (of
            delta_time_ns for the step); baseline_until_ns and experiment_until_ns: all self_ns from
            the start of the step to the end of this module's own, the accumulated trend (null for
            the step). `UNKNOWN` is the time outside all modules.
        """
        return module_changes(*((run.modules, run.ranks_of_step) for run in self._runs))

    @cached_property
    def comparability(self) -> Comparability:
        """How much the two runs have in common, as far as they are described."""
        shares: dict[str, float] = {}
        differences: list[str] = []
        for kind in ("config", "versions", "grid"):
            share, unlike = self._compare_facts(kind)
            if share is not None:
                shares[kind] = share
                differences += unlike
        one, other = self._runs
        if one.frameworks and other.frameworks and one.frameworks != other.frameworks:
            names = [", ".join(sorted(run.frameworks)) for run in self._runs]
            differences.append(f"framework: {names[0]} -> {names[1]}")
        if one.operators.height and other.operators.height:
            shares["operators"] = _shared_time(self.operators, f"{self.clock}_self_ns")
        score = sum(shares.values()) / len(shares) if shares else 1.0
        return Comparability(score, shares, differences)

    def _compare_facts(self, kind: str) -> tuple[float | None, list[str]]:
        """Return the share of equal facts of one kind, and the differences; None if unknown."""
        one, other = (
            {key: value for key, value in run.facts.items() if key.partition(".")[0] == kind}
            for run in self._runs
        )
        if not all(any("." in key for key in facts) for facts in (one, other)):
            return None, []
        keys = sorted({*one, *other})
        unlike = [key for key in keys if one.get(key) != other.get(key)]
        return 1 - len(unlike) / len(keys), [
            f"{key.partition('.')[2]}: {one.get(key, 'not set')} -> {other.get(key, 'not set')}"
            for key in unlike
        ]


def _shared_time(operators: pl.DataFrame, by: str) -> float:
    """Return the share of the time in operators that both runs have."""
    time = pl.col(f"baseline_{by}").abs() + pl.col(f"experiment_{by}").abs()
    whole = operators.select(time.sum()).item()
    both = operators.filter(status="both").select(time.sum()).item()
    return float(both / whole) if whole else 1.0


def _labels(runs: Sequence[RunCosts]) -> list[dict[int, str]]:
    """Return the label of each rank by which ranks of two runs are joined.

    A label is the rank's coordinate, ``dp0 mp1``, or its number if a topology is unknown.
    """
    ranks_of_runs = [sorted(run.steps["rank"].unique()) for run in runs]
    if all(len(ranks) == 1 for ranks in ranks_of_runs):
        return [{ranks[0]: ""} for ranks in ranks_of_runs]
    coordinates_of_runs = [
        {rank: run.coordinates[rank] for rank in ranks if rank in run.coordinates}
        for run, ranks in zip(runs, ranks_of_runs)
    ]
    if not all(coordinates_of_runs):
        return [{rank: str(rank) for rank in ranks} for ranks in ranks_of_runs]
    positions = {
        axis: {
            coordinate.get(axis, 0)
            for coordinates in coordinates_of_runs
            for coordinate in coordinates.values()
        }
        for axis in AXES
    }
    axes = [axis for axis in AXES if len(positions[axis]) > 1]
    return [
        {
            rank: " ".join(f"{axis}{coordinate.get(axis, 0)}" for axis in axes)
            for rank, coordinate in coordinates.items()
        }
        for coordinates in coordinates_of_runs
    ]


def _by_rank(run: RunCosts, labels: Mapping[int, str]) -> pl.DataFrame:
    """Return each rank's means over steps and their variances, with its label.

    Ranks without a label are left out.
    """
    waits = pl.col("exposed_ns").fill_null(0) + pl.col("bubble_ns").fill_null(0)
    steps = run.steps.drop_nulls("step_ns").with_columns(own_ns=pl.col("step_ns") - waits)
    label = pl.col("rank").replace_strict(dict(labels), default=None, return_dtype=pl.String)
    means = []
    for value in ("step_ns", "own_ns", *PARTS):
        column = pl.col(value).cast(pl.Float64)
        means += [column.mean(), (column.var() / pl.len()).alias(f"{value}_var")]
    return steps.with_columns(label=label).group_by("label", "rank").agg(means).drop_nulls("label")
