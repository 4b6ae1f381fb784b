from __future__ import annotations

import dataclasses

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import ppprof
from ppprof.analysis.ranks.cluster import Cluster, analyze_rank
from ppprof.analysis.ranks.collectives import COLLECTIVES, with_rank
from ppprof.analysis.ranks.passes import PASSES
from ppprof.analysis.ranks.step_table import (
    COORDINATES,
    join_ranks,
    with_windows,
    without_transfers,
)
from ppprof.rundir.clocks import Clock, Reading
from ppprof.trace import read
from tests.analysis.ranks.tables import collectives_of
from tests.fixtures.timeline import EPOCH_NS, Thread, span, write
from tests.fixtures.torch_traces import TorchTrace


def sent(name, start, end, peer):
    return span("Communication", f"{name}[axis=pp group=3 bytes=64 peers={peer}]", start, end)


def forward(stage, start, end):
    return span("Forward", f"forward[stage={stage} micro_batch=0]", start, end).around(
        span("Operator", "matmul dygraph", start, end)
    )


def cluster(tmp_path, *ranks, clocks=None):
    """What ranks do together, from their ProfileSteps' children and where these begin and end."""
    parts, bubbles, met = [], [], []
    for rank, (start, end, *children) in enumerate(ranks):
        step = span("ProfileStep", "ProfileStep#4", start, end, *children)
        found = analyze_rank(read(write(tmp_path / f"{rank}.pb", Thread(1, "main", (step,)))))
        parts.append((rank, 0, found.breakdown.parts))
        bubbles.append(with_windows([(rank, 0, found.breakdown.bubbles)]))
        met.append(with_rank(found.collectives, rank))
    places = pl.DataFrame({"rank": range(len(ranks))}).select(
        pl.col("rank").cast(dtype) if name == "rank" else pl.lit(None, dtype).alias(name)
        for name, dtype in COORDINATES.items()
    )
    exact = {rank: Clock(rank, (Reading(0, 0, 0),)) for rank in range(len(ranks))}
    return Cluster(join_ranks(parts, places), bubbles, met, [], {**exact, **(clocks or {})})


def rows_of(steps, *columns):
    return steps.select("rank", *(f"{name}_ns" for name in columns)).rows()


@pytest.mark.parametrize("ahead", [0, 700])
def test_the_time_after_both_arrived_is_transfer(tmp_path, ahead):
    """
    ::

        rank 0   FFFFssss__      stage 0; it sends from 4 to 8
        rank 1   rrrrrrrrFF      stage 1, by a clock that is ``ahead``: 4 of bubble, 4 of transfer
    """
    clocks = {1: Clock(1, (Reading(0, -ahead, 0),))}
    found = cluster(
        tmp_path,
        (0, 10, forward(0, 0, 4), sent("send", 4, 8, 1)),
        (ahead, ahead + 10, sent("recv", ahead, ahead + 8, 0), forward(1, ahead + 8, ahead + 10)),
        clocks=clocks,
    )
    columns = ("step", "computation", "exposed_pp", "bubble", "rest", "communication_pp")
    assert rows_of(found.steps_per_trace, *columns) == [
        (0, 10, 4, 0, 4, 2, 4),
        (1, 10, 2, 0, 8, 0, 8),
    ]
    assert rows_of(found.steps, *columns) == [(0, 10, 4, 4, 0, 2, 4), (1, 10, 2, 4, 4, 0, 8)]
    assert found.steps.columns == found.steps_per_trace.columns


def test_the_wait_ends_when_the_last_rank_arrives(tmp_path):
    """
    ::

        rank 0   FFaaaaaa__      4 of bubble, 2 of transfer
        rank 1   FFFFFFaa__
    """
    meeting = "all_reduce[axis=pp group=3 peers=0,1]"
    found = cluster(
        tmp_path,
        (0, 10, forward(0, 0, 2), span("Communication", meeting, 2, 8)),
        (0, 10, forward(1, 0, 6), span("Communication", meeting, 6, 8)),
    )
    assert rows_of(found.steps_per_trace, "exposed_pp", "bubble") == [(0, 0, 6), (1, 0, 2)]
    assert rows_of(found.steps, "exposed_pp", "bubble") == [(0, 2, 4), (1, 2, 0)]


@pytest.mark.parametrize("second_host", ["a", "b", None])
def test_a_rate_is_compared_with_the_link_within_a_host(tmp_path, second_host):
    recorded = cluster(
        tmp_path,
        (0, 10, forward(0, 0, 4), sent("send", 4, 8, 1)),
        (0, 10, sent("recv", 0, 8, 0), forward(1, 8, 10)),
    )
    hosts = pl.Series("host", ["a", second_host], dtype=pl.String)
    recorded = dataclasses.replace(
        recorded,
        steps_per_trace=recorded.steps_per_trace.with_columns(hosts),
        links={0: 64e9, 1: 32e9},
    )
    (row,) = recorded.bandwidths.rows(named=True)
    assert row["bus_bytes_per_s"] == pytest.approx(64 / 4e-9)
    assert row["link_ratio"] == (pytest.approx(0.5) if second_host == "a" else None)


def test_without_the_other_side_it_stays_in_the_bubble(tmp_path):
    found = cluster(tmp_path, (0, 10, forward(0, 0, 4), sent("send", 4, 8, 1)))
    assert_frame_equal(found.steps, found.steps_per_trace)


ticks = st.integers(0, 40)
stretches = st.lists(st.tuples(ticks, ticks).map(sorted), max_size=6)


@given(stretches, stretches, stretches, st.sampled_from(["send", "c10d::send"]))
def test_against_counting(bubble, transfers, meetings, send):
    """Two ranks, the second of which always comes last: at the start of each transfer."""
    in_bubble = {tick for start, end in bubble for tick in range(start, end)}
    rows = {0: [], 1: []}
    for op, members, axis, intervals in [
        (send, "1>0", "dp+pp", transfers),
        ("all_reduce", "0,1", "dp+pp", meetings),
    ]:
        for index, (start, end) in enumerate(intervals):
            for rank, begun in ((0, start - 3), (1, start)):
                rows[rank].append(
                    (members, axis, op, 4, index, rank, EPOCH_NS + begun, EPOCH_NS + end, 64, False)
                )
    match_collectives = pl.DataFrame(rows[0] + rows[1], COLLECTIVES, orient="row")
    sets = sorted(in_bubble)
    table = pl.DataFrame(
        [(0, 0, 4, EPOCH_NS + tick, EPOCH_NS + tick + 1) for tick in sets],
        dict.fromkeys(("rank", "window", "step", "start_ns", "end_ns"), pl.Int64),
        orient="row",
    )
    steps = pl.DataFrame(
        {
            "rank": [0],
            "window": [0],
            "step": [4],
            "exposed_pp_ns": [7],
            "exposed_dp+pp_ns": [5],
            "bubble_ns": [len(in_bubble)],
        }
    )
    sent = {tick for start, end in transfers for tick in range(start, end)} & in_bubble
    met = {tick for start, end in meetings for tick in range(start, end)} & in_bubble - sent
    found = without_transfers(steps, [table], match_collectives, {})
    assert found.row(0)[3:] == (
        7 + len(sent),
        5 + len(met),
        len(in_bubble) - len(sent) - len(met),
    )


def pipeline_of_torch(folder, *, has_other_rank):
    """Rank 0 sends two activations to rank 1, which sends the gradients back; rank 1 comes 20 us later.

    Args:
        has_other_rank: whether the files name the other rank of each transfer, not only the group.
    """
    folder.mkdir()
    for rank, names in enumerate(
        (("send", "send", "recv", "recv"), ("recv", "recv", "send", "send"))
    ):
        trace = TorchTrace(device=rank, world_size=2)
        trace.step(0, 0, 1000)
        for number, name in enumerate(names):
            side = {"Dst Rank" if name == "send" else "Src Rank": 1 - rank}
            args = {
                **{"Collective name": name, "In msg nelems": 16, "dtype": "Float"},
                **{"Process Group Name": "1", "Process Group Ranks": "[0, 1]"},
                **(side if has_other_rank else {}),
            }
            at = 100 + 100 * number + 20 * rank
            trace.op({"send": "c10d::send", "recv": "c10d::recv_"}[name], at, 60)
            trace.op("record_param_comms", at + 5, 50, **args)
            trace.launch(at + 10, "ncclDevKernel_SendRecv", at + 20, 70 - 20 * rank, **args)
        trace.write(folder / f"{rank}.json")
    return ppprof.open(folder).cluster()


def test_transfers_of_torch_meet_the_other_side(tmp_path):
    """The k-th send of a rank was taken for the k-th send of the other, 200 us late."""
    found = pipeline_of_torch(tmp_path / "a", has_other_rank=True)
    table = found.arrivals.select("members", "op", "index", "last_rank", "wait_ns", "bytes")
    assert table.rows() == [
        (members, "c10d::send", index, 1, 10_000, 64)
        for members in ("0>1", "1>0")
        for index in (0, 1)
    ]
    without = pipeline_of_torch(tmp_path / "b", has_other_rank=False)
    assert without.arrivals.is_empty()
    assert without._roles == found._roles == {0: "rank 0", 1: "rank 1"}


@pytest.mark.parametrize("op", ["c10d::send", "c10d::recv_", "nccl:send 1->2", "isend"])
def test_ranks_that_send_to_unknown_ranks_may_be_stages(op, tmp_path):
    found = cluster(tmp_path, *[(0, 10, forward(0, 0, 9))] * 3)
    reduced = ("0,1,2", "c10d::allreduce_", 4, 0, 0, 9)
    parts = [
        collectives_of(reduced, *[("1", op, 4, 0, 9, 10)] * (rank == 1), rank=rank)
        for rank in range(3)
    ]
    found = dataclasses.replace(found, collectives=parts)
    assert found._roles == {0: "", 1: "rank 1", 2: ""}


@pytest.mark.parametrize(("paused", "chosen"), [((), {4, 5}), ({5}, {4}), ({4, 5}, {4, 5})])
def test_steps_with_a_pause_on_any_rank_are_not_replayed(paused, chosen, tmp_path):
    """Rank 0 saves a checkpoint; how long the others pause is another matter."""
    found = cluster(tmp_path, *[(0, 10, forward(0, 0, 9))] * 2)
    later = found.steps_per_trace.with_columns(step=pl.lit(5, pl.Int64))
    tables = [
        pl.DataFrame(
            [
                (rank, step, "step", None, None, 0, 9, step in paused and not rank)
                for step in (4, 5)
            ],
            PASSES,
            orient="row",
        )
        for rank in range(2)
    ]
    steps = pl.concat([found.steps_per_trace, later])
    found = dataclasses.replace(found, steps_per_trace=steps, passes=tables)
    assert set(pl.concat(found.selected_passes)["step"]) == chosen
