from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.analysis.ranks.arrivals import arrivals, by_group
from ppprof.analysis.ranks.matching import (
    COLLECTIVES,
    align,
    collectives,
    match_collectives,
    offsets_by_starts,
)
from ppprof.rundir.clocks import Clock, Reading
from ppprof.trace import read
from tests.fixtures.timeline import EPOCH_NS, Thread, kernel, launch, span, write

MS = 1_000_000


def told(op, start, end, group="0,1", num_bytes=64):
    axis = "pp" if len(group) == 1 else "dp"
    name = f"{op}[axis={axis} group=3 bytes={num_bytes} dtype=float32 peers={group}]"
    return span("Communication", name, start, end)


def parts_of(*rows, rank):
    """A rank's table from (members, op, step, index, start_ns, end_ns)."""
    names = ["members", "op", "step", "index", "start_ns", "end_ns"]
    table = pl.DataFrame(rows, names, orient="row")
    more = {"axis": pl.lit("dp"), "rank": pl.lit(rank), "bytes": pl.lit(100)}
    return table.with_columns(**more).select(
        pl.col(name).cast(dtype) for name, dtype in COLLECTIVES.items()
    )


def test_what_a_rank_takes_part_in(tmp_path):
    """
    ::

        main     |ProfileStep#4                              |ProfileStep#5
                  all_reduce  isend all_reduce (with wait)    all_reduce  barrier
        sender                 send
        receiver      recv
    """
    main = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#4", 0, 100).around(
            told("all_reduce", 10, 20),
            told("isend", 30, 31, "3"),
            told("all_reduce", 40, 50),
            span("Communication", "wait[op=all_reduce group=3 peers=0,1]", 50, 60),
        ),
        span("ProfileStep", "ProfileStep#5", 100, 200).around(
            told("all_reduce", 110, 120),
            told("barrier", 130, 140, "0,1,2"),
            span("Communication", "all_reduce", 150, 160),
        ),
    )
    sender = Thread(2, "sender", (told("send", 31, 70, "3"),))
    receiver = Thread(3, "receiver", (told("recv", 5, 9, "3"),))
    trace = read(write(tmp_path / "a.pb", main, sender, receiver))
    found = collectives(trace, 1)
    assert found.columns == list(COLLECTIVES)
    assert found.select(
        "members", "op", "step", "index", pl.col("start_ns") - EPOCH_NS, pl.col("end_ns") - EPOCH_NS
    ).rows() == [
        ("3>1", "send", 4, 0, 5, 9),
        ("0,1", "all_reduce", 4, 0, 10, 20),
        ("1>3", "send", 4, 0, 31, 70),
        ("0,1", "all_reduce", 4, 1, 40, 50),
        ("0,1", "all_reduce", 5, 0, 110, 120),
        ("0,1,2", "barrier", 5, 0, 130, 140),
    ]


def test_a_blocking_isend_is_the_transfer_where_nothing_else_is(tmp_path):
    trace = read(write(tmp_path / "a.pb", Thread(1, "main", (told("isend", 3, 9, "3"),))))
    assert collectives(trace, 1).select("members", "op").rows() == [("1>3", "send")]


def test_kernels_tell_when(tmp_path):
    """The span launches at 10 to 14, the kernels below it run at 30 to 50."""
    reduces = launch(11, 12, kernel("nccl_a", 30, 40), kernel("nccl_b", 42, 50))
    name = "all_reduce[axis=dp group=3 bytes=64 dtype=float32 peers=0,1]"
    other = span("Operator", "relu", 20, 25, launch(21, 22, kernel("relu", 60, 70)))
    reduce = span("Communication", name, 10, 14, span("Operator", "inner", 11, 13, reduces))
    trace = read(write(tmp_path / "a.pb", Thread(1, "main", (reduce, other))))
    (row,) = collectives(trace, 0).rows(named=True)
    assert (row["start_ns"] - EPOCH_NS, row["end_ns"] - EPOCH_NS) == (30, 50)


def test_only_what_all_members_have_is_matched():
    first = parts_of(("0,1", "all_reduce", 1, 0, 0, 9), ("0,1,2", "barrier", 1, 0, 9, 12), rank=0)
    second = parts_of(("0,1", "all_reduce", 1, 0, 4, 9), ("0,1", "all_reduce", 1, 1, 5, 9), rank=1)
    clocks = {1: Clock(1, (Reading(0, 100, 1),))}
    assert match_collectives([first, second], clocks).select(
        "rank", "start_ns", "end_ns"
    ).rows() == [
        (0, 0, 9),
        (1, 104, 109),
    ]


def test_a_rank_that_is_no_member_is_none():
    parts = [parts_of(("0,2", "barrier", 1, 0, 0, 9), rank=rank) for rank in (0, 1)]
    assert match_collectives(parts, {}).is_empty()


def test_the_last_one_costs_the_others():
    """
    ::

        rank 0   [..................==]     0 to 20
        rank 1        [.............==]     5
        rank 2              [.......==]    11
        rank 3                    [.==]    17: the last; the median is the second, at 5
    """
    starts = (0, 5, 11, 17)
    members = "0,1,2,3"
    parts = [
        parts_of((members, "all_reduce", 1, 0, start, 20), rank=rank)
        for rank, start in enumerate(starts)
    ]
    (row,) = arrivals(match_collectives(parts, {}), {}).rows(named=True)
    assert (row["last_rank"], row["cost_ns"], row["transfer_ns"]) == (3, 12, 3)
    assert row["wait_ns"] == (17 + 12 + 6 + 0) // 4
    assert row["verdict"] == "mixed"  # 8 of 11 on average are waiting


@pytest.mark.parametrize(
    ("starts", "end", "error", "verdict"),
    [
        ((0, 90), 100, 0, "skew"),
        ((0, 90), 100, 44, "skew"),
        ((0, 90), 100, 45, "inconclusive"),  # either clock may be 45 off, and the skew is 90
        ((0, 2), 100, 0, "transfer"),
        ((0, 2), 100, 5, "transfer"),  # whatever the skew within the error, the link is most of it
        ((0, 2), 100, 20, "inconclusive"),
        ((0, 50), 75, 0, "mixed"),
    ],
)
def test_a_verdict_is_no_better_than_the_clocks(starts, end, error, verdict):
    parts = [
        parts_of(("0,1", "all_reduce", 1, 0, start, end), rank=rank)
        for rank, start in enumerate(starts)
    ]
    clocks = {rank: Clock(rank, (Reading(0, 0, error),)) for rank in (0, 1)}
    (row,) = arrivals(match_collectives(parts, clocks), clocks).rows(named=True)
    assert (row["verdict"], row["error_ns"]) == (verdict, 2 * error)


def test_groups_tell_who_is_late_and_how_fast_the_link_is():
    parts = [
        parts_of(
            *(
                ("0,1,2", "all_reduce", step, 0, 1000 * step + late, 1000 * step + 100)
                for step, late in enumerate(lates)
            ),
            rank=rank,
        )
        for rank, lates in enumerate([(0, 0, 0, 0), (0, 10, 20, 0), (90, 80, 60, 40)])
    ]
    (row,) = by_group(arrivals(match_collectives(parts, {}), {}), num_steps=4).rows(named=True)
    assert (row["last_rank"], row["last_ratio"], row["calls"]) == (2, 1.0, 4)
    assert row["cost_ns"] == (90 + 70 + 40 + 40) / 4
    assert row["transfer_ns"] == (10 + 20 + 40 + 60) / 4
    # 4 x 100 bytes in 130 ns; a ring of 3 moves each 2 x 2/3 times.
    assert row["bus_bytes_per_s"] == pytest.approx(400 * 4 / 3 / 130e-9)


@given(
    offsets=st.lists(st.integers(-(10**9), 10**9), min_size=3, max_size=3),
    seed=st.integers(0, 2**32 - 1),
)
def test_clocks_are_found_from_what_had_to_happen_before_what(offsets, seed):
    """Ranks 0 and 1 reduce together, 1 and 2 as well, and 2 and 3 send to each other."""
    rng = np.random.default_rng(seed)
    true = [0, *offsets]  # the reference clock minus the rank's own
    rows = {rank: [] for rank in range(4)}
    for at in range(0, 400 * MS, 10 * MS):
        for members in ("0,1", "1,2", "2>3", "3>2"):
            ranks = [int(rank) for rank in members.replace(">", ",").split(",")]
            arrive = at + rng.integers(0, 3 * MS, 2)
            leave = arrive.max() + rng.integers(0, MS, 2)
            if ">" in members:  # a sender may leave at once
                leave[0] = arrive[0] + 1
            op = "send" if ">" in members else "all_reduce"
            for rank, start, end in zip(ranks, arrive.tolist(), leave.tolist()):
                own = true[rank]
                rows[rank].append((members, op, 1, at // MS, start - own, end - own))
    parts = [parts_of(*rows[rank], rank=rank) for rank in rows]
    clocks = align(parts)
    assert {rank: clock.method for rank, clock in clocks.items()} == {
        0: "same",
        1: "collectives",
        2: "collectives",
        3: "collectives",
    }
    for rank, clock in clocks.items():
        assert abs(clock.offset_ns - true[rank]) <= clock.error_ns < 3 * MS


def test_a_measured_clock_stands_and_others_are_bound_to_it():
    rows = [("0,1", "all_reduce", 1, k, k * MS, k * MS + 500) for k in range(20)]
    late = [(*row[:4], row[4] - 7 * MS, row[5] - 7 * MS) for row in rows]
    parts = [parts_of(*rows, rank=0), parts_of(*late, rank=1)]
    known = {1: Clock(1, (Reading(0, 9 * MS, 100),))}
    clocks = align(parts, known)
    assert clocks[1] is known[1]
    assert clocks[0].offset_ns == pytest.approx(2 * MS, abs=clocks[0].error_ns)
    assert 600 <= clocks[0].error_ns < 5_000


def test_ranks_that_are_known_as_well_are_bound_all_the_same():
    """Of the two ways to rank 3, at different times, none is better."""
    starts = {"0,1": 100, "0,2": 100, "1,3": 200, "2,3": 300}
    parts = [
        parts_of(
            *(
                (members, "barrier", 0, 0, start, start + 10)
                for members, start in starts.items()
                if str(rank) in members
            ),
            rank=rank,
        )
        for rank in range(4)
    ]
    clocks = align(parts)
    assert {rank: (at.offset_ns, at.error_ns) for rank, at in clocks.items()} == {
        0: (0, 0),
        1: (0, 10),
        2: (0, 10),
        3: (0, 20),
    }


def test_a_rank_that_met_nobody_has_no_clock():
    parts = [
        parts_of(("0,1", "all_reduce", 1, 0, 0, 9), rank=0),
        parts_of(("2,3", "all_reduce", 1, 0, 0, 9), rank=2),
    ]
    assert list(align(parts)) == [0]
    assert align([]) == {}


def test_starts_alone_are_off_by_who_came_late():
    """Rank 1's clock is 1000 ahead, and it comes 40 late every time; rank 2 never met rank 0."""
    first = [("0,1", "all_reduce", 1, k, 500 * k, 500 * k + 60) for k in range(5)]
    second = [("0,1", "all_reduce", 1, k, 500 * k + 1040, 500 * k + 1060) for k in range(5)]
    third = [("1,2", "all_reduce", 1, 0, 0, 9)]
    parts = [parts_of(*first, rank=0), parts_of(*second, rank=1), parts_of(*third, rank=2)]
    assert offsets_by_starts(parts) == {0: 0, 1: -1040}
    assert abs(align(parts)[1].offset_ns + 1000) <= align(parts)[1].error_ns <= 60
