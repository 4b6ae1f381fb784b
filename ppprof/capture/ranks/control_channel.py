"""Mail between rank 0 and the others, read between two steps: no thread, nothing that waits.

::

    rank 3   hello -->            ack 7 -->         ask -->
    rank 0   knows rank 3         7: "window 2 starts at step 120"   sent again until confirmed

Datagrams, as with the clocks (`clock_exchange`): to look for one that is not there takes 2 us, where a
question to the job's store took 47 ms with Paddle 3.3.1, between two ranks of one machine.
What rank 0 sends is confirmed by each rank; what they send to it may be lost.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]

_LARGEST = 16384
_AGAIN_SECONDS = 0.05
"""How long a confirmation may take before it is sent again."""
_HELLO_SECONDS = 0.25
_LIVES_SECONDS = 30.0
"""How long it is sent again."""


class ControlChannel(ABC):
    """A rank's end, for the length of its session."""

    @abstractmethod
    def read(self) -> list[Message]:
        """What has come since the last time; from a rank, its number is under ``rank``.

        Raises:
            OSError: the socket is broken.
        """

    @abstractmethod
    def send(self, message: Message) -> None:
        """From rank 0 to all others, from another to rank 0.

        Raises:
            OSError: the socket is broken.
        """

    def late(self) -> list[int]:
        """Ranks that have not confirmed the last message."""
        return []

    @abstractmethod
    def close(self, seconds: float = 0) -> None:
        """Ends it; rank 0 waits so long for confirmations."""


class LocalChannel(ControlChannel):
    """Of a job with one rank."""

    def read(self) -> list[Message]:
        """Nothing."""
        return []

    def send(self, message: Message) -> None:
        """To nobody."""

    def close(self, seconds: float = 0) -> None:
        """Nothing to end."""


@dataclass
class _Sent:
    packet: bytes
    at: float
    again: float
    missing: set[int] = field(default_factory=set)


class CoordinatorChannel(ControlChannel):
    """Rank 0's end.

    Args:
        host: where the other ranks reach this one.
        world_size: how many there are, with this one.
        store: the job's store.
        key: of the store, and known to all ranks.

    Raises:
        OSError: there is no such address here.
        RuntimeError: the store fails.
    """

    def __init__(
        self,
        host: str,
        world_size: int,
        store: Any,
        key: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._others = set(range(1, world_size))
        self._addresses: dict[int, Any] = {}
        self._sent: dict[int, _Sent] = {}
        self._number = 0
        self._token = secrets.token_hex(8)
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        try:
            self._socket.bind(address)
            self._socket.setblocking(False)
            port = self._socket.getsockname()[1]
            store.set(f"{key}/address", json.dumps([host, port, self._token]))
            store.add(f"{key}/posted", 1)
        except BaseException:
            self._socket.close()
            raise

    def read(self) -> list[Message]:
        """As above; and sends again what was not confirmed."""
        found = []
        while True:
            try:
                packet, sender = self._socket.recvfrom(_LARGEST)
            except BlockingIOError:
                break
            except ConnectionError:  # some rank's end is closed
                continue
            message = _message(packet, self._token)
            rank = message.get("rank")
            if rank not in self._others:
                continue
            self._addresses[rank] = sender
            if message["kind"] == "hello":
                self._put(_packet(self._token, {"kind": "welcome"}), rank)
                for sent in self._sent.values():  # what it has missed
                    self._put(sent.packet, rank)
                    sent.missing.add(rank)
            elif message["kind"] == "ack":
                if message.get("number") in self._sent:
                    self._sent[message["number"]].missing.discard(rank)
            else:
                found.append(message)
        if self._sent:
            self._send_again()
        return found

    def send(self, message: Message) -> None:
        """As above, and again at each `read` until it is confirmed or old."""
        self._number += 1
        packet = _packet(self._token, {**message, "number": self._number})
        for rank in self._addresses:
            self._put(packet, rank)
        now = self._clock()
        self._sent[self._number] = _Sent(packet, now, now, set(self._addresses))

    def late(self) -> list[int]:
        """Ranks that have not confirmed the last message, or never said hello."""
        sent = self._sent.get(self._number)
        unknown = self._others - self._addresses.keys()
        return sorted(unknown | (sent.missing if sent is not None else set()))

    def close(self, seconds: float = 0) -> None:
        """Waits for confirmations as long as there is something to confirm."""
        deadline = self._clock() + seconds
        with suppress(OSError):
            while any(sent.missing for sent in self._sent.values()) and self._clock() < deadline:
                self.read()
                time.sleep(0.01)
        self._socket.close()

    def _send_again(self) -> None:
        now = self._clock()
        for number, sent in list(self._sent.items()):
            if now - sent.at > _LIVES_SECONDS:
                del self._sent[number]
            elif sent.missing and now - sent.again >= _AGAIN_SECONDS:
                sent.again = now
                for rank in sent.missing:
                    self._put(sent.packet, rank)

    def _put(self, packet: bytes, rank: int) -> None:
        with suppress(BlockingIOError, ConnectionError):  # lost; it is sent again
            self._socket.sendto(packet, self._addresses[rank])


class WorkerChannel(ControlChannel):
    """Any other rank's end.

    Args:
        rank: of this process.
        store: the job's store.
        key: of the store, and known to all ranks.
    """

    def __init__(
        self, rank: int, store: Any, key: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._rank = rank
        self._store = store
        self._key = key
        self._socket: socket.socket | None = None
        self._token = ""
        self._looked = self._hello = 0.0
        self._looks = 0
        self._is_welcome = False
        self._read: set[int] = set()

    def read(self) -> list[Message]:
        """As above; looks for rank 0 at the first two calls, by when it has attached."""
        if self._socket is None:
            self._look_for_rank_0()
            if self._socket is None:
                return []
        found = []
        while True:
            try:
                packet = self._socket.recv(_LARGEST)
            except BlockingIOError:
                break
            except ConnectionError:
                if not self._is_welcome:
                    break
                continue
            message = _message(packet, self._token)
            if message.get("kind") == "welcome":
                self._is_welcome = True
            elif isinstance(message.get("number"), int):
                number = message["number"]
                self._put({"kind": "ack", "number": number})
                if number not in self._read:
                    self._read.add(number)
                    found.append(message)
        if not self._is_welcome and self._clock() - self._hello >= _HELLO_SECONDS:
            self._hello = self._clock()
            self._put({"kind": "hello"})
        return sorted(found, key=lambda message: int(message["number"]))

    def send(self, message: Message) -> None:
        """To rank 0, once."""
        if self._socket is not None:
            self._put(message)

    def close(self, seconds: float = 0) -> None:
        """Ends it."""
        if self._socket is not None:
            self._socket.close()

    def _look_for_rank_0(self) -> None:
        self._looks += 1
        if self._looks > 2 or not self._store.add(f"{self._key}/posted", 0):
            return
        host, port, self._token = json.loads(self._store.get(f"{self._key}/address"))
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        found = socket.socket(family, kind)
        try:
            found.setblocking(False)
            found.connect(address)
        except BaseException:
            found.close()
            raise
        self._socket = found

    def _put(self, message: Message) -> None:
        assert self._socket is not None
        with suppress(BlockingIOError, ConnectionError):
            self._socket.send(_packet(self._token, {**message, "rank": self._rank}))


def _packet(token: str, message: Mapping[str, Any]) -> bytes:
    return json.dumps({"token": token, **message}).encode()


def _message(packet: bytes, token: str) -> Message:
    """What a packet says; nothing, if it is none of ours."""
    with suppress(ValueError):
        message = json.loads(packet)
        if (
            isinstance(message, dict)
            and message.get("token") == token
            and isinstance(message.get("kind"), str)
        ):
            return message
    return {}
