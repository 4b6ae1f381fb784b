from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.errors import UsageError
from ppprof.topology import AXES, Topology

topologies = st.builds(
    lambda degrees, order: Topology(tuple(degrees), tuple(order)),
    st.lists(st.integers(1, 4), min_size=5, max_size=5),
    st.permutations(AXES),
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
def test_select_tells_what_it_expects(selector: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Topology.of(dp=2, mp=2).select(selector)  # type: ignore[arg-type]
