"""Only the slow ranks are blamed, with their delay: eight real ranks with planted sleeps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import ppprof

MS = 1_000_000


def test_a_slow_rank_and_a_slow_link_are_named_with_what_they_cost(
    planted_run: Callable[..., ppprof.Run],
) -> None:
    # In a second, which 3 steps take, a busy machine may favour a rank of eight from first to last.
    found = planted_run("slow_rank_and_link", steps=12).cluster()
    assert found.slow_ranks.filter("is_slow")["rank"].to_list() == [3]
    assert found.slow_ranks["excess_ns"][0] == pytest.approx(4 * 60 * MS, rel=0.1)
    # On a machine with fewer cores than ranks, a link between ranks that share one may be slow, too.
    slow_links = found.slow_groups.filter("is_slow")
    assert slow_links["members"][0] == "1,5"
    assert slow_links["excess_ns"][0] == pytest.approx(200 * MS, rel=0.1)
    assert (slow_links["excess_ns"][1:] < 50 * MS).all()
    # Who waits for rank 3 first is the rank that shares its layers.
    longest = found.groups.filter(found.groups["axis"] == "mp").row(0, named=True)
    assert (longest["members"], longest["last_rank"]) == ("2,3", 3)


def test_without_a_planted_fault_no_rank_is_blamed(
    planted_run: Callable[..., ppprof.Run],
) -> None:
    found = planted_run("eight_ranks", steps=12).cluster()
    assert found.slow_ranks.height == 8
    assert not found.slow_ranks["is_slow"].any()
    assert not found.slow_groups["is_slow"].any()
    assert {clock.method for clock in found.clocks.values()} == {"exchange"}
    # Each collective has all its members: none is left unmatched.
    assert found.arrivals.height == sum(
        part.height / (members.count(",") + members.count(">") + 1)
        for table in found.collectives
        for (members,), part in table.group_by("members")
    )
