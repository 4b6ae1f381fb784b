"""Gradients that are cleared before an optimizer uses them, in trainings that really run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ppprof
from ppprof.rundir.operator_calls import OperatorCalls

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.usefixtures("unfinished")]

from paddle import nn  # noqa: E402
from paddle.distributed.fleet.utils import recompute  # noqa: E402

from tests.fixtures import recorded_calls  # noqa: E402


class Gan:
    """A generator and a discriminator that are trained in turn."""

    def __init__(self, optimizer: Any = paddle.optimizer.Adam, detaches: bool = False) -> None:
        self.g = recorded_calls.watched(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
        self.d = recorded_calls.watched(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)))
        self.opt_g = optimizer(1e-3, parameters=self.g.parameters())
        self.opt_d = optimizer(1e-3, parameters=self.d.parameters())
        self.detaches = detaches

    def sample(self) -> Any:
        return self.g(paddle.ones([2, 4]))

    def update_d(self) -> None:
        fake = self.sample()
        loss = self.d(fake.detach() if self.detaches else fake).mean()
        self.opt_d.clear_grad()
        loss.backward()
        self.between()
        self.opt_d.step()

    def between(self) -> None:
        """Do what a training does between a Backward and the step."""

    def update_g(self) -> None:
        loss = self.d(self.sample()).mean()
        self.opt_g.clear_grad()
        loss.backward()
        self.opt_g.step()

    def step(self) -> None:
        self.update_d()
        self.update_g()


def recorded(step: Callable[[], Any]) -> OperatorCalls:
    """Return the calls of a window of three steps."""
    return recorded_calls.recorded(step, step, step)


def unused(calls: OperatorCalls) -> list[dict[str, int]]:
    """Return for each Backward how many unused gradients its nodes have, if any, added up by name."""
    found: list[dict[str, int]] = []
    for backward in calls.backwards:
        counts: dict[str, int] = {}
        for node in backward.nodes:
            if node.num_unused:
                counts[node.name] = counts.get(node.name, 0) + node.num_unused
        found.append(counts)
    return found


def places(calls: OperatorCalls) -> list[tuple[str, str]]:
    """Return the functions that call a layer with cleared gradients, and that call this function, for each in `cleared`."""
    return [(_function(each.callstack), _function(each.caller)) for each in calls.cleared]


def _function(callstack: str) -> str:
    return callstack.rpartition(".")[2].rpartition(" in ")[2]


def test_gradients_of_a_generator_below_the_loss_of_a_discriminator() -> None:
    gan = Gan()
    calls = recorded(gan.step)
    assert unused(calls) == [
        # All of the generator, and that of the discriminator's first product for its input.
        {"MatmulGradNode": 1 + 1, "AddGradNode": 2, "TanhGradNode": 1},
        # Weights and shifts of the discriminator.
        {"MatmulGradNode": 2, "AddGradNode": 2},
    ]
    found = places(calls)
    assert set(found) == {("sample", "update_d"), ("update_g", "step")}
    num_calls = Counter(found[row] for row in calls.cleared_calls[:, 3].tolist())
    # Of three steps: the generator and its product; the discriminator and its two. Tanh has no parameters.
    assert num_calls == {("sample", "update_d"): 3 * 2, ("update_g", "step"): 3 * 3}
    known = {tuple(row) for row in calls.layer_calls[:, :3].tolist()}
    assert {tuple(row) for row in calls.cleared_calls[:, :3].tolist()} <= known


def test_a_loss_of_the_generators_own_uses_its_gradients() -> None:
    """The same result for both losses: a generator that is called once has two Backwards."""
    gan = Gan()

    def step() -> None:
        fake = gan.sample()
        gan.d(fake).mean().backward(retain_graph=True)
        gan.opt_d.step()
        gan.opt_d.clear_grad()
        gan.opt_g.clear_grad()
        gan.d(fake).mean().backward()
        gan.opt_g.step()
        gan.opt_g.clear_grad()

    first, second = unused(recorded(step))
    assert first == {"MatmulGradNode": 2, "AddGradNode": 2, "TanhGradNode": 1}
    assert second == {}  # the discriminator's next update has those of this loss, too


def test_detached_results_leave_what_passes_through() -> None:
    calls = recorded(Gan(detaches=True).step)
    assert unused(calls) == [{}, {"MatmulGradNode": 2, "AddGradNode": 2}]
    assert set(places(calls)) == {("update_g", "step")}


def reads(gan: Gan) -> Any:
    return [parameter.grad for parameter in (*gan.g.parameters(), *gan.d.parameters())]


def updates(gan: Gan) -> None:
    gan.opt_g.step()


@pytest.mark.parametrize("between", [reads, updates])
def test_gradients_that_are_read_or_used_before_are_not_unused(
    between: Callable[[Gan], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a training writes their norms down, or trains both with one loss."""
    gan = Gan()
    monkeypatch.setattr(Gan, "between", between)
    assert unused(recorded(gan.step))[0] == {}


def test_a_step_that_is_left_out_says_nothing() -> None:
    """As after an overflow: a Backward none of whose gradients is used, and later ones that are."""
    gan, steps = Gan(), iter(range(9))

    def step() -> None:
        gan.opt_d.clear_grad()
        gan.d(paddle.ones([2, 4])).mean().backward()
        if next(steps):
            gan.opt_d.step()
        gan.opt_d.clear_grad()

    assert unused(recorded(step)) == [{}]


def test_gradients_that_add_up_are_used() -> None:
    gan = Gan()

    def step() -> None:
        for _ in range(2):
            gan.d(paddle.ones([2, 4])).mean().backward()
        gan.opt_d.step()
        gan.opt_d.clear_grad()

    assert unused(recorded(step)) == [{}, {}]


def test_parameters_that_no_operator_updates_are_unknown() -> None:
    """Another rank may update them, after it has got their gradients: sharding clears them then."""
    gan = Gan()

    def step() -> None:
        gan.d(gan.sample()).mean().backward()
        gan.opt_d.step()
        gan.opt_d.clear_grad()
        gan.opt_g.clear_grad()

    calls = recorded(step)
    assert unused(calls) == [{}]
    assert not calls.cleared


def test_gradients_that_let_a_function_train_hidden_parameters_are_needed() -> None:
    """Without a gradient for its input, a recomputed layer of the discriminator would not be trained."""
    gan = Gan()
    inner = gan.d[0]

    def step() -> None:
        gan.d[2](recompute(inner, gan.sample())).mean().backward()
        gan.opt_d.step()
        gan.opt_d.clear_grad()
        gan.opt_g.clear_grad()
        gan.sample().mean().backward()
        gan.opt_g.step()
        gan.opt_g.clear_grad()

    assert not any(counts for counts in unused(recorded(step)))


def test_an_update_that_is_left_out_in_the_first_step_is_no_rule() -> None:
    """As after an overflow of the gradients of one of two optimizers."""
    gan, steps = Gan(), iter(range(9))

    def step() -> None:
        gan.d(gan.sample()).mean().backward()
        gan.opt_d.step()
        if next(steps):
            gan.opt_g.step()
        gan.opt_d.clear_grad()
        gan.opt_g.clear_grad()
        paddle.ones([1]).multiply(gan.other).backward()  # whose gradient waits on

    gan.other = paddle.ones([1])
    gan.other.stop_gradient = False
    calls = recorded(step)
    assert not any(unused(calls))
    assert not calls.cleared


@pytest.mark.parametrize("num_windows", [3])
def test_windows_with_all_observers_restore_the_methods(num_windows: int, tmp_path: Path) -> None:
    """The samples of stacks wrap one of them, too."""
    kind = paddle.base.core.eager.Tensor
    before = {name: vars(kind)[name] for name in ("grad", "clear_gradient")}
    gan = Gan()
    for window in range(num_windows):
        config = {"enable": True, "scheduler": [1, 3], "python_stacks": True}
        with ppprof.attach({**config, "profiler_log": str(tmp_path / str(window))}) as prof:
            for _ in range(4):
                gan.step()
                prof.step()
        assert {name: vars(kind)[name] for name in before} == before


def test_a_window_restores_how_tensors_give_their_gradients() -> None:
    kind = paddle.base.core.eager.Tensor
    before = {name: vars(kind)[name] for name in ("grad", "clear_gradient")}
    gan = Gan()

    def step() -> None:
        weight = gan.d[0].weight
        gan.update_d()
        assert weight.grad.shape == [4, 4]
        weight.grad = paddle.ones([4, 4])
        assert float(weight.grad.sum()) == 16
        weight.clear_gradient()
        assert float(weight.grad.sum()) == 0

    recorded(step)
    assert {name: vars(kind)[name] for name in before} == before
