"""Mail between ranks, over real sockets of this machine and a store that is a dictionary."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ppprof.capture.ranks.control_channel import (
    ControlChannel,
    CoordinatorChannel,
    LocalChannel,
    Message,
    WorkerChannel,
)


class Store(dict[str, Any]):
    """As much of Paddle's store as is needed."""

    def add(self, key: str, number: int) -> int:
        self[key] = self.get(key, 0) + number
        return int(self[key])

    def set(self, key: str, value: str) -> None:
        self[key] = value


class Ends(list[Any]):
    """A hub, then two spokes; ``now`` is what their clock says."""

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
    """What has come once it is as expected: the kernel delivers when it does."""
    found: list[Message] = []
    for _ in range(1000):
        found += mail.read()
        if expected(found):
            return found
        time.sleep(0.002)
    raise AssertionError(found)


def introduced(ends: Ends) -> tuple[CoordinatorChannel, WorkerChannel, WorkerChannel]:
    hub, *spokes = ends
    for spoke in spokes:
        ends.now += 1
        spoke.read()
        rank = spoke._rank
        until(hub, lambda _, rank=rank: rank in hub._addresses)
        until(spoke, lambda _, spoke=spoke: spoke._is_welcome)
    return hub, spokes[0], spokes[1]


def test_what_rank_0_sends_reaches_all_once_and_is_confirmed(ends: Ends) -> None:
    hub, first, second = introduced(ends)
    hub.send({"kind": "plan", "start": 7})
    assert hub.unconfirmed() == [1, 2]
    for spoke in (first, second):
        (message,) = until(spoke, bool)
        assert (message["kind"], message["start"]) == ("plan", 7)
    until(hub, lambda _: hub.unconfirmed() == [])
    ends.now += 1
    hub.read()
    time.sleep(0.05)
    assert first.read() == second.read() == []


def test_what_is_lost_is_sent_again(ends: Ends) -> None:
    hub, first, second = introduced(ends)
    hub.send({"kind": "plan", "start": 7})
    until(second, bool)
    time.sleep(0.05)
    assert first._socket is not None
    first._socket.recv(16384)  # lost
    until(hub, lambda _: hub.unconfirmed() == [1])
    assert first.read() == []
    ends.now += 0.06
    hub.read()
    assert [message["start"] for message in until(first, bool)] == [7]
    until(hub, lambda _: hub.unconfirmed() == [])


def test_what_others_send_reaches_rank_0(ends: Ends) -> None:
    hub, first, second = introduced(ends)
    first.send({"kind": "ask", "why": "slow"})
    second.send({"kind": "ask", "why": "slow"})
    found = until(hub, lambda found: len(found) == 2)
    assert {message["rank"] for message in found} == {1, 2}


def test_a_rank_that_comes_later_hears_what_it_missed(ends: Ends) -> None:
    hub, first, second = ends
    hub.send({"kind": "plan", "start": 7})
    assert hub.unconfirmed() == [1, 2]
    ends.now += 1
    first.read()
    until(hub, lambda _: 1 in hub._addresses)
    assert [message["start"] for message in until(first, bool)] == [7]
    assert second.read() == []


def test_what_nobody_confirms_is_given_up(ends: Ends) -> None:
    hub, *_ = introduced(ends)
    hub.send({"kind": "plan"})
    ends.now += 31
    hub.read()
    start = time.monotonic()
    hub.close(5)
    assert time.monotonic() - start < 1


def test_strangers_are_not_heard(ends: Ends) -> None:
    hub, *_ = introduced(ends)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for packet in (b"", b"\xff", b"{}", b'{"token": "x", "kind": "ask", "rank": 1}'):
            stranger.sendto(packet, hub._socket.getsockname())
    time.sleep(0.05)
    assert hub.read() == []


def test_rank_0_may_be_gone(ends: Ends) -> None:
    hub, first, _ = introduced(ends)
    hub.close()
    for _ in range(5):
        first.send({"kind": "ask"})
        assert first.read() == []


def test_a_rank_looks_for_rank_0_twice_and_no_more() -> None:
    store = Store()
    asked = []
    store.add = lambda key, number: asked.append(key) or 0  # type: ignore[assignment, method-assign, func-returns-value]
    spoke = WorkerChannel(1, store, "key")
    for _ in range(9):
        assert spoke.read() == []
        spoke.send({"kind": "ask"})
    spoke.close()
    assert asked == ["key/posted"] * 2


def test_alone() -> None:
    alone = LocalChannel()
    alone.send({"kind": "plan"})
    assert (alone.read(), alone.unconfirmed()) == ([], [])
    alone.close()
