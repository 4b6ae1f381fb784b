"""Two launches with ``--nnodes 2`` train one job, and readers see one run."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

import ppprof
from ppprof import rundir
from ppprof.cli import main
from tests.jobs import nodes
from tests.jobs.launching import NO_DROPOUT, SMALL, losses, norms, train, workerlogs
from tests.jobs.nodes import Node

pytestmark = [pytest.mark.paddle, pytest.mark.all]

BATCH = ("Global.global_batch_size=8", "Global.local_batch_size=null", "Global.micro_batch_size=2")
PROFILER = ("Profiler.enable=True", "Profiler.scheduler=[2,4]")
GRID = ("Distributed.mp_degree=2", "Distributed.pp_degree=2")


@pytest.fixture(
    scope="module", params=["namespaces", pytest.param("loopback", marks=pytest.mark.jobs)]
)
def two(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Node, Node]]:
    folder = tmp_path_factory.mktemp("network")
    apart = request.param == "namespaces"
    with nodes.namespaces(folder) if apart else nullcontext(nodes.LOOPBACK) as made:
        yield made


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, float], dict[int, float]]:
    """Losses and gradient norms of one process."""
    done = train(tmp_path_factory.mktemp("alone"), *SMALL, *NO_DROPOUT, *BATCH)
    return losses(done), norms(done)


def test_nodes_with_disks_of_their_own_leave_a_directory_each_of_one_run(
    two: tuple[Node, Node],
    alone: tuple[dict[int, float], dict[int, float]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs = [tmp_path / f"node{number}/profiler_log" for number in (0, 1)]
    rundir.write_manifest(rundir.claim(logs[1]), {"run_id": "of an earlier job"})

    done = nodes.run(two, tmp_path, *SMALL, *NO_DROPOUT, *BATCH, *PROFILER, *GRID, processes=2)
    assert [launch.returncode for launch in done] == [0, 0], done
    assert losses(done[0]) == pytest.approx(alone[0], rel=1e-5)
    assert norms(done[0]) == pytest.approx(alone[1], rel=1e-5)

    run = ppprof.open(*logs)
    # The node that asks first names the directory, and the other takes that name or a later one.
    assert run.paths[0] in (logs[0], logs[0] / "run_002")
    assert run.paths[1] == logs[1] / "run_002"
    assert [ppprof.open(path).ranks for path in run.paths] == [[0, 1], [2, 3]]
    assert run.ranks == [0, 1, 2, 3]
    assert [rank["host"] for rank in run.manifest["ranks"]] == [
        node.address for node in two for _ in range(2)
    ]
    if two != nodes.LOOPBACK:
        assert run.manifest["nodes"] == {0: "node0", 1: "node0", 2: "node1", 3: "node1"}

    for paths in (map(str, run.paths), [str(tmp_path)]):
        assert main(["summary", *paths, "--rank", "all", "--views", "model"]) == 0
        assert re.findall(r"^rank (\d) \(dp0 pp(\d) ", capsys.readouterr().out, re.M) == [
            ("0", "0"), ("1", "0"), ("2", "1"), ("3", "1")
        ]  # fmt: skip


@pytest.mark.parametrize("two", ["loopback"], indirect=True)
def test_nodes_that_share_a_disk_share_a_directory(two: tuple[Node, Node], tmp_path: Path) -> None:
    log = tmp_path / "profiler_log"
    more = (f"Profiler.profiler_log={log}", "Distributed.dp_degree=2")
    done = nodes.run(two, tmp_path, *SMALL, *BATCH, *PROFILER, *more, processes=1)
    assert [launch.returncode for launch in done] == [0, 0], done
    assert not list(log.glob("run_*"))
    run = ppprof.open(log)
    assert run.ranks == sorted(run.manifest["nodes"]) == [0, 1]


@pytest.mark.parametrize("two", ["loopback"], indirect=True)
def test_where_one_node_dies_the_other_ends_and_saves(
    two: tuple[Node, Node], tmp_path: Path
) -> None:
    endless = ("Engine.max_steps=100000", "Profiler.scheduler=[2,100000]")
    overrides = (*SMALL, *BATCH, "Profiler.enable=True", *endless, "Distributed.dp_degree=2")
    with nodes.launches(two, tmp_path, *overrides, processes=1) as (first, second):
        deadline = time.monotonic() + nodes.SECONDS
        while "step 9/" not in (tmp_path / "said0").read_text():
            assert first.poll() is None, (tmp_path / "said0").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        second.send_signal(signal.SIGTERM)
        assert first.wait(60) != 0  # gloo gives up after 30 s at the latest
    run = ppprof.open(tmp_path / "node0/profiler_log")
    assert run.ranks == [0]
    assert run.summary("model").height


@pytest.mark.parametrize("two", ["loopback"], indirect=True)
def test_a_check_that_fails_on_one_node_ends_all(two: tuple[Node, Node], tmp_path: Path) -> None:
    (tmp_path / "node1").mkdir()
    (tmp_path / "node1/profiler_log").touch()
    grid = ("Distributed.dp_degree=4", "Global.local_batch_size=null")
    done = nodes.run(two, tmp_path, *SMALL, *BATCH, *PROFILER, *grid, processes=2)
    assert [launch.returncode for launch in done] == [2, 2], done
    said = [list(workerlogs(tmp_path / f"node{n}").values()) for n in (0, 1)]
    message = "the checks of another node failed; see its log\n"
    assert [text.count(message) for text in said[0]] == [1, 0]
    assert "profiler_log is a file; expected a directory" in said[1][0]
    assert "Traceback" not in "".join(said[0] + said[1])
