"""`collect_report_data`: a run read once, for everything that a report shows.

The library behind ``ppprof report``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from typing import Any

import polars as pl

from ppprof.analysis.advice import advise
from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.diff.run_costs import RunCosts
from ppprof.analysis.profile.profile import PHASES
from ppprof.analysis.profile.steps import StepRange
from ppprof.analysis.ranks.cluster import Cluster
from ppprof.analysis.ranks.collectives import to_reference_clock
from ppprof.analysis.report_data.rank import Details, RankReportData, collect_rank_report_data
from ppprof.analysis.report_data.run import ReportData
from ppprof.errors import InputError, UsageError
from ppprof.run.advise import collect_evidence
from ppprof.run.diff import diff, measured, side_of
from ppprof.run.run import Run
from ppprof.run.traces import WindowResult
from ppprof.rundir.recordings import Recording
from ppprof.topology import RankSelector

_MOST_DRAWN = 16
"""Ranks with a timeline and a memory curve of their own: more do not fit on a screen."""

_SPANS = 48_000
"""Of all timelines together: some 2 MB of the page, redrawn within a frame."""


def collect_report_data(
    run: Run,
    *,
    baseline: Run | None = None,
    ranks: RankSelector = "all",
    window: int | None = None,
    steps: str | None = None,
    executor: Executor | None = None,
) -> ReportData:
    """Everything that a report of a window shows.

        found = ppprof.picture(ppprof.open("profiler_log"), baseline=ppprof.open("base"))
        Path("report.html").write_text(ppprof.report.html.render(found), "utf-8")

    Args:
        run: the run.
        baseline: what it is compared with.
        ranks: which ranks; see `Run.select_ranks`.
        window: which window; None: the last.
        steps: only steps A to B-1, as ``"A:B"``.
        executor: where to read several ranks at once, any of ``concurrent.futures``'s kind.

    Raises:
        UsageError: no such ranks, window or steps; says what there is.
        InputError: nothing of a run can be read, or it has no steps.
    """
    wanted = None if steps is None else StepRange.parse(steps)
    with _listening(run) as unread:
        chosen = run.select_ranks(ranks, window)
        shown = max(at.window for at in chosen) if window is None else window
        chosen = [at for at in chosen if at.window == shown]
        made = _portraits(run, chosen, wanted, executor)
        cluster = run.cluster_of([_part(at, at.value.analysis) for at in made])
        side = side_of(run, [_quietly(at, at.value.costs) for at in made], ranks, shown)
    found = None
    if baseline is not None:
        with _listening(baseline) as more:
            found = _compared(baseline, run, side, (ranks, shown, steps), executor)
        unread += more
    return ReportData(
        paths=[str(path) for path in run.paths],
        window=shown,
        windows=run.windows(),
        manifest=run.manifest,
        cluster=cluster,
        costs=side,
        step_times=run.step_times,
        devices={at.recording.rank: at.value.costs.device for at in made},
        phases=_phases(made),
        details=_on_one_clock(made, cluster),
        findings=advise(
            collect_evidence(cluster, {at.recording.rank: at.value.indicators for at in made}, run)
        ),
        sources={at.recording.rank: str(at.source) for at in made},
        unread=unread,
        diff=found,
    )


@contextmanager
def _listening(run: Run) -> Iterator[list[str]]:
    """What the run tells meanwhile; it is told as before, too."""
    heard: list[str] = []
    tell = run.tell

    def hear(message: str) -> None:
        heard.append(message)
        tell(message)

    run.tell = hear
    try:
        yield heard
    finally:
        run.tell = tell


def _portraits(
    run: Run, chosen: Sequence[Recording], steps: StepRange | None, executor: Executor | None
) -> list[WindowResult[RankReportData]]:
    """Every window that can be read, by rank; some with what is drawn of them alone."""
    drawn = set(_drawn(run, [at.rank for at in chosen]))
    budget = _SPANS // max(len(drawn), 1)
    errors, made = [], []
    for work, recordings in (
        (
            partial(collect_rank_report_data, steps=steps, budget=budget),
            [at for at in chosen if at.rank in drawn],
        ),
        (
            partial(collect_rank_report_data, steps=steps),
            [at for at in chosen if at.rank not in drawn],
        ),
    ):
        try:
            made += list(run.each(work, recordings, executor)) if recordings else []
        except InputError as error:
            errors.append(str(error))
    if not made:
        raise InputError("\n".join(errors))
    for message in errors:
        run.tell(message)
    if steps is not None and all(at.value.analysis.breakdown.parts.is_empty() for at in made):
        raise UsageError(f"{run}: no step of {steps}")
    return sorted(made, key=lambda at: at.recording.rank)


def _drawn(run: Run, ranks: Sequence[int]) -> list[int]:
    """All ranks or, of many, one each pipeline stage of as many replicas as there is room for."""
    if len(ranks) <= _MOST_DRAWN:
        return list(ranks)
    topology = run.topology
    if topology is None:
        return list(ranks[:_MOST_DRAWN])
    firsts = [
        rank
        for rank in ranks
        if rank < topology.world_size
        and all(at == 0 for axis, at in topology.coordinate(rank).items() if axis in ("mp", "sep"))
    ]
    return (firsts or list(ranks))[:_MOST_DRAWN]


def _part(at: WindowResult[RankReportData], made: Any) -> WindowResult[Any]:
    return at.map(made)


def _quietly(at: WindowResult[RankReportData], made: Any) -> WindowResult[Any]:
    """The same, where it has been told what was lost."""
    return dataclasses.replace(at.map(made), skipped={})


def _compared(
    baseline: Run,
    run: Run,
    side: RunCosts,
    part: tuple[RankSelector, int, str | None],
    executor: Executor | None,
) -> Diff:
    """The run against the last window of another."""
    ranks, shown, steps = part
    window = max(baseline.windows(), default=None) if baseline.recordings else None
    other = measured(baseline, ranks, window, executor=executor)
    alike = [(of.frameworks, of.has_forward_links) for of in (other, side)]
    if not other.frameworks or alike[0] == alike[1]:
        return Diff(other, side)
    # Names, and whose gradients are whose, are to be told alike on both sides.
    windows = (window, shown)
    return diff(baseline, run, ranks=ranks, windows=windows, steps=(None, steps), executor=executor)


def _phases(made: Sequence[WindowResult[RankReportData]]) -> pl.DataFrame:
    """What each phase takes in a step of each rank."""
    schema = {"rank": pl.Int64, "name": pl.String, "cpu_ns": pl.Float64, "gpu_ns": pl.Float64}
    parts = [pl.DataFrame(schema=schema)]
    for at in made:
        num_steps = at.value.analysis.breakdown.parts["step"].n_unique()
        parts.append(
            at.value.phases.filter(pl.col("name").is_in(PHASES)).select(
                pl.lit(at.recording.rank, pl.Int64).alias("rank"),
                pl.col("name").cast(pl.String),
                cpu_ns=pl.col("cpu_total_ns") / max(num_steps, 1),
                gpu_ns=pl.col("gpu_total_ns") / max(num_steps, 1),
            )
        )
    return pl.concat(parts)


def _on_one_clock(
    made: Sequence[WindowResult[RankReportData]], cluster: Cluster
) -> Mapping[int, Details]:
    """What is drawn of each rank, its lanes on the reference clock."""
    found = {}
    for at in made:
        rank, details = at.recording.rank, at.value.details
        if details is not None:
            lanes = details.lanes.with_columns(rank=pl.lit(rank, pl.Int64))
            found[rank] = details._replace(
                lanes=to_reference_clock(lanes, cluster.clocks).drop("rank")
            )
    return found
