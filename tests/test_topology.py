from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.errors import UsageError
from ppprof.topology import AXES, Topology

topologies = st.one_of(st.permutations(AXES), st.permutations([*AXES, "context"])).flatmap(
    lambda order: st.builds(
        lambda degrees: Topology(tuple(degrees), tuple(order)),
        st.lists(st.integers(1, 3), min_size=len(order), max_size=len(order)),
    )
)


@given(topologies)
def test_rank_and_coordinate_are_inverse(topology: Topology) -> None:
    ranks = range(topology.world_size)
    assert [topology.rank(topology.coordinate(rank)) for rank in ranks] == list(ranks)


@given(topologies, st.sampled_from(AXES))
def test_groups_partition_the_ranks(topology: Topology, axis: str) -> None:
    groups = topology.groups(axis)
    assert sorted(rank for group in groups for rank in group) == list(range(topology.world_size))
    assert {len(group) for group in groups} == {topology.degree(axis)}


@given(topologies)
def test_ranks_of_a_replica_differ_in_no_axis_of_the_data(topology: Topology) -> None:
    ranks = range(topology.world_size)
    copies = {rank: topology.replica(rank) for rank in ranks}
    assert set(copies.values()) == set(range(topology.replicas))
    for rank in ranks:
        here = topology.coordinate(rank)
        same = topology.select({"dp": here["dp"], "sharding": here["sharding"]})
        assert same == {other for other in ranks if copies[other] == copies[rank]}


@pytest.mark.parametrize(
    "order", [AXES[1:], (*AXES, "dp"), (*AXES, "cp 1"), (*AXES, "<b>"), (*AXES, "A")]
)
def test_an_order_names_each_axis_once(order: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="expected each of"):
        Topology((1,) * len(order), order)


def test_an_axis_of_its_own_name_counts_as_any_other() -> None:
    topology = Topology.of((*AXES, "moe_sharding"), moe_sharding=2, dp=2)
    assert topology.groups("moe_sharding") == [[0, 1], [2, 3]]
    assert topology.axis_of([0, 1]) == "moe_sharding"
    assert topology.label(3) == "dp1_pp0_sharding0_mp0_moesharding1"


def test_order_decides_the_layout() -> None:
    inner_dp = Topology.of(order=("pp", "mp", "sharding", "sep", "dp"), dp=2, mp=2)
    assert inner_dp.groups("dp") == [[0, 1], [2, 3]]
    assert Topology.of(dp=2, mp=2).groups("dp") == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("all", [0, 1, 2, 3]),
        (2, [2]),
        ("0, 2-3", [0, 2, 3]),
        ([1, 3], [1, 3]),
        ({"dp": 1}, [2, 3]),
        ({"dp": "all", "mp": 0}, [0, 2]),
    ],
)
def test_select(selector: object, expected: list[int]) -> None:
    assert sorted(Topology.of(dp=2, mp=2).select(selector)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("0,9", 'ranks "0,9": expected 0 to 3'),
        ("0-1500000000", 'ranks "0-1500000000": expected 0 to 3'),
        ([1, 4], r"ranks \[4\]: expected 0 to 3"),
        ("3-1", "expected all, or numbers and ranges"),
        ("first", "expected all, or numbers and ranges"),
        ({"tp": 0}, "unknown axis"),
        ({"mp": 2}, "mp: 2: expected all or 0 to 1"),
    ],
)
def test_select_rejects_invalid_selectors(selector: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Topology.of(dp=2, mp=2).select(selector)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([0, 8], "dp"),
        ([0, 4], "pp"),
        ([8, 10], "sharding"),
        ([14, 15], "mp"),
        ([0, 2, 8, 10], "dp+sharding"),
        ([10, 8, 2, 0], "dp+sharding"),
        (range(16), "dp+pp+sharding+mp"),
        ([0, 3], None),  # a diagonal of sharding and mp
        ([0, 2, 8], None),
        ([5], None),
        ([], None),
        ([8, 16], None),  # no such rank
        ([-1, 0], None),
    ],
)
def test_axis_of(ranks: Sequence[int], expected: str | None) -> None:
    assert Topology.of(dp=2, pp=2, sharding=2, mp=2).axis_of(ranks) == expected


def test_a_part_of_a_line_is_of_its_axis() -> None:
    grid = Topology.of(pp=4, mp=2)
    assert [grid.axis_of([2, 4]), grid.axis_of([1, 7])] == ["pp", "pp"]
    assert grid.axis_of([0, 1, 2, 3]) is None  # two stages of four, over both of mp


def test_several_axes_come_in_the_order_of_the_topology() -> None:
    inner_dp = Topology.of(order=("pp", "mp", "sharding", "sep", "dp"), dp=2, mp=2)
    assert inner_dp.axis_of(range(4)) == "mp+dp"


@given(topologies, st.data())
def test_axis_of_names_the_axes_whose_group_it_is(topology: Topology, data: st.DataObject) -> None:
    axes = data.draw(st.sets(st.sampled_from(topology.order)))
    start = data.draw(st.integers(0, topology.world_size - 1))
    here = topology.coordinate(start)
    group = sorted(topology.select({a: "all" if a in axes else here[a] for a in topology.order}))
    used = [axis for axis in topology.order if axis in axes and topology.degree(axis) > 1]
    assert topology.axis_of(group) == ("+".join(used) or None)
    if len(used) > 1:  # a corner is missing
        assert topology.axis_of(group[1:]) is None
