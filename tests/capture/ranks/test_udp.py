"""A socket of rank 0 that other ranks find through a store."""

from __future__ import annotations

import json
import socket

import pytest

from ppprof.capture.ranks import udp
from tests.capture.ranks.stores import Store


def test_both_ends_talk_on_the_address_that_was_asked_for() -> None:
    store = Store()
    assert udp.connect(store, "key") is None
    server = udp.bind("127.0.0.1", store, "key")
    client = udp.connect(store, "key")
    assert client is not None
    with server.socket, client.socket:
        assert server.socket.getsockname()[0] == "127.0.0.1"
        assert client.token == server.token
        assert len(bytes.fromhex(server.token)) == 8
        client.socket.send(b"question")
        packet, sender = server.socket.recvfrom(64)
        server.socket.sendto(b"answer", sender)
        assert (packet, client.socket.recv(64)) == (b"question", b"answer")


def test_a_socket_is_closed_where_the_rendezvous_fails() -> None:
    class Broken(Store):
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("the store is gone")

    with pytest.raises(RuntimeError, match="gone"):  # an open socket would be a ResourceWarning
        udp.bind("127.0.0.1", Broken(), "key")
    with pytest.raises(OSError, match="assign"):
        udp.bind("192.0.2.1", Store(), "key")  # an address for documentation
    store = Store({"key/posted": 1, "key/address": json.dumps(["256.0.0.1", 1, "00" * 8])})
    with pytest.raises(socket.gaierror):
        udp.connect(store, "key")
