"""The runs of many ranks are what they say, and the table says what was measured of them."""

from __future__ import annotations

import subprocess
import sys

import polars as pl
import pytest

import ppprof
from benchmarks import cluster, cluster_job, gpu_job
from benchmarks.cluster import ALONE, FLOOR, PLAIN
from benchmarks.trace_reading import Measured, Reader
from tests.fixtures.timeline import Span

NUM_RANKS = 16


def collectives_of(inside):
    """How often each collective of `gpu_job` comes."""
    counts = dict.fromkeys(cluster_job._AXES, 0)
    for item in inside:
        if isinstance(item, Span):
            if item.name in counts:
                counts[item.name] += 1
            for name, count in collectives_of(item.inside).items():
                counts[name] += count
    return counts


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    path = tmp_path_factory.mktemp("job") / "run"
    command = [sys.executable, "-m", "benchmarks.cluster_job", str(path), str(NUM_RANKS)]
    subprocess.run(command, check=True)
    return ppprof.open(path)


@pytest.mark.all
def test_every_collective_is_met_by_its_whole_group(job):
    main_thread, *_ = gpu_job.threads(cluster_job.NUM_STEPS, cluster_job.NUM_LAYERS)
    counts = collectives_of(main_thread.inside)
    met = job.cluster().arrivals.group_by("axis", "members").len()
    found = {
        axis: dict(rows.select("members", "len").iter_rows())
        for (axis,), rows in met.group_by("axis")
    }
    mp = [",".join(map(str, range(first, first + 8))) for first in (0, 8)]
    dp = [f"{rank},{rank + 8}" for rank in range(8)]
    assert found == {
        "mp": dict.fromkeys(mp, counts["mp_allreduce"]),
        "dp": dict.fromkeys(dp, counts["all_reduce"]),
    }


@pytest.mark.all
def test_clocks_are_aligned_and_no_rank_is_slow(job):
    made = job.cluster()
    assert {rank: clock.method for rank, clock in made.clocks.items()} == {
        0: "same",
        **dict.fromkeys(range(1, NUM_RANKS), "collectives"),
    }
    assert not made.slow_ranks["is_slow"].any()
    assert not made.slow_groups["is_slow"].any()


@pytest.mark.all
def test_ranks_are_where_the_manifest_says(job):
    assert job.places.select("mp", "dp").rows() == [(rank % 8, rank // 8) for rank in range(16)]
    steps = job.cluster().steps
    assert steps.height == NUM_RANKS * cluster_job.NUM_STEPS
    assert steps.select(pl.col("computation_ns", "exposed_mp_ns").min() > 0).row(0) == (True, True)


def test_the_table():
    results = {
        64: {
            FLOOR: Measured([0.1, 0.3, 0.2], 20 << 20, user_s=[0.05] * 3, num_switches=[1] * 3),
            ALONE: Measured([6.4], 100 << 20, user_s=[6.0], num_switches=[65_580]),
            PLAIN: Measured([3.2], 200 << 20, user_s=[6.1], num_switches=[2_000]),
        },
        512: {FLOOR: Measured([1.0], 20 << 20, "", [0.5], [9]), ALONE: Measured(error="killed")},
        2048: {PLAIN: Measured([40.96], 400 << 20, user_s=[70.0], num_switches=[3])},
    }
    assert cluster.table(results) == (
        "| ranks |  | seconds | ms a rank | speed-up | user s | switches | peak MiB |\n"
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| 64 | floor: the bytes read once | 0.20 | 3.1 | 32.00 | 0.05 | 1 | 20 |\n"
        "| 64 | ppprof ranks --workers 1 | 6.40 | 100.0 | 1.00 | 6.00 | 65,580 | 100 |\n"
        "| 64 | ppprof ranks | 3.20 | 50.0 | 2.00 | 6.10 | 2,000 | 200 |\n"
        "| 512 | floor: the bytes read once | 1.00 | 2.0 | - | 0.50 | 9 | 20 |\n"
        "| 512 | ppprof ranks --workers 1 | killed | - | - | - | - | - |\n"
        "| 2048 | ppprof ranks | 40.96 | 20.0 | - | 70.00 | 3 | 400 |\n"
    )


def test_runs_that_are_there_are_measured(tmp_path, capsys, monkeypatch):
    for size in (8, 16, 32):
        (tmp_path / f"{size}_ranks").mkdir()
    lists = ("-c", "import os, sys; sys.exit(os.path.basename(sys.argv[1]))")
    monkeypatch.setattr(cluster, "COMMANDS", (Reader(ALONE, lists, suffix=""),))
    monkeypatch.setattr(cluster, "_RANKS", lists)
    options = ["--sizes", "8,16", "--largest", "32", "--repeats", "1"]
    cluster.main([*options, "--keep", str(tmp_path)])
    out = capsys.readouterr().out
    assert "| 8 | ppprof ranks --workers 1 | 8_ranks |" in out
    assert "| 16 | ppprof ranks --workers 1 | 16_ranks |" in out
    assert "| 32 | ppprof ranks | 32_ranks |" in out
