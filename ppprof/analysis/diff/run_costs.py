"""What one run costs: its steps, operators, kernels and modules, per rank and step.

The report shows these numbers; `ppprof.analysis.diff.diff.Diff` compares the numbers of two runs.
Means are per rank and step, so windows of different length and jobs of different size can be
compared.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Union

import polars as pl

from ppprof.analysis.diff import costs
from ppprof.analysis.diff.changes import module_means, per_step
from ppprof.analysis.diff.costs import Device
from ppprof.analysis.profile.step_basis import (
    NO_WINDOW,
    NOT_RECORDED,
    RECORDED,
    StepSample,
    is_enough,
    unrecorded_steps,
)
from ppprof.analysis.ranks.step_breakdown import PARTS

VALUES = {kind: tuple(schema)[2:] for kind, schema in costs.BY_NAME.items()}
"""The values of operators, kernels, collectives and runtime calls: columns of their tables in
`RunCosts`, keyed by the field of the table."""

PARTS_NS = tuple(f"{part}_ns" for part in PARTS)
"""The columns of the parts of a step."""

Metric = Union[float, str, None]


@dataclass(frozen=True)
class RunCosts:
    """The costs of one run."""

    what: str
    """The run's path, for messages."""
    steps: pl.DataFrame
    """One row per rank and step of the recorded windows: rank, step, step_ns, and `PARTS_NS`, which
    add up to step_ns."""
    times: pl.DataFrame
    """The run's step times: rank, step, window, excluded, batch_cost_ns, reader_cost_ns,
    num_samples, num_tokens, device_peak_bytes, device_peak_reserved_bytes, device_total_bytes, and the
    columns of `machine_load`; no rows if the run has no step times."""
    lines: pl.DataFrame
    """Columns of `ppprof.analysis.profile.python_lines.LINES`, and rank."""
    unattributed_lines: pl.DataFrame
    """``lines`` in which gradients are time of the line that calls the Backward."""
    operators: pl.DataFrame
    """Columns of `ppprof.analysis.diff.costs.OPERATORS`: sums over ranks."""
    kernels: pl.DataFrame
    """Columns of `ppprof.analysis.diff.costs.KERNELS`: sums over ranks."""
    collectives: pl.DataFrame
    """Columns of `ppprof.analysis.diff.costs.COLLECTIVES`: sums over ranks."""
    runtime_calls: pl.DataFrame
    """Columns of `ppprof.analysis.diff.costs.RUNTIME_CALLS`: sums over ranks."""
    operator_shapes: pl.DataFrame
    """Columns of `ppprof.analysis.diff.costs.SHAPES`: sums over ranks."""
    modules: pl.DataFrame
    """stage, the columns of `ppprof.analysis.profile.module_tree.MODULES`, and calls: sums over the
    ranks of a stage."""
    unattributed_modules: pl.DataFrame
    """The columns of ``modules``. Gradients are not attributed to modules: they belong to the
    Backward."""
    devices: Sequence[Device] = ()
    """The devices of the run's windows."""
    frameworks: frozenset[str] = frozenset()
    """The frameworks of the run's windows: ``paddle``, ``torch``."""
    has_forward_links: bool = False
    """Whether any window links gradients to the forward that created them."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """The manifest's facts about the job, keyed by dotted key: ``config.Model.num_layers``."""
    num_replicas: int = 1
    """Number of replicas that read different samples: the dp degree times the sharding degree."""
    coordinates: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """Each rank's position on each axis, keyed by rank, then axis; empty if the topology is
    unknown."""

    @property
    def attributes_gradients(self) -> bool:
        """Whether gradients are attributed to modules or lines of the forward pass."""
        return self.has_forward_links or not self.lines.equals(self.unattributed_lines)

    def without_attribution(self) -> RunCosts:
        """Return a copy whose ``modules`` and ``lines`` are the unattributed ones."""
        return dataclasses.replace(
            self, modules=self.unattributed_modules, lines=self.unattributed_lines
        )

    def without_windows(self) -> RunCosts:
        """Return a copy with nothing but the step times."""
        tables = ("steps", "modules", "unattributed_modules", "unattributed_lines", *VALUES)
        return dataclasses.replace(self, **{name: getattr(self, name).clear() for name in tables})

    @cached_property
    def ranks_of_step(self) -> Mapping[int, int]:
        """The number of ranks that recorded each step, keyed by step, ascending.

        A trace without steps counts as one step.
        """
        counted = self.steps.group_by("step").agg(pl.col("rank").n_unique())
        return dict(counted.sort("step").iter_rows())

    @cached_property
    def divided_steps(self) -> pl.DataFrame:
        """The rows of ``steps`` with known parts, so that means of the parts add up; all rows if none has."""
        known = self.steps.drop_nulls("rest_ns")
        return self.steps if known.is_empty() else known

    @cached_property
    def clock(self) -> str:
        """``gpu`` if the run has device events, else ``cpu``."""
        return "gpu" if self.operators["gpu_total_ns"].sum() else "cpu"

    @cached_property
    def unrecorded(self) -> pl.DataFrame:
        """rank, step, step_ns of the steps that were not recorded: see `unrecorded_steps`.

        The first step of a run is step 0 here, also where the training was resumed: what grows with the steps of a
        process begins anew.
        """
        return unrecorded_steps(self.times).select("rank", "step_ns", step="num_before")

    @cached_property
    def recorded(self) -> pl.DataFrame:
        """rank, step, step_ns of the recorded steps."""
        return self.steps.select("rank", "step", "step_ns").drop_nulls()

    @property
    def unrecorded_sample(self) -> StepSample:
        """The steps that were not recorded."""
        basis = NO_WINDOW if self.recorded.is_empty() else NOT_RECORDED
        return StepSample(self.unrecorded, basis)

    @cached_property
    def sample(self) -> StepSample:
        """The steps that were not recorded, if they are enough for an interval or if there are no others.

        Else the recorded steps.
        """
        if is_enough(self.unrecorded) or self.recorded.is_empty():
            return self.unrecorded_sample
        return StepSample(self.recorded, RECORDED)

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        """The run's metrics, keyed as in `METRICS`; None or missing if unknown.

        Step times and rates are those of the steps in `sample`.
        """
        return self.metrics_over(self.sample.times)

    def metrics_over(self, times: pl.DataFrame) -> Mapping[str, Metric]:
        """Return the run's metrics, with the step times and rates of the given steps.

        Args:
            times: the steps: rank, step, step_ns.

        Returns:
            Values keyed as in `METRICS`; None or missing if unknown.
        """
        metrics: dict[str, Metric] = {}
        medians = times.group_by("step").agg(pl.col("step_ns").median())["step_ns"]
        if medians.len():
            metrics["step_time"] = _mean(times["step_ns"])
            metrics["step_time_median"] = medians.quantile(0.5, "linear")
            metrics["step_time_p95"] = medians.quantile(0.95, "linear")
        counted = self.times.join(times.select("rank", "step", "step_ns"), on=["rank", "step"])
        for metric, column in (("ips", "num_samples"), ("tokens_per_s", "num_tokens")):
            known = counted.drop_nulls(column)
            count, time_ns = _mean(known[column]), _mean(known["step_ns"])
            if count is not None and time_ns:
                metrics[metric] = count / time_ns * 1e9 * self.num_replicas
        if counted.height and counted["reader_cost_ns"].count():
            metrics["reader_cost"] = _mean(counted["reader_cost_ns"])
        if self.steps.height:
            for part in PARTS_NS:
                metrics[metric_of(part)] = _mean(self.divided_steps[part])
        return {**metrics, **self._device_metrics()}

    @property
    def dtype(self) -> str | None:
        """In which most FLOPs are computed, on most ranks; None if unknown."""
        counts = Counter(device.dtype for device in self.devices if device.dtype)
        return min(counts, key=lambda dtype: (-counts[dtype], dtype), default=None)

    def _device_metrics(self) -> dict[str, Metric]:
        names = sorted({device.name for device in self.devices if device.name})
        memory_bytes = [device.memory_bytes for device in self.devices]
        peaks = [device.peak_bytes for device in self.devices if device.peak_bytes is not None]
        peaks += self.times["device_peak_bytes"].drop_nulls().to_list()
        memory_bytes += self.times["device_total_bytes"].drop_nulls().head(1).to_list()
        reserved = self.times["device_peak_reserved_bytes"].drop_nulls().to_list()
        return {
            "device": ", ".join(names) or None,
            "device_memory": next((size for size in memory_bytes if size is not None), None),
            "gpu_utilization": _mean_of([device.gpu_utilization for device in self.devices]),
            "cpu_utilization": _mean_of([device.cpu_utilization for device in self.devices]),
            "mean_memory": _mean_of([device.mean_bytes for device in self.devices]),
            "peak_memory": max(peaks, default=None),
            "peak_reserved_memory": max(reserved, default=None),
        }

    def means(self, kind: str) -> pl.DataFrame:
        """Return one row per name, sorted by name: name, and the values per rank and step.

        Each value has its variance, ``<value>_var``; see `per_step`.
        """
        table: pl.DataFrame = getattr(self, kind)
        return per_step(table, ["name"], VALUES[kind], self.ranks_of_step).sort("name")

    @cached_property
    def module_means(self) -> pl.DataFrame:
        """The run's module tree: see `ppprof.analysis.diff.changes.module_means`."""
        return module_means(self.modules, self.ranks_of_step)


def metric_of(part: str) -> str:
    """Return the metric in `METRICS` for a part in `PARTS_NS`.

    >>> metric_of("exposed_ns"), metric_of("bubble_ns")
    ('exposed_communication', 'bubble')
    """
    return "exposed_communication" if part == "exposed_ns" else part.removesuffix("_ns")


def _mean(values: pl.Series) -> float | None:
    mean = values.mean()
    return float(mean) if isinstance(mean, (int, float)) else None


def _mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean of the known values; None if all are unknown."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
