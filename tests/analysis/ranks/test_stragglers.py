from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest

from ppprof.analysis.ranks.stragglers import slow_groups, slow_ranks

MS = 1_000_000
ROLES = {rank: f"stage {rank // 2 % 2}" for rank in range(8)}


def own_times(slow=None, by=0, *, steps=10, noise=5, seed=0):
    """Eight ranks; a step of 400 ms, 100 of them a rank's own, more or less."""
    rng = np.random.default_rng(seed)
    rows = [
        (
            rank,
            step,
            int((100 + noise * rng.standard_normal() + by * (rank == slow)) * MS),
            400 * MS,
        )
        for rank in range(8)
        for step in range(steps)
    ]
    return pl.DataFrame(rows, ["rank", "step", "own_ns", "step_ns"], orient="row")


def transfers(slow=None, by=0, *, steps=10, noise=0.5, seed=0):
    """Four dp groups that reduce three times a step, for 3 ms, more or less."""
    rng = np.random.default_rng(seed)

    def transfer_ns(members):
        return int((3 + noise * rng.random() + by * (members == slow)) * MS)

    rows = [
        (members, "dp", "all_reduce", step, index, 64, transfer_ns(members))
        for members in ("0,4", "1,5", "2,6", "3,7")
        for step in range(steps)
        for index in range(3)
    ]
    names = ["members", "axis", "op", "step", "index", "bytes", "transfer_ns"]
    return pl.DataFrame(rows, names, orient="row")


@pytest.mark.parametrize("seed", range(5))
def test_the_slow_rank_is_named_with_what_it_costs(seed):
    found = slow_ranks(own_times(3, by=80, seed=seed), ROLES)
    assert found.filter("is_slow")["rank"].to_list() == [3]
    first = found.row(0, named=True)
    assert (first["rank"], first["role"], first["peers"]) == (3, "stage 1", 3)
    assert first["excess_ns"] == pytest.approx(80 * MS, rel=0.1)


def test_equal_ranks_are_not_slow():
    step_ns = dict.fromkeys(range(10), 400 * MS)
    ranks = [
        (noise, seed)
        for noise, seed in itertools.product((0, 5, 30), range(100))
        if slow_ranks(own_times(seed=seed, noise=noise), ROLES)["is_slow"].any()
    ]
    assert ranks == []
    groups = [
        seed
        for seed in range(100)
        if slow_groups(transfers(seed=seed), step_ns, ROLES)["is_slow"].any()
    ]
    assert groups == []


@pytest.mark.parametrize(("num_ranks", "most"), [(2, 20), (8, 6)])
def test_of_equal_ranks_few_are_slow_in_three_steps(num_ranks, most):
    """Of 200 runs; with 5 standard errors, 30 and 17 were. Three steps of two ranks say little about noise."""
    random = np.random.default_rng(0)
    found = 0
    for _ in range(200):
        own_ns = (
            (100 * MS * (1 + 0.3 * random.standard_normal((num_ranks, 3)))).clip(MS).astype(int)
        )
        rows = [(rank, step, own, 150 * MS) for (rank, step), own in np.ndenumerate(own_ns)]
        own = pl.DataFrame(rows, ["rank", "step", "own_ns", "step_ns"], orient="row")
        found += bool(slow_ranks(own, {})["is_slow"].any())
    assert found <= most


def test_one_of_two_equal_ranks_is_not_slow():
    """The faster one is what both are compared with: its excess is 0, and says nothing about noise."""
    pairs = {rank: f"stage {rank // 2}" for rank in range(8)}
    found = [
        seed
        for seed in range(100)
        if slow_ranks(own_times(seed=seed, noise=30), pairs)["is_slow"].any()
    ]
    assert found == []


def test_the_noise_of_two_ranks_is_that_of_the_slower_one():
    own = [100] * 5 + [101, 160, 112, 190, 111]
    rows = [(place // 5, place % 5, each * MS, 200 * MS) for place, each in enumerate(own)]
    pair = pl.DataFrame(rows, ["rank", "step", "own_ns", "step_ns"], orient="row")
    assert slow_ranks(pair, {}).select("rank", "excess_ns", "is_slow").rows() == [
        (1, 12 * MS, False),
        (0, 0, False),
    ]


def test_one_odd_step_is_not_a_slow_rank():
    own = own_times()
    odd = pl.when((pl.col("rank") == 3) & (pl.col("step") == 4)).then(900 * MS)
    assert not slow_ranks(own.with_columns(own_ns=odd.otherwise("own_ns")), ROLES)["is_slow"].any()


def test_a_rank_of_two_is_compared_with_the_other():
    pair = own_times(1, by=80).filter(pl.col("rank") < 2)
    found = slow_ranks(pair, {0: "all", 1: "all"})
    assert found.select("rank", "is_slow").rows() == [(1, True), (0, False)]
    assert found["excess_ns"][0] == pytest.approx(80 * MS, rel=0.1)


def test_without_peers_or_with_few_steps_nothing_is_said():
    own = own_times(3, by=80)
    assert not slow_ranks(own, {rank: str(rank) for rank in range(8)})["is_slow"].any()
    assert not slow_ranks(own.filter(pl.col("step") < 2), ROLES)["is_slow"].any()


def test_steps_that_a_rank_records_alone_compare_nothing():
    """As after a trigger on the rank that is suspected."""
    own = own_times(3, by=80, steps=13)
    few = slow_ranks(own.filter((pl.col("step") < 5) | (pl.col("rank") == 3)), ROLES)
    assert few.filter("is_slow")["rank"].to_list() == [3]
    assert few["excess_ns"][0] == pytest.approx(80 * MS, rel=0.1)
    # Two ranks without a step in common are not compared.
    apart = own.filter(
        pl.col("rank").is_in([0, 1]) & ((pl.col("step") < 6) == (pl.col("rank") == 0))
    )
    assert slow_ranks(apart, {}).rows() == [
        (0, "", 0, 0.0, 0.0, False),
        (1, "", 0, 0.0, 0.0, False),
    ]


def test_transfers_without_a_sibling_compare_nothing():
    """After a trigger on ranks 1 and 5, more steps are of their group alone."""
    table = transfers("1,5", by=20, steps=13)
    few = table.filter((pl.col("step") < 5) | (pl.col("members") == "1,5"))
    found = slow_groups(few, dict.fromkeys(range(13), 400 * MS), ROLES)
    assert found.filter("is_slow")["members"].to_list() == ["1,5"]
    assert found["excess_ns"][0] == pytest.approx(60 * MS, rel=0.1)


def test_little_is_not_named():
    assert not slow_ranks(own_times(3, by=15, noise=0.1), ROLES)["is_slow"].any()


def test_the_slow_link_is_named_with_what_it_costs_a_step():
    found = slow_groups(transfers("1,5", by=20), dict.fromkeys(range(10), 400 * MS), ROLES)
    assert found.filter("is_slow")["members"].to_list() == ["1,5"]
    first = found.row(0, named=True)
    assert first["siblings"] == 1
    assert first["excess_ns"] == pytest.approx(60 * MS, rel=0.1)


def test_a_link_that_is_a_little_slower_is_not_named():
    step_ns = dict.fromkeys(range(10), 10 * MS)
    assert not slow_groups(transfers("1,5", by=2, noise=0.01), step_ns, ROLES)["is_slow"].any()
    assert slow_groups(transfers("1,5", by=4, noise=0.01), step_ns, ROLES)["is_slow"].sum() == 1


def test_a_group_without_siblings_is_not_blamed():
    alone = transfers("1,5", by=20).filter(pl.col("members") == "1,5")
    assert not slow_groups(alone, dict.fromkeys(range(10), 400 * MS), ROLES)["is_slow"].any()
