"""Scores of ranks: how soon a slow one is named, and how often one without a cause."""

from __future__ import annotations

import numpy as np
import pytest

from ppprof.arrays import Float64
from ppprof.slow_ranks import ALARM_HOURS, SlowRanks

HOUR_NS = 3600e9
STEP_NS = 0.4e9


def named(own: Float64, step_ns: float = STEP_NS) -> list[list[tuple[int, int]]]:
    """Return what is named after each step; all ranks do the same work."""
    test = SlowRanks([""] * own.shape[1])
    found = []
    for each in own:
        test.add(each)
        found.append(test.slow(step_ns))
    return found


@pytest.mark.parametrize("num_ranks", [2, 4, 9])
@pytest.mark.parametrize("kind", ["normal", "standard_cauchy", "lognormal"])
def test_false_alarms_are_as_rare_as_promised_whatever_the_noise(num_ranks: int, kind: str) -> None:
    """A step takes an hour: of 20,000 steps, one in 100 may name a rank."""
    chance = np.random.default_rng(5)
    own = 100 + 10 * getattr(chance, kind)(size=(20_000, num_ranks))
    found = [{rank for rank, _ in each} for each in named(own, HOUR_NS)]
    alarms = sum(len(now - before) for before, now in zip([set[int](), *found], found))
    assert alarms < 20_000 / ALARM_HOURS


@pytest.mark.parametrize(("num_ranks", "limit"), [(2, 40), (4, 20), (64, 20)])
def test_a_rank_slower_by_a_fifth_is_found_soon(num_ranks: int, limit: int) -> None:
    own = np.random.default_rng(1).normal(100, 2, (100, num_ranks))
    own[50:, 1] *= 1.2
    found = named(own)
    assert not any(found[:50])
    number = next(number for number, each in enumerate(found) if each)
    assert number - 50 < limit
    ((rank, since),) = found[number]
    assert rank == 1
    assert since == pytest.approx(
        number - 49, abs=2
    )  # it may have been the slowest by chance before


def test_a_difference_of_five_percent_takes_medians_of_many_steps() -> None:
    own = np.random.default_rng(2).normal(100, 4, (1500, 4))
    own[:, 3] *= 1.05
    found = named(own)
    assert not any(found[:100])
    assert [rank for rank, _ in found[-1]] == [3]


@pytest.mark.parametrize(
    ("num_ranks", "num_slow"), [(4, 2), (7, 2), (8, 4), (64, 8), (512, 136), (512, 256)]
)
def test_many_slow_ranks_are_all_named(num_ranks: int, num_slow: int) -> None:
    """The slow ranks may be those of a host, or of half the hosts."""
    own = np.random.default_rng(4).normal(100, 4, (60, num_ranks))
    own[:, :num_slow] *= 1.5
    assert [rank for rank, _ in named(own)[-1]] == list(range(num_slow))


def test_two_percent_are_no_slow_rank() -> None:
    own = np.random.default_rng(3).normal(100, 4, (3000, 4))
    own[:, 3] *= 1.02
    assert not any(named(own))


def test_a_rank_that_has_recovered_is_named_no_more() -> None:
    own = np.full((200, 4), 100.0)
    own[:150, 3] = 130
    found = named(own)
    assert found[149] == [(3, 150)]
    assert found[180] == []


def test_unknown_times_and_ranks_without_peers_count_for_nothing() -> None:
    own = np.full((100, 4), 100.0)
    own[:, 3] = 130
    own[:, 0] = np.nan
    assert [rank for rank, _ in named(own)[-1]] == [3]
    test = SlowRanks(["a", "b", "b"])
    for _ in range(100):
        test.add(np.array([500.0, 100.0, np.nan]))
    assert test.slow(STEP_NS) == []
