"""This process in its job: which rank, where on the grid, and the run directory all agree on."""

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
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ppprof import rundir
from ppprof.topology import AXES, Topology

log = logging.getLogger("ppprof")

_AGREE_SECONDS = 60.0
"""How long a rank waits to hear of the run directory from the rank that made it."""

_FLEET_AXES = {"data": "dp", "pipe": "pp", "sharding": "sharding", "sep": "sep", "model": "mp"}

_agreements = itertools.count()  # the ranks of a job attach in step, so the n-th is the same one


def agreement() -> str:
    """Prefix of keys in the job's store: the same for the n-th session of every rank."""
    return f"ppprof/run/{next(_agreements)}"


@dataclass(frozen=True)
class Job:
    """What the launcher and Fleet say of this process."""

    rank: int
    topology: Topology
    hosts: tuple[str, ...]
    """Host of each rank."""

    @classmethod
    def here(cls, topology: Topology | None = None) -> Job:
        """The job of this process; ``topology`` unless it is of another size."""
        rank = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
        world_size = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
        if topology is not None and topology.world_size != world_size:
            log.warning(
                f"topology of {topology.world_size} ranks, but {world_size} processes: not used"
            )
            topology = None
        topology = topology or _fleet_topology(world_size) or Topology.of(dp=world_size)
        endpoints = os.environ.get("PADDLE_TRAINER_ENDPOINTS", "").split(",")
        hosts = [endpoint.rpartition(":")[0] for endpoint in endpoints]
        if len(hosts) != world_size or not all(hosts):
            hosts = [platform.node()] * world_size
        return cls(rank, topology, tuple(hosts))

    def run_directory(self, log_dir: Path, manifest: Mapping[str, Any], key: str) -> Path:
        """A directory for this run, made under ``log_dir``; the same one for every rank that asks.

        The first rank to ask makes it and tells the others through the job's store, so that none
        waits for a rank that does not attach. Where they do not find it, the node has a disk of
        its own and gets a directory of its own, with the same run id in its manifest.

        Args:
            log_dir: the log directory.
            manifest: what the manifest holds besides the job.
            key: this session's `agreement`.

        Raises:
            OSError: it cannot be made or written.
            RuntimeError: the ranks cannot agree.
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
        if not rundir.has_manifest(run):  # of the ranks on this disk one writes it
            rundir.write_manifest(run, json.loads(store.get(f"{key}/manifest")))
            _tell_of_earlier(log_dir, run)
        return run

    def manifest(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """What a reader has to know of the job, and ``more``."""
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
                "ppprof": _version("ppprof"),
                "paddle": sys.modules["paddle"].__version__ if "paddle" in sys.modules else None,
                "python": platform.python_version(),
                "platform": platform.platform(),
            },
            **more,
        }


def _make(log_dir: Path, manifest: Mapping[str, Any]) -> Path:
    run = rundir.claim(log_dir)
    rundir.write_manifest(run, manifest)
    _tell_of_earlier(log_dir, run)
    return run


def _tell_of_earlier(log_dir: Path, run: Path) -> None:
    if run != log_dir:
        log.info(f"{log_dir} holds an earlier run; this one goes to {run}")


def job_store() -> Any:
    """The store of all ranks that Paddle keeps.

    Raises:
        RuntimeError: the ranks are not initialised.
    """
    import paddle.distributed as dist
    from paddle.base import core

    # Before that, the store would wait for all ranks to attach, and not all need to.
    if not dist.is_initialized():
        raise RuntimeError("attach() was called before fleet.init() or init_parallel_env()")
    return core.create_or_get_global_tcp_store()


def _fleet_topology(world_size: int) -> Topology | None:
    """The grid that ``fleet.init`` laid out, if it did and if its axes are ours."""
    module = sys.modules.get("paddle.distributed.fleet.base.topology")
    group = getattr(module, "_HYBRID_PARALLEL_GROUP", None)
    if group is None:
        return None
    topology = group.topology()
    degrees = {
        _FLEET_AXES.get(n, n): topology.get_dim(n) for n in topology.get_hybrid_group_names()
    }
    if not set(degrees) <= set(AXES):
        return None
    order = [*degrees, *(axis for axis in AXES if axis not in degrees)]
    topology = Topology.of(order, **degrees)
    return topology if topology.world_size == world_size else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
