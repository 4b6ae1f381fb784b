"""What one run costs: its steps, operators, kernels and modules, per rank and step.

The report shows these numbers; `ppprof.analysis.diff.diff.Diff` compares those of two runs. Means are
per rank and step, so windows of different length and jobs of different size compare.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Union

import polars as pl

from ppprof.analysis.diff import costs
from ppprof.analysis.diff.changes import per_step
from ppprof.analysis.diff.costs import Device
from ppprof.analysis.diff.module_changes import module_means
from ppprof.analysis.diff.significance import LEAST_STEPS

OPERATOR_VALUES = tuple(costs.OPERATORS)[2:]
KERNEL_VALUES = tuple(costs.KERNELS)[2:]

PARTS = ("computation_ns", "exposed_ns", "data_loading_ns", "bubble_ns", "host_bound_ns", "rest_ns")

OUTSIDE, INSIDE = "outside windows", "in windows"
"""Which steps the step times are of, in words."""

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

Metric = Union[float, str, None]

_WARM_UP = 10
"""Steps at the start of a run that its step times leave out, as the Perf Summary does."""


@dataclass(frozen=True)
class RunCosts:
    """The costs of one run."""

    what: str
    """The run's path, for messages."""
    steps: pl.DataFrame
    """rank, step, step_ns and the parts that add up to it (`PARTS`), of recorded windows."""
    times: pl.DataFrame
    """The run's step times: rank, step, window, excluded, batch_cost_ns, reader_cost_ns,
    num_samples, num_tokens and device_peak_bytes; no rows if the run has none."""
    operators: pl.DataFrame
    """`ppprof.analysis.diff.costs.OPERATORS`: sums over ranks."""
    kernels: pl.DataFrame
    """`ppprof.analysis.diff.costs.KERNELS`: sums over ranks."""
    modules: pl.DataFrame
    """stage, then `ppprof.analysis.modules.module_tree.MODULES` and calls: sums over the ranks of a
    stage."""
    unattributed_modules: pl.DataFrame
    """The same, without gradients attributed to the modules whose forward made them."""
    devices: Sequence[Device] = ()
    frameworks: frozenset[str] = frozenset()
    has_forward_links: bool = False
    """Whether any window links gradients to the forward that made them."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """The manifest's facts about the job, by dotted key: ``config.Model.num_layers``."""
    num_replicas: int = 1
    """Ranks that read different samples: dp times sharding."""
    coordinates: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """Each rank's coordinate, by axis; empty if the topology is unknown."""

    def without_attribution(self) -> RunCosts:
        """Return the same costs with no gradient attributed to a module."""
        return dataclasses.replace(self, modules=self.unattributed_modules, has_forward_links=False)

    @cached_property
    def ranks_of_step(self) -> Mapping[int, int]:
        """How many ranks recorded each step. Traces without steps count as step 0."""
        counted = self.steps.group_by("step").agg(pl.col("rank").n_unique())
        return dict(counted.sort("step").iter_rows())

    @cached_property
    def clock(self) -> str:
        """``gpu`` if the run has device events, else ``cpu``."""
        return "gpu" if self.operators["gpu_total_ns"].sum() else "cpu"

    @cached_property
    def times_outside(self) -> pl.DataFrame:
        """rank, step, step_ns of the steps outside windows, without stalls and warm-up."""
        sound = self.times.filter(
            pl.col("window").is_null() & pl.col("excluded").not_().fill_null(True)
        )
        first = _WARM_UP if sound["step"].n_unique() >= 2 * _WARM_UP else 1
        return sound.filter(pl.col("step") >= first).select(
            "rank", "step", step_ns=pl.col("batch_cost_ns")
        )

    @cached_property
    def times_inside(self) -> pl.DataFrame:
        """rank, step, step_ns of the steps inside windows."""
        return self.steps.select("rank", "step", "step_ns").drop_nulls()

    @property
    def has_times_outside(self) -> bool:
        """Whether there are enough steps outside windows for an interval."""
        return self.times_outside["step"].n_unique() >= LEAST_STEPS

    @cached_property
    def step_times(self) -> tuple[pl.DataFrame, str]:
        """rank, step, step_ns, and which steps these are: `OUTSIDE` or `INSIDE`.

        No profiler slows the steps outside windows, so these come first if there are enough.
        """
        if self.has_times_outside or self.times_inside.is_empty():
            return self.times_outside, OUTSIDE
        return self.times_inside, INSIDE

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        """The run's own overview, by `METRICS`; null or missing if unknown."""
        return self.metrics_over(self.step_times[0])

    def metrics_over(self, times: pl.DataFrame) -> Mapping[str, Metric]:
        """Return the overview with step times and rates of some steps.

        Args:
            times: rank, step, step_ns.
        """
        metrics: dict[str, Metric] = {}
        medians = times.group_by("step").agg(pl.col("step_ns").median())["step_ns"]
        if medians.len():
            metrics["step_time"] = _mean(times["step_ns"])
            metrics["step_time_median"] = medians.quantile(0.5, "linear")
            metrics["step_time_p95"] = medians.quantile(0.95, "linear")
        counted = self.times.join(times.select("rank", "step"), on=["rank", "step"], how="semi")
        for metric, column in (("ips", "num_samples"), ("tokens_per_s", "num_tokens")):
            known = counted.drop_nulls(column)
            if known.height and known["batch_cost_ns"].sum():
                count, time_ns = int(known[column].sum()), int(known["batch_cost_ns"].sum())
                metrics[metric] = count / time_ns * 1e9 * self.num_replicas
        if counted.height and counted["reader_cost_ns"].count():
            metrics["reader_cost"] = _mean(counted["reader_cost_ns"])
        if self.steps.height:
            for part in PARTS:
                metrics[metric_of(part)] = _mean(self.steps[part])
        return {**metrics, **self._device_metrics()}

    def _device_metrics(self) -> dict[str, Metric]:
        names = sorted({device.name for device in self.devices if device.name})
        memory_bytes = [device.memory_bytes for device in self.devices]
        peaks = [device.peak_bytes for device in self.devices if device.peak_bytes is not None]
        peaks += self.times["device_peak_bytes"].drop_nulls().to_list()
        return {
            "device": ", ".join(names) or None,
            "device_memory": next((size for size in memory_bytes if size is not None), None),
            "gpu_utilization": _mean_of([device.gpu_utilization for device in self.devices]),
            "cpu_utilization": _mean_of([device.cpu_utilization for device in self.devices]),
            "mean_memory": _mean_of([device.mean_bytes for device in self.devices]),
            "peak_memory": max(peaks, default=None),
        }

    @cached_property
    def operator_means(self) -> pl.DataFrame:
        """name, then each of `OPERATOR_VALUES` per rank and step, and its variance; by name."""
        means = per_step(self.operators, ["name"], OPERATOR_VALUES, self.ranks_of_step)
        return means.sort("name")

    @cached_property
    def kernel_means(self) -> pl.DataFrame:
        """name, then each of `KERNEL_VALUES` per rank and step, and its variance; by name."""
        means = per_step(self.kernels, ["name"], KERNEL_VALUES, self.ranks_of_step)
        return means.sort("name")

    @cached_property
    def module_means(self) -> pl.DataFrame:
        """The tree of modules; see `ppprof.analysis.diff.module_changes.module_means`."""
        return module_means(self.modules, self.ranks_of_step)


def metric_of(part: str) -> str:
    """Return the metric that holds a part of a step.

    >>> metric_of("exposed_ns"), metric_of("bubble_ns")
    ('exposed_communication', 'bubble')
    """
    return "exposed_communication" if part == "exposed_ns" else part.removesuffix("_ns")


def _mean(values: pl.Series) -> float | None:
    mean = values.mean()
    return float(mean) if isinstance(mean, (int, float)) else None


def _mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean of the known values; None if there is none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
