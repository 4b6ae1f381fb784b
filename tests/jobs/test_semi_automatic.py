"""Jobs that split their tensors with ``shard_tensor`` call neither Fleet nor ``init_parallel_env``."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import ppprof
from tests.jobs.launching import ROOT, run

pytestmark = [pytest.mark.paddle, pytest.mark.all]


@pytest.mark.parametrize("way", ["attach", "run"])
def test_a_mesh_of_processes_is_recorded_with_its_axes(tmp_path: Path, way: str) -> None:
    job = ROOT / "tests/jobs/semi_automatic_job.py"
    if way == "attach":
        run(tmp_path, job, way, processes=2)
    else:
        options = ("--nproc", "2", "--log_dir", "launch", "--log", "log", "--steps", "3:7")
        run(tmp_path, "-m", "ppprof", "run", *options, job)
    recorded = ppprof.open(tmp_path / "log")
    assert recorded.manifest["axes"]["order"][:2] == ["dp", "mp"]
    assert recorded.manifest["axes"]["degrees"][:2] == [1, 2]
    for rank in (0, 1):
        calls = dict(recorded.summary("model", rank=rank).select("name", "calls").iter_rows())
        assert calls["Optimization"] == 4
        events = recorded.events(rank=rank).with_columns(pl.col("name").cast(pl.String))
        products = events.filter(pl.col("name") == "matmul dygraph")["shapes"].cast(pl.String)
        assert set(products) == {  # of this rank's half of each weight
            '{"X0":[[16,64]],"X1":[[64,32]]}',
            '{"X0":[[16,32]],"X1":[[32,8]]}',
        }
        moved = events.filter(pl.col("name") == "SameNdMeshReshard", pl.col("step").is_not_null())
        (own,) = recorded.breakdown("rank", rank).rows(named=True)
        assert moved.height >= 4, "the partial sums of the last layer are added up"
        exposed_ns = sum(value for name, value in own.items() if name.startswith("exposed_"))
        assert exposed_ns == pytest.approx(moved["dur_ns"].sum() / 4, rel=0.05)
