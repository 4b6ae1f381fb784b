"""Find what is slow in a run and what to change; the library behind ``ppprof advise``."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import cached_property, partial
from pathlib import Path

import polars as pl

from ppprof.analysis.advice import Evidence
from ppprof.analysis.advice import advise as findings_of
from ppprof.analysis.advice.finding import Finding, Findings
from ppprof.analysis.advice.indicators import Indicators, collect_indicators, concat_indicators
from ppprof.analysis.path.graph import Graph, job_graph
from ppprof.analysis.path.rank_graph import RankGraph, rank_graph
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.steps import with_step
from ppprof.analysis.ranks.cluster import Cluster, RankAnalysis, analyze_profile
from ppprof.analysis.ranks.step_breakdown import breakdown
from ppprof.choices import StepRange
from ppprof.errors import UsageError
from ppprof.run.ranks import cluster_of
from ppprof.run.run import Run, opened
from ppprof.run.traces import WindowResult
from ppprof.rundir import read_manifest
from ppprof.rundir.clocks import Clocks
from ppprof.rundir.liveness import has_failed
from ppprof.rundir.recordings import Recording, RunLocation
from ppprof.rundir.step_times import read_step_times
from ppprof.topology import RankSelector
from ppprof.trace import Trace


def advise(
    run: Run | str | Path,
    ranks: RankSelector = "all",
    window: int | None = None,
    *,
    steps: StepRange | str | int | None = None,
    executor: Executor | None = None,
) -> Findings:
    """Return what to change in a run, sorted by cost, largest first.

        first, *_ = ppprof.advise("profiler_log")
        first.rule, first.share              # ("input-bound", 0.48)
        first.evidence                       # a polars DataFrame

    Args:
        run: the run, or its path for `ppprof.open`. With step times only (``timer_only``), the
            findings are about its data.
        ranks: which ranks; see `ppprof.run.run.Run.select_ranks`.
        window: only this window; None: all.
        steps: only steps A to B-1, as ``"A:B"``, ``"A:"``, ``":B"`` or one number.
        executor: reads several ranks at once, any of ``concurrent.futures``.

    Raises:
        UsageError: no such ranks, window or steps; the message names the existing ones.
        InputError: the run has neither a readable trace nor step times.
    """
    evidence = collect_evidence_of_run(opened(run), ranks, window, steps=steps, executor=executor)
    return findings_of(evidence)


def collect_evidence_of_run(
    run: Run,
    ranks: RankSelector = "all",
    window: int | None = None,
    *,
    steps: StepRange | str | int | None = None,
    executor: Executor | None = None,
) -> Evidence:
    """Return everything that the rules look at; every trace is read once. See `advise`."""
    if not run.has_traces:
        return _evidence_of_step_times(run, ranks, window, steps)
    indicators: dict[int, list[Indicators]] = {}
    analyses, of_windows, graphs = [], [], []
    recordings = run.select_ranks(ranks, window)
    has_graph = are_all_ranks(run, {recording.rank for recording in recordings})
    work = partial(analyze, most_nodes=MOST_NODES // len(recordings) if has_graph else 0)
    for result in run.map_windows(work, recordings, executor):
        analysis, of_window, graph = result.value
        of_windows.append(of_window)
        analyses.append(result.map(analysis))
        graphs.append(result.map(graph))
    cluster = cluster_of(run, analyses, StepRange.of(steps))
    for rank, of_window in of_counted_windows(analyses, of_windows):
        indicators.setdefault(rank, []).append(of_window)
    of_ranks = {rank: concat_indicators(parts) for rank, parts in indicators.items()}
    return collect_evidence(run, cluster, of_ranks, graph_of_job(run, cluster, graphs), ranks)


def of_counted_windows(
    analyses: Sequence[WindowResult[RankAnalysis]], indicators: Sequence[Indicators]
) -> Iterator[tuple[int, Indicators]]:
    """Yield the rank and the indicators of each window that counts (`ppprof.run.ranks.windows_with_steps`).

    A window without steps is all in step 0, which may be that of another window.
    """
    has_steps = [each.value.has_steps and not _is_empty(each.value) for each in analyses]
    for analysis, of_window in zip(analyses, indicators):
        if analysis.value.has_steps == any(has_steps):
            yield analysis.recording.rank, of_window


def _is_empty(analysis: RankAnalysis) -> bool:
    return analysis.breakdown.parts.is_empty()


def analyze(trace: Trace, most_nodes: int = 0) -> tuple[RankAnalysis, Indicators, RankGraph | None]:
    """Return what the rules need of one window; its graph if that has ``most_nodes`` at most."""
    profile = Profile(with_step(trace)).without_pauses
    parts = breakdown(profile)
    graph = rank_graph(trace) if 2 * trace.events.height <= most_nodes else None
    return analyze_profile(profile, parts), collect_indicators(profile, parts), graph


MOST_NODES = 4_000_000
"""Most nodes of all windows: their graph takes 0.5 GB."""


def are_all_ranks(run: Run, ranks: Collection[int]) -> bool:
    """Return whether ranks are all ranks of a job of several ranks."""
    return run.topology is not None and len(ranks) >= max(2, run.topology.world_size)


def graph_of_job(
    run: Run,
    cluster: Cluster,
    results: Sequence[WindowResult[RankGraph | None]],
    steps: StepRange | None = None,
) -> Graph | None:
    """Return the graph of all windows; None if one has no graph or no steps, or a rank no clock.

    Its paths are those of ``steps``; None: of all steps.
    """
    parts = [
        (result.recording.rank, result.recording.window, result.value)
        for result in results
        if result.value is not None and result.value.has_steps
    ]
    ranks = {rank for rank, _, _ in parts}
    if not parts or len(parts) < len(results) or (len(ranks) > 1 and ranks - cluster.clocks.keys()):
        return None
    return job_graph(parts, cluster.clocks, run.topology, steps)


def collect_evidence(
    run: Run,
    cluster: Cluster | None,
    indicators_by_rank: Mapping[int, Indicators],
    graph: Graph | None = None,
    ranks: RankSelector = "all",
) -> Evidence:
    """Return the data that the rules look at, from windows that are already analyzed.

    Args:
        run: provides step times, config and topology.
        cluster: tables of all ranks, cut to the wanted steps; None for a run without traces.
        indicators_by_rank: the indicators of each rank, its windows concatenated. This function
            cuts them to the steps of ``cluster``.
        graph: the graph of these ranks; None if it cannot be made.
        ranks: the ranks whose step times count; they may have no window.
    """
    times = run.step_times
    if ranks != "all" and times.height:
        times = run.step_times_of(ranks)
    indicators = dict(indicators_by_rank)
    if cluster is not None:
        steps = cluster.steps["step"].unique().to_list()
        indicators = {rank: part.select_steps(steps) for rank, part in indicators.items()}
    config = run.manifest.get("config")
    config = dict(config) if isinstance(config, Mapping) else {}
    block = run.manifest.get("profiler")
    if config and isinstance(block, Mapping):
        config["Profiler"] = block
    versions = run.manifest.get("versions")
    paddle = versions.get("paddle") if isinstance(versions, Mapping) else None
    version = str(paddle) if paddle else None
    of_job = graph if are_all_ranks(run, indicators) else None
    failed = any(map(has_failed, run.paths))
    return Evidence(cluster, times, indicators, config, run.topology, version, of_job, failed)


def _evidence_of_step_times(
    run: Run, ranks: RankSelector, window: int | None, steps: StepRange | str | int | None
) -> Evidence:
    """Return the evidence of a run that has step times only."""
    for name, value in (("window", window), ("steps", steps)):
        if value is not None:
            raise UsageError(f"{run}: {name} {value}: the run has step times only, no window")
    evidence = collect_evidence(run, None, {})
    return dataclasses.replace(evidence, step_times=run.step_times_of(ranks))


class _OneRank(Run):
    """A run of which a single rank is read: the files of a thousand ranks would take too long."""

    @cached_property
    def step_times(self) -> pl.DataFrame:
        """The times of the rank's latest steps."""
        return read_step_times(self.path, self.recordings[0].rank)

    @cached_property
    def clocks(self) -> Clocks:
        """Nothing: clocks matter between ranks only."""
        return {}


def findings_of_window(
    run: Path, recording: Recording, trace: Trace
) -> tuple[Evidence, list[Finding]] | None:
    """Return what the rules read of a window, and what they report on it.

    None if the window has no steps: the loop has not called ``step()``.

    Args:
        run: the run directory.
        recording: the window.
        trace: its events.

    Raises:
        InputError: the trace has no event, or the manifest is unreadable.
    """
    one_rank = _OneRank(RunLocation((str(run),), (run,), (recording,), read_manifest(run)))
    analysis, indicators, _ = analyze(trace)
    if not analysis.has_steps:
        return None
    cluster = cluster_of(one_rank, [WindowResult(recording, recording.files[0], {}, analysis)])
    evidence = collect_evidence(one_rank, cluster, {recording.rank: indicators})
    return evidence, findings_of(evidence)
