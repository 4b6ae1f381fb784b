"""All that is known of one window of a run, of all its ranks: what a report is made of."""

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
    """Where the run is: directories, one of each node that left its own, or a file."""
    window: int
    windows: Sequence[int]
    """All that there are."""
    manifest: Mapping[str, Any]
    """What the capture wrote about the job; empty for files that no capture of ours left."""
    cluster: Cluster
    """Steps, collectives and stragglers."""
    costs: RunCosts
    """Operators, kernels and modules."""
    step_times: pl.DataFrame
    """`ppprof.rundir.step_times.STEP_TIMES`: all steps, recorded or not; no rows if the run
    has no step times."""
    devices: Mapping[int, Device]
    """How busy and full each rank's device was, by rank."""
    phases: pl.DataFrame
    """rank, name, cpu_ns and gpu_ns per step, float64: Dataloader, Forward, Backward..."""
    details: Mapping[int, Details]
    """Timelines, on the reference clock, and memory, by rank: of some ranks."""
    findings: Sequence[Finding]
    """What to change, most costly first."""
    sources: Mapping[int, str]
    """The file that was read of each rank."""
    unread: Sequence[str] = ()
    """What could not be read, or not be told for certain, in words."""
    diff: Diff | None = None
    """Against a baseline; None without one."""

    @property
    def what(self) -> str:
        """Where it is, for messages."""
        return ", ".join(self.paths)

    @cached_property
    def steps(self) -> Sequence[int]:
        """Numbers of the recorded steps, ascending."""
        return sorted(self.cluster.steps["step"].unique().to_list())

    @cached_property
    def ranks(self) -> Sequence[int]:
        """The ranks with steps, ascending."""
        return sorted(self.cluster.steps["rank"].unique().to_list())

    @cached_property
    def step_ns(self) -> float:
        """A step's time, mean over steps and ranks."""
        mean = self.cluster.steps["step_ns"].mean()
        return float(mean) if isinstance(mean, (int, float)) else 0.0
