"""Collectives across ranks: the k-th of a group on one rank is the k-th on every other.

A rank's part of it is a small table (`collectives`); `match_collectives` joins those of all ranks, and
`align` finds from them how the ranks' clocks differ, where nobody measured that.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from ppprof.arrays import Int64
from ppprof.trace import Clock, Reading
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
"""What `collectives` gives. ``members`` are global ranks, ``0,4`` for a group and ``0>2`` for what
rank 0 sends to rank 2; ``index`` counts those of one step with the same members and op."""

_SENDS = {"send": "send", "isend": "send", "recv": "recv", "irecv": "recv"}
_ALL_WAIT_FOR_ALL = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "barrier")
"""None of their members can be done before all have come."""

_CUTS = (1, 2, 4, 8)
"""How many readings `align` tries to make of a window: one has the tightest bounds, many less drift
inside them."""

_DRIFT = 1e-4
"""How fast clocks may drift apart within a reading: computers' do by some ten parts in a million."""


_SELF = -1
"""The rank of a trace that nobody has told."""


def with_rank(part: pl.DataFrame, rank: int) -> pl.DataFrame:
    """`collectives` of a rank that was not known, and is now."""
    return part.with_columns(
        pl.col("members").str.replace(str(_SELF), str(rank), literal=True),
        rank=pl.lit(rank, pl.Int64),
    )


def collectives(trace: Trace, rank: int = _SELF) -> pl.DataFrame:
    """The collectives and transfers in one rank's window, in the order in which they began.

    A span on the host and the kernels that were launched in it are one, and it is the kernels that
    tell when. Spans that only launch (an ``isend`` whose transfer is a span of its own), that wait,
    or that do not tell their peers are left out.

    Returns:
        Columns of `COLLECTIVES`.
    """
    events = trace.events.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    told = events.filter(
        (pl.col("category") == "Communication") & pl.col("peers").is_not_null()
    ).with_columns(pl.col("name").cast(pl.String), end_ns=pl.col("start_ns") + pl.col("dur_ns"))
    told = told.filter(pl.col("name").str.contains(".", literal=True).not_())
    told = as_kernels(told, events)
    role = pl.col("name").replace_strict(_SENDS, default=None, return_dtype=pl.String)
    told = told.with_columns(role=role)
    moved = told.filter(pl.col("name").is_in(["send", "recv"]))
    launches = pl.col("name").is_in(["isend", "irecv"]) & pl.lit(moved.height > 0)
    own = pl.lit(str(rank))
    table = (
        told.filter(launches.not_())
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


def as_kernels(told: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """``told`` with the times of the kernels below each span, where it has some."""
    kernels = events.filter(pl.col("category") == "Kernel").select("parent", "start_ns", "dur_ns")
    if kernels.is_empty() or told.is_empty():
        return told
    parents = events["parent"].fill_null(-1).to_numpy()
    is_told = np.zeros(len(parents), bool)
    is_told[told["row"].to_numpy()] = True
    at = kernels["parent"].fill_null(-1).to_numpy().copy()
    while (climbs := (at >= 0) & ~is_told[at]).any():  # as deep as spans nest
        at[climbs] = parents[at[climbs]]
    times = (
        kernels.with_columns(row=pl.Series(at), end_ns=pl.col("start_ns") + pl.col("dur_ns"))
        .filter(pl.col("row") >= 0)
        .group_by("row")
        .agg(kernel_start=pl.col("start_ns").min(), kernel_end=pl.col("end_ns").max())
    )
    return told.join(times, "row", "left", maintain_order="left").with_columns(
        start_ns=pl.coalesce("kernel_start", "start_ns"),
        end_ns=pl.coalesce("kernel_end", "end_ns"),
    )


def match_collectives(parts: Sequence[pl.DataFrame], clocks: Mapping[int, Clock]) -> pl.DataFrame:
    """What all members of a group did together, on the reference clock.

    ::

        rank 0   ...[ all_reduce     ]...      arrives first, waits
        rank 4   .........[all_reduce]...      arrives last; from then on it is transfer

    Args:
        parts: of each rank, what `collectives` gave.
        clocks: of ranks whose clock is known; the others' times stand as they are.

    Returns:
        `COLLECTIVES` with times on the reference clock, of those collectives only that every
        member has, sorted by members, op, step, index and rank.
    """
    on_one_clock = [to_reference_clock(part, clocks) for part in parts]
    joined = pl.concat(on_one_clock) if on_one_clock else pl.DataFrame(schema=COLLECTIVES)
    keys = ["members", "op", "step", "index"]
    members = pl.col("members").str.replace(">", ",", literal=True).str.split(",")
    joined = joined.filter(members.list.contains(pl.col("rank").cast(pl.String)))
    expected = pl.col("members").str.count_matches(r"[,>]") + 1
    return joined.filter(pl.len().over(keys) == expected).sort(*keys, "rank")


def to_reference_clock(part: pl.DataFrame, clocks: Mapping[int, Clock]) -> pl.DataFrame:
    """One rank's rows with start_ns and end_ns on the reference clock; as is if it has none."""
    if part.is_empty() or part["rank"][0] not in clocks:
        return part
    clock = clocks[part["rank"][0]]
    return part.with_columns(
        pl.Series(name, clock.to_reference(part[name].to_numpy()))
        for name in ("start_ns", "end_ns")
    )


def align(
    parts: Sequence[pl.DataFrame], known: Mapping[int, Clock] | None = None
) -> dict[int, Clock]:
    """Clocks of the ranks, from what had to happen before what.

    Nobody leaves an all-reduce before everybody has come, and nothing is received before it is
    sent. So each such pair of ranks bounds their clocks' difference from both sides, as a round
    trip of NTP does; the tightest bounds of a stretch of time are a reading, their middle the
    offset and half their width its error. From rank to rank errors add up, and the way with the
    smallest sum is taken; of a group, ways lead through the member that is known best.

    Args:
        parts: of each rank, what `collectives` gave, on its own clock.
        known: clocks that were measured; they stand, and the others are bound to them.

    Returns:
        A clock for every rank that a chain of collectives connects to the lowest rank, or to one
        that is known; method ``collectives``.
    """
    ranks = sorted(int(part["rank"][0]) for part in parts if part.height)
    measured = known or {}
    found = dict(measured)
    if all(rank in found for rank in ranks):
        return found
    if not found:
        found[ranks[0]] = _same(ranks[0], parts)
    met, groups = _met(parts)
    heap = [(clock.error_ns, rank) for rank, clock in found.items()]
    heapq.heapify(heap)
    done: set[int] = set()
    while heap:
        _, rank = heapq.heappop(heap)
        if rank in done:
            continue
        done.add(rank)
        # Whoever of a group is known best binds all others of it: pairs of all would be many.
        tables = [met.pop(members) for members in groups.get(rank, ()) if members in met]
        for other, bounds in _bounds(tables, rank).items():
            if other in done or other in measured:
                continue
            clock = _chained(found[rank], other, *bounds)
            if clock and (other not in found or clock.error_ns < found[other].error_ns):
                found[other] = clock
                heapq.heappush(heap, (clock.error_ns, other))
    return found


def offsets_by_starts(parts: Sequence[pl.DataFrame]) -> dict[int, int]:
    """How the RFC for profiling RPC jobs would shift each rank: by when two spans of one call began.

    It takes the two for simultaneous, so it is off by whatever one rank came later than the other,
    and does not know by how much: beside `align` for comparison.

    Args:
        parts: of each rank, what `collectives` gave, on its own clock.

    Returns:
        For each rank that has met the lowest one, the lower median over what they did together of
        that rank's start minus its own.

    Source: pytorch/pytorch issue 39675.
    """
    joined = match_collectives(parts, {})
    reference = joined.filter(pl.col("rank") == pl.col("rank").min())
    keys = ["members", "op", "step", "index"]
    met = joined.join(reference.select(*keys, there="start_ns"), on=keys)
    difference = pl.col("there") - pl.col("start_ns")
    middle = difference.sort().get((pl.len() - 1) // 2)
    return dict(met.group_by("rank").agg(middle.alias("offset_ns")).sort("rank").iter_rows())


def _met(parts: Sequence[pl.DataFrame]) -> tuple[dict[str, pl.DataFrame], dict[int, list[str]]]:
    """The collectives that bound clocks, by members; and of each rank, which members it is among."""
    joined = match_collectives(parts, {}).filter(pl.col("op").is_in(["send", *_ALL_WAIT_FOR_ALL]))
    by_members = joined.partition_by("members", as_dict=True, maintain_order=True)
    groups = joined.group_by("rank").agg(pl.col("members").unique(maintain_order=True))
    tables = {str(members): table for (members,), table in by_members.items()}
    return tables, dict(groups.iter_rows())


def _same(rank: int, parts: Sequence[pl.DataFrame]) -> Clock:
    at = next(int(part["start_ns"][0]) for part in parts if part.height and part["rank"][0] == rank)
    return Clock(rank, (Reading(at, 0, 0),), "same")


Bounds = tuple[Int64, Int64, Int64]
"""Of a pair of ranks: times by the second's clock, and what the first's clock minus the second's
is at least and at most then (the two extremes of int64 where it is not bounded)."""

_FREE = np.iinfo(np.int64).max // 4


def _bounds(tables: Sequence[pl.DataFrame], rank: int) -> dict[int, Bounds]:
    """Of a rank's clock minus that of each other rank in these tables."""
    if not tables:
        return {}
    keys = ["members", "op", "step", "index"]
    met = pl.concat(tables)
    pairs = met.filter(rank=rank).join(met.filter(pl.col("rank") != rank), keys, suffix="_other")
    sends = pl.col("op") == "send"
    first_sends = sends & pl.col("members").str.starts_with(pl.concat_str("rank", pl.lit(">")))
    # ends >= the other's start, by either clock: at least and at most of (first - second).
    pairs = pairs.with_columns(
        low=pl.when(sends & first_sends.not_())
        .then(-_FREE)
        .otherwise(pl.col("start_ns") - pl.col("end_ns_other")),
        high=pl.when(first_sends)
        .then(_FREE)
        .otherwise(pl.col("end_ns") - pl.col("start_ns_other")),
    )
    return {
        int(other): (
            rows["end_ns_other"].to_numpy(),
            rows["low"].to_numpy(),
            rows["high"].to_numpy(),
        )
        for (other,), rows in pairs.group_by("rank_other")
    }


def _chained(clock: Clock, other: int, at: Int64, low: Int64, high: Int64) -> Clock | None:
    """The clock of a rank that is bound to one whose clock is known; in the best of some cuts."""
    order = np.argsort(at, kind="stable")
    cuts = [np.array_split(order, num) for num in _CUTS if num == 1 or num * 4 <= len(order)]
    tried = [_readings(clock, at, low, high, stretches) for stretches in cuts]
    sound = [readings for readings in tried if readings]
    if not sound:
        return None
    best = min(sound, key=lambda readings: max(reading.error_ns for reading in readings))
    return Clock(other, tuple(best), "collectives")


def _readings(
    clock: Clock, at: Int64, low: Int64, high: Int64, stretches: Sequence[Int64]
) -> list[Reading]:
    """A reading for each stretch of time that has bounds on both sides."""
    readings = []
    for rows in stretches:
        least, most = int(low[rows].max()), int(high[rows].min())
        if least <= -_FREE // 2 or most >= _FREE // 2:
            continue
        middle, when = (least + most) // 2, int(np.median(at[rows]))
        drift = int(_DRIFT * (int(at[rows].max()) - int(at[rows].min())) / 2)
        # On the first rank's clock, then on to the reference.
        offset = int(clock.to_reference(np.array([when + middle]))[0]) - when
        error = abs(most - least) // 2 + drift + clock.error_ns
        readings.append(Reading(when, offset, error))
    return readings
