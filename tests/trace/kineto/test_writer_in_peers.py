"""HTA and TraceLens read what `ppprof convert --to kineto` writes, and count what ppprof counts.

Expected times are added up by hand from the picture of `tests.fixtures.gpu_job`.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import ppprof
from tests.fixtures import gpu_job

PYTHON = os.environ.get("PPPROF_PEERS_PYTHON", "")
SCRIPT = Path(__file__).parents[2] / "oracles" / "trace_peers.py"
RUNS = Path(__file__).parents[2] / "fixtures" / "runs"

pytestmark = [
    pytest.mark.all,
    pytest.mark.skipif(
        not PYTHON,
        reason="needs PPPROF_PEERS_PYTHON, an interpreter with HTA and TraceLens (make test-all)",
    ),
]


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> tuple[ppprof.Run, Path]:
    directory = tmp_path_factory.mktemp("job")
    run = ppprof.open(gpu_job.write_job(directory / "run"))
    ppprof.write_kineto(run, directory / "out")
    return run, directory / "out"


def ask(peer: str, folder: Path, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [str(Path(PYTHON).absolute()), str(SCRIPT), peer, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": "", **environment},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def ours(run: ppprof.Run) -> dict[int, tuple[float, float, float]]:
    """Rank -> computation, communication and hidden communication of both steps, in us."""
    rows = run.breakdown(["rank"]).sort("rank").rows(named=True)
    return {
        row["rank"]: tuple(
            len(gpu_job.STEPS) * row[part] / 1000
            for part in ("computation_ns", "communication_dp_ns", "hidden_dp_ns")
        )
        for row in rows
    }


def test_the_times_of_both_peers_are_ours(job) -> None:
    run, folder = job
    assert ours(run) == {0: (1260, 400, 100), 1: (1260, 400, 100)}
    exact = ask("hta", folder, HTA_DISABLE_NS_ROUNDING="1")
    assert exact["ranks"] == [0, 1]
    assert exact["steps"] == [5, 6]
    for rank in ("0", "1"):
        assert exact["computation"][rank] == pytest.approx(1260, abs=0.01)
        assert exact["overlap_percent"][rank] == 25.0
    report = ask("tracelens", folder)
    for timeline in report["timelines"]:
        assert timeline["computation_time"] == pytest.approx(1270, abs=0.01)  # and memsets
        assert timeline["total_comm_time"] == pytest.approx(400, abs=0.01)
        assert timeline["exposed_comm_time"] == pytest.approx(300, abs=0.01)
        assert timeline["total_memcpy_time"] == pytest.approx(100, abs=0.01)


def test_hta_shortens_each_event_to_whole_microseconds(job) -> None:
    _, folder = job
    # The clock of the fixture does not tick in whole us. Three adjacent kernels and one alone, in
    # two steps: each loses 1 us.
    assert ask("hta", folder)["computation"] == {"0": 1252, "1": 1252}


def test_kernels_and_their_kinds_are_ours(job) -> None:
    run, folder = job
    report = ask("hta", folder, HTA_DISABLE_NS_ROUNDING="1")
    for rank in (0, 1):
        table = run.summary("kernel", rank=rank)
        expected = {row["name"]: row["gpu_total_ns"] / 1000 for row in table.iter_rows(named=True)}
        copies = {"Memset": 10, "Memcpy DtoH": 100}
        assert report["kernels"][str(rank)] == pytest.approx({**expected, **copies}, abs=0.01)
    assert report["kinds"] == pytest.approx(
        {
            "COMPUTATION": 2 * (1260 - 100),
            "COMMUNICATION": 2 * 300,
            "COMPUTATION overlapping COMMUNICATION": 2 * 100,
            "MEMORY": 2 * 110,
        },
        abs=1,
    )
    assert report["launches"] == {"0": 14, "1": 14}
    assert report["annotations"] == [
        "Gradient Backward",
        "Optimizer.step#Optimization Step",
        "ProfilerStep#5",
        "ProfilerStep#6",
    ]


def test_tracelens_finds_operators_modules_and_collectives(job) -> None:
    _, folder = job
    report = ask("tracelens", folder)
    assert report["launchers"][1] == pytest.approx(
        {
            "matmul dygraph": 700,
            "Global_MatmulGradNode": 400,
            "adamw_ dygraph": 2 * (5 + 80 + 50),
        },
        abs=0.01,
    )
    assert report["modules"][0]["matmul dygraph"] == ["nn.Module: GPT", "nn.Module: Linear"]
    collectives = report["collectives"]
    assert [row.pop("dur") for row in collectives] == pytest.approx([200] * 4)
    common = {
        **{"Process Group Name": "3", "Collective name": "allreduce", "Group size": 2},
        **{"dtype": "Float", "In msg nelems": 1024, "In msg size (MB)": 4096 / 1024**2},
    }
    assert collectives == [{"rank": rank, **common} for rank in (0, 0, 1, 1)]


def test_of_a_run_without_device_events_both_read_steps_and_modules(tmp_path) -> None:
    run = ppprof.open(RUNS / "eight_ranks")
    ppprof.write_kineto(run, tmp_path, gzip=True)
    report = ask("hta_hosts", tmp_path)
    assert report["ranks"] == list(range(8))
    assert report["steps"] == [3, 4, 5]
    operators = run.events(rank=0).filter(category="Operator")["name"].cast(str)
    assert report["calls"]["matmul dygraph"] == (operators == "matmul dygraph").sum()
    modules = ask("tracelens_hosts", tmp_path)["modules"]
    assert modules["gelu dygraph"] == ["nn.Module: Block", "nn.Module: MLP"]
