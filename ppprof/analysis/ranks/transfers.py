"""Takes transfers out of the bubble, once the traces of both sides are on one clock.

One rank's trace cannot tell, within a receive, the wait for the other side to send from the transfer
itself (`ppprof.analysis.ranks.step_breakdown`). Two can: what is left once both have come is transfer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from ppprof.analysis.profile.grouping import intervals_of
from ppprof.analysis.profile.intervals import covered_within, difference, intersection, together
from ppprof.analysis.ranks.collectives import to_reference_clock
from ppprof.analysis.ranks.step_breakdown import axis_position
from ppprof.trace import Clock

_ROWS = ("rank", "window", "step")


def without_transfers(
    steps: pl.DataFrame,
    bubbles: Sequence[pl.DataFrame],
    matched: pl.DataFrame,
    clocks: Mapping[int, Clock],
) -> pl.DataFrame:
    """Steps whose bubble holds no transfer that is known to be one: that is exposed communication.

        stage 0   FFFFssss________        send, after a forward
        stage 1   rrrrrrrrFFFF____        4 of bubble, then 4 of exposed pp

    Args:
        steps: as `ppprof.analysis.ranks.join_ranks` returns it.
        bubbles: a table a rank, on its own clock: rank, window and columns of
            `ppprof.analysis.ranks.step_breakdown.STRETCHES`.
        matched: as `ppprof.analysis.ranks.collectives.match_collectives` returns it.
        clocks: of ranks whose clock is known.

    Returns:
        ``steps``, each with the same sum. The last arrival, so what is moved, is known as well as
        the clocks of those who met are.
    """
    last = pl.col("start_ns").max().over("members", "op", "step", "index")
    axis = pl.when(pl.col("op") == "send").then(pl.lit("pp")).otherwise("axis")
    transfers = matched.with_columns(axis, start_ns=last).filter(
        pl.col("start_ns") < pl.col("end_ns")
    )
    by_rank = transfers.partition_by("rank", as_dict=True)
    nothing = transfers.clear()
    moved = [
        found
        for part in bubbles
        if part.height
        for found in _moved(
            to_reference_clock(part, clocks), by_rank.get((part["rank"][0],), nothing)
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


def _moved(bubble: pl.DataFrame, transfers: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """What of one rank's bubble is transfer: `_ROWS`, column of the axis, time_ns."""
    instants = together(intervals_of(bubble))
    taken = together()
    for axis in sorted(transfers["axis"].drop_nulls().unique(), key=axis_position):
        of_axis = intervals_of(transfers.filter(pl.col("axis") == axis))
        here = difference(intersection(instants, together(of_axis)), taken)
        taken = together(taken, here)
        if len(here[0]):
            time_ns = covered_within(here, *intervals_of(bubble))
            yield (
                bubble.select(_ROWS)
                .with_columns(column=pl.lit(f"exposed_{axis}_ns"), time_ns=pl.Series(time_ns))
                .filter(pl.col("time_ns") > 0)
            )
