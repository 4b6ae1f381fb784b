"""Find each rank's collectives, and match them across ranks.

The k-th collective of a group on one rank is the k-th on every other. `collectives` returns one rank's
part as a small table; `match_collectives` joins those of all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from ppprof.trace import Clock
from ppprof.trace.schema import Trace

COLLECTIVES: dict[str, pl.DataType] = {
    "members": pl.String(),
    "axis": pl.String(),
    "op": pl.String(),
    "step": pl.Int64(),
    "index": pl.Int64(),
    "rank": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "bytes": pl.Int64(),
}
"""Columns of `collectives`. ``members`` are global ranks: ``0,4`` for a group, ``0>2`` for a transfer
from rank 0 to rank 2. ``index`` counts the collectives of one step with the same members and op."""

KEYS = ("members", "op", "step", "index")
"""The columns that identify one collective on every rank."""

_ROLES = {"send": "send", "isend": "send", "recv": "recv", "irecv": "recv"}

_UNKNOWN_RANK = -1


def with_rank(table: pl.DataFrame, rank: int) -> pl.DataFrame:
    """Return `collectives` of a trace whose rank was unknown, with the rank filled in."""
    return table.with_columns(
        pl.col("members").str.replace(str(_UNKNOWN_RANK), str(rank), literal=True),
        rank=pl.lit(rank, pl.Int64),
    )


def collectives(trace: Trace, rank: int = _UNKNOWN_RANK) -> pl.DataFrame:
    """Return the collectives and transfers of one rank's window, by start.

    A host span and the kernels launched in it are one collective, timed by the kernels. Left out are
    spans that only launch (an ``isend`` whose transfer is a span of its own), spans that wait, and
    spans without peers.

    Args:
        trace: the window.
        rank: the rank; -1 if unknown, see `with_rank`.

    Returns:
        Columns of `COLLECTIVES`.
    """
    events = trace.events.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    spans = events.filter(
        (pl.col("category") == "Communication") & pl.col("peers").is_not_null()
    ).with_columns(pl.col("name").cast(pl.String), end_ns=pl.col("start_ns") + pl.col("dur_ns"))
    spans = spans.filter(pl.col("name").str.contains(".", literal=True).not_())
    spans = with_kernel_times(spans, events)
    role = pl.col("name").replace_strict(_ROLES, default=None, return_dtype=pl.String)
    spans = spans.with_columns(role=role)
    transfers = spans.filter(pl.col("name").is_in(["send", "recv"]))
    only_launches = pl.col("name").is_in(["isend", "irecv"]) & pl.lit(transfers.height > 0)
    own = pl.lit(str(rank))
    table = (
        spans.filter(only_launches.not_())
        .select(
            members=pl.when(pl.col("role") == "send")
            .then(pl.concat_str(own, pl.lit(">"), "peers"))
            .when(pl.col("role") == "recv")
            .then(pl.concat_str("peers", pl.lit(">"), own))
            .otherwise("peers"),
            axis=pl.col("axis").cast(pl.String),
            op=pl.when(pl.col("role").is_null()).then("name").otherwise(pl.lit("send")),
            step="step",
            rank=pl.lit(rank, pl.Int64),
            start_ns="start_ns",
            end_ns="end_ns",
            bytes="bytes",
        )
        .sort("start_ns", maintain_order=True)
    )
    index = pl.int_range(pl.len()).over("members", "op", "step").cast(pl.Int64)
    return table.with_columns(index=index).select(*COLLECTIVES)


def with_kernel_times(spans: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Return spans timed by the kernels below them; spans without kernels keep their times.

    Args:
        spans: some of the events, with row and end_ns.
        events: all events of the trace, with row.
    """
    kernels = events.filter(pl.col("category") == "Kernel").select("parent", "start_ns", "dur_ns")
    if kernels.is_empty() or spans.is_empty():
        return spans
    parents = events["parent"].fill_null(-1).to_numpy()
    is_span = np.zeros(len(parents), bool)
    is_span[spans["row"].to_numpy()] = True
    above = kernels["parent"].fill_null(-1).to_numpy().copy()
    while (climbs := (above >= 0) & ~is_span[above]).any():  # one turn for each nesting level
        above[climbs] = parents[above[climbs]]
    times = (
        kernels.with_columns(row=pl.Series(above), end_ns=pl.col("start_ns") + pl.col("dur_ns"))
        .filter(pl.col("row") >= 0)
        .group_by("row")
        .agg(kernel_start=pl.col("start_ns").min(), kernel_end=pl.col("end_ns").max())
    )
    return spans.join(times, "row", "left", maintain_order="left").with_columns(
        start_ns=pl.coalesce("kernel_start", "start_ns"),
        end_ns=pl.coalesce("kernel_end", "end_ns"),
    )


def match_collectives(tables: Sequence[pl.DataFrame], clocks: Mapping[int, Clock]) -> pl.DataFrame:
    """Return the collectives that all members of a group have, on the reference clock.

    ::

        rank 0   ...[ all_reduce     ]...      arrives first, waits
        rank 4   .........[all_reduce]...      arrives last; the rest is transfer

    Args:
        tables: `collectives` of each rank, on its own clock.
        clocks: by rank; ranks without a clock keep their times.

    Returns:
        Columns of `COLLECTIVES` with times on the reference clock, by members, op, step, index and
        rank.
    """
    on_one_clock = [to_reference_clock(table, clocks) for table in tables]
    joined = pl.concat(on_one_clock) if on_one_clock else pl.DataFrame(schema=COLLECTIVES)
    members = pl.col("members").str.replace(">", ",", literal=True).str.split(",")
    joined = joined.filter(members.list.contains(pl.col("rank").cast(pl.String)))
    num_members = pl.col("members").str.count_matches(r"[,>]") + 1
    return joined.filter(pl.len().over(KEYS) == num_members).sort(*KEYS, "rank")


def to_reference_clock(table: pl.DataFrame, clocks: Mapping[int, Clock]) -> pl.DataFrame:
    """Return one rank's rows with start_ns and end_ns on the reference clock.

    A rank without a clock keeps its times.
    """
    if table.is_empty() or table["rank"][0] not in clocks:
        return table
    clock = clocks[table["rank"][0]]
    return table.with_columns(
        pl.Series(name, clock.to_reference(table[name].to_numpy()))
        for name in ("start_ns", "end_ns")
    )
