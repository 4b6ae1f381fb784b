"""Collectives of each rank, matched across ranks, and their arrivals."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.analysis.profile.event_tree import EventArrays
from ppprof.analysis.ranks.arrivals import arrivals, by_group, by_size
from ppprof.analysis.ranks.collectives import (
    COLLECTIVES,
    collectives,
    kernel_times,
    linked_rows,
    match_collectives,
)
from ppprof.rundir.clocks import Clock, Reading
from ppprof.trace import read
from tests.analysis.ranks.tables import collectives_of
from tests.fixtures.random_traces import traces
from tests.fixtures.timeline import EPOCH_NS, Thread, kernel, launch, memcpy, span, write


def comm_span(op, start, end, group="0,1", num_bytes=64):
    axis = "pp" if len(group) == 1 else "dp"
    name = f"{op}[axis={axis} group=3 bytes={num_bytes} dtype=float32 peers={group}]"
    return span("Communication", name, start, end)


def test_a_ranks_collectives_and_transfers_are_table(tmp_path):
    """
    ::

        main     |ProfileStep#4                              |ProfileStep#5
                  all_reduce  isend all_reduce (with wait)    all_reduce  barrier
        sender                 send
        receiver      recv
    """
    main = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#4", 0, 100).around(
            comm_span("all_reduce", 10, 20),
            comm_span("isend", 30, 31, "3"),
            comm_span("all_reduce", 40, 50),
            span("Communication", "wait[op=all_reduce group=3 peers=0,1]", 50, 60),
        ),
        span("ProfileStep", "ProfileStep#5", 100, 200).around(
            comm_span("all_reduce", 110, 120),
            comm_span("barrier", 130, 140, "0,1,2"),
            span("Communication", "all_reduce", 150, 160),
        ),
    )
    sender = Thread(2, "sender", (comm_span("send", 31, 70, "3"),))
    receiver = Thread(3, "receiver", (comm_span("recv", 5, 9, "3"),))
    trace = read(write(tmp_path / "a.pb", main, sender, receiver))
    table = collectives(trace, 1)
    assert table.columns == list(COLLECTIVES)
    assert table.select(
        "members", "op", "step", "index", pl.col("start_ns") - EPOCH_NS, pl.col("end_ns") - EPOCH_NS
    ).rows() == [
        ("3>1", "send", 4, 0, 5, 9),
        ("0,1", "all_reduce", 4, 0, 10, 20),
        ("1>3", "send", 4, 0, 31, 70),
        ("0,1", "all_reduce", 4, 1, 40, 50),
        ("0,1", "all_reduce", 5, 0, 110, 120),
        ("0,1,2", "barrier", 5, 0, 130, 140),
    ]


def test_a_blocking_isend_without_a_send_is_the_transfer(tmp_path):
    trace = read(write(tmp_path / "a.pb", Thread(1, "main", (comm_span("isend", 3, 9, "3"),))))
    assert collectives(trace, 1).select("members", "op").rows() == [("1>3", "send")]


def test_a_posted_transfer_is_the_transfer_if_it_starts_no_other_span(tmp_path):
    """
    ::

        main     send  isend   isend    irecv (a recv in it)   irecv
        sender                  send
    """
    main = Thread(1, "main").around(
        comm_span("send", 0, 4, "3"),
        comm_span("isend", 10, 12, "3"),
        comm_span("isend", 20, 22, "3", 128),
        comm_span("irecv", 30, 40, "3").around(comm_span("recv", 31, 39, "3")),
        comm_span("irecv", 50, 52, "3"),
    )
    sender = Thread(2, "sender", (comm_span("send", 21, 60, "3", 128),))
    trace = read(write(tmp_path / "a.pb", main, sender))
    table = collectives(trace, 1)
    assert table.select("members", "index", "bytes", pl.col("start_ns") - EPOCH_NS).rows() == [
        ("1>3", 0, 64, 0),
        ("1>3", 1, 64, 10),
        ("1>3", 2, 128, 21),
        ("3>1", 0, 64, 31),
        ("3>1", 1, 64, 50),
    ]
    rows = linked_rows(trace)
    names = trace.events["name"].cast(pl.String).gather(rows["row"])
    linked = rows.select("members", "index", "is_post", name=names).sort("members", "index", "name")
    assert linked.rows() == [
        ("-1>3", 0, False, "send"),
        ("-1>3", 1, False, "isend"),
        ("-1>3", 2, True, "isend"),
        ("-1>3", 2, False, "send"),
        ("3>-1", 0, True, "irecv"),
        ("3>-1", 0, False, "recv"),
        ("3>-1", 1, False, "irecv"),
    ]


def test_kernels_time_their_collective(tmp_path):
    """The span launches at 10 to 14, the kernels below it run at 30 to 50."""
    reduces = launch(11, 12, kernel("nccl_a", 30, 40), kernel("nccl_b", 42, 50))
    name = "all_reduce[axis=dp group=3 bytes=64 dtype=float32 peers=0,1]"
    other = span("Operator", "relu", 20, 25, launch(21, 22, kernel("relu", 60, 70)))
    reduce = span("Communication", name, 10, 14, span("Operator", "inner", 11, 13, reduces))
    trace = read(write(tmp_path / "a.pb", Thread(1, "main", (reduce, other))))
    (row,) = collectives(trace, 0).rows(named=True)
    assert (row["start_ns"] - EPOCH_NS, row["end_ns"] - EPOCH_NS) == (30, 50)


def test_a_batch_is_several_transfers_with_the_times_of_its_kernel(tmp_path):
    """Rank 1 sends to both neighbours and receives from one; all in one kernel, at 30 to 40."""
    name = "batch_isend_irecv[axis=pp group=3 bytes=96 dtype=float32 peers=>0:32,<0:32,>2:32]"
    batch = span("Communication", name, 0, 9, launch(7, 8, kernel("ncclSendRecv", 30, 40)))
    late = span("Communication", "recv[axis=pp group=3 bytes=8 dtype=float32 peers=0]", 10, 19)
    late = late.around(launch(17, 18, kernel("ncclSendRecv", 50, 60)))
    trace = read(write(tmp_path / "a.pb", Thread(1, "main", (batch, late))))
    rows = collectives(trace, 1).select("members", "axis", "op", "index", "bytes", "end_ns").rows()
    assert [(*row[:-1], row[-1] - EPOCH_NS) for row in rows] == [
        ("1>0", "pp", "send", 0, 32, 40),
        ("0>1", "pp", "send", 0, 32, 40),
        ("1>2", "pp", "send", 0, 32, 40),
        ("0>1", "pp", "send", 1, 8, 60),
    ]


def test_on_a_device_a_span_without_device_events_is_counted_and_has_no_time(tmp_path):
    """The second of four has none; the third ran as a copy; the fourth copies, then has a kernel."""
    name = "all_gather[axis=dp group=3 bytes=64 dtype=float32 peers=0,1]"
    inside = [
        (launch(1, 2, kernel("nccl_a", 30, 40)),),
        (),
        (launch(21, 22, memcpy(50, 60, 64, kind="DtoD"), name="cudaMemcpyAsync"),),
        (launch(31, 32, memcpy(60, 65, 64), kernel("nccl_b", 70, 80)),),
    ]
    spans = [span("Communication", name, 10 * i, 10 * i + 5, *it) for i, it in enumerate(inside)]
    table = collectives(read(write(tmp_path / "a.pb", Thread(1, "main", tuple(spans)))), 0)
    times = table.select("index", pl.col("start_ns", "end_ns") - EPOCH_NS)
    assert times.rows() == [(0, 30, 40), (2, 50, 60), (3, 70, 80)]


def test_only_collectives_of_all_members_are_matched():
    first = collectives_of(
        ("0,1", "all_reduce", 1, 0, 0, 9), ("0,1,2", "barrier", 1, 0, 9, 12), rank=0
    )
    second = collectives_of(
        ("0,1", "all_reduce", 1, 0, 4, 9), ("0,1", "all_reduce", 1, 1, 5, 9), rank=1
    )
    clocks = {1: Clock(1, (Reading(0, 100, 1),))}
    assert match_collectives([first, second], clocks).select(
        "rank", "start_ns", "end_ns"
    ).rows() == [
        (0, 0, 9),
        (1, 104, 109),
    ]


def test_a_rank_outside_the_group_is_not_matched():
    parts = [collectives_of(("0,2", "barrier", 1, 0, 0, 9), rank=rank) for rank in (0, 1)]
    assert match_collectives(parts, {}).is_empty()


def test_two_windows_of_one_rank_are_no_two_members():
    """Both windows number their steps from 0, and rank 1 has no trace."""
    twice = [("0,1", "all_reduce", 0, 0, start, start + 9) for start in (0, 1000)]
    assert match_collectives([collectives_of(*twice, rank=0)], {}).is_empty()


def test_the_last_rank_costs_the_others():
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
        collectives_of((members, "all_reduce", 1, 0, start, 20), rank=rank)
        for rank, start in enumerate(starts)
    ]
    (row,) = arrivals(match_collectives(parts, {}), {}).rows(named=True)
    assert (row["last_rank"], row["cost_ns"], row["transfer_ns"]) == (3, 12, 3)
    assert row["wait_ns"] == (17 + 12 + 6 + 0) // 4
    assert row["verdict"] == "mixed"  # 8 of 11 on average are waiting


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=2, max_size=5),
    st.booleans(),
)
def test_wait_and_transfer_are_the_time_of_a_mean_member(times, has_clocks):
    """Also where clocks are wrong or unknown, and a member ends before the last one arrives."""
    members = ",".join(map(str, range(len(times))))
    parts = [
        collectives_of((members, "all_reduce", 1, 0, start, start + length), rank=rank)
        for rank, (start, length) in enumerate(times)
    ]
    clocks = {rank: Clock(rank, (Reading(0, 0, 0),)) for rank in range(len(times) * has_clocks)}
    (row,) = arrivals(match_collectives(parts, clocks), clocks).rows(named=True)
    whole = sum(length for _, length in times) / len(times)
    assert row["wait_ns"] + row["transfer_ns"] == int(whole)
    assert row["transfer_ns"] >= 0
    last = max(start for start, _ in times)
    if not has_clocks:
        assert row["transfer_ns"] == min(length for _, length in times)
    elif all(start + length >= last for start, length in times):
        waits = sum(last - start for start, _ in times) / len(times)
        assert row["wait_ns"] == pytest.approx(waits, abs=1)


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
        collectives_of(("0,1", "all_reduce", 1, 0, start, end), rank=rank)
        for rank, start in enumerate(starts)
    ]
    clocks = {rank: Clock(rank, (Reading(0, 0, error),)) for rank in (0, 1)}
    (row,) = arrivals(match_collectives(parts, clocks), clocks).rows(named=True)
    assert (row["verdict"], row["error_ns"]) == (verdict, 2 * error)


def test_groups_name_the_late_rank_and_the_bandwidth():
    parts = [
        collectives_of(
            *(
                ("0,1,2", "all_reduce", step, 0, 1000 * step + late, 1000 * step + 100)
                for step, late in enumerate(lates)
            ),
            rank=rank,
        )
        for rank, lates in enumerate([(0, 0, 0, 0), (0, 10, 20, 0), (90, 80, 60, 40)])
    ]
    (row,) = by_group(arrivals(match_collectives(parts, {}), {}), {"0,1,2": 4}).rows(named=True)
    assert (row["last_rank"], row["last_ratio"], row["calls"]) == (2, 1.0, 4)
    assert row["cost_ns"] == (90 + 70 + 40 + 40) / 4
    assert row["transfer_ns"] == (10 + 20 + 40 + 60) / 4
    # 4 x 100 bytes in 130 ns; a ring of 3 moves each 2 x 2/3 times.
    assert row["bus_bytes_per_s"] == pytest.approx(400 * 4 / 3 / 130e-9)


@pytest.mark.parametrize(
    ("op", "algorithm", "bus"),
    [
        ("c10d::allreduce_", 1, 1.5),
        ("c10d::_allgather_base_", 4, 3),
        ("nccl:_all_gather_base", 4, 3),
        ("c10d::_reduce_scatter_base_", 1, 0.75),
        ("c10d::alltoall_base_", 1, 0.75),
        ("c10d::broadcast_", 1, 1),
    ],
)
def test_torch_names_collectives_otherwise(op, algorithm, bus):
    table = pl.DataFrame(
        {"members": ["0,1,2,3"], "op": [op], "axis": [None], "bytes": [100], "transfer_ns": [100]}
    )
    row = by_size(table, {"0,1,2,3": 1}).row(0, named=True)
    assert row["algorithm_bytes_per_s"] == pytest.approx(algorithm * 1e9)
    assert row["bus_bytes_per_s"] == pytest.approx(bus * 1e9)


def test_sizes_have_their_bandwidths():
    calls = [
        ("0,1,2,3", "all_reduce", 0, 0, 0, 60),
        ("0,1,2,3", "all_reduce", 0, 1, 100, 140),
        ("0,1,2,3", "all_gather", 0, 0, 200, 300),
        ("0>1", "send", 0, 0, 400, 450),
    ]
    parts = [
        collectives_of(*(call for call in calls if str(rank) in call[0]), rank=rank)
        for rank in range(4)
    ]
    links = {"0,1,2,3": 6e9}
    num_steps = {"0,1,2,3": 2, "0>1": 2}
    table = by_size(arrivals(match_collectives(parts, {}), {}), num_steps, links)
    assert table.select("op", "ranks", "bytes", "calls", "transfer_ns").rows() == [
        ("all_gather", 4, 100, 0.5, 100),
        ("all_reduce", 4, 100, 1.0, 50),
        ("send", 2, 100, 0.5, 50),
    ]
    # nccl-tests: the size of an all_gather is that of all ranks, of which a rank receives 3/4.
    assert table["algorithm_bytes_per_s"].to_list() == pytest.approx([400 / 100e-9, 2e9, 2e9])
    assert table["bus_bytes_per_s"].to_list() == pytest.approx([300 / 100e-9, 3e9, 2e9])
    assert table["link_ratio"].to_list() == [pytest.approx(0.5), pytest.approx(0.5), None]


@given(threads=traces(newer_types=True), data=st.data())
def test_a_kernel_belongs_to_the_innermost_chosen_event_around_its_launch(
    threads: tuple[Thread, ...], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    trace = read(write(tmp_path_factory.mktemp("random") / "a.pb", *threads))
    events = trace.events.rows(named=True)
    hosts = [row for row, event in enumerate(events) if event["depth"] is not None]
    chosen = data.draw(st.lists(st.sampled_from(hosts), unique=True) if hosts else st.just([]))
    launched: dict[int, list[dict]] = {row: [] for row in chosen}
    for event in events:
        if event["device"] is not None:
            row = event["parent"]
            while row is not None and row not in launched:
                row = events[row]["parent"]
            if row is not None:
                launched[row].append(event)
    wanted = {}
    for row, inside in launched.items():
        kernels = [event for event in inside if event["category"] not in ("Memcpy", "Memset")]
        times = [
            (event["start_ns"], event["start_ns"] + event["dur_ns"]) for event in kernels or inside
        ]
        if not any(event["device"] is not None for event in events):
            times = [(events[row]["start_ns"], events[row]["start_ns"] + events[row]["dur_ns"])]
        if times:
            wanted[row] = (min(start for start, _ in times), max(end for _, end in times))
    (start, end), is_timed = kernel_times(EventArrays(trace), np.array(chosen, np.int64))
    found = zip(chosen, is_timed.tolist(), zip(start.tolist(), end.tolist()))
    assert {row: times for row, has_time, times in found if has_time} == wanted
