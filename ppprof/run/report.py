"""Collect what a report shows, reading each trace once; the library behind ``ppprof report``."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial

import polars as pl

from ppprof.analysis.advice import advise
from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.diff.flame_changes import flame_changes
from ppprof.analysis.diff.naming import Naming
from ppprof.analysis.diff.run_costs import RunCosts
from ppprof.analysis.efficiency.efficiency import mean_efficiency
from ppprof.analysis.profile.flame import FLAME
from ppprof.analysis.profile.profile import PHASES
from ppprof.analysis.ranks.cluster import Cluster
from ppprof.analysis.ranks.collectives import to_reference_clock
from ppprof.analysis.ranks.step_table import join_ranks
from ppprof.analysis.ranks.unrecorded import unrecorded_ranks
from ppprof.analysis.report_data.report import (
    PHASE_TIMES,
    RANK_FLAME,
    RANK_TARGETS,
    BaselineData,
    RankReportData,
    ReportData,
    collect_baseline_data,
    collect_rank_report_data,
    mean_module_work,
)
from ppprof.choices import StepRange
from ppprof.errors import UsageError
from ppprof.messages import logged_warnings
from ppprof.run.advise import (
    MOST_NODES,
    collect_evidence,
    collect_evidence_of_run,
    graph_of_job,
    of_counted_windows,
)
from ppprof.run.diff import RunSide, compare, costs_of_run, naming_for
from ppprof.run.ranks import cluster_of, roles_without_window
from ppprof.run.run import Run
from ppprof.run.traces import WindowResult, sample_of_segments
from ppprof.rundir.recordings import Recording
from ppprof.topology import RankSelector

_log = logging.getLogger("ppprof")

PAGE_BYTES = 64 << 20
"""Largest size of a window's segments, as ``.pb``, that a page shows; tables count more of them."""

_MOST_DRAWN = 64
"""Most ranks with a timeline and a memory curve."""


def collect_report_data(
    run: Run,
    *,
    baseline: Run | None = None,
    ranks: RankSelector = "all",
    window: int | None = None,
    steps: StepRange | str | int | None = None,
    executor: Executor | None = None,
) -> ReportData:
    """Return everything that a report of one window shows.

    Args:
        run: the run.
        baseline: a run whose last window is compared with this window; None: no comparison.
        ranks: which ranks, such as ``"all"``, ``3``, ``"0,8-15"`` or ``{"pp": 0}``; see
            `ppprof.run.run.Run.select_ranks`.
        window: which window; None: the last one. A run with step times only has none.
        steps: only steps A to B-1 of both runs, as ``"A:B"``, ``"A:"``, ``":B"`` or one number;
            None: all.
        executor: any of ``concurrent.futures``, which reads several ranks at once; None: this
            process reads one after the other.

    Raises:
        UsageError: no such ranks, window or steps; the message names the existing ones.
        InputError: no window of a run can be read, or the run has neither steps nor step times.
    """
    chosen_steps = StepRange.of(steps)
    with logged_warnings() as warnings:
        if not run.has_traces:
            report = _of_step_times(run, baseline, ranks, window, chosen_steps, executor)
        else:
            report = _of_traces(run, baseline, ranks, window, chosen_steps, executor)
    return replace(report, unread=warnings)


def _of_traces(
    run: Run,
    baseline: Run | None,
    ranks: RankSelector,
    window: int | None,
    steps: StepRange | None,
    executor: Executor | None,
) -> ReportData:
    """Return the report of one window of a run with traces; see `collect_report_data`."""
    has_all_times = window is None  # the last window stands for the run
    if window is None:
        window = max(recording.window for recording in run.select())
    side = RunSide(run, ranks, window, steps, has_all_times=has_all_times)
    other = None if baseline is None else _side_of_baseline(baseline, ranks, steps, has_all_times)
    naming = naming_for([side] if other is None else [side, other])
    results = _rank_data(run, side.recordings, naming, steps, executor)
    analyses = [result.map(result.value.analysis) for result in results]
    cluster = cluster_of(run, analyses)
    costs = costs_of_run(side, [result.map(result.value.costs) for result in results])
    change, baseline_work, baseline_flame = _comparison(other, costs, naming, executor)
    flame = _flame(results, cluster)
    indicators = dict(of_counted_windows(analyses, [result.value.indicators for result in results]))
    graphs = [result.map(result.value.graph) for result in results]
    graph = graph_of_job(run, cluster, graphs, steps)
    evidence = collect_evidence(run, cluster, indicators, graph, ranks)
    return ReportData(
        paths=[str(path) for path in run.paths],
        window=window,
        windows=run.windows(),
        is_numbered=any(recording.is_numbered for recording in run.recordings),
        manifest=run.manifest,
        cluster=cluster,
        costs=costs,
        step_times=run.step_times.filter(
            pl.col("rank").is_in({recording.rank for recording in side.recordings})
        ),
        devices={result.recording.rank: result.value.costs.device for result in results},
        phases=_phases(results),
        efficiency=mean_efficiency(
            [result.value.efficiency for result in results],
            max(1, cluster.steps.height),
        ),
        roof=results[0].value.roof,
        details={
            result.recording.rank: result.value.details
            for result in results
            if result.value.details is not None
        },
        findings=advise(evidence),
        typical=evidence.typical_lengths["step"].to_list(),
        targets=_targets(results, cluster),
        flame=flame,
        path=None if graph is None else graph.pieces(),
        module_work=mean_module_work(
            (run.stages.get(rank), _num_steps(result), result.value.module_work)
            for result in results
            for rank in [result.recording.rank]
        ),
        sources={result.recording.rank: str(result.source) for result in results},
        diff=change,
        baseline_module_work=baseline_work,
        flame_changes=flame_changes(baseline_flame, flame),
    )


def _of_step_times(
    run: Run,
    baseline: Run | None,
    ranks: RankSelector,
    window: int | None,
    steps: StepRange | None,
    executor: Executor | None,
) -> ReportData:
    """Return the report of a run that has step times and no traces; see `collect_report_data`."""
    evidence = collect_evidence_of_run(run, ranks, window, steps=steps)
    side = RunSide(run, ranks)
    other = None if baseline is None else _side_of_baseline(baseline, ranks, steps, True)
    costs = costs_of_run(side, ())
    change, baseline_work, _ = _comparison(other, costs, Naming(), executor)
    return ReportData(
        paths=[str(path) for path in run.paths],
        manifest=run.manifest,
        cluster=Cluster(join_ranks((), run.coordinates), (), (), (), run.clocks, run.topology),
        costs=costs,
        step_times=evidence.step_times,
        findings=advise(evidence),
        diff=change,
        baseline_module_work=baseline_work,
    )


def _for_page(recording: Recording) -> Recording:
    """Return the window with the segments that a page shows; log a message if they are not all."""
    segments, messages = sample_of_segments(recording, PAGE_BYTES)
    for message in messages:
        _log.warning("%s", message)
    if not messages:
        return recording
    return replace(recording, files=tuple(segments[0]), later=tuple(map(tuple, segments[1:])))


def _side_of_baseline(
    baseline: Run, ranks: RankSelector, steps: StepRange | None, has_all_times: bool
) -> RunSide:
    last = max(baseline.windows(), default=None) if baseline.has_traces else None
    return RunSide(baseline, ranks, last, steps, has_all_times=has_all_times)


def _comparison(
    side: RunSide | None, costs: RunCosts, naming: Naming, executor: Executor | None
) -> tuple[Diff | None, pl.DataFrame | None, pl.DataFrame]:
    """Return the comparison with a baseline, if any, the work of its modules, and its flame graph."""
    if side is None:
        return None, None, pl.DataFrame(schema=FLAME)
    results: list[WindowResult[BaselineData]] = []
    if side.recordings:
        work = partial(collect_baseline_data, naming=naming, steps=side.steps)
        results = list(side.run.map_windows(work, map(_for_page, side.recordings), executor))
        _check_steps(side.run, side.steps, (result.value.num_steps for result in results))
    modules = mean_module_work(
        (
            side.run.stages.get(result.recording.rank),
            result.value.num_steps,
            result.value.module_work,
        )
        for result in results
    )
    baseline = costs_of_run(side, [result.map(result.value.costs) for result in results])
    flames = (result.value.flame for result in results if result.value.flame.height)
    return compare(baseline, costs), modules, next(flames, pl.DataFrame(schema=FLAME))


def _check_steps(run: Run, steps: StepRange | None, nums: Iterable[int]) -> None:
    """Reject ``steps`` of which no window has one; ``nums`` are the numbers that each window has.

    Raises:
        UsageError: no window has any.
    """
    if steps is not None and not any(nums):
        raise UsageError(f"{run}: no step of {steps}")


def _num_steps(result: WindowResult[RankReportData]) -> int:
    return int(result.value.analysis.breakdown.parts["step"].n_unique())


def _targets(results: Sequence[WindowResult[RankReportData]], cluster: Cluster) -> pl.DataFrame:
    """Return the targets of all ranks, on the reference clock: see `ReportData.targets`."""
    parts = [pl.DataFrame(schema=RANK_TARGETS)]
    for result in results:
        rank = pl.lit(result.recording.rank, pl.Int64).alias("rank")
        parts.append(
            to_reference_clock(result.value.targets.select(rank, pl.all()), cluster.clocks)
        )
    return pl.concat(parts)


def _flame(results: Sequence[WindowResult[RankReportData]], cluster: Cluster) -> pl.DataFrame:
    """Return the flame graph of the first rank with samples, on the reference clock."""
    for result in results:
        if result.value.flame.height:
            rank = pl.lit(result.recording.rank, pl.Int64).alias("rank")
            return to_reference_clock(result.value.flame.select(rank, pl.all()), cluster.clocks)
    return pl.DataFrame(schema=RANK_FLAME)


def _rank_data(
    run: Run,
    recordings: Sequence[Recording],
    naming: Naming,
    steps: StepRange | None,
    executor: Executor | None,
) -> list[WindowResult[RankReportData]]:
    """Return the data of each readable window, sorted by rank; log unreadable windows.

    Only ranks of `_drawn` have ``details``.

    Raises:
        InputError: no window can be read.
        UsageError: no window has a step of ``steps``.
    """
    drawn = _drawn(run, [recording.rank for recording in recordings])
    most_nodes = MOST_NODES // max(1, len(recordings))
    collect = partial(collect_rank_report_data, naming=naming, steps=steps, most_nodes=most_nodes)
    shown = partial(collect, share=1 / max(len(drawn), 1))
    works = {
        _for_page(each): partial(shown, stalls=run.stalls.get((each.rank, each.window), {}))
        if each.rank in drawn
        else collect
        for each in recordings
    }
    results = list(run.reader.map_works(works, executor))
    _check_steps(run, steps, map(_num_steps, results))
    return sorted(results, key=lambda result: result.recording.rank)


def _drawn(run: Run, ranks: Sequence[int]) -> list[int]:
    """Return the ranks whose timelines are drawn: all of ``ranks``, but at most `_MOST_DRAWN`.

    If there are more, these are the ranks that are slow by their step times, then the first ranks at
    position 0 of the axes mp and sep, then the first ranks.
    """
    if len(ranks) <= _MOST_DRAWN:
        return list(ranks)
    topology = run.topology
    times = unrecorded_ranks(run.step_times, roles_without_window(run))
    slow = times.filter("is_slow", pl.col("rank").is_in(list(ranks)))["rank"].to_list()
    firsts = [
        rank
        for rank in ranks
        if topology is not None
        and rank < topology.world_size
        and all(topology.coordinate(rank)[axis] == 0 for axis in ("mp", "sep"))
    ]
    return sorted(list(dict.fromkeys((*slow, *(firsts or ranks))))[:_MOST_DRAWN])


def _phases(results: Sequence[WindowResult[RankReportData]]) -> pl.DataFrame:
    """Return the time of each phase, per rank: see `ReportData.phases`."""
    parts = [pl.DataFrame(schema=PHASE_TIMES)]
    for result in results:
        num_steps = max(result.value.analysis.breakdown.parts["step"].n_unique(), 1)
        parts.append(
            result.value.phases.filter(pl.col("name").is_in(PHASES)).select(
                pl.lit(result.recording.rank, pl.Int64).alias("rank"),
                pl.col("name").cast(pl.String),
                cpu_ns=pl.col("cpu_total_ns") / num_steps,
                gpu_ns=pl.col("gpu_total_ns") / num_steps,
            )
        )
    return pl.concat(parts)
