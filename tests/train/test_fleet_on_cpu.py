"""What Fleet needs on a CPU: the store of a group."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ppprof.train import fleet_on_cpu


@pytest.mark.skipif(sys.platform != "linux", reason="two sockets may bind a port only on Linux")
def test_the_port_of_a_store_cannot_be_taken_before_the_store_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def listen(host: str, port: int, *others: Any) -> socket.socket:
        with socket.socket() as another, pytest.raises(OSError, match="in use"):
            another.bind((host, port))
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as libuv does
        server.bind(("", port))
        server.listen()
        return server

    monkeypatch.setattr(fleet_on_cpu, "core", SimpleNamespace(TCPStore=listen))

    server, port = fleet_on_cpu._start_store("127.0.0.1")

    with server, socket.create_connection(("127.0.0.1", port)) as client:
        assert client.getpeername()[1] == port
