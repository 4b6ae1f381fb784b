"""Move transfers out of the bubble, once the traces of sender and receiver are on one clock.

Within a receive, one rank's trace cannot separate the wait for the sender from the transfer itself
(`ppprof.analysis.ranks.step_breakdown`). The traces of both ranks can: the transfer is the time
after both ranks have arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from ppprof.analysis.profile.grouping import intervals_of
from ppprof.analysis.profile.intervals import covered_within, difference, intersection, together
from ppprof.analysis.ranks.collectives import to_reference_clock
from ppprof.analysis.ranks.rank_communication import axis_position
from ppprof.trace import Clock

_ROWS = ("rank", "window", "step")


def without_transfers(
    steps: pl.DataFrame,
    bubbles: Sequence[pl.DataFrame],
    collectives: pl.DataFrame,
    clocks: Mapping[int, Clock],
) -> pl.DataFrame:
    """Return ``steps`` with known transfers moved from the bubble to exposed communication.

        stage 0   FFFFssss________        send, after a forward
        stage 1   rrrrrrrrFFFF____        4 of bubble, then 4 of exposed pp

    Args:
        steps: the result of `ppprof.analysis.ranks.step_table.join_ranks`.
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
    axis = pl.when(pl.col("op") == "send").then(pl.lit("pp")).otherwise("axis")
    transfers = collectives.with_columns(axis, start_ns=last).filter(
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
