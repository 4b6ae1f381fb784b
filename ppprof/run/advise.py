"""`advise`: what is slow in a run, what it costs, and what to change.

The library behind ``ppprof advise``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from concurrent.futures import Executor

import polars as pl

from ppprof.analysis.advice import Case
from ppprof.analysis.advice import advise as findings_of
from ppprof.analysis.advice.finding import Finding
from ppprof.analysis.advice.indicators import Symptoms, joined, symptoms
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.steps import Steps
from ppprof.analysis.ranks.cluster import Cluster, Examined, examined_of
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
    return findings_of(case_of_run(run, ranks, window, steps=steps, executor=executor))


def case_of_run(
    run: Run,
    ranks: RankSelector = "all",
    window: int | None = None,
    *,
    steps: str | int | None = None,
    executor: Executor | None = None,
) -> Case:
    """All that the rules look at, every trace read once; see `advise`."""
    if not run.recordings:
        return _timed_only(run, ranks, window, steps)
    wanted = None if steps is None else Steps.parse(steps)
    parts: dict[int, list[Symptoms]] = {}
    windows = []
    for at in run.each(both, run.select_ranks(ranks, window), executor):
        examined, found = at.made
        parts.setdefault(at.recording.rank, []).append(found)
        windows.append(dataclasses.replace(at, made=examined))  # type: ignore[arg-type]
    cluster = run.cluster_of(windows, wanted)  # type: ignore[arg-type]
    return case_of(cluster, {rank: joined(of) for rank, of in parts.items()}, run)


def both(trace: Trace) -> tuple[Examined, Symptoms]:
    """What `Cluster` and `case_of` need of a window, in one go."""
    profile = Profile(trace)
    return examined_of(profile, breakdown(profile)), symptoms(profile)


def case_of(cluster: Cluster | None, symptoms_by_rank: Mapping[int, Symptoms], run: Run) -> Case:
    """A case of what was made of the traces already.

    Args:
        cluster: of all ranks, cut to the steps that are wanted; None where there are no traces.
        symptoms_by_rank: each rank's, several windows `joined`; cut to the cluster's steps here.
        run: for step times, config and grid.
    """
    kept = dict(symptoms_by_rank)
    if cluster is not None:
        steps = cluster.steps["step"].unique().to_list()
        kept = {rank: of.of_steps(steps) for rank, of in kept.items()}
    config = run.manifest.get("config")
    config = dict(config) if isinstance(config, Mapping) else {}
    block = run.manifest.get("profiler")
    if config and isinstance(block, Mapping):
        config["Profiler"] = block
    return Case(cluster, kept, run.step_times, config, run.topology)


def _timed_only(run: Run, ranks: RankSelector, window: int | None, steps: str | int | None) -> Case:
    """A case of step times alone."""
    for what, given in (("window", window), ("steps", steps)):
        if given is not None:
            raise UsageError(f"{run}: {what} {given}: it has step times alone, and no window")
    case = case_of(None, {}, run)
    times = case.step_times
    if times.is_empty():
        raise InputError(f"{run}: neither a trace in it nor step times")
    if ranks != "all":
        grid = case.grid or Topology.of(dp=int(times["rank"].to_numpy().max()) + 1)
        times = times.filter(pl.col("rank").is_in(grid.select(ranks)))
    return dataclasses.replace(case, step_times=times)
