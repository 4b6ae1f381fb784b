"""This process's rank and topology, and the run directory that all ranks share."""

from __future__ import annotations

import itertools
import json
import logging
import os
import platform
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppprof import rundir
from ppprof.capture import device
from ppprof.errors import UsageError
from ppprof.packages import installed_version
from ppprof.topology import AXES, Topology

if TYPE_CHECKING:
    from ppprof.config import ProfilerConfig

log = logging.getLogger("ppprof")

_AGREE_SECONDS = 60.0
"""How long a rank waits for another rank to make the run directory and store its name."""

_FLEET_AXES = {"data": "dp", "pipe": "pp", "sharding": "sharding", "sep": "sep", "model": "mp"}

_agreements = (
    itertools.count()
)  # all ranks attach equally often, so the n-th of one is the n-th of all


def agreement() -> str:
    """Return a prefix of keys in the job's store, such as ``ppprof/run/0``.

    The n-th call on each rank returns the same prefix.
    """
    return f"ppprof/run/{next(_agreements)}"


@dataclass(frozen=True)
class Job:
    """This process's rank, and the topology and hosts of its job, as the launcher and Fleet set them."""

    rank: int
    topology: Topology
    hosts: tuple[str, ...]
    """Host of each rank, by rank; this machine's name for all ranks if the launcher names none."""
    launched: tuple[int, int] | None = None
    """Rank in the launcher and number of its processes, of one that works with the others by rpc only; else None."""

    @classmethod
    def here(cls, topology: Topology | None = None) -> Job:
        """Return the job of this process; without a launcher, a job with one rank.

        Processes that only call each other's functions (`is_alone`) have no common steps: each of
        them is a job with one rank.

        Args:
            topology: the job's topology; ignored, with a warning, if it has another size than the
                job. None means Fleet's topology if Fleet is initialised, else that of the
                ProcessMesh of all ranks, else data parallel over all ranks.
        """
        rank = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
        world_size = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
        launched = None
        if world_size > 1 and is_alone():
            launched, rank, world_size, topology = (rank, world_size), 0, 1, None
        if topology is not None and topology.world_size != world_size:
            log.warning(
                f"the topology has {topology.world_size} ranks, but the job has {world_size} "
                "processes: the topology is ignored"
            )
            topology = None
        topology = (
            topology
            or _fleet_topology(world_size)
            or _mesh_topology(world_size)
            or Topology.of(dp=world_size)
        )
        endpoints = os.environ.get("PADDLE_TRAINER_ENDPOINTS", "").split(",")
        hosts = [endpoint.rpartition(":")[0] for endpoint in endpoints]
        if len(hosts) != world_size or not all(hosts):
            hosts = [platform.node()] * world_size
        return cls(rank, topology, tuple(hosts), launched)

    def resolved(self, profiler: ProfilerConfig) -> ProfilerConfig:
        """Return the block with selectors of ranks that the topology has; for most processes, ``profiler`` itself.

        A process on its own is rank 0 and prints; it records if ``ranks`` names its rank in the launcher.

        Raises:
            UsageError: ``ranks`` names ranks that the launcher does not have.
        """
        if self.launched is None:
            return profiler
        rank, world_size = self.launched
        is_selected = rank in Topology.of(dp=world_size).select(profiler.ranks)
        trigger = profiler.trigger
        return replace(
            profiler,
            ranks="all" if is_selected else [],
            print_ranks="all",
            trigger=None if trigger is None else replace(trigger, ranks="all"),
        )

    def run_directory(self, log_dir: Path, manifest: Mapping[str, Any], key: str) -> Path:
        """Make the run directory and return it: ``log_dir``, or a folder in it after an earlier run.

        All ranks that share a disk get the same directory. The first rank that calls this function
        makes it, writes the manifest, and writes the directory's name into the job's store; so no
        rank waits for a rank that does not attach. If a rank does not find the directory, its node
        has its own disk: that node gets its own directory, with the same run id.

        Args:
            log_dir: ``Profiler.profiler_log``.
            manifest: entries of the manifest in addition to those of `manifest`.
            key: the result of `agreement` for this session.

        Raises:
            OSError: the directory cannot be made or written.
            RuntimeError: the job's store cannot be used, no rank named a directory within 60 s, or
                the rank that makes the directory failed.
        """
        run = self._agreed_directory(log_dir, manifest, key)
        rundir.write_node_marker(run, self.rank)
        return run

    def _agreed_directory(self, log_dir: Path, manifest: Mapping[str, Any], key: str) -> Path:
        if self.topology.world_size == 1:
            return _make(log_dir, self.manifest(manifest))
        store = job_store()
        if store.add(f"{key}/asked", 1) == 1:
            answer = {"error": "interrupted"}
            try:
                written = self.manifest(manifest)
                run = _make(log_dir, written)
                store.set(f"{key}/manifest", json.dumps(rundir.read_manifest(run)))
                answer = {"run_id": written["run_id"], "name": run.name if run != log_dir else ""}
            except OSError as error:
                answer = {"error": str(error)}
                raise
            finally:
                store.set(f"{key}/answer", json.dumps(answer))
                store.add(f"{key}/answered", 1)
            return run
        deadline = time.monotonic() + _AGREE_SECONDS
        while not store.add(f"{key}/answered", 0):
            if time.monotonic() > deadline:
                raise RuntimeError(f"no rank named a run directory within {_AGREE_SECONDS:.0f} s")
            time.sleep(0.01)
        answer = json.loads(store.get(f"{key}/answer"))
        if "error" in answer:
            raise RuntimeError(answer["error"])
        found = rundir.find(log_dir, answer["run_id"])
        if found is not None:
            return found
        run = rundir.claim(log_dir, answer["name"], answer["run_id"])
        if not rundir.has_manifest(run):  # one of the ranks on this disk writes it
            rundir.write_manifest(run, json.loads(store.get(f"{key}/manifest")))
            _log_earlier_run(log_dir, run)
        return run

    def manifest(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """Return the manifest: run id, start, topology, hosts, versions, and the entries of ``more``.

        ``machine`` is of this rank's machine; see `ppprof.capture.device.machine`. Each call
        returns a new run id.
        """
        topology = self.topology
        return {
            "run_id": uuid.uuid4().hex,
            "started": datetime.now().astimezone().isoformat(timespec="seconds"),
            "world_size": topology.world_size,
            "axes": {"order": list(topology.order), "degrees": list(topology.degrees)},
            "groups": {
                axis: topology.groups(axis) for axis in topology.order if topology.degree(axis) > 1
            },
            "ranks": [
                {"rank": rank, "host": host, "coordinate": topology.coordinate(rank)}
                for rank, host in enumerate(self.hosts)
            ],
            "versions": {
                "ppprof": installed_version("ppprof"),
                "paddle": sys.modules["paddle"].__version__ if "paddle" in sys.modules else None,
                "python": platform.python_version(),
                "platform": platform.platform(),
            },
            "machine": device.machine(),
            **more,
        }


def _make(log_dir: Path, manifest: Mapping[str, Any]) -> Path:
    run = rundir.claim(log_dir)
    rundir.write_manifest(run, manifest)
    _log_earlier_run(log_dir, run)
    return run


def _log_earlier_run(log_dir: Path, run: Path) -> None:
    if run != log_dir:
        log.info(f"{log_dir} holds an earlier run; this run is written to {run}")


def is_initialized() -> bool:
    """Return whether the script has joined the ranks of its job: Paddle's calls, or a mesh of ranks."""
    import paddle.distributed as dist

    is_joined = dist.is_initialized() or _fleet_group() is not None  # static Fleet: only the latter
    return is_joined or any(len(mesh.process_ids) > 1 for mesh in process_meshes())


def rpc_name() -> str | None:
    """Return this process's name in ``paddle.distributed.rpc``; None if rpc is not in use."""
    rpc = sys.modules.get("paddle.distributed.rpc")
    with suppress(Exception):
        return str(rpc.get_current_worker_info().name) if rpc else None
    return None


def is_alone() -> bool:
    """Return whether this process has joined no ranks, and works with other processes by rpc only."""
    return rpc_name() is not None and not is_initialized()


def job_store() -> Any:
    """Return Paddle's global TCP store, which all ranks of the job share.

    Raises:
        RuntimeError: neither ``fleet.init`` nor ``init_parallel_env`` was called, and there is no
            mesh of processes, with which Paddle initialises itself when they first communicate.
    """
    from paddle.base import core

    # Before initialisation, the store waits for all ranks to attach, and some may not attach.
    if not is_initialized():
        raise RuntimeError(
            "attach() was called before fleet.init(), init_parallel_env() or the first ProcessMesh"
        )
    return core.create_or_get_global_tcp_store()


def _fleet_group() -> Any:
    """Return Fleet's groups of the axes; None before ``fleet.init``."""
    module = sys.modules.get("paddle.distributed.fleet.base.topology")
    return getattr(module, "_HYBRID_PARALLEL_GROUP", None)


def _fleet_topology(world_size: int) -> Topology | None:
    """Return the topology that ``fleet.init`` made; None without one, and, with a warning, if it is unusable.

    Axes that only Fleet knows, such as ``context``, are kept if their degree is above 1.
    """
    group = _fleet_group()
    if group is None:
        return None
    if not hasattr(group, "topology"):  # Fleet's groups for static graphs
        if world_size > 1:
            log.warning("Fleet has no axes for a static graph: all ranks count as dp")
        return None
    topology = group.topology()
    by_name = {name: topology.get_dim(name) for name in topology.get_hybrid_group_names()}
    degrees = {_FLEET_AXES.get(name, name): degree for name, degree in by_name.items()}
    degrees = {axis: degree for axis, degree in degrees.items() if axis in AXES or degree != 1}
    try:
        found = Topology.of([*degrees, *(axis for axis in AXES if axis not in degrees)], **degrees)
        problem = f"it has {found.world_size} ranks, but the job has {world_size} processes"
    except UsageError as error:
        found, problem = None, str(error)
    if found is not None and found.world_size == world_size:
        return found
    named = ", ".join(f"{name} {degree}" for name, degree in by_name.items())
    log.warning(f"Fleet's topology ({named}) is ignored, all ranks count as dp: {problem}")
    return None


def process_meshes() -> list[Any]:
    """Return the process meshes that semi-automatic parallelism has made so far."""
    module = sys.modules.get("paddle.distributed.auto_parallel.static.dist_context")
    context = getattr(module, "_g_default_distributed_context", None)
    return list(context.process_meshes) if context is not None else []


def _mesh_topology(world_size: int) -> Topology | None:
    """Return the topology of the mesh with the most axes that numbers all ranks in their order.

    Equal meshes that follow one another are the stages of a pipeline: then pp is the outermost axis.
    None without such a mesh.
    """
    meshes = {(*mesh.process_ids,): mesh for mesh in process_meshes()}
    by_shape: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for ranks in sorted(meshes):
        by_shape.setdefault((*meshes[ranks].shape,), []).append(ranks)
    found = None
    for shape, stages in by_shape.items():
        if [*itertools.chain.from_iterable(stages)] != list(range(world_size)):
            continue
        names = [name.lower() for name in meshes[stages[0]].dim_names]
        axes = dict(zip(names, shape))
        if len(stages) > 1:
            axes = {"pp": len(stages), **axes}
        try:
            topology = Topology.of([*axes, *(axis for axis in AXES if axis not in axes)], **axes)
        except UsageError as error:
            log.warning(f"the mesh {names} of {list(shape)} ranks is ignored: {error}")
            continue
        if topology.world_size == world_size and (found is None or len(found.order) < len(axes)):
            found = topology
    return found
