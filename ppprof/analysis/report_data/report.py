"""The data of a report: one window of a run, with all its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.advice.finding import Finding
from ppprof.analysis.advice.indicators import Indicators, collect_indicators
from ppprof.analysis.diff.costs import Costs, Device, costs_of, operator_calls
from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.diff.flame_changes import FLAME_CHANGES
from ppprof.analysis.diff.naming import Naming
from ppprof.analysis.diff.run_costs import RunCosts
from ppprof.analysis.efficiency.efficiency import EFFICIENCY, Roof, efficiency, roof_of_profile
from ppprof.analysis.path.rank_graph import RankGraph, rank_graph
from ppprof.analysis.profile.flame import FLAME, flame
from ppprof.analysis.profile.module_tree import module_nodes
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.remote_flows import remote_flows
from ppprof.analysis.profile.steps import select_steps, with_step
from ppprof.analysis.ranks.cluster import Cluster, RankAnalysis, analyze_profile
from ppprof.analysis.report_data.link_targets import TARGETS, longest_events, peak_targets
from ppprof.analysis.report_data.memory_timeline import Memory, memory_levels
from ppprof.analysis.report_data.timeline import Timeline, timeline
from ppprof.analysis.summaries.overview import model
from ppprof.choices import StepRange
from ppprof.trace.schema import Trace, is_kernel
from ppprof.trace.segments import with_stalls
from ppprof.trace.steps import step_spans

_NUM_LEVELS = 400
"""Number of points in the memory curve of a place."""


MOST_EVENTS = 1_600_000
"""Most events of all timelines of a page together: they take 3 to 6 bytes each."""

MOST_SPANS = 100_000
"""Most spans of all thinned timelines together: a browser draws them within a frame."""


_VALUES = ("calls", "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns")

MODULE_WORK = {
    "kind": pl.String,
    "path": pl.String,
    "name": pl.String,
    **dict.fromkeys(_VALUES, pl.Float64),
}
"""Columns of `module_work`. ``kind``: operators or kernels. ``path``: as in
`ppprof.analysis.profile.module_tree.modules`. The values of a kernel's GPU self time and CPU times
are 0."""

MEAN_MODULE_WORK = {"stage": pl.Int64, **MODULE_WORK}
"""Columns of `mean_module_work`."""

RANK_FLAME = {"rank": pl.Int64, **FLAME}
"""Columns of `ReportData.flame`."""

RANK_TARGETS = {"rank": pl.Int64, **TARGETS}
"""Columns of `ReportData.targets`."""

PHASE_TIMES = {"rank": pl.Int64, "name": pl.String, "cpu_ns": pl.Float64, "gpu_ns": pl.Float64}
"""Columns of `ReportData.phases`; ``name`` is Dataloader, Forward, Backward or Optimization."""


class Details(NamedTuple):
    """The timeline and memory of a rank that the report draws; it draws only some ranks."""

    timeline: Timeline
    """On the rank's own clock."""
    memory: Memory
    remote_flows: pl.DataFrame
    """The result of `remote_flows`, on the rank's own clock."""


class RankReportData(NamedTuple):
    """The data of one rank's window in a report."""

    analysis: RankAnalysis
    costs: Costs
    indicators: Indicators
    efficiency: pl.DataFrame
    """The result of `ppprof.analysis.efficiency.efficiency.efficiency`."""
    roof: Roof
    phases: pl.DataFrame
    """The result of `ppprof.analysis.summaries.overview.model`."""
    targets: pl.DataFrame
    """Columns of `ppprof.analysis.report_data.link_targets.TARGETS`, on the rank's own clock."""
    module_work: pl.DataFrame
    """The result of `ppprof.analysis.report_data.report.module_work`."""
    details: Details | None
    """The rank's timeline and memory; None if the rank is not drawn."""
    flame: pl.DataFrame
    """The result of `ppprof.analysis.profile.flame.flame`, on the rank's own clock."""
    graph: RankGraph | None
    """The part of the graph of all ranks; None for a window that is too large."""


class BaselineData(NamedTuple):
    """The data of one rank's window of a report's baseline."""

    costs: Costs
    module_work: pl.DataFrame
    """The result of `ppprof.analysis.report_data.report.module_work`."""
    num_steps: int
    """Number of recorded steps."""
    flame: pl.DataFrame
    """The result of `ppprof.analysis.profile.flame.flame`, on the rank's own clock."""


def collect_baseline_data(
    trace: Trace, naming: Naming, steps: StepRange | None = None
) -> BaselineData:
    """Return the data of one rank's window of the baseline. ``steps`` are those to keep."""
    trace = with_step(trace)
    profile = Profile(trace if steps is None else select_steps(trace, steps)).without_pauses
    work = module_work(profile, naming)
    return BaselineData(costs_of(profile, naming), work, len(profile.steps), flame(profile))


def collect_rank_report_data(
    trace: Trace,
    naming: Naming,
    steps: StepRange | None = None,
    share: float = 0.0,
    stalls: Mapping[int, int] = MappingProxyType({}),
    most_nodes: int = 0,
) -> RankReportData:
    """Return the report data of one rank's window.

    ``steps`` are those to keep. ``share`` is the rank's share of a page's timelines, 0 to 1; 0:
    ``details`` is not computed. ``stalls`` between two steps are drawn: `ppprof.trace.segments.with_stalls`.
    ``most_nodes`` is the most that ``graph`` may have.
    """
    graph = rank_graph(trace) if 2 * trace.events.height <= most_nodes else None
    trace = with_step(trace)
    first = step_spans(trace.events)["step"].min()
    trace = with_stalls(trace, {step: stalls[step] for step in stalls if step != first})
    profile = Profile(trace if steps is None else select_steps(trace, steps)).without_pauses
    costs = costs_of(profile, naming)
    details = _details(profile, share) if share else None
    targets = longest_events(profile, naming, costs.breakdown)
    if details is not None:
        targets = pl.concat([targets, peak_targets(details.memory)])
    return RankReportData(
        analyze_profile(profile, costs.breakdown),
        costs,
        collect_indicators(profile, costs.breakdown),
        efficiency(profile),
        roof_of_profile(profile),
        model(profile),
        targets,
        module_work(profile, naming),
        details,
        flame(profile),
        graph,
    )


def _details(profile: Profile, share: float) -> Details:
    drawn = timeline(profile, int(MOST_EVENTS * share), int(MOST_SPANS * share))
    return Details(drawn, memory_levels(profile, _NUM_LEVELS), remote_flows(profile))


@dataclass(frozen=True)
class ReportData:
    """The data of one window of a run, with all its ranks; the defaults are those without traces."""

    paths: Sequence[str]
    """The run directories (one per node if each node has its own), or the trace file."""
    manifest: Mapping[str, Any]
    """The job's manifest; empty for traces without a manifest."""
    cluster: Cluster
    """Steps, collectives and stragglers."""
    costs: RunCosts
    """Operators, kernels and modules."""
    step_times: pl.DataFrame
    """One row per rank and step, also for steps outside windows; no rows if the run has no step
    times."""
    findings: Sequence[Finding]
    """The findings of `ppprof.analysis.advice.advise`, sorted by severity, then by cost."""
    typical: Sequence[int] = ()
    """The numbers of the recorded steps that the findings' times are of: those that are not slow."""
    window: int | None = None
    """The number of the window; None for a run without traces."""
    windows: Sequence[int] = ()
    """The numbers of all windows of the run."""
    is_numbered: bool = False
    """Whether its ranks only number traces: nothing says that they are of one job."""
    devices: Mapping[int, Device] = field(default_factory=dict)
    """The device of each rank, with its utilization and memory, keyed by rank."""
    phases: pl.DataFrame = field(default_factory=partial(pl.DataFrame, schema=PHASE_TIMES))
    """Columns of `PHASE_TIMES`: one row per rank and phase, means over the recorded steps."""
    efficiency: pl.DataFrame = field(default_factory=partial(pl.DataFrame, schema=EFFICIENCY))
    """The result of `ppprof.analysis.efficiency.efficiency.mean_efficiency` for all ranks."""
    roof: Roof = field(default_factory=partial(Roof, None))
    """The roof of the first rank's device."""
    details: Mapping[int, Details] = field(default_factory=dict)
    """Timelines and memory, on each rank's own clock, keyed by rank; only for ranks that are
    drawn."""
    targets: pl.DataFrame = field(default_factory=partial(pl.DataFrame, schema=RANK_TARGETS))
    """Columns of `RANK_TARGETS`, on the reference clock: one row per rank, kind and name."""
    module_work: pl.DataFrame = field(
        default_factory=partial(pl.DataFrame, schema=MEAN_MODULE_WORK)
    )
    """The result of `mean_module_work`."""
    flame: pl.DataFrame = field(default_factory=partial(pl.DataFrame, schema=RANK_FLAME))
    """`ppprof.analysis.profile.flame.flame` of the first rank with samples, on the reference clock."""
    path: pl.DataFrame | None = None
    """The result of `ppprof.analysis.path.graph.Graph.pieces`; None without a graph of all windows."""
    sources: Mapping[int, str] = field(default_factory=dict)
    """The file that was read for each rank, keyed by rank."""
    unread: Sequence[str] = ()
    """Messages about unreadable or uncertain data."""
    diff: Diff | None = None
    """The comparison with a baseline; None if no baseline was given."""
    baseline_module_work: pl.DataFrame | None = None
    """``module_work`` of the baseline; None if no baseline was given."""
    flame_changes: pl.DataFrame = field(default_factory=partial(pl.DataFrame, schema=FLAME_CHANGES))
    """The result of `ppprof.analysis.diff.flame_changes.flame_changes` for ``flame`` and the baseline's."""

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
    def typical_cluster(self) -> Cluster:
        """``cluster`` with the typical steps only: the findings' times are of these."""
        if not self.typical:
            return self.cluster
        is_typical = pl.col("step").is_in(self.typical)
        return replace(
            self.cluster,
            steps_per_trace=self.cluster.steps_per_trace.filter(is_typical),
            queue=self.cluster.queue.filter(is_typical),
        )

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


def module_work(profile: Profile, naming: Naming) -> pl.DataFrame:
    """Return the operators and kernels of each module, without those of the modules below it.

    ::

        GPT        ####################
          Block       #########              GPT: add; Block: matmul, relu
        operators  add  matmul relu

    An event counts for the innermost module around it, or around its launch. Events outside steps
    do not count.

    Returns:
        Columns of `MODULE_WORK`: sums over the steps of the window.
    """
    if not profile.steps:
        return pl.DataFrame(schema=MODULE_WORK)
    nodes = module_nodes(profile)
    rows = nodes["row"].to_numpy()
    number = np.full(len(profile.tree.size) + 1, -1, np.int64)
    number[rows] = np.arange(len(rows))
    node = number[np.append(profile.tree.innermost(rows), -1)]
    paths = nodes["path"]

    def with_path(table: pl.DataFrame, host: pl.Series) -> pl.DataFrame:
        numbers = node[host.fill_null(-1).to_numpy()]
        path = paths.gather(np.maximum(numbers, 0)) if len(paths) else pl.Series([""])
        return table.with_columns(path=path).filter(pl.Series(numbers >= 0, dtype=pl.Boolean))

    operators = operator_calls(profile, naming).drop_nulls("step")
    kernels = profile.tree.devices.filter(is_kernel() & pl.col("host").is_not_null())
    kernel_rows = kernels.select(
        name=naming.apply(kernels["name"]), calls=pl.lit(1, pl.Int64), gpu_total_ns="gpu_ns"
    )
    tables = [
        with_path(operators, operators["row"]).with_columns(kind=pl.lit("operators")),
        with_path(kernel_rows, kernels["host"]).with_columns(kind=pl.lit("kernels")),
    ]
    return (
        pl.concat(tables, how="diagonal")
        .group_by(list(MODULE_WORK)[:3], maintain_order=True)
        .agg(pl.col(_VALUES).sum().cast(pl.Float64))
        .select(*MODULE_WORK)
    )


def mean_module_work(ranks: Iterable[tuple[int | None, int, pl.DataFrame]]) -> pl.DataFrame:
    """Return the work of modules per rank and step.

    Args:
        ranks: for each rank its pipeline stage, its number of steps, and its `module_work`.

    Returns:
        stage, then the columns of `MODULE_WORK`: means over the ranks and steps of the stage.
    """
    num_steps: dict[int | None, int] = {}
    parts = [pl.DataFrame(schema=MEAN_MODULE_WORK)]
    for stage, num, table in ranks:
        num_steps[stage] = num_steps.get(stage, 0) + num
        parts.append(table.select(pl.lit(stage, pl.Int64).alias("stage"), pl.all()))
    sums = (
        pl.concat(parts)
        .group_by(list(MEAN_MODULE_WORK)[:4], maintain_order=True)
        .agg(pl.all().sum())
    )
    divisors = pl.Series([num_steps[stage] for stage in sums["stage"]], dtype=pl.Int64)
    return sums.with_columns(pl.col(value) / divisors for value in _VALUES)
