"""Clocks derived from collectives."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.analysis.ranks.clock_alignment import align_clocks, offsets_by_starts
from ppprof.trace import Clock, Reading
from tests.analysis.ranks.tables import collectives_of

MS = 1_000_000


@given(
    offsets=st.lists(st.integers(-(10**9), 10**9), min_size=3, max_size=3),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_order_of_events_bounds_every_clock(offsets, seed):
    """Ranks 0 and 1 reduce together, 1 and 2 as well, and 2 and 3 send to each other."""
    rng = np.random.default_rng(seed)
    true = [0, *offsets]  # the reference clock minus the rank's own
    rows = {rank: [] for rank in range(4)}
    for time in range(0, 400 * MS, 10 * MS):
        for members in ("0,1", "1,2", "2>3", "3>2"):
            ranks = [int(rank) for rank in members.replace(">", ",").split(",")]
            arrive = time + rng.integers(0, 3 * MS, 2)
            leave = arrive.max() + rng.integers(0, MS, 2)
            if ">" in members:  # a sender may leave at once
                leave[0] = arrive[0] + 1
            op = "send" if ">" in members else "all_reduce"
            for rank, start, end in zip(ranks, arrive.tolist(), leave.tolist()):
                own = true[rank]
                rows[rank].append((members, op, 1, time // MS, start - own, end - own))
    parts = [collectives_of(*rows[rank], rank=rank) for rank in rows]
    clocks = align_clocks(parts)
    assert {rank: clock.method for rank, clock in clocks.items()} == {
        0: "same",
        1: "collectives",
        2: "collectives",
        3: "collectives",
    }
    for rank, clock in clocks.items():
        assert abs(clock.offset_ns - true[rank]) <= clock.error_ns < 3 * MS


def recorded_by(offsets, seed, groups):
    """Tables of ranks 0 to 3, whose clocks are behind by ``offsets``, that reduce in ``groups``."""
    rng = np.random.default_rng(seed)
    rows = {rank: [] for rank in range(4)}
    for time in range(0, 200 * MS, 10 * MS):
        for members in groups:
            ranks = [int(rank) for rank in members.split(",")]
            arrive = time + rng.integers(0, 3 * MS, len(ranks))
            leave = arrive.max() + rng.integers(0, MS, len(ranks))
            for rank, start, end in zip(ranks, arrive.tolist(), leave.tolist()):
                own = offsets[rank]
                rows[rank].append((members, "all_reduce", 1, time // MS, start - own, end - own))
    return [collectives_of(*rows[rank], rank=rank) for rank in rows]


@given(
    offset=st.integers(-(10**9), 10**9),
    seed=st.integers(0, 2**32 - 1),
    groups=st.sampled_from([("0,1", "1,2", "2,3"), ("0,1,2,3",), ("0,2", "1,3"), ("0,2",)]),
)
def test_ranks_of_one_host_are_not_moved_against_each_other(offset, seed, groups):
    """Ranks 0 and 1 are on one host, 2 and 3 on another whose clock differs."""
    parts = recorded_by([0, 0, offset, offset], seed, groups)
    hosts = {0: "a", 1: "a", 2: "b", 3: "b"}
    clocks = align_clocks([part for part in parts if part.height], None, hosts)
    assert clocks[1].readings == clocks[0].readings
    assert clocks[3].readings == clocks[2].readings
    assert abs(clocks[3].offset_ns - offset) <= clocks[3].error_ns


def test_computers_of_one_name_have_a_clock_each():
    parts = recorded_by([0, 0, 50 * MS, 50 * MS], 1, ("0,1,2,3",))
    clocks = align_clocks(parts, None, dict.fromkeys(range(4), "localhost"))
    for rank in (2, 3):
        assert abs(clocks[rank].offset_ns - 50 * MS) <= clocks[rank].error_ns < 5 * MS


def test_a_measured_clock_is_kept_and_others_are_derived_from_it():
    rows = [("0,1", "all_reduce", 1, k, k * MS, k * MS + 500) for k in range(20)]
    late = [(*row[:4], row[4] - 7 * MS, row[5] - 7 * MS) for row in rows]
    parts = [collectives_of(*rows, rank=0), collectives_of(*late, rank=1)]
    known = {1: Clock(1, (Reading(0, 9 * MS, 100),))}
    clocks = align_clocks(parts, known)
    assert [*known[1].readings] == [each for each in clocks[1].readings if each.at_ns == 0]
    assert clocks[0].offset_ns == pytest.approx(2 * MS, abs=clocks[0].error_ns)
    assert 600 <= clocks[0].error_ns < 5_000


@pytest.mark.parametrize("op", ["c10d::allreduce_", "c10d::_allgather_base_", "nccl:all_reduce"])
def test_collectives_of_torch_bound_clocks_by_their_kernels(op):
    """Rank 1's clock is 5 ms ahead; a host that only launches ends its span before the others begin."""
    parts = [
        collectives_of(
            *(("0,1", op, 1, k, k * MS + shift, k * MS + shift + 500) for k in range(20)), rank=rank
        )
        for rank, shift in enumerate((0, 5 * MS))
    ]
    assert list(align_clocks(parts)) == [0]
    on_device = [table.with_columns(is_on_device=pl.lit(value=True)) for table in parts]
    clock = align_clocks(on_device)[1]
    assert abs(clock.offset_ns + 5 * MS) <= clock.error_ns < 10_000
    # A rank that comes half a millisecond late is no other clock.
    late = pl.col("start_ns") + MS // 2 * (pl.col("rank") == 1)
    within = [
        table.with_columns(
            start_ns=late + (pl.col("rank") == 1) * -5 * MS, end_ns=pl.col("start_ns") + MS
        )
        for table in on_device
    ]
    assert list(align_clocks(within)) == [0]
    sends = [table.with_columns(op=pl.lit("c10d::send")) for table in on_device]
    assert list(align_clocks(sends)) == [0]


def test_a_clock_is_less_known_the_longer_ago_it_was_read():
    """A reading two hours ahead of the window: 100 ppm may have moved it by 0.72 s."""
    hours = 2 * 3600 * 1000 * MS
    parts = [
        collectives_of(("0,1", "all_reduce", 1, 0, hours, hours + 500), rank=rank)
        for rank in (0, 1)
    ]
    known = {0: Clock(0, (Reading(0, 0, 0),), "same"), 1: Clock(1, (Reading(0, 7, 10),))}
    clocks = align_clocks(parts, known)
    assert clocks[0] == known[0]
    read = {**known, 0: Clock(0, (Reading(0, 0, 0),))}  # as rank 0 writes it
    assert align_clocks(parts, read)[0] == read[0]
    assert clocks[1].error_ns == pytest.approx(0.72e9, rel=0.01)
    assert clocks[1].to_reference(np.array([hours])).tolist() == [hours + 7]
    # Two readings an hour apart show a drift of 20 ppm, which goes on.
    readings = (Reading(0, 0, 10), Reading(hours // 2, 72 * MS, 10))
    clock = align_clocks(parts, {**known, 1: Clock(1, readings)})[1]
    assert clock.to_reference(np.array([hours]))[0] - hours == pytest.approx(144 * MS, abs=50)
    assert clock.error_ns < 100


def test_ranks_with_equal_errors_are_all_used():
    """Two paths lead to rank 3, at different times, with the same error."""
    starts = {"0,1": 100, "0,2": 100, "1,3": 200, "2,3": 300}
    parts = [
        collectives_of(
            *(
                (members, "barrier", 0, 0, start, start + 10)
                for members, start in starts.items()
                if str(rank) in members
            ),
            rank=rank,
        )
        for rank in range(4)
    ]
    clocks = align_clocks(parts)
    assert {rank: (clock.offset_ns, clock.error_ns) for rank, clock in clocks.items()} == {
        0: (0, 0),
        1: (0, 10),
        2: (0, 10),
        3: (0, 20),
    }


def test_a_rank_without_shared_collectives_has_no_clock():
    parts = [
        collectives_of(("0,1", "all_reduce", 1, 0, 0, 9), rank=0),
        collectives_of(("2,3", "all_reduce", 1, 0, 0, 9), rank=2),
    ]
    assert list(align_clocks(parts)) == [0]
    assert align_clocks([]) == {}


def test_offsets_by_starts_are_wrong_by_the_late_arrival():
    """Rank 1's clock is 1000 ahead, and it arrives 40 late each time. Rank 2 shares nothing with rank 0."""
    first = [("0,1", "all_reduce", 1, k, 500 * k, 500 * k + 60) for k in range(5)]
    second = [("0,1", "all_reduce", 1, k, 500 * k + 1040, 500 * k + 1060) for k in range(5)]
    third = [("1,2", "all_reduce", 1, 0, 0, 9)]
    parts = [
        collectives_of(*first, rank=0),
        collectives_of(*second, rank=1),
        collectives_of(*third, rank=2),
    ]
    assert offsets_by_starts(parts) == {0: 0, 1: -1040}
    assert abs(align_clocks(parts)[1].offset_ns + 1000) <= align_clocks(parts)[1].error_ns <= 60
