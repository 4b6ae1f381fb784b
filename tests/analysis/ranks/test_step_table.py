"""Ranks side by side: joined, grouped, and who has most to do."""

from __future__ import annotations

import polars as pl
import pytest

from ppprof.analysis.ranks.step_breakdown import BREAKDOWN
from ppprof.analysis.ranks.step_table import COORDINATES, GROUPS, group_steps, join_ranks, slowest
from ppprof.errors import UsageError
from tests.fixtures.words import words


def parts(step, total, **times):
    """Rows of one step; ``exposed_mp=3`` is part and axis."""
    rows = [(step, "step", None, total)]
    for name, time_ns in times.items():
        part, _, axis = (
            name.partition("_") if name.startswith(("exposed", "hidden")) else (name, "", "")
        )
        rows.append((step, part, axis or None, time_ns))
    return pl.DataFrame(rows, BREAKDOWN, orient="row")


PLACED = pl.DataFrame(
    [
        {"rank": 0, "host": "a", "pp": 0, "mp": 0},
        {"rank": 1, "host": "a", "pp": 0, "mp": 1},
        {"rank": 2, "host": "b", "pp": 1, "mp": 0},
    ],
    COORDINATES,
)


def joined():
    """
    ::

        step 4   rank 0   ####====bb      # computation, = exposed mp, b bubble, . rest, h host-bound
                 rank 1   #######===
                 rank 2   ##.bbbbbb
        step 5   rank 0   ######bbbb
                 rank 2   ###...bh        (rank 1 has no step 5; rank 2 a device)
    """
    return join_ranks(
        [
            (2, 0, parts(4, 9, computation=2, rest=1, bubble=6, host_bound=0)),
            (0, 0, parts(4, 10, computation=4, exposed_mp=4, bubble=2, rest=0)),
            (1, 0, parts(4, 10, computation=7, exposed_mp=3, bubble=0, rest=0)),
            (0, 1, parts(5, 10, computation=6, exposed_mp=0, bubble=4, rest=0)),
            (2, 1, parts(5, 8, computation=3, rest=3, bubble=1, host_bound=1)),
        ],
        PLACED,
    )


def test_ranks_are_joined() -> None:
    table = joined()
    shown = words(
        "rank host pp mp window step step_ns computation_ns",
        "exposed_mp_ns bubble_ns host_bound_ns rest_ns",
    )
    assert table.select(shown).rows() == [
        (0, "a", 0, 0, 0, 4, 10, 4, 4, 2, None, 0),
        (0, "a", 0, 0, 1, 5, 10, 6, 0, 4, None, 0),
        (1, "a", 0, 1, 0, 4, 10, 7, 3, 0, None, 0),
        (2, "b", 1, 0, 0, 4, 9, 2, 0, 6, 0, 1),
        (2, "b", 1, 0, 1, 5, 8, 3, 0, 1, 1, 3),
    ]
    sizes = [name for name in table.columns if name.endswith("_ns")]
    assert all(table.schema[name] == pl.Int64 for name in sizes)
    assert sizes == words(
        "step_ns computation_ns exposed_mp_ns data_loading_ns bubble_ns",
        "host_bound_ns queued_ns rest_ns communication_mp_ns hidden_mp_ns host_launch_ns",
    )


def test_no_ranks_make_an_empty_table():
    table = join_ranks([], PLACED)
    assert table.is_empty()
    assert table.columns[:9] == [*COORDINATES, "window", "step"]


def test_by_rank_the_mean_of_its_steps_beside_its_place():
    rows = group_steps(joined(), ["rank"])
    shown = ["rank", "host", "pp", "num_steps", "step_ns", "bubble_ns", "host_bound_ns"]
    assert rows.select(shown).rows() == [
        (0, "a", 0, 2, 10, 3, None),
        (1, "a", 0, 1, 10, 0, None),
        (2, "b", 1, 2, 8.5, 3.5, 0.5),
    ]


@pytest.mark.parametrize("axis", ["pp", "host"])
def test_by_axis_or_host_the_mean_of_its_ranks_and_steps(axis):
    rows = group_steps(joined(), [axis])
    shown = [axis, "num_ranks", "num_steps", "computation_ns"]
    names = {"pp": (0, 1), "host": ("a", "b")}[axis]
    assert rows.select(shown).rows() == [(names[0], 2, 2, 17 / 3), (names[1], 1, 2, 2.5)]


def test_by_step_also_the_slowest_rank():
    rows = group_steps(joined(), ["step"])
    shown = ["step", "num_ranks", "step_ns", "slowest_rank", "slowest_own_ns", "median_own_ns"]
    assert rows.select(shown).rows() == [(4, 3, 29 / 3, 1, 7, 4.0), (5, 2, 9, 2, 7, 6.5)]


def test_several_groups_at_once():
    rows = group_steps(joined(), ["pp", "step"])
    assert rows.select("pp", "step", "num_ranks", "computation_ns").rows() == [
        (0, 4, 2, 5.5),
        (0, 5, 1, 6),
        (1, 4, 1, 2),
        (1, 5, 1, 3),
    ]


def test_the_slowest_waits_least_for_others_and_ties_go_to_the_lowest_rank():
    tied = join_ranks([(1, 0, parts(0, 8, rest=8)), (0, 0, parts(0, 9, rest=8, bubble=1))], PLACED)
    assert slowest(tied).rows() == [(0, 0, 8, 8.0)]


@pytest.mark.parametrize(
    ("by", "message"),
    [
        (["tp"], f"'tp': expected some of {', '.join(GROUPS)}"),
        (["sharding"], "'sharding': the ranks' hosts and coordinates are unknown"),
    ],
)
def test_groups_that_cannot_be(by, message):
    with pytest.raises(UsageError) as caught:
        group_steps(joined(), by)
    assert message in str(caught.value)
