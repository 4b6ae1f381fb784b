"""What is slow is named, by how much, and nobody else: eight real ranks with sleeps planted."""

from __future__ import annotations

from pathlib import Path

import pytest

import ppprof
from ppprof.analysis.cluster import Cluster
from tests.jobs.launching import CONFIGS, JOBS, overrides, run

CONFIG = CONFIGS / "pretrain_gpt_tiny_cpu_dp2_mp2_pp2.yaml"
MS = 1_000_000
pytestmark = [pytest.mark.paddle, pytest.mark.all]


def recorded(folder: Path, planted: str) -> Cluster:
    """Twelve steps of dp2 x mp2 x pp2 with that planted in it."""
    flags = ["Profiler.enable=True", "Profiler.scheduler=[3, 15]", "Profiler.formats=[pb]"]
    settings = overrides(*flags, "Engine.eval_freq=-1")
    program = (JOBS / "planted_job.py", planted, "-c", CONFIG, *settings)
    run(folder, *program, processes=8)
    return ppprof.open(folder / "profiler_log").cluster()


def test_a_slow_rank_and_a_slow_link_are_named_with_what_they_cost(tmp_path: Path) -> None:
    # Rank 3 has 2 blocks and 4 micro-batches a step; ranks 1 and 5 reduce gradients once a step.
    found = recorded(tmp_path, "rank:3:0.03+link:1,5:0.2")
    assert found.slow_ranks.filter("is_slow")["rank"].to_list() == [3]
    assert found.slow_ranks["excess_ns"][0] == pytest.approx(8 * 30 * MS, rel=0.1)
    assert found.slow_groups.filter("is_slow")["members"].to_list() == ["1,5"]
    assert found.slow_groups["excess_ns"][0] == pytest.approx(200 * MS, rel=0.1)
    # Who waits for rank 3 first is the rank that shares its layers.
    longest = found.groups.filter(found.groups["axis"] == "mp").row(0, named=True)
    assert (longest["members"], longest["last_rank"]) == ("2,3", 3)


def test_where_nothing_is_planted_nobody_is_blamed(tmp_path: Path) -> None:
    found = recorded(tmp_path, "nothing")
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
