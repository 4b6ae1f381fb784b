"""Hostile run directories, traces, configs and datagrams: every command ends, in time and in bounds."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ppprof.capture.ranks.clock_sync import ClockClient, ClockServer
from ppprof.capture.ranks.control_channel import CoordinatorChannel, WorkerChannel
from ppprof.capture.schedule import State
from ppprof.rundir.clocks import read_clocks
from tests.capture.ranks.stores import Store
from tests.fixtures.hostile_bytes import mutated

ROOT = Path(__file__).parents[1]
FEW = 6
"""Inputs in `make test`."""


@pytest.mark.parametrize(
    ("kind", "first", "count"),
    [
        ("runs", 0, FEW),
        *(
            pytest.param(kind, FEW, count, marks=pytest.mark.all)
            for kind, count in (("runs", 200), ("traces", 1200), ("configs", 800))
        ),
    ],
)
def test_every_command_ends(tmp_path: Path, kind: str, first: int, count: int) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.fixtures.stress_worker",
            kind,
            str(tmp_path),
            str(first),
            str(count),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert sum(json.loads(done.stdout).values()) == count


def hostile_packets(token: str, count: int) -> list[bytes]:
    """Return packets of strangers, and of a rank that is out of order."""
    rng = random.Random(count)
    whole = token.encode() + json.dumps({"kind": "ask", "why": "slow", "rank": 1}).encode()
    bodies = [b"[" * 16000, b"{}", b'{"kind": 3}', b"[]", b"9" * 9000, b"\xff" * 99, b""]
    packets = []
    for _ in range(count):
        kind = rng.randrange(4)
        if kind == 0:
            packets.append(rng.choice(bodies))
        elif kind == 1:
            packets.append(token.encode() + rng.choice(bodies))
        elif kind == 2:
            packets.append(mutated(whole, rng)[:60000])
        else:
            packets.append(rng.randbytes(rng.choice([0, 1, 28, 29, 64, 1400])))
    return packets


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.all)])
def test_datagrams_neither_end_the_channel_nor_the_clocks(tmp_path: Path, count: int) -> None:
    store = Store()
    coordinator, worker = (
        CoordinatorChannel("127.0.0.1", 2, store, "key"),
        WorkerChannel(1, store, "key"),
    )
    server = ClockServer(tmp_path, "127.0.0.1", store, "clock")
    client = ClockClient(tmp_path, 1, store, "clock")
    addresses = [coordinator._socket.getsockname(), server._socket.getsockname()]
    worker.read()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for packet in hostile_packets(coordinator._token, count):
            for address in addresses:
                stranger.sendto(packet, address)
            coordinator.read()
    deadline = time.monotonic() + 30
    arrived: list[str] = []
    while "end" not in arrived and time.monotonic() < deadline:
        worker.read()
        worker.send({"kind": "ask", "why": "end"})
        arrived += [str(message.get("why")) for message in coordinator.read()]
        time.sleep(0.01)
    assert "end" in arrived
    client.advance(State.CLOSED, 0)
    client.stop(compare=False, failed=False)
    server.stop(compare=False, failed=False)
    assert 1 in read_clocks(tmp_path)
    worker.close()
    coordinator.close()
