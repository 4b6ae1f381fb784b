"""The job as the launcher and Fleet describe it, and the run directory of all ranks."""

from __future__ import annotations

import platform
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ppprof
from ppprof import rundir
from ppprof.capture.ranks import job
from ppprof.capture.ranks.job import Job
from ppprof.config import ProfilerConfig
from ppprof.config.profiler import TriggerConfig
from ppprof.errors import UsageError
from ppprof.topology import AXES, Topology

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = pytest.mark.paddle

from paddle.distributed.fleet.base import topology as fleet_topology  # noqa: E402


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 3 of 4, on two hosts."""
    monkeypatch.setenv("PADDLE_TRAINER_ID", "3")
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "4")
    monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", "a:1,a:2,b:1,b:2")


def test_without_a_launcher_it_is_one_rank_here() -> None:
    assert Job.here() == Job(0, Topology.of(), (platform.node(),))


@pytest.mark.usefixtures("four")
def test_the_launcher_sets_rank_and_hosts_and_the_rest_is_data_parallel() -> None:
    assert Job.here() == Job(3, Topology.of(dp=4), ("a", "a", "b", "b"))


@pytest.mark.usefixtures("four")
def test_a_given_topology_counts_if_it_has_as_many_ranks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert Job.here(Topology.of(mp=4)).topology == Topology.of(mp=4)
    assert Job.here(Topology.of(mp=8)).topology == Topology.of(dp=4)
    assert capsys.readouterr().err == (
        "ppprof: the topology has 8 ranks, but the job has 4 processes: the topology is ignored\n"
    )


OF_FLEET = {
    "dp 4": {"data": 4},
    "an order": {"data": 1, "sharding": 2, "pipe": 1, "sep": 1, "model": 2},
    "context": {"data": 1, "pipe": 2, "sharding": 1, "sep": 1, "context": 2, "model": 1},
    "experts": {"pipe": 1, "moe_sharding": 2, "dense_sharding": 2, "sep": 1, "model": 1},
}


@pytest.fixture(params=[*OF_FLEET, "defaults"])
def of_fleet(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Fleet's topology of 4 ranks."""
    names = fleet_topology.CommunicateTopology().get_hybrid_group_names()
    default = {**dict.fromkeys(names, 1), "data": 2, "model": 2}
    degrees = OF_FLEET.get(request.param, default)
    of_fleet = fleet_topology.CommunicateTopology([*degrees], [*degrees.values()])
    fleet = SimpleNamespace(topology=lambda: of_fleet)
    monkeypatch.setattr(fleet_topology, "_HYBRID_PARALLEL_GROUP", fleet)
    return of_fleet


@pytest.mark.usefixtures("four")
def test_fleet_sets_axes_and_their_order(of_fleet: Any, capsys: pytest.CaptureFixture[str]) -> None:
    topology = Job.here().topology
    for name in of_fleet.get_hybrid_group_names():
        if of_fleet.get_dim(name) > 1:
            axis = job._FLEET_AXES.get(name, name)
            assert topology.groups(axis) == sorted(of_fleet.get_comm_list(name))
    assert topology.world_size == 4
    assert set(topology.order) - set(AXES) <= {"context", "moe_sharding", "dense_sharding"}
    assert capsys.readouterr().err == ""


def test_a_topology_of_fleet_that_is_dropped_is_named(
    of_fleet: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "3")
    assert Job.here().topology == Topology.of(dp=3)
    degrees = ", ".join(f"{n} {of_fleet.get_dim(n)}" for n in of_fleet.get_hybrid_group_names())
    assert capsys.readouterr().err == (
        f"ppprof: Fleet's topology ({degrees}) is ignored, all ranks count as dp: it has 4 ranks, "
        "but the job has 3 processes\n"
    )


@pytest.mark.usefixtures("four")
def test_the_groups_of_a_static_graph_set_no_axes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fleet_topology, "_HYBRID_PARALLEL_GROUP", None)  # restored afterwards
    assert not job.is_initialized()
    fleet_topology._CommunicateGroup()  # sets it, as fleet.init does after paddle.enable_static()
    assert job.is_initialized()
    assert Job.here().topology == Topology.of(dp=4)
    assert capsys.readouterr().err == (
        "ppprof: Fleet has no axes for a static graph: all ranks count as dp\n"
    )


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize(
    ("meshes", "degrees"),
    [
        ({}, {"dp": 4}),
        ({"x y": [[0, 1], [2, 3]]}, {"x": 2, "y": 2}),
        ({"D0 D1": [[0, 1], [2, 3]]}, {"d0": 2, "d1": 2}),
        ({"x": [0, 1, 2, 3], "dp mp": [[0, 1], [2, 3]]}, {"dp": 2, "mp": 2}),
        ({"mp": [0, 1], "mp ": [2, 3]}, {"pp": 2, "mp": 2}),  # two stages
        ({"mp": [0, 1]}, {"dp": 4}),  # not all ranks
        ({"x y": [[3, 2], [1, 0]]}, {"dp": 4}),  # other coordinates than those of the order
        ({"a-b": [0, 1, 2, 3]}, {"dp": 4}),  # no name of an axis
    ],
)
def test_a_mesh_sets_axes(
    meshes: dict[str, list[Any]], degrees: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [
        SimpleNamespace(
            shape=list(np.shape(ranks)),
            process_ids=np.ravel(ranks).tolist(),
            dim_names=names.split(),
        )
        for names, ranks in meshes.items()
    ]
    monkeypatch.setattr(job, "process_meshes", lambda: made)
    topology = Job.here().topology
    found = {axis: topology.degree(axis) for axis in topology.order if topology.degree(axis) > 1}
    assert found == degrees
    assert [*found] == [*degrees], "the outermost axis comes first"


class Store:
    """The job's store, which counts how often each key is read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            self._counts[key] += amount
            return self._counts[key]

    def set(self, key: str, value: str) -> None:
        self._values[key] = value

    def get(self, key: str) -> bytes:
        self.reads[key.rpartition("/")[2]] += 1
        return self._values[key].encode()


def test_each_disk_gets_one_directory_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight ranks on four disks; on two of them there are earlier runs."""
    store = Store()
    monkeypatch.setattr(job, "job_store", lambda: store)
    disks = [tmp_path / f"node{number}" for number in range(4)]
    for disk, num_runs in zip(disks, (0, 1, 2, 0)):
        for number in range(num_runs):
            rundir.write_manifest(rundir.claim(disk), {"run_id": f"earlier {number}"})
    ranks = [Job(rank, Topology.of(dp=8), ("here",) * 8) for rank in range(8)]
    config = {"day": date(2026, 11, 21)}  # YAML has them, JSON has not

    def run_directory(at: Job) -> Path:
        return at.run_directory(disks[at.rank // 2], {"config": config}, "key")

    first = run_directory(ranks[0])
    with ThreadPoolExecutor(7) as pool:
        runs = [first, *pool.map(run_directory, ranks[1:])]

    assert runs[::2] == runs[1::2]
    assert runs[::2] == [disks[0], disks[1] / "run_002", disks[2] / "run_003", disks[3]]
    manifests = [(run / "manifest.json").read_bytes() for run in runs]
    assert set(manifests) == {manifests[0]}
    assert store.reads == {"answer": 7, "manifest": 3}
    assert [sorted(rundir.nodes(run)) for run in runs[::2]] == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.usefixtures("four")
def test_before_the_ranks_can_talk_nothing_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    with ppprof.attach({"enable": True, "profiler_log": str(log)}) as prof:
        prof.step()
    assert capsys.readouterr().err == (
        f"ppprof: rank 3: {log}: attach() was called before fleet.init(), "
        "init_parallel_env() or the first ProcessMesh; "
        "nothing is recorded, the training goes on\n"
    )
    assert not log.exists()


def test_the_manifest_names_the_machine_and_its_software() -> None:
    machine = Job.here().manifest({})["machine"]
    assert machine["device"] == "cpu"
    assert set(machine["build"]) >= {"version", "commit"}
    assert {"cpu", "cores", "memory_bytes", "driver"} <= set(machine)


@pytest.mark.usefixtures("four")
def test_a_process_that_works_by_rpc_only_is_a_job_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job, "rpc_name", lambda: "trainer3")
    here = Job.here()
    assert (here.rank, here.topology, here.launched) == (0, Topology.of(), (3, 4))
    block = ProfilerConfig(enable=True, ranks=[3], trigger=TriggerConfig(ranks=3))
    resolved = here.resolved(block)
    assert (resolved.ranks, resolved.print_ranks) == ("all", "all")
    assert resolved.trigger == TriggerConfig()
    assert here.resolved(ProfilerConfig(enable=True, ranks=[0, 1])).ranks == []
    with pytest.raises(UsageError, match="expected 0 to 3"):
        here.resolved(ProfilerConfig(enable=True, ranks=[4]))


@pytest.mark.usefixtures("four")
def test_a_rank_of_a_group_that_also_works_by_rpc_is_a_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job, "rpc_name", lambda: "trainer3")
    monkeypatch.setattr(job, "is_initialized", lambda: True)
    assert (Job.here().rank, Job.here().launched) == (3, None)
