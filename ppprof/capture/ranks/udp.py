"""A UDP socket of rank 0 that the other ranks find through the job's store."""

from __future__ import annotations

import errno
import json
import secrets
import socket
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from ppprof.capture.process import CLOSED, file_of


def _checked(call: Callable[..., Any]) -> Any:
    @wraps(call)
    def checked(self: Socket, *args: Any) -> Any:
        if not self.is_ours:
            raise OSError(errno.EBADF, CLOSED)
        return call(self, *args)

    return checked


class Socket(socket.socket):
    """A socket whose calls raise ``OSError`` (EBADF) once its descriptor is not ours any more."""

    def __init__(self, family: int, kind: int) -> None:
        super().__init__(family, kind)
        self._file = file_of(self.fileno())

    @property
    def is_ours(self) -> bool:
        """Whether the socket is open and its descriptor still means it."""
        return self.fileno() >= 0 and file_of(self.fileno()) == self._file

    recv, recvfrom, send, sendto = (
        _checked(getattr(socket.socket, name)) for name in ("recv", "recvfrom", "send", "sendto")
    )

    def close(self) -> None:
        """Close the socket; leave a descriptor alone that means a file of the training now."""
        if not self.is_ours:
            self.detach()
        super().close()


class Endpoint(NamedTuple):
    """One end of the connection between rank 0 and another rank."""

    socket: Socket
    token: str
    """16 hexadecimal digits that packets of this session carry; other packets are ignored."""


def bind(host: str, store: Any, key: str) -> Endpoint:
    """Open rank 0's socket on a free port; write its address and its token into the store.

    Args:
        host: address to bind, at which the other ranks reach rank 0.
        store: the job's store.
        key: prefix of the keys in the store; all ranks must pass the same prefix.

    Raises:
        OSError: this machine does not have the address ``host``.
        RuntimeError: the store fails.
    """
    family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
    endpoint = Endpoint(Socket(family, socket.SOCK_DGRAM), secrets.token_hex(8))
    try:
        endpoint.socket.bind(address)
        port = endpoint.socket.getsockname()[1]
        store.set(f"{key}/address", json.dumps([host, port, endpoint.token]))
        store.add(f"{key}/posted", 1)
    except BaseException:
        endpoint.socket.close()
        raise
    return endpoint


def connect(store: Any, key: str) -> Endpoint | None:
    """Open a socket that sends to rank 0 and receives from rank 0 only.

    None if rank 0 has not called `bind` yet; `connect` does not wait for it. The socket is
    connected, so that the kernel reports rank 0's closed port as an error.

    Raises:
        OSError: rank 0's address cannot be reached.
        RuntimeError: the store fails.
    """
    # `add` of 0 returns at once, while `get` waits if the key is missing.
    if not store.add(f"{key}/posted", 0):
        return None
    host, port, token = json.loads(store.get(f"{key}/address"))
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    endpoint = Endpoint(Socket(family, kind), token)
    try:
        endpoint.socket.connect(address)
    except BaseException:
        endpoint.socket.close()
        raise
    return endpoint
