"""Scalars and traces of jobs on the page of a real VisualDL server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ppprof
from ppprof.topology import Topology
from tests.fixtures.step_scalars import expected
from tests.jobs.launching import CONFIGS, train
from tests.oracles import visualdl_server

pytestmark = [pytest.mark.paddle, pytest.mark.visualdl, pytest.mark.all]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``profiler_log`` of a real job of two ranks, both of which print."""
    pytest.importorskip("visualdl", reason="needs the visualdl wheel")
    folder = tmp_path_factory.mktemp("job")
    settings = (
        "Profiler.enable=True",
        "Profiler.visualdl_scalars=True",
        "Profiler.print_ranks=all",
    )
    config = CONFIGS / "pretrain_gpt_tiny_cpu_dp2.yaml"
    more = ("Engine.max_steps=12", "Engine.eval_freq=-1")
    done = train(folder, *settings, *more, config=config, processes=2, code=0)
    (folder / "printed").write_text(done.stdout + done.stderr)
    return folder / "profiler_log"


@pytest.mark.jobs
def test_scalars_and_trace_are_one_run(log: Path) -> None:
    workers = ["rank_00000_dp0_pp0_sharding0_mp0", "rank_00001_dp1_pp0_sharding0_mp0"]
    with visualdl_server.serve(log) as server:
        run = visualdl_server.check_run(server, log, workers)
        shown = server.scalars()
        assert set(shown) == {run.name, str(log / "scalars/rank_00001")}
        for rank, name in enumerate((run.name, str(log / "scalars/rank_00001"))):
            lines = (log / f"steps/rank_{rank:05d}.jsonl").read_text().splitlines()
            seen = shown[name]
            # The mean over both replicas, as it is logged.
            logged = (log.parent / "printed").read_text().partition("step 5/12 loss ")[2][:8]
            (_, first), *_ = seen.pop("train/loss")
            assert first == pytest.approx(float(logged), abs=1e-6)
            assert seen == expected([json.loads(line) for line in lines])


def test_ppprof_reads_the_run_as_before(log: Path) -> None:
    assert ppprof.open(log).ranks == [0, 1]


def test_all_ranks_of_a_hybrid_job(hybrid_job: tuple[Path, str]) -> None:
    grid = Topology.of(dp=2, pp=2, mp=2)
    workers = [f"rank_{rank:05d}_{grid.label(rank)}" for rank in range(8)]
    with visualdl_server.serve(hybrid_job[0]) as server:
        visualdl_server.check_run(server, hybrid_job[0], workers)
