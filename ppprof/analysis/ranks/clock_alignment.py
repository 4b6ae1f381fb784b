"""Derive clock offsets from collectives, for ranks whose offset was not measured."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.ranks.collectives import KEYS, match_collectives
from ppprof.arrays import Int64
from ppprof.trace import Clock, Reading

_SYNCHRONIZING = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "barrier")
"""Operations that no member leaves before all members have arrived."""

_OF_TORCH = "(?i)^(c10d::|nccl:)_?(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier)"
"""These in torch, by the times of their kernels: the host does not wait for them. Its traces do not name
their hosts: these count only where they contradict one clock of all ranks, as the middle of wide bounds
would move the ranks of one host."""

_CUTS = (1, 2, 4, 8)
"""Numbers of readings that `align_clocks` tries for a window. A single reading has the tightest
bounds; with more readings, each has less drift within it."""

Bounds = tuple[Int64, Int64, Int64]
"""For a pair of ranks, three arrays with one element per shared collective: the time on the second
rank's clock, and the lower and the upper bound of the first rank's clock minus the second rank's,
in nanoseconds. A missing lower bound is -`_UNBOUNDED`, a missing upper bound is `_UNBOUNDED`."""

_UNBOUNDED = np.iinfo(np.int64).max // 4


_SAME_CLOCK_NS = 1_000_000
"""Events of ranks whose host has one name may contradict one clock by this much: times of devices are
not exact. Two computers of one name contradict it by more."""


def align_clocks(
    tables: Sequence[pl.DataFrame],
    measured: Mapping[int, Clock] | None = None,
    hosts: Mapping[int, str | None] | None = None,
) -> dict[int, Clock]:
    """Return the ranks' clocks, derived from the order in which events must have happened.

    No rank leaves an all-reduce before every rank has arrived, and nothing is received before it is
    sent. So the collectives that two ranks share bound the difference of their clocks from both
    sides, as an NTP round trip does. The tightest bounds in a stretch of time make a reading: their
    middle is the offset, half their width the error. Errors add up from rank to rank, so the clock
    of a rank is derived along the path of ranks with the smallest sum. Within a group, only the
    member with the smallest error bounds the clocks of the others. Ranks on one host have one clock:
    what is known of one of them holds for all.

    Args:
        tables: the result of `ppprof.analysis.ranks.collectives.collectives` for each rank, on the
            rank's own clock.
        measured: the measured clocks, keyed by rank. They are returned with readings up to the ends of
            the ranks' tables: see `ppprof.rundir.clocks.Clock.reaching`.
        hosts: rank -> host name, if known. A host is left out if the events of its ranks contradict
            one clock: several computers have its name.

    Returns:
        Clocks, keyed by rank: the measured clocks, and a clock with method ``collectives`` for
        every rank that a chain of collectives connects to a measured clock. Without measured
        clocks, the lowest rank's clock is the reference (method ``same``), and the clocks of the
        ranks connected to it are derived. A rank on the host of a rank with a clock has that
        rank's readings and method. Other ranks are missing.
    """
    ranks = sorted(int(table["rank"][0]) for table in tables if table.height)
    fixed = {**(measured or {})}
    for table in tables:
        if table.height and (clock := fixed.get(rank := int(table["rank"][0]))):
            ends = table.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
            fixed[rank] = clock.reaching(*ends)
    clocks = dict(fixed)
    if all(rank in clocks for rank in ranks):
        return clocks
    if not clocks:
        clocks[ranks[0]] = _reference_clock(ranks[0], tables)
    by_members, groups = _synchronizing_collectives(tables)
    neighbours = _neighbours(hosts or {}, by_members, groups)
    queue = [(clock.error_ns, rank) for rank, clock in clocks.items()]
    heapq.heapify(queue)
    done: set[int] = set()
    while queue:
        _, rank = heapq.heappop(queue)
        if rank in done:
            continue
        done.add(rank)
        for other in neighbours.get(rank, ()):
            if other not in done and other not in fixed:
                clocks[other] = replace(clocks[rank], rank=other)
                heapq.heappush(queue, (clocks[other].error_ns, other))
        # A group's best-known member binds all others: there are too many pairs to compare all.
        shared = [by_members.pop(group) for group in groups.get(rank, ()) if group in by_members]
        for other, bounds in _bounds(shared, rank).items():
            if other in done or other in fixed:
                continue
            clock = _derive_clock(clocks[rank], other, *bounds)
            if clock and (other not in clocks or clock.error_ns < clocks[other].error_ns):
                clocks[other] = clock
                heapq.heappush(queue, (clock.error_ns, other))
    return clocks


def offsets_by_starts(tables: Sequence[pl.DataFrame]) -> dict[int, int]:
    """Return clock offsets as the RFC for profiling RPC jobs does, to compare with `align_clocks`.

    The RFC treats the starts of the two spans of one call as simultaneous. If one rank arrives
    later than the other, the offset is wrong by that unknown delay.

    Returns:
        Offsets in nanoseconds, keyed by rank, for each rank that shares collectives with the lowest
        rank, and 0 for the lowest rank. An offset is the lowest rank's start minus the rank's
        start, lower median over the shared collectives.

    Source: pytorch/pytorch issue 39675.
    """
    joined = match_collectives(tables, {})
    reference = joined.filter(pl.col("rank") == pl.col("rank").min())
    shared = joined.join(reference.select(*KEYS, reference_ns="start_ns"), on=KEYS)
    difference = pl.col("reference_ns") - pl.col("start_ns")
    middle = difference.sort().get((pl.len() - 1) // 2)
    return dict(shared.group_by("rank").agg(middle.alias("offset_ns")).sort("rank").iter_rows())


def _synchronizing_collectives(
    tables: Sequence[pl.DataFrame],
) -> tuple[dict[str, pl.DataFrame], dict[int, list[str]]]:
    """Return the collectives that bound clocks, keyed by members, and each rank's groups.

    The groups are texts such as ``0,4``, keyed by rank.
    """
    every = match_collectives(tables, {})
    is_of_torch = pl.col("is_on_device") & pl.col("op").str.contains(_OF_TORCH)
    joined = every.filter(pl.col("op").is_in(["send", *_SYNCHRONIZING]))
    of_torch = every.filter(is_of_torch)
    if not _fit_one_clock(of_torch.partition_by("members")):
        joined = pl.concat([joined, of_torch])
    by_members = joined.partition_by("members", as_dict=True, maintain_order=True)
    groups = joined.group_by("rank").agg(pl.col("members").unique(maintain_order=True))
    return (
        {str(members): table for (members,), table in by_members.items()},
        dict(groups.iter_rows()),
    )


def _neighbours(
    hosts: Mapping[int, str | None],
    by_members: Mapping[str, pl.DataFrame],
    groups: Mapping[int, Sequence[str]],
) -> dict[int, list[int]]:
    """Return rank -> the ranks on its host, itself included, of hosts whose ranks agree on one clock."""
    by_host: dict[str, list[int]] = {}
    for rank, host in hosts.items():
        if host is not None:
            by_host.setdefault(host, []).append(rank)
    neighbours = {}
    for members in by_host.values():
        shared = {group for rank in members for group in groups.get(rank, ())}
        within = [by_members[group].filter(pl.col("rank").is_in(members)) for group in shared]
        if _fit_one_clock(within):
            neighbours.update(dict.fromkeys(members, members))
    return neighbours


def _fit_one_clock(tables: Iterable[pl.DataFrame]) -> bool:
    """Return whether the collectives of groups, a table each, fit ranks that have one clock."""
    bounds = [each for table in tables for each in _bounds([table], int(table["rank"][0])).values()]
    return all(
        low.max(initial=0) <= _SAME_CLOCK_NS and high.min(initial=0) >= -_SAME_CLOCK_NS
        for _, low, high in bounds
    )


def _reference_clock(rank: int, tables: Sequence[pl.DataFrame]) -> Clock:
    own = next(table for table in tables if table.height and table["rank"][0] == rank)
    return Clock(rank, (Reading(int(own["start_ns"][0]), 0, 0),), "same")


def _bounds(tables: Sequence[pl.DataFrame], rank: int) -> dict[int, Bounds]:
    """Return the bounds of a rank's clock minus each other rank's clock, keyed by the other rank."""
    if not tables:
        return {}
    shared = pl.concat(tables)
    others = shared.filter(pl.col("rank") != rank)
    pairs = shared.filter(rank=rank).join(others, KEYS, suffix="_other")
    is_send = pl.col("op") == "send"
    first_sends = is_send & pl.col("members").str.starts_with(pl.concat_str("rank", pl.lit(">")))
    # Each rank ends after the other starts. That gives a lower and an upper bound.
    pairs = pairs.with_columns(
        low=pl.when(is_send & first_sends.not_())
        .then(-_UNBOUNDED)
        .otherwise(pl.col("start_ns") - pl.col("end_ns_other")),
        high=pl.when(first_sends)
        .then(_UNBOUNDED)
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


def _derive_clock(clock: Clock, other: int, time: Int64, low: Int64, high: Int64) -> Clock | None:
    """Return the clock of a rank from its `Bounds` to a rank whose clock is known.

    Of the numbers of readings in `_CUTS`, the number with the smallest error is used.

    Returns:
        None if no stretch of time has bounds on both sides.
    """
    order = np.argsort(time, kind="stable")
    time, low, high = time[order], low[order], high[order]
    cuts = [num for num in _CUTS if num == 1 or num * 4 <= len(order)]
    candidates = [_stretches(time, low, high, num) for num in cuts]
    sound = [stretches for stretches in candidates if stretches]
    if not sound:
        return None
    best = min(sound, key=lambda stretches: max(stretch.error_ns for stretch in stretches))
    readings = tuple(_reading(clock, stretch, time) for stretch in best)
    return Clock(other, readings, "collectives")


class _Stretch(NamedTuple):
    """A stretch of time with bounds on both sides."""

    rows: slice
    """Its rows in the arrays of `Bounds`."""
    middle_ns: int
    """The middle between the bounds."""
    error_ns: int
    """Half their distance, and the drift within the stretch."""


def _stretches(time: Int64, low: Int64, high: Int64, num: int) -> list[_Stretch]:
    """Return those of ``num`` stretches of time that have both a lower and an upper bound."""
    sizes = [len(time) // num + (index < len(time) % num) for index in range(num)]
    first = np.append(0, np.cumsum(sizes))
    least, most = np.maximum.reduceat(low, first[:-1]), np.minimum.reduceat(high, first[:-1])
    return [
        _Stretch(
            slice(begin, end),
            (lower + upper) // 2,
            abs(upper - lower) // 2 + int(Clock.MOST_DRIFT * int(time[end - 1] - time[begin]) / 2),
        )
        for begin, end, lower, upper in zip(first, first[1:], least.tolist(), most.tolist())
        if lower > -_UNBOUNDED // 2 and upper < _UNBOUNDED // 2
    ]


def _reading(clock: Clock, stretch: _Stretch, time: Int64) -> Reading:
    """Return the reading of the second rank's clock in a stretch."""
    time_ns = int(np.median(time[stretch.rows]))
    # First to the known rank's clock, from there to the reference clock.
    offset = int(clock.to_reference(np.array([time_ns + stretch.middle_ns]))[0]) - time_ns
    return Reading(time_ns, offset, stretch.error_ns + clock.error_ns)
