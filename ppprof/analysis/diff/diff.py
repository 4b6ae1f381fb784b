"""Two runs side by side: what changed, the biggest change on top, and whether it is real.

Small tables of both in, small tables out. Everything is per rank and step, so that windows of another
length and jobs of another size compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import polars as pl

from ppprof.analysis.diff import costs
from ppprof.analysis.diff.changes import changes, per_step
from ppprof.analysis.diff.costs import Device
from ppprof.analysis.diff.module_changes import module_changes
from ppprof.analysis.diff.significance import LEAST_STEPS, Change, step_change
from ppprof.topology import AXES

OPERATOR_VALUES = tuple(costs.OPERATORS)[2:]
KERNEL_VALUES = tuple(costs.KERNELS)[2:]

_WARM_UP = 10
"""Steps at the beginning of a run that its step times leave out, as the Perf Summary does."""
_COMPARABLE = 0.5
"""Below such a score, two runs are too far apart for a verdict."""


@dataclass(frozen=True)
class Side:
    """One of the two runs."""

    what: str
    """Its path, for messages."""
    steps: pl.DataFrame
    """rank, step, step_ns and parts that sum up to it (`PARTS`), of recorded windows."""
    times: pl.DataFrame
    """`ppprof.rundir.step_times.STEP_TIMES`; no rows where the run left none."""
    operators: pl.DataFrame
    """`ppprof.analysis.diff.costs.OPERATORS`: sums over ranks."""
    kernels: pl.DataFrame
    """`ppprof.analysis.diff.costs.KERNELS`: sums over ranks."""
    modules: pl.DataFrame
    """stage, then `ppprof.analysis.modules.MODULES` and calls: sums over the ranks of a stage."""
    devices: Sequence[Device] = ()
    frameworks: frozenset[str] = frozenset()
    has_forward_links: bool = False
    """Whether any window tells of gradients whose forward made them."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the manifest tells of the job, by dotted key: ``config.Model.num_layers``."""
    num_replicas: int = 1
    """Ranks that have samples of their own: dp times sharding."""
    coordinates: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """Where each rank stands, by axis; empty where nobody tells."""

    @cached_property
    def ranks_of_step(self) -> Mapping[int, int]:
        """How many ranks recorded each step; of traces without steps, step 0."""
        counted = self.steps.group_by("step").agg(pl.col("rank").n_unique())
        return dict(counted.sort("step").iter_rows())


PARTS = ("computation_ns", "exposed_ns", "data_loading_ns", "bubble_ns", "host_bound_ns", "rest_ns")


class Comparability(NamedTuple):
    """How far two runs are apart."""

    score: float
    """0 to 1: the mean of the shares of what they have in common."""
    shares: Mapping[str, float]
    """Of config keys, versions, grid and operators: what both have alike; known ones only."""
    differences: Sequence[str]
    """``Model.num_layers: 4 -> 5``."""


@dataclass(frozen=True)
class Diff:
    """What changed from the baseline to the experiment."""

    baseline: Side
    experiment: Side

    @cached_property
    def change(self) -> Change:
        """Of the step time, with its interval."""
        (one, words), (other, other_words) = self.step_times
        found = step_change(one, other)
        reason = ""
        if words != other_words:
            reason = f"steps {words} against steps {other_words}: a profiler slows those in windows"
        elif self.comparability.score < _COMPARABLE:
            reason = f"the runs have too little in common ({self.comparability.score:.0%})"
        if reason and found.low is not None:
            return replace(found, low=None, high=None, reason=reason)
        return found

    @cached_property
    def step_times(self) -> tuple[tuple[pl.DataFrame, str], tuple[pl.DataFrame, str]]:
        """rank, step, step_ns of either run, and in words which steps those are.

        Those outside of windows where both runs have left enough of them, which no profiler has
        slowed down; else those inside.
        """
        outside = [_outside(side.times) for side in (self.baseline, self.experiment)]
        if all(times["step"].n_unique() >= LEAST_STEPS for times in outside):
            return (outside[0], "outside windows"), (outside[1], "outside windows")
        inside = [
            side.steps.select("rank", "step", "step_ns").drop_nulls()
            for side in (self.baseline, self.experiment)
        ]
        if not all(times.height for times in inside) and all(times.height for times in outside):
            return (outside[0], "outside windows"), (outside[1], "outside windows")
        chosen = [
            (times, "in windows") if times.height else (other, "outside windows")
            for times, other in zip(inside, outside)
        ]
        return chosen[0], chosen[1]

    @cached_property
    def overview(self) -> pl.DataFrame:
        """What either run was like.

        Returns:
            metric, unit (ns, bytes, ratio, per_s or text), baseline, experiment, delta float64,
            delta_ratio float64 (of the baseline; null where that is 0), and for text
            baseline_text and experiment_text. A row that neither run has is left out.
        """
        (times, _), (others, _) = self.step_times
        told = [_facts(self.baseline, times), _facts(self.experiment, others)]
        rows = []
        for metric, unit in METRICS.items():
            one, other = (facts.get(metric) for facts in told)
            if one is None and other is None:
                continue
            is_text = unit == "text"
            numbers = (None, None) if is_text else (one, other)
            texts = (one, other) if is_text else (None, None)
            rows.append((metric, unit, *numbers, *texts))
        names = ("metric", "unit", "baseline", "experiment", "baseline_text", "experiment_text")
        types = (pl.String, pl.String, pl.Float64, pl.Float64, pl.String, pl.String)
        table = pl.DataFrame(rows, dict(zip(names, types)), orient="row")
        delta = pl.col("experiment") - pl.col("baseline")
        changed = table.with_columns(delta=delta, delta_ratio=_ratio(delta))
        return changed.select(*names[:4], "delta", "delta_ratio", *names[4:])

    def noise_of(self, metric: str) -> float | None:
        """Standard error of a delta of `overview`, from step to step; None where none is known.

        Of parts of a step alone.
        """
        part = "exposed_ns" if metric == "exposed_communication" else f"{metric}_ns"
        if part not in PARTS:
            return None
        variances = []
        for side in (self.baseline, self.experiment):
            of_steps = side.steps.group_by("step").agg(pl.col(part).cast(pl.Float64).mean())[part]
            variance = of_steps.drop_nulls().var()
            if not isinstance(variance, float):
                return None
            variances.append(variance / of_steps.count())
        return float(sum(variances) ** 0.5)

    @cached_property
    def operators(self) -> pl.DataFrame:
        """Operators by name, what changed most first.

        Returns:
            name, status (both, new or gone); of each of `OPERATOR_VALUES`, per rank and step,
            float64: ``baseline_cpu_self_ns``, ``experiment_…``, ``delta_…``,
            ``delta_ratio_cpu_self`` (null where the baseline is 0) and ``noise_…``, the standard
            error of the delta (null from one step); and is_clear, whether the delta that it is
            sorted by is 5 of these at the least. By the absolute delta of GPU self time where
            either run has device events, else of CPU self time.
        """
        return self._by_name("operators", OPERATOR_VALUES, f"{self.clock}_self_ns")

    def operators_by(self, value: str) -> pl.DataFrame:
        """`operators` by the absolute delta of one of `OPERATOR_VALUES`."""
        if value == f"{self.clock}_self_ns":
            return self.operators
        return self._by_name("operators", OPERATOR_VALUES, value)

    @cached_property
    def kernels(self) -> pl.DataFrame:
        """Kernels by name: as `operators`, with `KERNEL_VALUES`, by GPU total."""
        return self._by_name("kernels", KERNEL_VALUES, "gpu_total_ns")

    def kernels_by(self, value: str) -> pl.DataFrame:
        """`kernels` by the absolute delta of one of `KERNEL_VALUES`."""
        if value == "gpu_total_ns":
            return self.kernels
        return self._by_name("kernels", KERNEL_VALUES, value)

    @cached_property
    def ranks(self) -> pl.DataFrame:
        """Ranks by where they stand, whose step changed most first.

        Returns:
            baseline_rank and experiment_rank int64 (null where the other has none there),
            coordinate (null where nobody tells: then ranks are joined by their numbers), status;
            of step_ns, of own_ns (the step without exposed communication and bubble) and of each
            of `PARTS`, mean over recorded steps, float64: baseline_, experiment_, delta_,
            delta_ratio_ and noise_; is_clear of delta_own_ns. A single rank of the one run is
            compared with a single one of the other, wherever they stand. By the absolute
            delta_own_ns, those on both sides first.
        """
        sides = (self.baseline, self.experiment)
        labels = _labels(sides)
        one, other = (_by_rank(side, of) for side, of in zip(sides, labels))
        found = changes(one, other, ["at"], ("step_ns", "own_ns", *PARTS), "own_ns")
        for table, of in ((one, "baseline"), (other, "experiment")):
            numbers = table.select("at", pl.col("rank").alias(f"{of}_rank"))
            found = found.join(numbers, on="at", how="left")
        is_told = all(side.coordinates for side in sides) and "" not in labels[0].values()
        coordinate = (pl.col("at") if is_told else pl.lit(None, pl.String)).alias("coordinate")
        return found.sort(
            pl.col("status") != "both",
            pl.col("delta_own_ns").abs(),
            "baseline_rank",
            descending=[False, True, False],
        ).select(
            "baseline_rank",
            "experiment_rank",
            coordinate,
            pl.exclude("at", "baseline_rank", "experiment_rank"),
        )

    @cached_property
    def clock(self) -> str:
        """``gpu`` where either run has device events, else ``cpu``."""
        totals = [side.operators["gpu_total_ns"].sum() for side in (self.baseline, self.experiment)]
        return "gpu" if any(totals) else "cpu"

    def _by_name(self, table: str, values: Sequence[str], by: str) -> pl.DataFrame:
        one, other = (
            per_step(getattr(side, table), ["name"], values, side.ranks_of_step)
            for side in (self.baseline, self.experiment)
        )
        return changes(one, other, ["name"], values, by)

    @cached_property
    def modules(self) -> pl.DataFrame:
        """The two trees of modules, laid over one another.

        Returns:
            In pre-order, stage by stage: stage (null unless both runs are pipelines), depth, name,
            status; baseline_, experiment_ and delta_ of `MODULE_VALUES`, float64, per rank and
            step, null in a gap; delta_ratio of time_ns; noise_time_ns and noise_self_ns, standard
            errors of these deltas (null from one step); is_clear of delta_self_ns (of
            delta_time_ns for the step); baseline_until_ns and experiment_until_ns: all self_ns from the
            beginning of the step to the end of this module's own, the accumulated trend (null for the
            step).
            `UNKNOWN` is what lies in no module.
        """
        return module_changes(
            *((side.modules, side.ranks_of_step) for side in (self.baseline, self.experiment))
        )

    @cached_property
    def comparability(self) -> Comparability:
        """How far the two runs are apart, in what is known of them."""
        one, other = self.baseline, self.experiment
        shares, differences = {}, []
        for kind in ("config", "versions", "grid"):
            keys = sorted(
                key for key in {*one.facts, *other.facts} if key.partition(".")[0] == kind
            )
            if not keys or not all(
                any(key.startswith(f"{kind}.") for key in side.facts) for side in (one, other)
            ):
                continue
            unlike = [key for key in keys if one.facts.get(key) != other.facts.get(key)]
            shares[kind] = 1 - len(unlike) / len(keys)
            differences += [
                f"{key.partition('.')[2]}: {one.facts.get(key, 'not set')} -> "
                f"{other.facts.get(key, 'not set')}"
                for key in unlike
            ]
        if one.frameworks and other.frameworks and one.frameworks != other.frameworks:
            names = [", ".join(sorted(side.frameworks)) for side in (one, other)]
            differences.append(f"framework: {names[0]} -> {names[1]}")
        if one.operators.height and other.operators.height:
            shares["operators"] = _in_common(self.operators, f"{self.clock}_self_ns")
        score = sum(shares.values()) / len(shares) if shares else 1.0
        return Comparability(score, shares, differences)


METRICS = {
    "device": "text",
    "device_memory": "bytes",
    "gpu_utilization": "ratio",
    "cpu_utilization": "ratio",
    "mean_memory": "bytes",
    "peak_memory": "bytes",
    "step_time": "ns",
    "step_time_median": "ns",
    "step_time_p95": "ns",
    "ips": "per_s",
    "tokens_per_s": "per_s",
    "reader_cost": "ns",
    "computation": "ns",
    "exposed_communication": "ns",
    "data_loading": "ns",
    "bubble": "ns",
    "host_bound": "ns",
    "rest": "ns",
}
"""Rows of the overview and their units."""


def _ratio(delta: pl.Expr) -> pl.Expr:
    return pl.when(pl.col("baseline") != 0).then(delta / pl.col("baseline"))


def _in_common(operators: pl.DataFrame, by: str) -> float:
    """Share of the time in operators that are in both runs."""
    time = pl.col(f"baseline_{by}").abs() + pl.col(f"experiment_{by}").abs()
    whole = operators.select(time.sum()).item()
    both = operators.filter(status="both").select(time.sum()).item()
    return float(both / whole) if whole else 1.0


def _labels(sides: Sequence[Side]) -> list[dict[int, str]]:
    """What ranks of two runs are joined by: where they stand, ``dp0 mp1``, else their numbers."""
    ranks = [sorted(side.steps["rank"].unique()) for side in sides]
    if all(len(of) == 1 for of in ranks):
        return [{of[0]: ""} for of in ranks]
    at = [
        {rank: side.coordinates[rank] for rank in of if rank in side.coordinates}
        for side, of in zip(sides, ranks)
    ]
    if not all(at):
        return [{rank: str(rank) for rank in of} for of in ranks]
    several = [
        axis for axis in AXES if len({where.get(axis, 0) for of in at for where in of.values()}) > 1
    ]
    return [
        {
            rank: " ".join(f"{axis}{where.get(axis, 0)}" for axis in several)
            for rank, where in of.items()
        }
        for of in at
    ]


def _by_rank(side: Side, labels: Mapping[int, str]) -> pl.DataFrame:
    """Means over steps of each rank, and their variances, by what joins it with another's.

    That is its label; a rank without one is left out.
    """
    waits = pl.col("exposed_ns").fill_null(0) + pl.col("bubble_ns").fill_null(0)
    steps = side.steps.drop_nulls("step_ns").with_columns(own_ns=pl.col("step_ns") - waits)
    at = pl.col("rank").replace_strict(dict(labels), default=None, return_dtype=pl.String)
    # In what order steps are is all the same here: the mean, and how much it varies.
    found = []
    for value in ("step_ns", "own_ns", *PARTS):
        column = pl.col(value).cast(pl.Float64)
        found += [column.mean(), (column.var() / pl.len()).alias(f"{value}_var")]
    return steps.with_columns(at=at).group_by("at", "rank").agg(found).drop_nulls("at")


def _outside(times: pl.DataFrame) -> pl.DataFrame:
    """rank, step, step_ns of steps in no window and without a stall, the first ones left out."""
    sound = times.filter(pl.col("window").is_null() & pl.col("excluded").not_().fill_null(True))
    first = _WARM_UP if sound["step"].n_unique() >= 2 * _WARM_UP else 1
    return sound.filter(pl.col("step") >= first).select(
        "rank", "step", step_ns=pl.col("batch_cost_ns")
    )


def _facts(side: Side, times: pl.DataFrame) -> dict[str, Any]:
    """What the overview says of one run, by metric."""
    facts: dict[str, Any] = {}
    of_steps = times.group_by("step").agg(pl.col("step_ns").median())["step_ns"]
    if of_steps.len():
        facts["step_time"] = times["step_ns"].mean()
        facts["step_time_median"] = of_steps.median()
        facts["step_time_p95"] = of_steps.quantile(0.95, "linear")
    counted = side.times.join(times.select("rank", "step"), on=["rank", "step"], how="semi")
    for metric, column in (("ips", "num_samples"), ("tokens_per_s", "num_tokens")):
        known = counted.drop_nulls(column)
        if known.height and known["batch_cost_ns"].sum():
            done, time_ns = int(known[column].sum()), int(known["batch_cost_ns"].sum())
            facts[metric] = done / time_ns * 1e9 * side.num_replicas
    if counted.height and counted["reader_cost_ns"].count():
        facts["reader_cost"] = counted["reader_cost_ns"].mean()
    if side.steps.height:
        for part in PARTS:
            metric = "exposed_communication" if part == "exposed_ns" else part.removesuffix("_ns")
            mean = side.steps[part].mean()
            facts[metric] = mean
    facts.update(_of_devices(side))
    return facts


def _of_devices(side: Side) -> dict[str, Any]:
    devices = side.devices
    names = sorted({at.name for at in devices if at.name})
    facts: dict[str, Any] = {"device": ", ".join(names) or None}
    facts["device_memory"] = _first(at.memory_bytes for at in devices)
    for metric, values in (
        ("gpu_utilization", [at.gpu_utilization for at in devices]),
        ("cpu_utilization", [at.cpu_utilization for at in devices]),
        ("mean_memory", [at.mean_bytes for at in devices]),
    ):
        known = [value for value in values if value is not None]
        facts[metric] = sum(known) / len(known) if known else None
    peaks = [at.peak_bytes for at in devices if at.peak_bytes is not None]
    peaks += side.times["device_peak_bytes"].drop_nulls().to_list()
    facts["peak_memory"] = max(peaks, default=None)
    return facts


def _first(values: Iterable[int | None]) -> int | None:
    return next((value for value in values if value is not None), None)
