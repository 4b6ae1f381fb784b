"""Variables and attributes whose graphs reach back over steps, in trainings that have such ones, and that have none."""

from __future__ import annotations

import sys
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ppprof.capture.recording.user_files import UserFiles

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")

NUM = 8
HERE = "test_graph_chains.py"


class Learner:
    """Smooths its loss."""

    def __init__(self, keeps_graph: bool) -> None:
        self.keeps_graph = keeps_graph
        self.last_loss: Any = 0.0
        self.sums: dict[str, Any] = {"loss": 0.0, "count": 0}

    def track(self, loss: Any) -> None:
        loss = loss if self.keeps_graph else loss.detach()
        self.last_loss = 0.9 * self.last_loss + 0.1 * loss
        self.sums["loss"] += loss


class Net(paddle.nn.Layer):  # type: ignore[misc]
    """Sums its own outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = paddle.nn.Linear(4, 4)
        self.total: Any = 0.0

    def forward(self, x: Any) -> Any:
        out = self.linear(x).mean()
        self.total = self.total + out
        return out


def steps(train: Callable[[int], Any]) -> list[str]:
    """Return the names found after `NUM` steps, of which two are ahead of the window."""
    from ppprof.capture.recording.graph_chains import GraphChains

    chains = GraphChains(UserFiles(Path(__file__).parent))
    for step in range(NUM):
        if step == 2:
            chains.note(sys._getframe(1))
        train(step)
    return chains.found(sys._getframe(1), NUM - 2)


def a_loss(net: Any, has_backward: bool = True) -> Any:
    loss = net(paddle.ones([2, 4])).mean()
    if has_backward:
        loss.backward()
    return loss


@pytest.mark.parametrize("has_backward", [True, False])
def test_a_sum_of_losses(has_backward: bool) -> None:
    def names() -> list[str]:  # without an assert, in which pytest reads locals()
        net, total, count = paddle.nn.Linear(4, 4), 0.0, 0.0
        sums = [0.0, {"loss": 0.0}]

        def train(step: int) -> None:
            nonlocal total, count
            loss = a_loss(net, has_backward)
            total = total + loss
            count += float(loss)
            sums[1]["loss"] += loss  # type: ignore[index]

        return steps(train)

    place = (
        "test_a_sum_of_losses.<locals>.names() of "
        if sys.version_info >= (3, 11)
        else "names() of "
    )
    found = [f"total, {place}{HERE}", f"sums[1]['loss'], {place}{HERE}"]
    assert sorted(names()) == sorted(found)


@pytest.mark.parametrize("keeps_graph", [True, False])
def test_attributes_of_the_users_objects(keeps_graph: bool) -> None:
    def names() -> list[str]:
        net, learner = paddle.nn.Linear(4, 4), Learner(keeps_graph)
        return steps(lambda step: learner.track(a_loss(net)))

    assert names() == (["Learner.last_loss", "Learner.sums['loss']"] if keeps_graph else [])


def test_attributes_of_layers() -> None:
    def names() -> list[str]:
        net = Net()
        return steps(lambda step: net(paddle.ones([2, 4])))

    assert names() == ["Net.total"]


def test_a_graph_of_each_step_is_no_chain() -> None:
    """Paddle frees it, and the next one is likely to lie at the same addresses; also if it is deeper."""

    def names() -> list[str]:
        net, kept = paddle.nn.Linear(4, 4), {}

        def train(step: int) -> None:
            kept.clear()
            loss = a_loss(net, has_backward=False)
            for _ in range(0 if step < 2 else 2):
                loss = loss * 2
            kept["loss"] = loss

        return steps(train)

    for _ in range(3):
        assert names() == []


def test_a_state_that_is_computed_from_that_of_the_step_before_and_cut_off() -> None:
    def names() -> list[str]:
        net, states = paddle.nn.Linear(4, 4), [paddle.zeros([2, 4])]

        def train(step: int) -> None:
            states[0] = net(states[0].detach())

        return steps(train)

    assert names() == []


def test_no_graph_is_kept_alive() -> None:
    class Token:
        """Dies with the graph."""

    def train() -> tuple[Any, Any]:
        from ppprof.capture.recording.graph_chains import GraphChains

        token = Token()
        chains = GraphChains(UserFiles(Path(__file__).parent))
        loss = paddle.nn.Linear(4, 4)(paddle.ones([2, 4])).mean()
        loss.register_hook(lambda gradient, token=token: None)
        watched = weakref.ref(token)
        del token
        chains.note(sys._getframe())
        noted, loss = bool(chains._noted), None
        return noted, watched()

    assert train() == (True, None)


def test_a_long_list_is_not_copied() -> None:
    numbers = [0] * (1 << 20)
    tracemalloc.start()
    try:
        assert steps(lambda _: len(numbers)) == []
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < len(numbers)
