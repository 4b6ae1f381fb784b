"""The data of a report: one window of a run, with all its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from ppprof.analysis.advice.finding import Finding
from ppprof.analysis.diff.costs import Device
from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.diff.run_costs import RunCosts
from ppprof.analysis.efficiency.roof import Roof
from ppprof.analysis.ranks.cluster import Cluster
from ppprof.analysis.report_data.rank import Details


@dataclass(frozen=True)
class ReportData:
    """The data of one window of a run, with all its ranks."""

    paths: Sequence[str]
    """The run directories (one per node if each node has its own), or the trace file."""
    window: int | None
    """The number of the window; None for a run without traces."""
    windows: Sequence[int]
    """The numbers of all windows of the run."""
    manifest: Mapping[str, Any]
    """The job's manifest; empty for traces without a manifest."""
    cluster: Cluster
    """Steps, collectives and stragglers."""
    costs: RunCosts
    """Operators, kernels and modules."""
    step_times: pl.DataFrame
    """One row per rank and step, also for steps outside windows; no rows if the run has no step
    times."""
    devices: Mapping[int, Device]
    """The device of each rank, with its utilization and memory, keyed by rank."""
    phases: pl.DataFrame
    """rank, name (Dataloader, Forward, Backward...), cpu_ns and gpu_ns (float64, per step)."""
    efficiency: pl.DataFrame
    """The result of `ppprof.analysis.efficiency.efficiency.mean_efficiency` for all ranks."""
    roof: Roof
    """The roof of the first rank's device."""
    details: Mapping[int, Details]
    """Timelines and memory, on each rank's own clock, keyed by rank; only for ranks that are
    drawn."""
    findings: Sequence[Finding]
    """The findings of `ppprof.analysis.advice.advise`, sorted by severity, then by cost."""
    places: pl.DataFrame
    """rank, then the columns of `ppprof.analysis.report_data.places.PLACES`, on the reference clock:
    one row per rank, kind and name."""
    module_work: pl.DataFrame
    """The result of `ppprof.analysis.report_data.operators_of_modules.mean_module_work`."""
    sources: Mapping[int, str]
    """The file that was read for each rank, keyed by rank."""
    unread: Sequence[str] = ()
    """Messages about unreadable or uncertain data."""
    diff: Diff | None = None
    """The comparison with a baseline; None if no baseline was given."""
    baseline_module_work: pl.DataFrame | None = None
    """``module_work`` of the baseline; None if no baseline was given."""

    @property
    def what(self) -> str:
        """The run's paths, for messages."""
        return ", ".join(self.paths)

    @property
    def has_traces(self) -> bool:
        """Whether the run has traces; without them it has step times only (``timer_only``)."""
        return bool(self.sources)

    @cached_property
    def steps(self) -> Sequence[int]:
        """Numbers of the recorded steps, ascending; without traces, of all steps."""
        steps = self.cluster.steps if self.has_traces else self.step_times
        return sorted(steps["step"].unique().to_list())

    @cached_property
    def ranks(self) -> Sequence[int]:
        """The ranks with recorded steps, ascending; without traces, those with step times."""
        steps = self.cluster.steps if self.has_traces else self.step_times
        return sorted(steps["rank"].unique().to_list())

    @cached_property
    def step_ns(self) -> float:
        """The step time in nanoseconds, mean over steps and ranks; 0 if there are no steps."""
        mean = self.cluster.steps["step_ns"].mean()
        return float(mean) if isinstance(mean, (int, float)) else 0.0

    @cached_property
    def origin_ns(self) -> int:
        """The start of the drawn timelines, on the reference clock; 0 without events.

        ``#t=START-END`` in links to the page's timeline counts seconds from here.
        """
        starts = []
        for rank, details in self.details.items():
            if details.timeline.num_events:
                clock = self.cluster.clocks.get(rank)
                base = np.array([details.timeline.base_ns])
                starts.append(int((base if clock is None else clock.to_reference(base))[0]))
        return min(starts, default=0)
