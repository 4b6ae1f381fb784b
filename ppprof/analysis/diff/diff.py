"""Compare two runs: what changed, the largest change first, and whether it is more than noise.

Takes small tables of both runs and returns small tables. All numbers are per rank and step, so
windows of different length and jobs of different size can be compared.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, cast

import polars as pl

from ppprof.analysis.diff.changes import changes, module_changes, sure
from ppprof.analysis.diff.naming import keys_of_lines
from ppprof.analysis.diff.run_costs import PARTS_NS, VALUES, RunCosts, metric_of
from ppprof.analysis.diff.significance import Change, equal_steps, step_change
from ppprof.analysis.diff.thresholds import METRICS
from ppprof.analysis.profile.machine_load import MachineLoad, machine_load
from ppprof.analysis.profile.step_basis import RECORDED, StepSample, is_enough
from ppprof.topology import AXES

_COMPARABLE = 0.5
"""Runs with a lower score have too little in common for a verdict."""

PARTS_OF_STEP = {metric_of(part): part for part in PARTS_NS}
"""Metric -> the column of `RunCosts.steps` whose mean it is."""


class Comparability(NamedTuple):
    """How much two runs have in common."""

    score: float
    """The mean of ``shares``, 0 to 1; 1 if ``shares`` is empty."""
    shares: Mapping[str, float]
    """What the runs have in common, 0 to 1: ``config``, ``versions`` and ``grid`` (the topology)
    are the shares of equal facts; ``operators`` is the share of the time in operators that both
    runs have. A key is missing if a run does not have its data."""
    differences: Sequence[str]
    """The differing facts and frameworks, as texts: ``Model.num_layers: 4 -> 5``."""


@dataclass(frozen=True)
class Diff:
    """What changed from the baseline to the experiment."""

    baseline: RunCosts
    experiment: RunCosts

    @property
    def _runs(self) -> tuple[RunCosts, RunCosts]:
        return self.baseline, self.experiment

    @property
    def unrecorded_side(self) -> str:
        """The side without recorded steps, ``baseline`` or ``experiment``; "" if none or both lack them.

        Then only step times are compared: what a run did not record is not gone. The tables of
        operators, ranks and modules are empty.
        """
        lacking = [run.steps.is_empty() for run in self._runs]
        return ("baseline" if lacking[0] else "experiment") if sum(lacking) == 1 else ""

    @cached_property
    def _windows(self) -> Sequence[RunCosts]:
        """Both runs, without windows if one of them has recorded no step."""
        if not self.unrecorded_side:
            return self._runs
        return [run.without_windows() for run in self._runs]

    @cached_property
    def change(self) -> Change:
        """The change of the step time, with its 95% interval.

        There is no interval if the steps of one run were recorded and those of the other were not,
        if the score of `comparability` is below 0.5, or if other processes disturbed a run
        (`disturbance`); ``reason`` then says so.
        """
        (baseline, words), (experiment, other_words) = self.samples
        change = step_change(baseline, experiment)
        reason = ""
        if (words == RECORDED) != (other_words == RECORDED):
            reason = f"steps {words} against steps {other_words}: a profiler slows recorded ones"
        elif self.comparability.score < _COMPARABLE:
            reason = f"the runs have too little in common ({self.comparability.score:.0%})"
        else:
            reason = self.disturbance
        if reason and change.low is not None:
            return replace(change, low=None, high=None, reason=reason)
        return change

    @cached_property
    def samples(self) -> tuple[StepSample, StepSample]:
        """The compared steps of each run.

        Steps that were not recorded are compared if both runs have enough of them for an interval,
        because no profiler slows these steps. They are also compared if both runs have any of them
        and a run has no recorded steps. Otherwise, each run has its recorded steps, or the others
        if it has none. Of a run whose steps grow, only the steps that the other run has, too (`equal_steps`).
        """
        samples = self._samples
        tables = equal_steps(*(sample.times for sample in samples))
        one, other = (StepSample(times, basis) for times, (_, basis) in zip(tables, samples))
        return one, other

    @property
    def _samples(self) -> tuple[StepSample, StepSample]:
        """The steps of each run that `samples` chooses from."""
        one, other = self._runs
        unrecorded = one.unrecorded_sample, other.unrecorded_sample
        if is_enough(one.unrecorded) and is_enough(other.unrecorded):
            return unrecorded
        has_recorded = [not run.recorded.is_empty() for run in self._runs]
        has_unrecorded = [not run.unrecorded.is_empty() for run in self._runs]
        if all(has_unrecorded) and not all(has_recorded):
            return unrecorded
        return (
            StepSample(one.recorded, RECORDED) if has_recorded[0] else unrecorded[0],
            StepSample(other.recorded, RECORDED) if has_recorded[1] else unrecorded[1],
        )

    @cached_property
    def loads(self) -> tuple[MachineLoad | None, MachineLoad | None]:
        """The load of each run's machines in the steps of `samples`; None if it is unknown."""
        steps = [table.select("rank", "step") for table, _ in self.samples]
        one, other = (
            machine_load(run.times.join(table, ["rank", "step"], "semi"))
            for run, table in zip(self._runs, steps)
        )
        return one, other

    @property
    def disturbance(self) -> str:
        """What other processes took of the processors, if they disturbed a run; else empty."""
        sides = [
            f"{load.others_ratio:.0%} of the processors during the {side}"
            for load, side in zip(self.loads, ("baseline", "experiment"))
            if load is not None and load.is_disturbed
        ]
        return f"other processes took {' and '.join(sides)}: use a quieter machine" if sides else ""

    @cached_property
    def overview(self) -> pl.DataFrame:
        """The metrics of both runs, one row per metric in the order of `METRICS`.

        Returns:
            metric, unit (ns, bytes, ratio, per_s or text), baseline, experiment, delta,
            delta_ratio, baseline_text and experiment_text. The numbers are float64, null for
            metrics of unit text; the texts are null for other metrics. delta is experiment minus
            baseline; delta_ratio is delta over baseline, null if baseline is 0. A metric that
            neither run has is missing.
        """
        metrics = [run.metrics_over(times) for run, (times, _) in zip(self._runs, self.samples)]
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
        """Return the standard error, in ns, of a metric's delta in `overview`.

        It follows from the variance over steps. None for a metric that is not a part of a step, and
        if a run has fewer than two recorded steps with that part.
        """
        part = PARTS_OF_STEP.get(metric)
        if part is None:
            return None
        variances = []
        for run in self._runs:
            steps = run.divided_steps.group_by("step")
            means = steps.agg(pl.col(part).cast(pl.Float64).mean())[part]
            variance = means.drop_nulls().var()
            if not isinstance(variance, float):
                return None
            variances.append(variance / means.count())
        return float(sum(variances) ** 0.5)

    @property
    def sure_from(self) -> float:
        """From how many standard errors on a change is clear: `ppprof.analysis.diff.changes.sure`."""
        return sure(self.fewest_steps)

    @property
    def fewest_steps(self) -> int:
        """The number of recorded steps of the run with fewer, at least 2."""
        return max(2, min(len(run.ranks_of_step) for run in self._windows))

    @cached_property
    def operators(self) -> pl.DataFrame:
        """The operators of both runs, one row per name, the largest change first.

        Returns:
            name; status (both, new or gone); for each of ``VALUES["operators"]``, per rank and
            step, float64: ``baseline_cpu_self_ns``, ``experiment_…``, ``delta_…`` (experiment minus
            baseline), ``delta_ratio_cpu_self`` (delta over baseline, null if the baseline is 0) and
            ``noise_…``, the standard error of the delta (null with one step); and is_clear, whether
            the absolute delta that sorts the table is at least `sure_from` standard errors (null if
            these are unknown). If a run lacks the operator, its values are 0. Sorted by the absolute delta of
            GPU self time if a run has device events, else of CPU self time.
        """
        return self._by_name("operators", self.sort_value("operators"))

    @cached_property
    def kernels(self) -> pl.DataFrame:
        """The kernels of both runs, one row per name, sorted by the absolute delta of GPU time.

        Columns as in `operators`, with ``VALUES["kernels"]``.
        """
        return self._by_name("kernels", self.sort_value("kernels"))

    @cached_property
    def collectives(self) -> pl.DataFrame:
        """The collectives and transfers of both runs, sorted by the absolute delta of their time.

        Columns as in `operators`, with ``VALUES["collectives"]``. One row per name and axis:
        ``all_reduce (mp)``. total_ns is device time, in traces without device events host time; it
        includes the time in which a rank waits for the others.
        """
        return self._by_name("collectives", self.sort_value("collectives"))

    @cached_property
    def runtime_calls(self) -> pl.DataFrame:
        """The calls of the device's runtime, sorted by the absolute delta of their CPU time.

        Columns as in `operators`, with ``VALUES["runtime_calls"]``.
        """
        return self._by_name("runtime_calls", self.sort_value("runtime_calls"))

    @cached_property
    def operator_shapes(self) -> pl.DataFrame:
        """The operators of both runs by the shapes of their inputs, sorted by the change of time.

        Columns as in `operators`, with ``VALUES["operator_shapes"]``; a name is an operator with
        its shapes. A row that both runs have does equal work in each call.
        """
        return self._by_name("operator_shapes", self.sort_value("operator_shapes"))

    @cached_property
    def lines(self) -> pl.DataFrame:
        """The lines of the user's code in both runs, sorted by the absolute delta of their time.

        Columns as in `operators`, with ``VALUES["lines"]``. Times are by samples of Python stacks,
        without the lines that a line calls. `ppprof.analysis.diff.naming.keys_of_lines` says which
        lines are one. No rows if a run has no samples.
        """
        runs = self._windows
        if any(run.lines.is_empty() for run in runs):
            runs = [replace(run, lines=run.lines.clear()) for run in runs]
        *keys, names = keys_of_lines(*(run.lines["name"].unique() for run in runs))
        one, other = (
            replace(run, lines=run.lines.with_columns(pl.col("name").replace(key))).means("lines")
            for run, key in zip(runs, keys)
        )
        values = VALUES["lines"]
        table = changes(one, other, ["name"], values, values[-1], self.sure_from)
        return table.with_columns(pl.col("name").replace(names))

    def by_name(self, kind: str, value: str) -> pl.DataFrame:
        """Return `operators` or another table by name, sorted by the absolute delta of ``value``.

        is_clear is then about that delta.
        """
        if value == self.sort_value(kind):
            table: pl.DataFrame = getattr(self, kind)
            return table
        return self._by_name(kind, value)

    def sort_value(self, kind: str) -> str:
        """Return the value by which a table is sorted unless another is chosen."""
        return f"{self.clock}_self_ns" if kind == "operators" else VALUES[kind][-1]

    def _by_name(self, kind: str, value: str) -> pl.DataFrame:
        one, other = (run.means(kind) for run in self._windows)
        return changes(one, other, ["name"], VALUES[kind], value, self.sure_from)

    @cached_property
    def ranks(self) -> pl.DataFrame:
        """The ranks of both runs, joined by coordinate, the largest change of the own time first.

        A rank's own time is the step without exposed communication and bubble. Ranks are joined by
        number if a topology is unknown. If both runs have a single rank, these ranks are compared,
        whatever their coordinates.

        Returns:
            - baseline_rank and experiment_rank: int64, null if that run has no such rank;
            - coordinate: ``dp0 mp1``, null if ranks are not joined by coordinate;
            - status: both, new (only in the experiment) or gone (only in the baseline);
            - for step_ns, own_ns and each of `PARTS_NS`, mean over recorded steps, float64:
              ``baseline_own_ns``, ``experiment_own_ns``, ``delta_own_ns`` (experiment minus
              baseline), ``delta_ratio_own`` (delta over baseline, null if the baseline is 0) and
              ``noise_own_ns``, the standard error of the delta (null with one step). If a run lacks
              the rank, its values are 0. If a trace lacks the events of its device, all but those of
              step_ns and data_loading_ns are null; these, too, if they were not measured;
            - is_clear: whether the absolute delta_own_ns is at least `sure_from` standard errors;
              null if these are unknown.

            Ranks that both runs have come first. Both groups are sorted by the absolute
            delta_own_ns, the largest first.
        """
        labels = _labels(self._windows)
        one, other = (_by_rank(run, names) for run, names in zip(self._windows, labels))
        values = ("step_ns", "own_ns", *PARTS_NS)
        table = changes(one, other, ["label"], values, "own_ns", self.sure_from)
        table = _without_unknown_parts(table, one, other)
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
        """The module trees of both runs, aligned: in pre-order, stage by stage.

        The gaps between the outermost modules are rows, too, named
        `ppprof.analysis.profile.module_tree.UNKNOWN`.

        Returns:
            - stage: null unless both runs are pipelines;
            - depth: 0 for the step;
            - name, ``GPT -> MyGPT`` of a renamed module, and status (both, new or gone);
            - baseline_, experiment_ and delta_ (experiment minus baseline) of each of
              `MODULE_VALUES`, float64, per rank and step. If a run lacks the module, its value is
              null, and counts as 0 in the delta;
            - delta_ratio: delta_time_ns over baseline_time_ns, null if that is 0 or missing;
            - noise_time_ns, noise_self_ns, noise_calls: the standard errors of delta_time_ns,
              delta_self_ns and delta_calls (null with one step);
            - is_clear: whether the absolute delta_self_ns (for the step: delta_time_ns) is at least
              `sure_from` standard errors; null if these are unknown;
            - baseline_until_ns, experiment_until_ns: the accumulated trend, which is the sum of
              self_ns of this row and all rows above it in its stage; null for the step and for a
              module that the run lacks.
        """
        return self.modules_with_paths.drop("baseline_path", "experiment_path")

    @cached_property
    def modules_with_paths(self) -> pl.DataFrame:
        """The table `modules`, with baseline_path and experiment_path of each module.

        A path is one of `ppprof.analysis.profile.module_tree.modules`; null if the run lacks the
        module.
        """
        return module_changes(*((run.modules, run.ranks_of_step) for run in self._windows))

    @cached_property
    def comparability(self) -> Comparability:
        """How much the two runs have in common: their facts, and the time in their operators."""
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
        """Return the share of equal facts of one kind, and the differing facts as texts.

        None and an empty list if a run has no facts of this kind.
        """
        one, other = (
            {key: value for key, value in run.facts.items() if key.partition(".")[0] == kind}
            for run in self._runs
        )
        if not all(any("." in key for key in facts) for facts in (one, other)):
            return None, []
        keys = sorted({*one, *other})
        unlike = [key for key in keys if one.get(key) != other.get(key)]
        return 1 - len(unlike) / len(keys), [
            f"{key.partition('.')[2]}: {_changed(key, one, other)}" for key in unlike
        ]


def _changed(key: str, one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return two values of a key as text; of a key that one run lacks, the only value."""
    if key in one and key in other:
        return f"{one[key]} -> {other[key]}"
    return f"{one[key]}, baseline only" if key in one else f"{other[key]}, experiment only"


def _shared_time(operators: pl.DataFrame, by: str) -> float:
    """Return the share of the time in operators that both runs have; 1 if there is no time."""
    time = pl.col(f"baseline_{by}").abs() + pl.col(f"experiment_{by}").abs()
    whole = operators.select(time.sum()).item()
    both = operators.filter(status="both").select(time.sum()).item()
    return float(both / whole) if whole else 1.0


def _labels(runs: Sequence[RunCosts]) -> list[dict[int, str]]:
    """Return, for each run, the labels by which ranks of two runs are joined, keyed by rank.

    A label is the rank's coordinate on the axes where ranks differ, ``dp0 mp1``, or its number if a
    topology is unknown. If each run has a single rank, the label is "".
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
    every = [each for coordinates in coordinates_of_runs for each in coordinates.values()]
    further = dict.fromkeys(axis for coordinate in every for axis in coordinate if axis not in AXES)
    axes = [
        axis
        for axis in (*AXES, *further)
        if len({coordinate.get(axis, 0) for coordinate in every}) > 1
    ]
    return [
        {
            rank: " ".join(f"{axis}{coordinate.get(axis, 0)}" for axis in axes)
            for rank, coordinate in coordinates.items()
        }
        for coordinates in coordinates_of_runs
    ]


def _without_unknown_parts(
    table: pl.DataFrame, one: pl.DataFrame, other: pl.DataFrame
) -> pl.DataFrame:
    """Return ``table`` with null for unknown times of ranks whose traces lack their device's events.

    Known are the step and the data loading if both runs have a value of them.
    """
    parts = ("own", "step", "data_loading")
    unknown = {
        part: pl.concat(
            each.filter(pl.col(f"{part}_ns").is_null())["label"] for each in (one, other)
        )
        for part in parts
    }

    def known(name: str) -> pl.Expr:
        part = next((part for part in parts[1:] if f"_{part}" in name), "own")
        return pl.when(~pl.col("label").is_in(unknown[part].implode())).then(name)

    values = [name for name in table.columns if name not in ("label", "status")]
    table = table.with_columns(map(known, values))
    has_time = pl.any_horizontal(pl.col("^(baseline|experiment)_.*_ns$").is_not_null())
    return table.filter(has_time)


def _by_rank(run: RunCosts, labels: Mapping[int, str]) -> pl.DataFrame:
    """Return label, rank, means over steps, and the variances of the means, of each rank with a label."""
    waits = pl.col("exposed_ns").fill_null(0) + pl.col("bubble_ns").fill_null(0)
    own_ns = pl.when(pl.col("rest_ns").is_not_null()).then(pl.col("step_ns") - waits)
    steps = run.steps.with_columns(own_ns=own_ns)
    label = pl.col("rank").replace_strict(dict(labels), default=None, return_dtype=pl.String)
    means = []
    for value in ("step_ns", "own_ns", *PARTS_NS):
        column = pl.col(value).cast(pl.Float64)
        means += [column.mean(), (column.var() / column.count()).alias(f"{value}_var")]
    return steps.with_columns(label=label).group_by("label", "rank").agg(means).drop_nulls("label")


LEAST_CHANGE = 0.001
"""Smaller changes of the FLOPs are those of single small operators."""

_LEAST_SHARE_OF_STEP = 0.01
_LEAST_SHARE_OF_CHANGE = 0.25
_DIM = re.compile(r"\d{1,18}")
_MOST_NAMES = 200
"""Most operators of either run to compare: those with the most time."""


class WorkChange(NamedTuple):
    """What changed in the work of the operators."""

    flops_ratio: float | None
    """Change of the FLOPs per step, over those of the baseline; None if unknown of a run, if the
    runs cannot be compared (frameworks differ, or gradients are known of one only), or if steps differ as
    much (`Diff.sure_from`), as with batches that are padded to their longest sample."""
    dims: tuple[int, int, int] | None
    """The size that became another one in most operators: baseline, experiment, and in how many
    operators; None if no size did in two operators, or if one of them also became another, or came from another."""
    slower: tuple[str, float] | None
    """The operator of equal work in both runs with the largest clear change of its time, at least 1%
    of a step and a quarter of what the step clearly changed by: its name, and the change over the baseline's time; None
    without one."""
    dtypes: tuple[str, str] | None
    """In which most FLOPs are computed: baseline, experiment; None if both are equal, or unknown of a run."""


def work_change(diff: Diff) -> WorkChange:
    """Return how the work of the operators changed.

    ::

        baseline    matmul [1024,64] [64,256]  gelu [1024,256]
        experiment  matmul [1152,64] [64,256]  gelu [1152,256]     1024 became 1152, in 2 operators
    """
    table = diff.operator_shapes
    one, other = diff.baseline, diff.experiment
    # Otherwise formulas or gradients are known of one run only.
    is_comparable = (one.frameworks, one.has_forward_links) == (
        other.frameworks,
        other.has_forward_links,
    )
    ratio = _flops_ratio(diff) if is_comparable else None
    dtypes = (one.dtype, other.dtype)
    known = None if None in dtypes or one.dtype == other.dtype else cast("tuple[str, str]", dtypes)
    return WorkChange(ratio, _dims(table), _slower(diff, table), known)


def _flops_ratio(diff: Diff) -> float | None:
    together = (
        replace(run, operator_shapes=run.operator_shapes.with_columns(name=pl.lit("")))
        for run in (diff.baseline, diff.experiment)
    )
    for row in Diff(*together).by_name("operator_shapes", "flops").iter_rows(named=True):
        is_known = row["baseline_flops"] and row["experiment_flops"]
        if is_known and (row["is_clear"] is not False or not row["delta_flops"]):
            return float(row["delta_ratio_flops"])
    return None


def _dims(table: pl.DataFrame) -> tuple[int, int, int] | None:
    """Return the size that became another one in most of the operators that only one run has."""
    gone, new = (
        [_pattern(name) for name in sorted(table.filter(status=status)["name"].head(_MOST_NAMES))]
        for status in ("gone", "new")
    )
    found: Counter[tuple[int, int]] = Counter()
    for pattern, sizes in gone:
        changes = [
            sorted({(a, b) for a, b in zip(sizes, others) if a != b})
            for other, others in new
            if other == pattern
        ]
        if changes:  # the operator that differs in the fewest sizes
            found.update(min((len(change), change) for change in changes)[1])
    if not found:
        return None
    (old, now), num = min(found.items(), key=lambda item: (-item[1], item[0]))
    is_only = sum(old in pair[:1] or now in pair[1:] for pair in found) == 1
    return (old, now, num) if num > 1 and is_only else None


def _pattern(name: str) -> tuple[str, list[int]]:
    """Return a name without the sizes in its shapes, and these.

    >>> _pattern("conv2d [4,8] [3]")
    ('conv2d [_,_] [_]', [4, 8, 3])
    """
    operator, bracket, shapes = name.partition(" [")
    pattern = f"{operator}{bracket}{_DIM.sub('_', shapes)}"
    return pattern, [int(size) for size in _DIM.findall(shapes)]


def _slower(diff: Diff, table: pl.DataFrame) -> tuple[str, float] | None:
    step_ns = diff.baseline.steps["step_ns"].cast(pl.Float64).mean()
    if not isinstance(step_ns, float):
        return None
    change = diff.change
    if change.ratio is None or change.verdict not in ("slower", "faster"):
        return None
    same_work = (pl.col("status") == "both") & (pl.col("delta_calls") == 0) & pl.col("is_clear")
    # A smaller part of the change is what the same operator differs by from process to process.
    least_ns = max(_LEAST_SHARE_OF_STEP, _LEAST_SHARE_OF_CHANGE * abs(change.ratio)) * step_ns
    is_cause = pl.col("delta_time_ns") * (1 if change.ratio > 0 else -1) >= least_ns
    rows = table.filter(same_work & is_cause & pl.col("delta_ratio_time").is_not_null())
    if rows.is_empty():
        return None
    row = rows.row(0, named=True)
    return row["name"], row["delta_ratio_time"]
