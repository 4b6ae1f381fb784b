"""All ranks of a run together: the library behind ``ppprof ranks``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import polars as pl

from ppprof.analysis.profile.step_basis import with_measured_times
from ppprof.analysis.ranks.cluster import Cluster, RankAnalysis
from ppprof.analysis.ranks.collectives import COLLECTIVES, with_members, with_rank
from ppprof.analysis.ranks.step_breakdown import Breakdown
from ppprof.analysis.ranks.step_table import join_ranks, with_windows
from ppprof.analysis.ranks.stragglers import LEAST_STEPS, slow_groups
from ppprof.analysis.ranks.unrecorded import roles_of_ranks, unrecorded_ranks
from ppprof.choices import StepRange
from ppprof.errors import InputError, UsageError
from ppprof.messages import Message
from ppprof.run.base import BaseRun
from ppprof.run.traces import T, WindowResult
from ppprof.rundir.flight import POINT_TO_POINT, REDUCTION, read_rings
from ppprof.units import format_ranges, short_name

_Window = tuple[int, int, pl.DataFrame]
"""Rank, window, and a table of the window."""

_MOST_NAMES = 3

_log = logging.getLogger("ppprof")


def cluster_of(
    run: BaseRun, results: Iterable[WindowResult[RankAnalysis]], steps: StepRange | None = None
) -> Cluster:
    """Return all ranks together, from the analysis of each window.

    Args:
        run: the run.
        results: the result of `ppprof.analysis.ranks.cluster.analyze_rank` for each window.
        steps: only these steps; None: all steps.

    Raises:
        UsageError: no such steps; the message names the existing ones.
        InputError: the windows have no step.
    """
    windows = windows_with_steps(
        list(results),
        lambda analysis: analysis.has_steps,
        lambda analysis: analysis.breakdown.parts.is_empty(),
    )
    if not windows:
        raise InputError(f"{run.path}: no event in any of its traces")

    def by_window(table: Callable[[RankAnalysis], pl.DataFrame]) -> list[_Window]:
        return [
            (result.recording.rank, result.recording.window, table(result.value))
            for result in windows
        ]

    parts = by_window(lambda analysis: analysis.breakdown.parts)
    bubbles = by_window(lambda analysis: analysis.breakdown.bubbles)
    slices = with_windows(by_window(lambda analysis: analysis.breakdown.slices))
    queues = with_windows(by_window(lambda analysis: analysis.breakdown.queue))
    calls = by_window(lambda analysis: analysis.collectives)
    collectives = _collectives(run, calls)
    unnamed = with_windows(calls).filter(pl.col("members").is_null())
    if not (guessed := unnamed.join(collectives, ["rank", "start_ns", "op"], "semi")).is_empty():
        names = ", ".join(map(short_name, guessed["op"].unique().sort().head(_MOST_NAMES)))
        _log.warning("%s", Message("by_order", path=run.path, names=names))
    passes = with_windows(by_window(lambda analysis: analysis.passes))
    # Of windows that repeat step numbers, the last: a step of two windows cannot be replayed.
    passes = passes.filter(pl.col("window") == pl.col("window").max().over("step"))
    links = {
        result.recording.rank: result.value.link_bytes_per_s
        for result in windows
        if result.value.link_bytes_per_s is not None
    }
    rows = steps_of_run(run, parts)
    if steps is not None:
        existing = format_ranges("step", rows["step"])
        rows = rows.filter(steps.contains(pl.col("step")))
        if rows.is_empty():
            raise UsageError(f"{run.path}: no step of {steps}; it has {existing}")
    return Cluster(
        rows,
        tables_by_rank([with_windows(bubbles)]),
        tables_by_rank([collectives]),
        tables_by_rank([passes.drop("window")]),
        run.clocks,
        run.topology,
        queues.join(rows, on=["rank", "window", "step"], how="semi"),
        links,
        tables_by_rank([slices]),
        with_windows(by_window(lambda analysis: analysis.lines)),
    )


def _collectives(run: BaseRun, calls: Sequence[_Window]) -> pl.DataFrame:
    """Return the collectives of all ranks, with ranks and members."""
    collectives = with_windows(calls).select(*COLLECTIVES)
    return with_members(with_rank(collectives, collectives["rank"].to_numpy()), run.topology)


def steps_on_one_clock(
    run: BaseRun, windows: Sequence[tuple[int, int, Breakdown, pl.DataFrame]]
) -> pl.DataFrame:
    """Return the recorded steps of a run: the ``steps`` of its `Cluster`.

    Args:
        run: the run.
        windows: rank, window, breakdown and result of `collectives_of` for each window with steps.
    """
    bubbles = with_windows([(rank, window, parts.bubbles) for rank, window, parts, _ in windows])
    collectives = _collectives(run, [(rank, window, calls) for rank, window, _, calls in windows])
    rows = steps_of_run(run, [(rank, window, parts.parts) for rank, window, parts, _ in windows])
    tables = tables_by_rank([bubbles]), tables_by_rank([collectives]), ()
    return Cluster(rows, *tables, run.clocks, run.topology).steps


def steps_of_run(run: BaseRun, breakdowns: Iterable[tuple[int, int, pl.DataFrame]]) -> pl.DataFrame:
    """Return the recorded steps of a run, with times of the device even where no trace holds them.

    Args:
        run: the run.
        breakdowns: the argument of `ppprof.analysis.ranks.step_table.join_ranks`.

    Returns:
        The columns of `join_ranks`; `ppprof.analysis.profile.step_basis.with_measured_times` says
        which times come from the run's step times.
    """
    return with_measured_times(join_ranks(breakdowns, run.coordinates), run.step_times)


def roles_without_window(run: BaseRun) -> dict[int, str]:
    """Return the kind of work of each rank of the job, also of those without step times; see `roles_of_ranks`."""
    ranks = {*run.step_times["rank"].unique()}
    if run.topology is not None:
        ranks.update(range(run.topology.world_size))
    return roles_of_ranks(run.topology, sorted(ranks))


def _times_of_steps(run: BaseRun, steps: StepRange | None) -> pl.DataFrame:
    """Return the step times of a run in ``steps``; None: all steps.

    Raises:
        UsageError: no such steps; the message names the existing ones.
    """
    times = run.step_times
    if steps is None:
        return times
    selected = times.filter(steps.contains(pl.col("step")))
    if selected.is_empty():
        raise UsageError(
            f"{run}: no step of {steps}; it has {format_ranges('step', times['step'])}"
        )
    return selected


def ranks_without_window(run: BaseRun, steps: StepRange | None = None) -> pl.DataFrame:
    """Return which ranks are slow by step times alone, of all steps or some; see `unrecorded_ranks`.

    Raises:
        InputError: no step has a known time of communication.
        UsageError: no such steps.
    """
    times = _times_of_steps(run, steps)
    table = unrecorded_ranks(times, roles_of_ranks(run.topology, times["rank"].unique()))
    if table.is_empty():
        raise InputError(
            f"{run}: no window, and no step times on the host with their communication "
            "(Profiler.flight_recorder notes it; not that of paddle.DataParallel, in C++): record a window"
        )
    return table


def links_without_window(run: BaseRun, steps: StepRange | None = None) -> pl.DataFrame:
    """Return which groups have longer transfers than their siblings, by the last operations of each rank; see `slow_groups`.

    The member that comes last to a collective waits for no other: its time is that of the transfer. So no clocks are
    compared. Sends and receives do not say it: a send ends before its transfer, and a receiver may come after it.
    Groups whose last operations in ``steps`` (None: all) are of fewer than `LEAST_STEPS` steps have no row.
    """
    numbers: dict[tuple[tuple[int, ...], str | None], int] = {}
    rows: list[tuple[int, str, int, int, int, int]] = []
    for path in run.paths:
        rings, problems = read_rings(path)
        for problem in problems.values():
            _log.warning("%s", problem)
        for ring in rings.values():
            number_of = {
                own: numbers.setdefault((tuple(group.ranks), group.axis), len(numbers))
                for own, group in ring.groups.items()
            }
            for each in ring.operations:
                has_ended = not (each.is_pending or each.has_raised)
                is_collective = each.name not in (*POINT_TO_POINT, REDUCTION)
                if not (has_ended and is_collective and each.group in number_of):
                    continue
                time_ns = max(each.returned_ns, each.waited_ns) - each.called_ns
                key = number_of[each.group], each.name, each.size, each.step, each.sequence
                rows.append((*key, time_ns))
    groups = pl.DataFrame(
        [(n, ",".join(map(str, ranks)), axis, len(ranks)) for (ranks, axis), n in numbers.items()],
        {"group": pl.Int64, "members": pl.String, "axis": pl.String, "num_members": pl.Int64},
        orient="row",
    )
    names = ("group", "op", "bytes", "step", "sequence", "transfer_ns")
    calls = pl.DataFrame(
        rows, {name: pl.String if name == "op" else pl.Int64 for name in names}, orient="row"
    )
    times = _times_of_steps(run, steps).filter(pl.col("window").is_null() & ~pl.col("excluded"))
    lengths = times.group_by("step").agg(pl.col("batch_cost_ns").median().cast(pl.Int64))
    roles = roles_of_ranks(run.topology, times["rank"].unique())
    transfers = (
        calls.group_by(*names[:-1])
        .agg(pl.col("transfer_ns").min(), num=pl.len())
        .join(groups, "group")
        .filter((pl.col("num") == pl.col("num_members")) & (pl.col("num") > 1))
        .join(lengths, "step", "semi")  # other steps are not compared
        .filter(pl.col("step").n_unique().over("group") >= LEAST_STEPS)
    )
    return slow_groups(transfers, dict(lengths.iter_rows()), roles)


def windows_with_steps(
    results: Sequence[WindowResult[T]],
    has_steps: Callable[[T], bool],
    is_empty: Callable[[T], bool],
) -> Sequence[WindowResult[T]]:
    """Return the windows with steps; if no window has steps, all windows, and log what that means.

    Windows that are left out are logged.

    Args:
        results: the result of each window.
        has_steps: whether a window has steps; if not, all of it counts as one.
        is_empty: whether there is nothing in it.
    """
    any_has_steps = any(has_steps(each.value) and not is_empty(each.value) for each in results)
    used = []
    for result in results:
        if is_empty(result.value) or has_steps(result.value) != any_has_steps:
            _log.warning("%s", Message("no_step", path=result.source))
            continue
        if not any_has_steps:
            _log.warning("%s", Message("one_step", path=result.source))
        used.append(result)
    return used


def tables_by_rank(tables: Iterable[pl.DataFrame]) -> list[pl.DataFrame]:
    """Return one table for each rank, which joins the rank's tables in their order.

    Args:
        tables: tables of windows, with column rank.
    """
    all_rows = pl.concat(tables)
    return [table for _, table in all_rows.group_by("rank", maintain_order=True)]
