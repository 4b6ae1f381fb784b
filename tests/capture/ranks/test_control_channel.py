"""Messages between ranks, over real sockets of this machine and a store that is a dictionary."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ppprof.capture.ranks.control_channel import (
    ControlChannel,
    CoordinatorChannel,
    Message,
    WorkerChannel,
)
from tests.capture.ranks.stores import Store

DEEP = b"[" * 16000


class Ends(list[Any]):
    """Channels of rank 0 and of two workers; ``now`` is their clock's time."""

    now = 0.0


@pytest.fixture
def ends() -> Iterator[Ends]:
    store, made = Store(), Ends()
    made.append(CoordinatorChannel("127.0.0.1", 3, store, "key", lambda: made.now))
    made += [WorkerChannel(rank, store, "key", lambda: made.now) for rank in (1, 2)]
    yield made
    for end in made:
        end.close()


def until(mail: ControlChannel, expected: Callable[[list[Message]], bool]) -> list[Message]:
    """Return the messages once they are as expected: the kernel delivers with a delay."""
    found: list[Message] = []
    for _ in range(1000):
        found += mail.read()
        if expected(found):
            return found
        time.sleep(0.002)
    raise AssertionError(found)


def introduced(ends: Ends) -> tuple[CoordinatorChannel, WorkerChannel, WorkerChannel]:
    coordinator, *workers = ends
    for worker in workers:
        ends.now += 1
        worker.read()
        rank = worker._rank
        until(coordinator, lambda _, rank=rank: rank in coordinator._addresses)
        until(worker, lambda _, worker=worker: worker._is_welcome)
    return coordinator, workers[0], workers[1]


def test_messages_of_rank_0_reach_all_once_and_are_confirmed(ends: Ends) -> None:
    coordinator, first, second = introduced(ends)
    coordinator.send({"kind": "plan", "start": 7})
    assert coordinator.unconfirmed() == [1, 2]
    for worker in (first, second):
        (message,) = until(worker, bool)
        assert (message["kind"], message["start"]) == ("plan", 7)
    until(coordinator, lambda _: coordinator.unconfirmed() == [])
    ends.now += 1
    coordinator.read()
    time.sleep(0.05)
    assert first.read() == second.read() == []


def test_a_lost_message_is_sent_again(ends: Ends) -> None:
    coordinator, first, second = introduced(ends)
    coordinator.send({"kind": "plan", "start": 7})
    until(second, bool)
    time.sleep(0.05)
    assert first._socket is not None
    first._socket.recv(16384)  # lost
    until(coordinator, lambda _: coordinator.unconfirmed() == [1])
    assert first.read() == []
    ends.now += 0.06
    coordinator.read()
    assert [message["start"] for message in until(first, bool)] == [7]
    until(coordinator, lambda _: coordinator.unconfirmed() == [])


def test_messages_of_others_reach_rank_0(ends: Ends) -> None:
    coordinator, first, second = introduced(ends)
    first.send({"kind": "ask", "why": "slow"})
    second.send({"kind": "ask", "why": "slow"})
    found = until(coordinator, lambda found: len(found) == 2)
    assert {message["rank"] for message in found} == {1, 2}


def test_a_rank_that_comes_later_gets_what_it_missed(ends: Ends) -> None:
    coordinator, first, second = ends
    coordinator.send({"kind": "plan", "start": 7})
    assert coordinator.unconfirmed() == [1, 2]
    ends.now += 1
    first.read()
    until(coordinator, lambda _: 1 in coordinator._addresses)
    assert [message["start"] for message in until(first, bool)] == [7]
    assert second.read() == []


def test_an_unconfirmed_message_is_given_up(ends: Ends) -> None:
    coordinator, *_ = introduced(ends)
    coordinator.send({"kind": "plan"})
    ends.now += 31
    coordinator.read()
    start = time.monotonic()
    coordinator.close(5)
    assert time.monotonic() - start < 1


def test_packets_of_strangers_are_ignored(ends: Ends) -> None:
    coordinator, *_ = introduced(ends)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for packet in (b"", b"\xff", b"{}", b'{"token": "x", "kind": "ask", "rank": 1}', DEEP):
            stranger.sendto(packet, coordinator._socket.getsockname())
    time.sleep(0.05)
    assert coordinator.read() == []


def test_a_deep_packet_of_a_rank_is_ignored(ends: Ends) -> None:
    coordinator, first, _ = introduced(ends)
    assert first._socket is not None
    first._socket.send(coordinator._token.encode() + DEEP)
    first.send({"kind": "ask"})
    assert [message["kind"] for message in until(coordinator, bool)] == ["ask"]


def test_reading_ends_while_packets_keep_arriving(ends: Ends) -> None:
    coordinator, first, _ = introduced(ends)

    class Flood:
        """A socket on which a packet is always waiting."""

        def recvfrom(self, _: int) -> tuple[bytes, None]:
            return DEEP, None

        def close(self) -> None:
            pass

    own, coordinator._socket = coordinator._socket, Flood()  # type: ignore[assignment]
    assert coordinator.read() == []
    coordinator._socket = own
    first.send({"kind": "ask"})
    assert [message["kind"] for message in until(coordinator, bool)] == ["ask"]


def test_rank_0_may_be_gone(ends: Ends) -> None:
    coordinator, first, _ = introduced(ends)
    coordinator.close()
    for _ in range(5):
        first.send({"kind": "ask"})
        assert first.read() == []


def test_a_rank_looks_for_rank_0_three_times_and_no_more() -> None:
    store = Store()
    asked = []
    store.add = lambda key, number: asked.append(key) or 0  # type: ignore[assignment, method-assign, func-returns-value]
    worker = WorkerChannel(1, store, "key")
    for _ in range(9):
        assert worker.read() == []
        worker.send({"kind": "ask"})
    worker.close()
    assert asked == ["key/posted"] * 3


def test_alone() -> None:
    alone = ControlChannel()
    alone.send({"kind": "plan"})
    assert (alone.read(), alone.unconfirmed()) == ([], [])
    alone.close()
