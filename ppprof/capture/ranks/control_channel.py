"""Messages between rank 0 and the other ranks, read between two steps: no thread, no waiting.

::

    rank 3   hello -->            ack 7 -->         ask -->
    rank 0   knows rank 3         7: "window 2 starts at step 120"   sent again until confirmed

Messages are UDP datagrams, as for the clocks (`clock_sync`). Checking for a message takes 2 us if
there is no message. A query of the job's store took 47 ms with Paddle 3.3.1, between two ranks of
one machine. Each rank confirms the messages of rank 0. Messages of the other ranks are sent once
and may be lost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ppprof.capture.ranks import udp
from ppprof.capture.ranks.udp import Socket

Message = dict[str, Any]

_MAX_BYTES = 16384
_READ_SECONDS = 0.002
"""How long one call reads packets. The messages of 1,000 ranks that arrive together take that long;
what is left waits for the next step."""
_RESEND_SECONDS = 0.05
"""How long rank 0 waits for a confirmation before it sends a message again."""
_HELLO_SECONDS = 0.25
_LIFETIME_SECONDS = 30.0
"""For how long rank 0 sends a message again until it is confirmed."""


class ControlChannel:
    """One rank's end of the channel, open during the rank's session; without other ranks, it does nothing."""

    def read(self) -> list[Message]:
        """Return the messages that have arrived since the last call, without waiting.

        ``message["rank"]`` is the sender's rank; it is missing in messages of rank 0.

        Raises:
            OSError: the socket is broken.
        """
        return []

    def send(self, message: Message) -> None:
        """Send a message without waiting: rank 0 to all other ranks, any other rank to rank 0.

        A message of rank 0 is sent again until each rank has confirmed it, for at most 30 s. A
        message of another rank is sent once and may be lost.

        Args:
            message: values for JSON; ``message["kind"]`` is text that says what the message is.

        Raises:
            OSError: this rank's socket is broken.
        """

    def unconfirmed(self) -> list[int]:
        """Return the ranks that have not confirmed rank 0's last message; empty on other ranks."""
        return []

    def close(self, seconds: float = 0) -> None:
        """Close the channel; rank 0 first waits up to ``seconds`` for confirmations."""


@dataclass
class _SentMessage:
    packet: bytes
    sent: float
    resent: float
    missing: set[int] = field(default_factory=set)


_MOST_LOOKUPS = 3


class CoordinatorChannel(ControlChannel):
    """Rank 0's end of the channel.

    Args:
        host: address at which the other ranks reach rank 0.
        key: prefix of the keys in the store; all ranks must pass the same prefix.

    Raises:
        OSError: this machine does not have the address ``host``.
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
        self._sent: dict[int, _SentMessage] = {}
        self._number = 0
        self._socket, self._token = udp.bind(host, store, key)
        self._socket.setblocking(False)

    def read(self) -> list[Message]:
        """Return the messages since the last call; send unconfirmed messages of rank 0 again."""
        messages = []
        for _ in _limited_by_time():
            try:
                packet, sender = self._socket.recvfrom(_MAX_BYTES)
            except BlockingIOError:
                break
            except ConnectionError:  # some rank has closed its end
                continue
            message = _decode(packet, self._token)
            rank = message.get("rank")
            if rank not in self._others:
                continue
            self._addresses[rank] = sender
            if message["kind"] == "hello":
                self._welcome(rank)
            elif message["kind"] == "ack":
                if message.get("number") in self._sent:
                    self._sent[message["number"]].missing.discard(rank)
            else:
                messages.append(message)
        if self._sent:
            self._resend()
        return messages

    def send(self, message: Message) -> None:
        """Send a message to all ranks that have said hello.

        `read` sends the message again, every 50 ms, to ranks that have not confirmed it. Ranks that
        say hello later get it, too. After 30 s the message is dropped.
        """
        self._number += 1
        packet = _encode(self._token, {**message, "number": self._number})
        for rank in self._addresses:
            self._send_packet(packet, rank)
        now = self._clock()
        self._sent[self._number] = _SentMessage(packet, now, now, set(self._addresses))

    def unconfirmed(self) -> list[int]:
        """Return the ranks that have not confirmed the last message or never said hello, sorted.

        A message that was dropped after 30 s counts as confirmed.
        """
        message = self._sent.get(self._number)
        unknown = self._others - self._addresses.keys()
        return sorted(unknown | (message.missing if message is not None else set()))

    def close(self, seconds: float = 0) -> None:
        """Wait up to ``seconds`` until all messages are confirmed; then close the socket."""
        deadline = self._clock() + seconds
        with suppress(OSError):
            while any(sent.missing for sent in self._sent.values()) and self._clock() < deadline:
                self.read()
                time.sleep(0.01)
        self._socket.close()

    def _welcome(self, rank: int) -> None:
        """Answer a rank's hello, and send it all messages that are not dropped yet."""
        self._send_packet(_encode(self._token, {"kind": "welcome"}), rank)
        for sent in self._sent.values():
            self._send_packet(sent.packet, rank)
            sent.missing.add(rank)

    def _resend(self) -> None:
        now = self._clock()
        for number, sent in list(self._sent.items()):
            if now - sent.sent > _LIFETIME_SECONDS:
                del self._sent[number]
            elif sent.missing and now - sent.resent >= _RESEND_SECONDS:
                sent.resent = now
                for rank in sent.missing:
                    self._send_packet(sent.packet, rank)

    def _send_packet(self, packet: bytes, rank: int) -> None:
        with suppress(BlockingIOError, ConnectionError):  # lost; it is sent again
            self._socket.sendto(packet, self._addresses[rank])


class WorkerChannel(ControlChannel):
    """The end of the channel of any rank but 0.

    Args:
        key: prefix of the keys in the store; all ranks must pass the same prefix.
    """

    def __init__(
        self, rank: int, store: Any, key: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._rank = rank
        self._store = store
        self._key = key
        self._socket: Socket | None = None
        self._token = ""
        self._last_hello = 0.0
        self._num_lookups = 0
        self._is_welcome = False
        self._numbers_read: set[int] = set()

    def read(self) -> list[Message]:
        """Return and confirm the messages that have arrived; say hello until rank 0 answers.

        The first three calls look for rank 0: at `attach`, which may happen within step 0, and after
        steps 0 and 1. If rank 0 attaches at all, it has attached before the collectives of step 1.
        Without rank 0, the list stays empty. A message that arrives twice is returned once.
        """
        if self._socket is None:
            self._look_for_rank_0()
            if self._socket is None:
                return []
        messages = []
        for _ in _limited_by_time():
            try:
                packet = self._socket.recv(_MAX_BYTES)
            except BlockingIOError:
                break
            except ConnectionError:
                if not self._is_welcome:
                    break
                continue
            message = _decode(packet, self._token)
            if message.get("kind") == "welcome":
                self._is_welcome = True
            elif isinstance(message.get("number"), int):
                number = message["number"]
                self._send_message({"kind": "ack", "number": number})
                if number not in self._numbers_read:
                    self._numbers_read.add(number)
                    messages.append(message)
        if not self._is_welcome and self._clock() - self._last_hello >= _HELLO_SECONDS:
            self._last_hello = self._clock()
            self._send_message({"kind": "hello"})
        return sorted(messages, key=lambda message: int(message["number"]))

    def send(self, message: Message) -> None:
        """Send a message to rank 0 once; it may be lost. Do nothing if rank 0 was not found."""
        if self._socket is not None:
            self._send_message(message)

    def close(self, seconds: float = 0) -> None:
        """Close the channel at once; ``seconds`` has no effect."""
        if self._socket is not None:
            self._socket.close()

    def _look_for_rank_0(self) -> None:
        self._num_lookups += 1
        if self._num_lookups > _MOST_LOOKUPS:
            return
        endpoint = udp.connect(self._store, self._key)
        if endpoint is not None:
            self._socket, self._token = endpoint
            self._socket.setblocking(False)

    def _send_message(self, message: Message) -> None:
        assert self._socket is not None
        with suppress(BlockingIOError, ConnectionError):
            self._socket.send(_encode(self._token, {**message, "rank": self._rank}))


def _limited_by_time() -> Iterator[None]:
    """Yield until `_READ_SECONDS` have passed: packets of strangers may arrive without end."""
    deadline = time.monotonic() + _READ_SECONDS
    while True:
        yield
        if time.monotonic() > deadline:
            return


def _encode(token: str, message: Mapping[str, Any]) -> bytes:
    return token.encode() + json.dumps(message).encode()


def _decode(packet: bytes, token: str) -> Message:
    """Return the message of a packet; empty if the packet does not belong to this session.

    Nothing of a packet is parsed unless it begins with the session's token.
    """
    if packet.startswith(token.encode()):
        with suppress(ValueError, RecursionError):
            message = json.loads(packet[len(token) :])
            if isinstance(message, dict) and isinstance(message.get("kind"), str):
                return message
    return {}
