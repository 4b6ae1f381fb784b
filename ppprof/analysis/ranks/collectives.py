"""Find each rank's collectives, and match them across ranks.

Within a step, the k-th collective of a group on one rank is the k-th of that group on every other
rank. `collectives` returns the collectives of one rank as a small table; `match_collectives` joins
the tables of all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from ppprof.trace import Clock
from ppprof.trace.schema import Trace, is_kernel
from ppprof.trace.unrecorded_device import unrecorded_device

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
"""Columns of `collectives`. ``members`` are global ranks: ``0,4`` for a group, ``0>2`` for a
transfer from rank 0 to rank 2. ``op`` is the name of the span, or ``send`` for every send and
receive. ``index`` numbers the collectives of a step with equal members and op, from 0."""

KEYS = ("members", "op", "step", "index")
"""The columns that identify a collective: its rows have equal values there on all ranks."""

_ROLES = {"send": "send", "isend": "send", "recv": "recv", "irecv": "recv"}

_UNKNOWN_RANK = -1


def with_rank(table: pl.DataFrame, rank: int) -> pl.DataFrame:
    """Return a result of `collectives` whose rank was unknown (-1), with the rank filled in.

    Fills in ``rank`` in the column rank and in the members of transfers: ``-1>2`` -> ``0>2``.
    """
    return table.with_columns(
        pl.col("members").str.replace(str(_UNKNOWN_RANK), str(rank), literal=True),
        rank=pl.lit(rank, pl.Int64),
    )


def collectives(trace: Trace, rank: int = _UNKNOWN_RANK) -> pl.DataFrame:
    """Return the collectives and transfers of one rank's window, sorted by start.

    A host span and the kernels launched in it are one collective, timed by the kernels. A batch of
    transfers has a row for each transfer, all with the times of the batch. Three kinds
    of spans are no collectives: spans without peers; spans that wait (with a dot in their name);
    and, if the trace has ``send`` or ``recv`` spans, ``isend`` and ``irecv``, which only launch
    them. In a trace with device events, a span without any is counted in ``index`` and has no row:
    its own time is that of the host, which only launches. A trace that lacks the events of its
    device has no collectives for the same reason.

    Args:
        trace: the window.
        rank: the rank of the trace; -1 if unknown, see `with_rank`.

    Returns:
        Columns of `COLLECTIVES`, on the rank's own clock.
    """
    if unrecorded_device(trace):
        return pl.DataFrame(schema=COLLECTIVES)
    events = trace.events.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    spans = events.filter(
        (pl.col("category") == "Communication") & pl.col("peers").is_not_null()
    ).with_columns(pl.col("name").cast(pl.String), end_ns=pl.col("start_ns") + pl.col("dur_ns"))
    spans = spans.filter(pl.col("name").str.contains(".", literal=True).not_())
    spans = with_kernel_times(spans.sort("start_ns", maintain_order=True), events)
    role = pl.col("name").replace_strict(_ROLES, default=None, return_dtype=pl.String)
    spans = _each_transfer(spans.with_columns(role=role))
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
        .with_columns(pl.int_range(pl.len()).over("members", "op", "step").alias("index"))
    )
    timed = table.drop_nulls("start_ns").sort("start_ns", maintain_order=True)
    return timed.select(pl.col(name).cast(dtype) for name, dtype in COLLECTIVES.items())


def _each_transfer(spans: pl.DataFrame) -> pl.DataFrame:
    """Return ``spans`` with a row for each transfer of a batch.

        name               role  peers        bytes        role  peers  bytes
        batch_isend_irecv  null  >1:8,<3:4       12   ->   send  1          8
                                                           recv  3          4

    Args:
        spans: reads peers; role, peers and bytes are replaced in the rows of batches.
    """
    transfer = pl.col("peers").str.extract_groups(r"^(?<way>[<>])(?<peer>\d+):(?<size>\d+)$")
    rows = spans.with_columns(
        pl.when(pl.col("peers").str.contains("[<>]"))
        .then(pl.col("peers").str.split(","))
        .otherwise(pl.concat_list("peers"))
        .alias("peers")
    ).explode("peers")
    way = transfer.struct.field("way").replace_strict(
        {">": "send", "<": "recv"}, default=None, return_dtype=pl.String
    )
    return rows.with_columns(
        role=pl.coalesce(way, "role"),
        peers=pl.coalesce(transfer.struct.field("peer"), "peers"),
        bytes=pl.coalesce(transfer.struct.field("size").cast(pl.Int64, strict=False), "bytes"),
    )


def with_kernel_times(spans: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Return ``spans`` with the start of their first kernel and the end of their last kernel.

    A kernel belongs to the innermost of ``spans`` around its launch. A span with copies and no
    kernel has their start and end, since a library may run a collective as copies. In a trace with
    device events, start and end of all other spans are null; without, they are the host's.

    ::

        host     [all_gather]  [send]  [all_reduce ]
        device       kkkk         (null)    ccc kkkk       kernels before copies

    Args:
        spans: some rows of ``events``, with the column end_ns.
        events: all events of the trace, with the column row (int64).
    """
    kernels = events.filter(pl.col("device").is_not_null()).select(
        "parent", "start_ns", "dur_ns", is_kernel=is_kernel()
    )
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
        .filter(pl.col("is_kernel") == pl.col("is_kernel").max().over("row"))
        .group_by("row")
        .agg(kernel_start=pl.col("start_ns").min(), kernel_end=pl.col("end_ns").max())
    )
    return spans.join(times, "row", "left", maintain_order="left").with_columns(
        start_ns="kernel_start", end_ns="kernel_end"
    )


def match_collectives(tables: Sequence[pl.DataFrame], clocks: Mapping[int, Clock]) -> pl.DataFrame:
    """Return the collectives that all members of their group recorded, on the reference clock.

    ::

        rank 0   ...[ all_reduce     ]...      arrives first, waits
        rank 4   .........[all_reduce]...      arrives last; the rest is transfer

    Args:
        tables: the result of `collectives` for each rank, on the rank's own clock.
        clocks: each rank's clock, keyed by rank. Ranks without a clock keep their times.

    Returns:
        Columns of `COLLECTIVES`, one row per collective and member, sorted by members, op, step,
        index and rank. A collective that a member did not record has no rows.
    """
    on_one_clock = [to_reference_clock(table, clocks) for table in tables]
    joined = pl.concat(on_one_clock) if on_one_clock else pl.DataFrame(schema=COLLECTIVES)
    members = pl.col("members").str.replace(">", ",", literal=True).str.split(",")
    joined = joined.filter(members.list.contains(pl.col("rank").cast(pl.String)))
    num_members = pl.col("members").str.count_matches(r"[,>]") + 1
    return joined.filter(pl.len().over(KEYS) == num_members).sort(*KEYS, "rank")


def to_reference_clock(table: pl.DataFrame, clocks: Mapping[int, Clock]) -> pl.DataFrame:
    """Return one rank's table with start_ns and end_ns on the reference clock.

    The table is returned unchanged if its rank has no clock or if it has no rows.

    Args:
        table: has the columns rank (of one value), start_ns and end_ns.
        clocks: each rank's clock, keyed by rank.
    """
    if table.is_empty() or table["rank"][0] not in clocks:
        return table
    clock = clocks[table["rank"][0]]
    return table.with_columns(
        pl.Series(name, clock.to_reference(table[name].to_numpy()))
        for name in ("start_ns", "end_ns")
    )
