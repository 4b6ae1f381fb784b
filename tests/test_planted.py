"""What is slow is named, by how much, and nobody else: eight real ranks with sleeps planted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ppprof
from ppprof.analysis.cluster import Cluster

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "configs/gpt/pretrain_gpt_tiny_cpu_dp2_mp2_pp2.yaml"
MS = 1_000_000
pytestmark = [pytest.mark.paddle, pytest.mark.launch]


def recorded(folder: Path, planted: str) -> Cluster:
    """Twelve steps of dp2 x mp2 x pp2 with that planted in it."""
    flags = ["Profiler.enable=True", "Profiler.scheduler=[3, 15]", "Profiler.formats=[pb]"]
    launcher = ["-m", "paddle.distributed.launch", "--nproc_per_node", "8"]
    done = subprocess.run(
        [sys.executable, *launcher, ROOT / "tests/planted_job.py", planted, "-c", CONFIG]
        + [part for flag in [*flags, "Engine.eval_freq=-1"] for part in ("-o", flag)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
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
