"""A Slurm of two nodes on one machine: its real daemons, in two network namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.jobs.launching import environment
from tests.jobs.nodes import Node

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
# Slurm's daemons drop their supplementary groups as root, which a user namespace forbids.
USER = ("unshare", "-U", "--map-user=1000", "--map-group=1000")
SECONDS = 30
"""Maximum time until both nodes are ready; some 2 s are usual."""

_CONFIG = """\
ClusterName=test
SlurmctldHost={host}
SlurmUser=1000
SlurmdUser=1000
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
GresTypes=gpu
{nodes}PartitionName=all Nodes=ALL Default=YES State=UP
"""
# Slurm counts a GPU on each node that no program can see, hence no CUDA_VISIBLE_DEVICES.
_GPUS = "Name=gpu File=/dev/null Flags=no_gpu_env\n"


class Slurm(NamedTuple):
    """A running Slurm."""

    node: Node
    """The node that commands run on."""
    variables: dict[str, str]

    def run(self, folder: Path, *command: str, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run a command in a folder of the first node."""
        return subprocess.run(
            [*self.node.enter, *USER, "env", f"--chdir={folder}", *command],
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


@contextmanager
def slurm(two: Sequence[Node], folder: Path) -> Iterator[Slurm]:
    """Start Slurm's daemons on the nodes of `nodes.namespaces`; each has one GPU of Slurm's."""
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        pytest.skip(f"needs Slurm (Debian: slurmctld, slurmd, slurm-client, munge): no {missing}")
    for name in ("munge", "state"):
        (folder / name).mkdir()
    (folder / "munge").chmod(0o755)
    key = folder / "munge/key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    config = folder / "slurm.conf"
    lines = (
        f"NodeName=node{number} NodeAddr={node.address} CPUs=2 Gres=gpu:1\n"
        for number, node in enumerate(two)
    )
    config.write_text(_CONFIG.format(folder=folder, host="node0", nodes="".join(lines)))
    (folder / "gres.conf").write_text(_GPUS)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # loaded, and used for nothing
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = environment(folder, SLURM_CONF=str(config), PATH=programs)
    munge = [f"--{name}-file={folder}/munge/{name}" for name in ("key", "pid", "log", "seed")]
    with ExitStack() as stack:
        stack.enter_context(
            _daemon(
                *("munged", "--foreground", "--force", f"--socket={folder}/munge/socket", *munge),
                node=two[0],
                log=folder / "munged.log",
            )
        )
        _wait(lambda: (folder / "munge/socket").exists(), folder)
        stack.enter_context(
            _daemon("slurmctld", "-D", "-f", str(config), node=two[0], log=folder / "slurmctld.log")
        )
        for number, node in enumerate(two):
            name = f"node{number}"
            daemon = ("slurmd", "-D", "-N", name, "-f", str(config))
            stack.enter_context(_daemon(*daemon, node=node, log=folder / f"slurmd-{name}.log"))
        made = Slurm(two[0], variables)

        def ready() -> bool:
            states = made.run(folder, "sinfo", "--noheader", "--format=%T", timeout=SECONDS)
            return states.stdout.split() == ["idle"]

        _wait(ready, folder)
        yield made


@contextmanager
def _daemon(*command: str, node: Node, log: Path) -> Iterator[None]:
    with log.open("w") as file:
        process = subprocess.Popen([*node.enter, *USER, *command], stdout=file, stderr=file)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(is_done, folder: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_done():
        logs = "".join(path.read_text()[-2000:] for path in sorted(folder.glob("*.log")))
        assert time.monotonic() < deadline, logs
        time.sleep(0.2)
