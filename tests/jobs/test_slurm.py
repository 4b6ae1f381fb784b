"""examples/slurm.sh runs as it stands, in a real Slurm of two nodes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import ppprof
from tests.jobs import nodes
from tests.jobs.launching import ROOT
from tests.jobs.slurm import Slurm, slurm

pytestmark = [pytest.mark.paddle, pytest.mark.all]
pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
SCRIPT = ROOT / "examples/slurm.sh"
SIZE = ("--nodes=2", "--gpus-per-node=1")
"""Options of sbatch, which have precedence over the script's own."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Slurm]:
    folder = tmp_path / "slurm"
    folder.mkdir()
    with nodes.namespaces(folder) as two, slurm(two, folder) as made:
        yield made


@pytest.fixture
def submitted(tmp_path: Path) -> Path:
    """The directory of sbatch, with the files that the script names."""
    folder = tmp_path / "submitted"
    folder.mkdir()
    shutil.copy(ROOT / "examples/gpt_fleet.py", folder / "train.py")
    (folder / "pretrain.yaml").touch()
    return folder


def test_two_jobs_in_one_directory(cluster: Slurm, submitted: Path) -> None:
    for number in (1, 2):
        done = cluster.run(submitted, "sbatch", "--wait", *SIZE, str(SCRIPT), timeout=300)
        printed = (submitted / f"slurm-{number}.out").read_text()
        assert done.returncode == 0, printed[-6000:] + done.stderr
        output = submitted / f"job-{number}"
        run = ppprof.open(output / "profiler_log")
        assert run.ranks == [0, 1]
        assert run.manifest["nodes"] == {0: "node0", 1: "node1"}
        assert run.summary("model", rank=1)["calls"][0] == 10
        assert "Step Breakdown" in printed
        assert (output / "report.html").stat().st_size > 100_000
        for node in (0, 1):
            (log,) = output.glob(f"node{node}/workerlog.*")
            assert ("Model Summary" in log.read_text()) == (node == 0)


def test_a_training_that_fails_fails_the_job(cluster: Slurm, submitted: Path) -> None:
    (submitted / "train.py").write_text("raise SystemExit(3)")
    done = cluster.run(submitted, "sbatch", "--wait", *SIZE, str(SCRIPT), timeout=300)
    assert done.returncode != 0
    assert "Step Breakdown" not in (submitted / "slurm-1.out").read_text()
