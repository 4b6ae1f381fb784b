"""Two real ranks over gloo: what their windows hold, and the directory they agree on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ppprof import rundir

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.jobs]

from tests.jobs import toy  # noqa: E402
from tests.jobs.launching import JOBS, run  # noqa: E402


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``profiler_log`` of collectives_job.py."""
    folder = tmp_path_factory.mktemp("job")
    run(folder, JOBS / "collectives_job.py", folder / "log", processes=2)
    return folder / "log"


def communication(raw: Path) -> Counter[str]:
    return Counter(
        {name: n for (kind, name), n in toy.recorded(raw).items() if kind == "Communication"}
    )


def tensors(name: str, num_bytes: int, peers: str, op: str = "") -> str:
    """The name of a collective of float32 over both ranks, or of a wait for ``op``."""
    of = f"op={op} " if op else ""
    return f"{name}[{of}axis=dp group=0 bytes={num_bytes} dtype=float32 peers={peers}]"


COMMON = {
    tensors("all_reduce", 4096, "0,1"): 3,  # by attribute, by value, through stream
    tensors("all_reduce", 8, "0,1"): 1,  # in a thread
    tensors("all_reduce", 288, "0,1"): 1,  # 8 x 8 weights and 8 biases, fused
    "all_reduce": 1,  # the bad argument
    tensors("all_gather", 4096, "0,1"): 1,
    "all_gather_object[axis=dp group=0 peers=0,1]": 1,
    tensors("broadcast", 4096, "0,1"): 1,
    tensors("reduce", 4096, "0,1"): 1,
    "barrier[axis=dp group=0 peers=0,1]": 1,
}


def test_collectives_are_recorded_once_each_with_their_facts(log: Path) -> None:
    (first, raw0), (second, raw1) = rundir.raw_files(log)
    assert (first.rank, first.label) == (0, "dp0_pp0_sharding0_mp0")
    assert (second.rank, second.label) == (1, "dp1_pp0_sharding0_mp0")
    assert communication(raw0) == {
        **COMMON,
        tensors("scatter", 16, "0,1"): 1,
        tensors("send", 4096, "1"): 2,  # one of them inside an isend out of our reach
        tensors("wait", 4096, "1", op="send"): 1,
        tensors("isend", 4096, "1"): 1,
        tensors("wait", 4096, "1", op="isend"): 1,
        tensors("batch_isend_irecv", 4096, ">1:4096"): 1,
        tensors("wait", 4096, ">1:4096", op="batch_isend_irecv"): 1,
    }
    assert communication(raw1) == {
        **COMMON,
        tensors("scatter", 8, "0,1"): 1,
        tensors("recv", 4096, "0"): 1,
        tensors("irecv", 4096, "0"): 2,
        tensors("wait", 4096, "0", op="irecv"): 2,
        tensors("batch_isend_irecv", 4096, "<0:4096"): 1,
        tensors("wait", 4096, "<0:4096", op="batch_isend_irecv"): 1,
    }


def test_ranks_share_a_directory_and_a_single_rank_does_not_wait(log: Path) -> None:
    manifest = rundir.read_manifest(log)
    assert [(rank["rank"], rank["coordinate"]["dp"]) for rank in manifest["ranks"]] == [
        (0, 0),
        (1, 1),
    ]
    assert {rank["host"] for rank in manifest["ranks"]} == {"127.0.0.1"}
    assert sorted(path.name for path in log.glob("steps/*")) == [
        "rank_00000.jsonl",
        "rank_00001.jsonl",
    ]
    alone = rundir.newest(log)
    assert alone == log / "run_002"
    assert [path.name for path in alone.glob("steps/*")] == ["rank_00001.jsonl"]
