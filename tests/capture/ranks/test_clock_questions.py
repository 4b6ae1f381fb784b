"""Clock readings within one process: when they are taken, and that no failure is raised."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ppprof.capture.ranks import clock_sync
from ppprof.capture.ranks.clock_sync import ClockClient, ClockServer, describe_clocks
from ppprof.capture.schedule import State
from ppprof.rundir.clocks import Clock, Reading, read_clocks

HOST, KEY = "127.0.0.1", "session"


class Store(dict):  # type: ignore[type-arg]
    """The job's store, as far as it is used; nothing in it waits."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def add(self, key: str, number: int) -> int:
        self[key] = self.get(key, 0) + number
        return int(self[key])


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "ppprof clock"]


def readings(run: Path, rank: int = 1) -> tuple[Reading, ...]:
    clocks = read_clocks(run)
    return clocks[rank].readings if rank in clocks else ()


def test_readings_of_one_clock_at_attach_and_after_each_window_do_not_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store()
    server = ClockServer(tmp_path, HOST, store, KEY)
    client = ClockClient(tmp_path, 1, store, KEY)
    for step, before in enumerate([State.CLOSED, State.CLOSED, State.LAST, State.CLOSED]):
        client.advance(before, step)
        server.advance(before, step)
        if client._thread is not None:
            client._thread.join()
    client.stop(compare=True, failed=False)
    server.stop(compare=True, failed=False)

    assert len(readings(tmp_path)) == 3
    for reading in readings(tmp_path):
        assert abs(reading.offset_ns) <= reading.error_ns < 5_000_000
    assert [(r.offset_ns, r.error_ns) for r in readings(tmp_path, 0)] == [(0, 0)] * 3
    assert capsys.readouterr().err == ""


def test_a_window_that_ends_during_a_reading_gets_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    go = threading.Event()

    def slowly() -> None:
        go.wait()
        taken.append(len(taken))

    store = Store()
    server = ClockServer(tmp_path, HOST, store, KEY)
    client = ClockClient(tmp_path, 1, store, KEY)
    monkeypatch.setattr(client, "_take_reading", slowly)
    for step in range(4):  # attach, and three windows while the first reading goes on
        client.advance(State.LAST, step)
    go.set()
    client.stop(compare=False, failed=True)
    server.stop(compare=False, failed=True)
    assert taken == [0, 1]


def test_a_late_rank_0_is_found_after_the_first_step_or_not_at_all(
    tmp_path: Path,
) -> None:
    store = Store()
    early, never = (
        ClockClient(tmp_path, 1, store, KEY),
        ClockClient(tmp_path, 2, store, "another session"),
    )
    for client in (early, never):
        client.advance(State.CLOSED, 0)
    server = ClockServer(tmp_path, HOST, store, KEY)
    for client in (early, never):
        client.advance(State.LAST, 1)
        client.advance(State.LAST, 2)
        client.stop(compare=True, failed=False)
    server.stop(compare=False, failed=False)
    assert readings(tmp_path, 1)
    assert not readings(tmp_path, 2)


def test_rank_0_waits_for_ranks_that_sent_queries_unless_it_fails(tmp_path: Path) -> None:
    store = Store()
    server = ClockServer(tmp_path, HOST, store, KEY)
    client = ClockClient(tmp_path, 1, store, KEY)
    client.advance(State.CLOSED, 0)
    client._thread.join()  # type: ignore[union-attr]
    closing = threading.Thread(target=server.stop, args=(False, False))
    closing.start()
    time.sleep(0.05)
    assert closing.is_alive()
    client.stop(compare=True, failed=False)
    closing.join()
    assert len(readings(tmp_path)) == 2

    server = ClockServer(tmp_path, HOST, store, "second")
    client = ClockClient(tmp_path, 2, store, "second")
    client.advance(State.CLOSED, 0)
    client._thread.join()  # type: ignore[union-attr]
    start = time.monotonic()
    server.stop(compare=False, failed=True)
    assert time.monotonic() - start < clock_sync._LEAVE_SECONDS / 2
    client.stop(compare=False, failed=True)


def test_a_rank_0_that_is_gone_costs_a_line_and_little_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store()
    ClockServer(tmp_path, HOST, store, KEY).stop(compare=False, failed=False)
    client = ClockClient(tmp_path, 1, store, KEY)
    client.advance(State.CLOSED, 0)
    start = time.monotonic()
    for step in range(1, 4):
        client.advance(State.LAST, step)
    client.stop(compare=True, failed=False)
    assert time.monotonic() - start < 2
    assert capsys.readouterr().err == (
        "ppprof: rank 1: rank 0 does not answer clock queries; "
        "traces may be misaligned with other ranks'\n"
    )
    assert not readings(tmp_path)


def test_a_silent_rank_0_costs_a_line_and_little_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind((HOST, 0))
        store = Store()
        store.set(f"{KEY}/address", json.dumps([*silent.getsockname(), "00" * 8]))
        store.add(f"{KEY}/posted", 1)
        client = ClockClient(tmp_path, 1, store, KEY)
        start = time.monotonic()
        client.advance(State.CLOSED, 0)
        assert time.monotonic() - start < 0.1
        client.stop(compare=True, failed=False)
        assert time.monotonic() - start < 3
    assert capsys.readouterr().err.count("\n") == 1


def test_late_answers_and_packets_that_are_no_answers_are_ignored(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((HOST, 0))
        token = b"12345678"

        def answer() -> None:
            for _ in range(clock_sync._TRIPS):
                packet, sender = other.recvfrom(64)
                number = clock_sync._QUERY.unpack(packet)[2]
                now = time.time_ns() + 800_000_000
                for answered, stamp in ((number - 1, 0), (number, now)):
                    other.sendto(b"noise", sender)
                    other.sendto(clock_sync._ANSWER.pack(b"stranger", number, 0), sender)
                    other.sendto(clock_sync._ANSWER.pack(token, answered % 2**32, stamp), sender)

        thread = threading.Thread(target=answer)
        thread.start()
        store = Store()
        store.set(f"{KEY}/address", json.dumps([*other.getsockname(), token.hex()]))
        store.add(f"{KEY}/posted", 1)
        client = ClockClient(tmp_path, 1, store, KEY)
        client.advance(State.CLOSED, 0)
        client._thread.join()  # type: ignore[union-attr]
        thread.join()
        client.stop(compare=False, failed=True)
    (reading,) = readings(tmp_path)
    assert abs(reading.offset_ns - 800_000_000) <= reading.error_ns


def test_rank_0_ignores_packets_that_are_no_queries(tmp_path: Path) -> None:
    store = Store()
    server = ClockServer(tmp_path, HOST, store, KEY)
    address = json.loads(store[f"{KEY}/address"])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.settimeout(0.2)
        for packet in (b"", b"x" * 64, clock_sync._QUERY.pack(b"no token", b"!", 0, 0)):
            stranger.sendto(packet, (address[0], address[1]))
        with pytest.raises(OSError, match="timed out"):
            stranger.recv(64)
    client = ClockClient(tmp_path, 1, store, KEY)
    client.advance(State.CLOSED, 0)
    client.stop(compare=False, failed=False)
    server.stop(compare=False, failed=False)
    assert readings(tmp_path)


def test_a_clock_that_is_set_back_between_question_and_answer_gives_no_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    server = ClockServer(tmp_path, HOST, store, KEY)
    client = ClockClient(tmp_path, 1, store, KEY)
    client._look_for_rank_0()
    backwards = iter(range(10**18, 0, -1_000))
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: next(backwards))
        assert client._round_trip(clock_sync._ASK) is None
    client.stop(compare=False, failed=False)
    server.stop(compare=False, failed=False)


def test_a_failure_is_logged_once_and_not_raised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(Store):
        def add(self, key: str, number: int) -> int:
            raise RuntimeError("the store is gone")

    client = ClockClient(tmp_path, 1, Broken(), KEY)
    client.advance(State.CLOSED, 0)
    client.advance(State.CLOSED, 1)
    client.stop(compare=True, failed=False)
    assert capsys.readouterr().err == (
        "ppprof: rank 1: comparing clocks failed: the store is gone; "
        "traces may be misaligned with other ranks'\n"
    )

    store = Store()
    (tmp_path / "clocks").touch()  # where the folder should be
    server = ClockServer(tmp_path, HOST, store, KEY)
    client = ClockClient(tmp_path, 1, store, KEY)
    for step in range(3):
        server.advance(State.LAST, step)
        client.advance(State.LAST, step)
    client.stop(compare=True, failed=False)
    server.stop(compare=True, failed=False)
    lines = sorted(capsys.readouterr().err.splitlines())
    assert [line[:42] for line in lines] == [
        "ppprof: rank 0: comparing clocks failed: [",
        "ppprof: rank 1: comparing clocks failed: [",
    ]

    with pytest.raises(RuntimeError, match="gone"):
        ClockServer(tmp_path, HOST, Broken(), KEY)
    with pytest.raises(OSError, match="assign"):
        ClockServer(tmp_path, "192.0.2.1", Store(), KEY)  # an address for documentation


def test_a_forked_child_leaves_the_exchange_alone(tmp_path: Path) -> None:
    store = Store()
    server = ClockServer(tmp_path, HOST, store, KEY)
    client = ClockClient(tmp_path, 1, store, KEY)
    client.advance(State.CLOSED, 0)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    client.stop(compare=True, failed=False)
    server.stop(compare=True, failed=False)
    assert len(readings(tmp_path)) == 2


def test_the_clocks_in_a_line() -> None:
    one, late = Reading(0, -812_340_000, 30_000), Reading(10**10, -811_839_000, 20_000)
    assert describe_clocks({}) is None
    assert describe_clocks({0: Clock(0, (Reading(0, 0, 0),))}) is None
    assert describe_clocks({3: Clock(3, (one,))}) == (
        "clocks: 1 rank within 0.812340 s of rank 0's, drift not known, known to 30 us"
    )
    clocks = {0: Clock(0, (Reading(0, 0, 0),)), 1: Clock(1, (late,)), 3: Clock(3, (one, late))}
    assert describe_clocks(clocks) == (
        "clocks: 2 ranks within 0.812340 s of rank 0's, drift up to 50.1 ± 5.0 ppm, known to 30 us"
    )
