"""`advise`: what is slow in a run, what it costs, and what to change.

The library behind ``ppprof advise``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from concurrent.futures import Executor

import polars as pl

from ppprof.analysis.advice import Evidence
from ppprof.analysis.advice import advise as findings_of
from ppprof.analysis.advice.finding import Finding
from ppprof.analysis.advice.indicators import Indicators, collect_indicators, joined
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.steps import StepRange
from ppprof.analysis.ranks.cluster import Cluster, RankAnalysis, analyze_profile
from ppprof.analysis.ranks.step_breakdown import breakdown
from ppprof.errors import InputError, UsageError
from ppprof.run.run import Run
from ppprof.topology import RankSelector, Topology
from ppprof.trace import Trace


def advise(
    run: Run,
    ranks: RankSelector = "all",
    window: int | None = None,
    *,
    steps: str | int | None = None,
    executor: Executor | None = None,
) -> list[Finding]:
    """What to change in a run, most costly first; each finding with its evidence.

        first, *_ = ppprof.advise(ppprof.open("profiler_log"))
        first.rule, first.share              # ("input-bound", 0.48)
        first.evidence                       # a polars DataFrame

    Args:
        run: the run; one that has step times alone (``timer_only``) is told of its data.
        ranks: which ranks; see `Run.select_ranks`.
        window: only this one.
        steps: only steps A to B-1, as ``"A:B"``, ``"A:"``, ``":B"`` or one number.
        executor: where to read several ranks at once, any of ``concurrent.futures``'s kind.

    Raises:
        UsageError: no such ranks, window or steps; says what there is.
        InputError: nothing of the run can be read.
    """
    return findings_of(collect_evidence_of_run(run, ranks, window, steps=steps, executor=executor))


def collect_evidence_of_run(
    run: Run,
    ranks: RankSelector = "all",
    window: int | None = None,
    *,
    steps: str | int | None = None,
    executor: Executor | None = None,
) -> Evidence:
    """All that the rules look at, every trace read once; see `advise`."""
    if not run.recordings:
        return _timed_only(run, ranks, window, steps)
    wanted = None if steps is None else StepRange.parse(steps)
    parts: dict[int, list[Indicators]] = {}
    windows = []
    for at in run.each(both, run.select_ranks(ranks, window), executor):
        examined, found = at.value
        parts.setdefault(at.recording.rank, []).append(found)
        windows.append(at.map(examined))
    cluster = run.cluster_of(windows, wanted)
    return collect_evidence(cluster, {rank: joined(of) for rank, of in parts.items()}, run)


def both(trace: Trace) -> tuple[RankAnalysis, Indicators]:
    """What `Cluster` and `collect_evidence` need of a window, in one go."""
    profile = Profile(trace)
    return analyze_profile(profile, breakdown(profile)), collect_indicators(profile)


def collect_evidence(
    cluster: Cluster | None, indicators_by_rank: Mapping[int, Indicators], run: Run
) -> Evidence:
    """A case of what was made of the traces already.

    Args:
        cluster: of all ranks, cut to the steps that are wanted; None where there are no traces.
        indicators_by_rank: each rank's, several windows `joined`; cut to the cluster's steps here.
        run: for step times, config and grid.
    """
    kept = dict(indicators_by_rank)
    if cluster is not None:
        steps = cluster.steps["step"].unique().to_list()
        kept = {rank: of.of_steps(steps) for rank, of in kept.items()}
    config = run.manifest.get("config")
    config = dict(config) if isinstance(config, Mapping) else {}
    block = run.manifest.get("profiler")
    if config and isinstance(block, Mapping):
        config["Profiler"] = block
    return Evidence(cluster, kept, run.step_times, config, run.topology)


def _timed_only(
    run: Run, ranks: RankSelector, window: int | None, steps: str | int | None
) -> Evidence:
    """A case of step times alone."""
    for what, given in (("window", window), ("steps", steps)):
        if given is not None:
            raise UsageError(f"{run}: {what} {given}: it has step times alone, and no window")
    case = collect_evidence(None, {}, run)
    times = case.step_times
    if times.is_empty():
        raise InputError(f"{run}: neither a trace in it nor step times")
    if ranks != "all":
        topology = case.topology or Topology.of(dp=int(times["rank"].to_numpy().max()) + 1)
        times = times.filter(pl.col("rank").is_in(topology.select(ranks)))
    return dataclasses.replace(case, step_times=times)
