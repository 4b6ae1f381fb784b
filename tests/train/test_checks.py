"""What checks found, passed on to every node; on two nodes: tests/jobs/test_two_nodes.py."""

from __future__ import annotations

import threading
import time

import pytest

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")

from paddle.base import core

from ppprof.train import command

pytestmark = pytest.mark.paddle


class Store:
    """Paddle's store, as far as it is asked: counters and one answer, for which readers wait."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.answer = ""
        self.is_answered = threading.Event()

    def add(self, key: str, number: int) -> int:
        self.counts[key] = self.counts.get(key, 0) + number
        return self.counts[key]

    def set(self, key: str, answer: str) -> None:
        self.answer = answer
        self.is_answered.set()

    def get(self, key: str) -> str:
        assert self.is_answered.wait(10)
        return self.answer


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    monkeypatch.setattr(core, "create_or_get_global_tcp_store", lambda: made)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    monkeypatch.setenv("PADDLE_NNODES", "2")
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    return made


@pytest.mark.parametrize(("rank", "stays"), [(0, True), (1, False)])
def test_rank_0_stays_until_the_others_have_read_of_a_failure(
    store: Store, monkeypatch: pytest.MonkeyPatch, rank: int, stays: bool
) -> None:
    monkeypatch.setenv("PADDLE_TRAINER_ID", str(rank))
    store.add("ppprof/checks/asked", 1)  # the other rank, which has found nothing
    late = threading.Timer(0.5, store.add, ("ppprof/checks/read", 1))
    late.start()
    began = time.monotonic()
    assert command.failed_anywhere(True)
    assert (time.monotonic() - began > 0.4) is stays
    late.join()


def test_without_a_failure_no_rank_waits(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLE_TRAINER_ID", "0")
    store.add("ppprof/checks/asked", 1)
    assert not command.failed_anywhere(False)
    assert "ppprof/checks/read" not in store.counts
