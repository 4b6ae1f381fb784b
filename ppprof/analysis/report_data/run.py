"""The data of a report: one window of a run, with all its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from ppprof.analysis.advice.finding import Finding
from ppprof.analysis.diff.costs import Device
from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.diff.run_costs import RunCosts
from ppprof.analysis.ranks.cluster import Cluster
from ppprof.analysis.report_data.rank import Details


@dataclass(frozen=True)
class ReportData:
    """One window of a run."""

    paths: Sequence[str]
    """The run's directories (one per node if nodes have their own), or its file."""
    window: int
    windows: Sequence[int]
    """All windows of the run."""
    manifest: Mapping[str, Any]
    """The job's manifest; empty for traces without one."""
    cluster: Cluster
    """Steps, collectives and stragglers."""
    costs: RunCosts
    """Operators, kernels and modules."""
    step_times: pl.DataFrame
    """All steps, recorded or not, one row per rank and step; no rows if the run has no step times."""
    devices: Mapping[int, Device]
    """Utilization and memory of each rank's device, by rank."""
    phases: pl.DataFrame
    """rank, name, cpu_ns and gpu_ns per step, float64: Dataloader, Forward, Backward..."""
    details: Mapping[int, Details]
    """Timelines, on the reference clock, and memory, by rank; for some ranks."""
    findings: Sequence[Finding]
    """Findings, most costly first."""
    sources: Mapping[int, str]
    """The file that was read, by rank."""
    unread: Sequence[str] = ()
    """Messages about unreadable or uncertain data."""
    diff: Diff | None = None
    """The comparison with a baseline; None without one."""

    @property
    def what(self) -> str:
        """The run's paths, for messages."""
        return ", ".join(self.paths)

    @cached_property
    def steps(self) -> Sequence[int]:
        """Numbers of the recorded steps, ascending."""
        return sorted(self.cluster.steps["step"].unique().to_list())

    @cached_property
    def ranks(self) -> Sequence[int]:
        """The ranks with recorded steps, ascending."""
        return sorted(self.cluster.steps["rank"].unique().to_list())

    @cached_property
    def step_ns(self) -> float:
        """The step time, mean over steps and ranks; 0 without steps."""
        mean = self.cluster.steps["step_ns"].mean()
        return float(mean) if isinstance(mean, (int, float)) else 0.0
