"""Two nodes on one machine, each with its own address and folder, and one launch on each."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.jobs.launching import CONFIG, TRAIN, command, environment, overrides

SECONDS = 200
"""More than any launch here takes; those that take longer hang."""


class Node(NamedTuple):
    """Where a launch runs."""

    address: str
    enter: tuple[str, ...] = ()
    """What stands before a command for it to run there."""


LOOPBACK = (Node("127.0.0.1"), Node("127.0.0.2"))


@contextmanager
def namespaces(folder: Path) -> Iterator[tuple[Node, Node]]:
    """Hosts ``node0`` and ``node1``: network namespaces with a cable (veth) between them.

    They are made in a user namespace, so that no privileges are needed and nothing is left.
    """
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 localhost\n10.77.0.1 node0\n10.77.0.2 node1\n")
    with ExitStack() as stack:
        try:
            first = stack.enter_context(_held("unshare", "-rnmu"))
            second = stack.enter_context(_held(*_enter(first), "unshare", "-nmu"))
            cable = f"ip link add veth0 type veth peer name veth1 netns {second.pid}"
            _sh(_enter(first), cable)
            for number, holder in enumerate((first, second)):
                commands = (
                    "ip link set lo up",
                    f"ip addr add 10.77.0.{number + 1}/24 dev veth{number}",
                    f"ip link set veth{number} up",
                    f"hostname node{number}",
                    f"mount --bind '{hosts}' /etc/hosts",
                )
                _sh(_enter(holder), "; ".join(commands))
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", "") or error
            pytest.skip(f"needs user and network namespaces, unshare, nsenter and ip: {reason}")
        yield Node("10.77.0.1", _enter(first)), Node("10.77.0.2", _enter(second))


@contextmanager
def _held(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A process that does nothing but be in its namespaces."""
    holder = subprocess.Popen(
        [*command, "sh", "-c", "echo there; exec sleep 1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with holder:
        try:
            if holder.stdout.readline() != "there\n":
                raise subprocess.CalledProcessError(1, command, stderr=holder.stderr.read())
            yield holder
        finally:
            holder.kill()


def _enter(holder: subprocess.Popen[str]) -> tuple[str, ...]:
    return ("nsenter", "-t", str(holder.pid), "-U", "--preserve-credentials", "-n", "-m", "-u")


def _sh(enter: Sequence[str], commands: str) -> None:
    subprocess.run([*enter, "sh", "-ec", commands], capture_output=True, text=True, check=True)


@contextmanager
def launches(
    nodes: Sequence[Node],
    folder: Path,
    *settings: str,
    processes: int,
    program: Sequence[str | Path] = (TRAIN, "-c", CONFIG),
) -> Iterator[list[subprocess.Popen[str]]]:
    """A program on every node, each in ``folder/node0``... with ``processes`` of it."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        master = f"{nodes[0].address}:{probe.getsockname()[1]}"
    started = []
    try:
        for rank, node in enumerate(nodes):
            here = folder / f"node{rank}"
            here.mkdir(exist_ok=True)
            options = ("--nnodes", str(len(nodes)), "--rank", str(rank))
            options += ("--master", master, "--host", node.address)
            whole = (*program, *overrides(*settings))
            launch = command(*whole, processes=processes, options=options)
            with (folder / f"said{rank}").open("w") as said:
                started.append(
                    subprocess.Popen(
                        [*node.enter, "env", f"--chdir={here}", *launch],
                        env=environment(here),
                        stdout=said,
                        stderr=said,
                        text=True,
                    )
                )
        yield started
    finally:
        for launch in started:
            launch.terminate()  # and with it its ranks
        for launch in started:
            launch.wait(SECONDS)


def run(
    nodes: Sequence[Node], folder: Path, *settings: str, **more: Any
) -> list[subprocess.CompletedProcess[str]]:
    """What each of `launches` said, after it has ended."""
    with launches(nodes, folder, *settings, **more) as started:
        codes = [launch.wait(SECONDS) for launch in started]
    return [
        subprocess.CompletedProcess([], code, (folder / f"said{rank}").read_text(), "")
        for rank, code in enumerate(codes)
    ]
