"""The steps of many ranks in one table: their breakdowns joined, grouped and compared.

Pure functions over small tables with one row per rank and step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from ppprof.analysis.profile.grouping import intervals_of
from ppprof.analysis.profile.intervals import covered_within, difference, intersection, together
from ppprof.analysis.ranks.collectives import to_reference_clock
from ppprof.analysis.ranks.rank_communication import axis_position
from ppprof.analysis.ranks.step_breakdown import BESIDE, BREAKDOWN, PARTS
from ppprof.choices import GROUPS
from ppprof.errors import UsageError
from ppprof.topology import AXES
from ppprof.trace import Clock

COORDINATES = {"rank": pl.Int64, "host": pl.String, **dict.fromkeys(AXES, pl.Int64)}
"""A rank, its host and its position on every axis; host and positions are null if unknown."""


def join_ranks(
    breakdowns: Iterable[tuple[int, int, pl.DataFrame]], coordinates: pl.DataFrame
) -> pl.DataFrame:
    """Return the breakdowns of all ranks as one table: a row per rank and step, a column per part.

        part     axis  time_ns
        step     null       90        rank  step  step_ns  exposed_mp_ns  bubble_ns
        exposed  mp         30   ->      0     4       90             30         60
        bubble   null       60

    Args:
        breakdowns: rank, window and table for each window of each rank. A table is ``parts`` in the
            result of `ppprof.analysis.ranks.step_breakdown.breakdown`.
        coordinates: columns of `COORDINATES`, and further axes, one row per rank. Ranks without a row
            get nulls.

    Returns:
        The columns of ``coordinates`` (rank, host and position on each axis), window and step. Then, in
        int64 nanoseconds: ``step_ns``; the parts of the step (`PARTS`: computation, exposed,
        data_loading, bubble, host_bound, queued and rest), which add up to ``step_ns``; and the times
        outside that sum (`BESIDE`: communication, hidden and host_launch). exposed, communication
        and hidden have a column for each axis that any rank uses, such as ``exposed_mp_ns``: 0 if
        the rank does not communicate over that axis. The other columns are null if the rank's trace
        cannot have that time: host_bound, queued and host_launch need device events. All but step_ns
        and data_loading_ns are null if the trace lacks the events of its device. Sorted by rank,
        window and step.
    """
    rows = with_windows([(-1, -1, pl.DataFrame(schema=BREAKDOWN)), *breakdowns])
    keys = ["rank", "window", "step"]
    axes = sorted(rows["axis"].drop_nulls().unique(), key=axis_position)
    columns = [
        _column(part, axis)
        for part in ("step", *PARTS, *BESIDE)
        for axis in (axes if part in ("exposed", "communication", "hidden") else [None])
    ]
    named = rows.with_columns(
        column=pl.concat_str("part", pl.col("axis"), separator="_", ignore_nulls=True) + "_ns"
    )
    wide = named.pivot("column", index=keys, values="time_ns")
    missing = [pl.lit(None, pl.Int64).alias(name) for name in columns if name not in wide.columns]
    axis_columns = [
        _column(part, axis) for part in ("exposed", "communication", "hidden") for axis in axes
    ]
    return (
        wide.with_columns(missing)
        .with_columns(
            pl.when(pl.col("rest_ns").is_not_null()).then(pl.col(axis_columns).fill_null(0))
        )
        .join(coordinates, on="rank", how="left")
        .select(*coordinates.columns, "window", "step", *columns)
        .sort(keys)
    )


def with_windows(tables: Sequence[tuple[int, int, pl.DataFrame]]) -> pl.DataFrame:
    """Return the tables of windows as one, with rank and window, int64, as its first columns."""
    ranks, windows, each = zip(*tables)
    heights = [table.height for table in each]
    rows: pl.DataFrame = pl.concat(each)
    return rows.select(
        pl.Series("rank", np.repeat(ranks, heights), pl.Int64),
        pl.Series("window", np.repeat(windows, heights), pl.Int64),
        pl.all().exclude("rank"),
    )


def group_steps(steps: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the mean times of each group of ranks and steps.

    Args:
        steps: the result of `join_ranks`.
        by: the columns to group by, at least one of `GROUPS`: rank, step, host and the axes; or a
            further axis of ``steps``.

    Returns:
        One row per group, sorted by the columns of ``by``. Columns, in this order:

        - the columns of ``by``;
        - if ``by`` contains rank, the rank's host and positions; else num_ranks;
        - num_steps: the number of distinct steps;
        - the mean of each time over the group's rows, float64;
        - if ``by`` is step alone, the slowest rank of the step: the columns of `slowest`, null if no
          rank's own work is known.

    Raises:
        UsageError: ``by`` names a column that is neither in `GROUPS` nor an axis of ``steps``, or that
            is null in every row of ``steps``.
    """
    rank_columns = steps.columns[: steps.columns.index("window")]
    known = [*GROUPS, *(name for name in rank_columns if name not in GROUPS)]
    unknown = [name for name in by if name not in known]
    if unknown:
        raise UsageError(f"{unknown[0]!r}: expected some of {', '.join(known)}")
    nowhere = [name for name in by if steps.height and not steps[name].count()]
    if nowhere:
        raise UsageError(
            f"{nowhere[0]!r}: the ranks' hosts and coordinates are unknown: the run has no manifest"
        )
    coordinates = [name for name in rank_columns if name not in by] if "rank" in by else []
    grouped = steps.group_by(*by).agg(
        pl.col(coordinates).first(),
        *([] if coordinates else [pl.col("rank").n_unique().cast(pl.Int64).alias("num_ranks")]),
        pl.col("step").n_unique().cast(pl.Int64).alias("num_steps"),
        pl.col("^.*_ns$").mean(),
    )
    if list(by) == ["step"]:
        grouped = grouped.join(slowest(steps), on="step", how="left")
    return grouped.sort(*by)


def slowest(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the rank with the most own work in each step.

    The slowest rank has the most own work, not the longest step: ranks that wait for each other end
    a step together. A rank's own work is the step without exposed communication and bubble:

        rank 0   ####======####==      = is exposed or bubble
        rank 1   ##############==      14 of own work: the slowest
        rank 2   #####=====####==

    Returns:
        One row per step of several ranks, ascending: step, slowest_rank (of equally slow ranks the lowest),
        slowest_own_ns (int64) and median_own_ns (float64, over all ranks). Ranks whose own work is
        unknown, since their device's events are missing, do not count.
    """
    own = steps.select("rank", "step", own_ns=own_time(steps)).drop_nulls("own_ns")
    return (
        own.filter(pl.col("rank").n_unique().over("step") > 1)
        .sort("own_ns", "rank", descending=[True, False])
        .group_by("step")
        .agg(
            slowest_rank=pl.col("rank").first(),
            slowest_own_ns=pl.col("own_ns").first(),
            median_own_ns=pl.col("own_ns").median(),
        )
        .sort("step")
    )


def own_time(steps: pl.DataFrame) -> pl.Expr:
    """Return the expression for a rank's own time: the step without exposed communication and bubble.

    Null where the parts of the step are unknown.
    """
    waits = [name for name in steps.columns if name.startswith("exposed_") or name == "bubble_ns"]
    own_ns = pl.col("step_ns") - pl.sum_horizontal(pl.col(waits).fill_null(0))
    return pl.when(pl.col("rest_ns").is_not_null()).then(own_ns)


def _column(part: str, axis: str | None) -> str:
    return f"{part}_{axis}_ns" if axis else f"{part}_ns"


_ROWS = ("rank", "window", "step")


def without_transfers(
    steps: pl.DataFrame,
    bubbles: Sequence[pl.DataFrame],
    collectives: pl.DataFrame,
    clocks: Mapping[int, Clock],
) -> pl.DataFrame:
    """Return ``steps`` with known transfers moved from the bubble to exposed communication.

    Within a receive, one rank's trace cannot separate the wait for the sender from the transfer
    (`ppprof.analysis.ranks.step_breakdown`). The traces of both ranks on one clock can: the transfer
    is the time after both ranks have arrived.

        stage 0   FFFFssss________        send, after a forward
        stage 1   rrrrrrrrFFFF____        4 of bubble, then 4 of exposed pp

    Args:
        steps: the result of `join_ranks`.
        bubbles: one table per rank, on the rank's own clock: rank, window and columns of
            `ppprof.analysis.ranks.step_breakdown.STRETCHES`.
        collectives: the result of `ppprof.analysis.ranks.collectives.match_collectives`.
        clocks: each rank's clock, keyed by rank. Ranks without a clock keep their times.

    Returns:
        The columns of ``steps``. The moved time is taken from bubble_ns and added to the exposed
        column of the transfer's axis (``pp`` for sends and receives), so the parts of a step still
        add up. It is as exact as the clocks of the ranks in the collective.
    """
    last = pl.col("start_ns").max().over("members", "op", "step", "index")
    is_send = pl.col("op").is_in(["send", "c10d::send"])
    axis = pl.when(is_send).then(pl.lit("pp")).otherwise("axis")
    transfers = collectives.with_columns(axis=axis, start_ns=last).filter(
        pl.col("start_ns") < pl.col("end_ns")
    )
    by_rank = transfers.partition_by("rank", as_dict=True)
    nothing = transfers.clear()
    moved = [
        moved_time
        for bubble in bubbles
        if bubble.height
        for moved_time in _transfers_in_bubble(
            to_reference_clock(bubble, clocks), by_rank.get((bubble["rank"][0],), nothing)
        )
    ]
    if not moved:
        return steps
    wide = pl.concat(moved).pivot("column", index=_ROWS, values="time_ns", aggregate_function="sum")
    columns = [name for name in wide.columns if name not in _ROWS]
    gained = {name: pl.col(f"{name}_moved").fill_null(0) for name in columns}
    return (
        steps.join(
            wide.rename(lambda name: name if name in _ROWS else f"{name}_moved"), _ROWS, "left"
        )
        .with_columns(
            *(pl.col(name) + time_ns for name, time_ns in gained.items()),
            bubble_ns=pl.col("bubble_ns") - pl.sum_horizontal(gained.values()),
        )
        .select(steps.columns)
    )


def _transfers_in_bubble(bubble: pl.DataFrame, transfers: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield, for each axis, the time that transfers take within one rank's bubble.

    Where transfers of two axes overlap, the time counts for the first axis (`axis_position`).

    Yields:
        Columns of `_ROWS`, column (``exposed_pp_ns``) and time_ns; only rows above 0.
    """
    instants = together(intervals_of(bubble))
    taken = together()
    for axis in sorted(transfers["axis"].drop_nulls().unique(), key=axis_position):
        axis_transfers = intervals_of(transfers.filter(pl.col("axis") == axis))
        instants_of_axis = difference(intersection(instants, together(axis_transfers)), taken)
        taken = together(taken, instants_of_axis)
        if len(instants_of_axis[0]):
            time_ns = covered_within(instants_of_axis, *intervals_of(bubble))
            yield (
                bubble.select(_ROWS)
                .with_columns(column=pl.lit(f"exposed_{axis}_ns"), time_ns=pl.Series(time_ns))
                .filter(pl.col("time_ns") > 0)
            )
