"""Parameters with gradients that no optimizer uses, and the nodes that lead to nothing else."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ppprof.rundir.operator_calls import OperatorCalls

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.usefixtures("unfinished")]

from paddle import nn  # noqa: E402
from paddle.distributed.fleet.utils import recompute  # noqa: E402

from ppprof.capture.recording.operator_calls import OperatorCallRecorder  # noqa: E402
from ppprof.capture.recording.updated_parameters import parameters_of_optimizers  # noqa: E402


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The objects that the garbage collector tracks: not those of other tests."""
    tracked: list[Any] = []
    monkeypatch.setattr(gc, "get_objects", lambda: list(tracked))
    return tracked


def optimizer(*layers: Any, kind: Any = paddle.optimizer.SGD) -> Any:
    return kind(0.1, parameters=[each for layer in layers for each in layer.parameters()])


def ids(*layers: Any) -> set[int]:
    return {id(each) for layer in layers for each in layer.parameters()}


def test_parameters_are_those_of_all_optimizers_and_their_groups(objects: list[Any]) -> None:
    first, second, third = (nn.Linear(2, 2) for _ in range(3))
    groups = [{"params": [second.weight], "learning_rate": 0.1}, {"params": second.bias}]
    in_groups = paddle.optimizer.AdamW(0.1, parameters=groups)
    ahead = paddle.incubate.LookAhead(optimizer(third), alpha=0.5, k=5)
    empty = object.__new__(paddle.optimizer.Optimizer)  # Fleet has one
    objects[:] = [optimizer(first), in_groups, ahead, ahead.inner_optimizer, empty, third]
    assert parameters_of_optimizers() == ids(first, second, third)


class Foreign:
    """An optimizer of the training's own, or a wrapper of another one."""

    def __init__(self, inner: Any = None) -> None:
        self.inner = [inner]

    def step(self) -> None: ...

    def zero_grad(self) -> None: ...


class Decoder(nn.Layer):
    def step(self) -> None:
        """Layers can clear their gradients, too."""


def test_other_optimizers_make_the_parameters_unknown(objects: list[Any]) -> None:
    known = optimizer(nn.Linear(2, 2))
    objects[:] = [known, Foreign(known), Decoder(), Foreign]
    assert parameters_of_optimizers() == {id(each) for each in known._parameter_list}
    objects.append(Foreign())
    assert parameters_of_optimizers() is None


def test_optimizers_of_a_part_of_the_parameters_make_them_unknown(objects: list[Any]) -> None:
    known = optimizer(nn.Linear(2, 2))
    name = "paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.dygraph_sharding_optimizer"
    objects[:] = [known, type("DygraphShardingOptimizer", (), {"__module__": name})()]
    assert parameters_of_optimizers() is None


@pytest.mark.parametrize("why", ["mesh", "frozen", "unreadable", "too many"])
def test_in_doubt_the_parameters_are_unknown(
    why: str, objects: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = optimizer(nn.Linear(2, 2))
    objects[:] = [known]
    assert parameters_of_optimizers()
    if why == "mesh":
        context = SimpleNamespace(
            _g_default_distributed_context=SimpleNamespace(process_meshes=[1])
        )
        name = "paddle.distributed.auto_parallel.static.dist_context"
        monkeypatch.setitem(sys.modules, name, context)
    elif why == "frozen":
        monkeypatch.setattr(gc, "get_freeze_count", lambda: 1)
    elif why == "unreadable":
        known._param_groups = ["weight"]
    else:
        objects[:] = [known] * 1_000_001
    assert parameters_of_optimizers() is None


class Net(nn.Layer):
    """A backbone and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.head = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.backbone(x))


def watched(net: Any) -> Any:
    """Return a layer that Paddle calls as it does while it records: without hooks, it takes a shortcut."""
    for layer in net.sublayers(include_self=True):
        layer.register_forward_post_hook(lambda *args: None)
    return net


def recorded(step: Callable[[], Any], num_steps: int = 1) -> OperatorCalls:
    """Return the calls of a window of so many steps."""
    recorder = OperatorCallRecorder(Path())
    recorder.install()
    try:
        for number in range(num_steps):
            step()
            recorder.step(number + 1)
    finally:
        recorder.uninstall()
    return recorder.take()


def nodes(calls: OperatorCalls) -> list[tuple[str, int, int]]:
    """Return name, gradients and unused gradients of all nodes but those of parameters."""
    return [
        (node.name, node.num_gradients, node.num_unused)
        for backward in calls.backwards
        for node in backward.nodes
        if node.name != "GradNodeAccumulation"
    ]


def lines(calls: OperatorCalls) -> dict[str, str]:
    """Return the line of each layer without an updated parameter."""
    return {calls.layers[row]: line for row, line in calls.not_updated.items()}


def test_below_a_head_that_alone_is_trained_all_gradients_are_unused(objects: list[Any]) -> None:
    net = watched(Net())
    objects[:] = [optimizer(net.head)]
    calls = recorded(lambda: net(paddle.ones([2, 4])).mean().backward())
    assert nodes(calls) == [
        ("MeanGradNode", 1, 0),
        ("AddGradNode", 2, 0),
        ("MatmulGradNode", 2, 1),  # the head's: of its weight, and of what is below
        ("TanhGradNode", 1, 1),
        ("AddGradNode", 2, 2),
        ("MatmulGradNode", 1, 1),
    ]
    found = lines(calls)
    assert list(found) == ["backbone", "backbone.0"]
    assert found["backbone"].endswith(
        "in Net.forward" if sys.version_info >= (3, 11) else "forward"
    )
    assert f"line {Net.forward.__code__.co_firstlineno + 1}, " in found["backbone"]


def test_gradients_that_pass_to_trained_layers_are_used(objects: list[Any]) -> None:
    generator = watched(nn.Linear(4, 4))
    critic = watched(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    objects[:] = [optimizer(generator)]
    calls = recorded(lambda: critic(generator(paddle.ones([2, 4]))).mean().backward())
    assert [num for *_, num in nodes(calls)] == [0, 0, 1, 1, 0, 0]
    assert list(lines(calls)) == ["", "0"]


class Recomputing(nn.Layer):
    """Two layers ahead of a block that is recomputed, and a head."""

    def __init__(self, shares: bool = False) -> None:
        super().__init__()
        self.embedding, self.project = nn.Embedding(8, 4), nn.Linear(4, 4, bias_attr=False)
        self.block, self.head = nn.Linear(4, 4), nn.Linear(4, 4, bias_attr=False)
        if shares:
            self.head.weight = self.project.weight

    def forward(self, tokens: Any) -> Any:
        h = self.project(self.embedding(tokens))
        return self.head(nn.functional.tanh(recompute(self.block, h)))


@pytest.mark.parametrize(
    ("trained", "shares", "counts", "layers"),
    [
        # Without a gradient for the embedding or the projection, the block would not be trained.
        (["block"], False, [0, 1, 0, 0, 0, 0], ["head"]),
        (["block"], True, [0, 0, 0, 0, 0, 0], []),
        # The projection has one anyway.
        (["block", "project"], False, [0, 1, 0, 0, 1, 1], ["embedding", "head"]),
    ],
)
def test_parameters_that_are_recomputed_are_trained(
    trained: list[str],
    shares: bool,
    counts: list[int],
    layers: list[str],
    objects: list[Any],
) -> None:
    """Their gradients are computed while the node of the function runs, which leads to its inputs only."""
    net = watched(Recomputing(shares))
    objects[:] = [optimizer(*(getattr(net, name) for name in trained))]
    calls = recorded(lambda: net(paddle.to_tensor([1, 2])).mean().backward())
    inner, outer = nodes(calls)[:-6], nodes(calls)[-6:]
    assert inner == [("AddGradNode", 2, 0), ("MatmulGradNode", 2, 0)]
    assert [num for *_, num in outer] == counts
    assert [name for name, *_ in outer] == [
        *("MeanGradNode", "MatmulGradNode", "TanhGradNode"),
        *("GradNodePyLayer_RecomputeFunction", "MatmulGradNode", "EmbeddingGradNode"),
    ]
    assert list(lines(calls)) == layers


class Modulate(paddle.autograd.PyLayer):
    """The product of two tensors."""

    @staticmethod
    def forward(ctx: Any, x: Any, scale: Any) -> Any:
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, scale = ctx.saved_tensor()
        return gradient * scale, gradient * x


def test_a_function_may_pass_gradients_through_the_layer_that_calls_it(objects: list[Any]) -> None:
    """The layer must not run without gradients; that its node does so is not in the trace."""

    class Conditioned(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Linear(4, 4)

        def forward(self, x: Any, condition: Any) -> Any:
            return Modulate.apply(x, self.scale(condition))

    encoder, film = watched(nn.Linear(4, 4)), watched(Conditioned())
    objects[:] = [optimizer(encoder)]
    x = paddle.ones([2, 4])
    calls = recorded(lambda: film(encoder(x), x).mean().backward())
    assert sum(num for *_, num in nodes(calls)) == 0
    assert lines(calls) == {}


def use(way: str, net: Net, objects: list[Any]) -> Callable[[], Any] | None:
    """Use the gradients of a backbone; return what a step does with them."""
    weights = net.backbone.parameters()
    seldom = optimizer(net.backbone)

    def set_them() -> None:
        for each in weights:
            if way == "set":
                each.set_value(each - each.grad)
            elif way == "assigned":
                paddle.assign(each - each.grad, each)
            elif way == "subtracted":
                with paddle.no_grad():
                    each.subtract_(each.grad)
            else:
                each.data = each.detach() - each.grad

    def function() -> None:
        for each in weights:
            paddle._C_ops.sgd_(each, paddle.to_tensor(0.1), each.grad, None, False)

    def lose() -> None:
        seldom.step()
        objects.remove(seldom)

    if way in ("seldom", "ended"):
        objects.append(seldom)
    if way == "frozen":
        for each in weights:
            each.stop_gradient = True
    if way == "none":
        objects.clear()
    return {"seldom": None, "ended": lose, "frozen": None, "none": None, "function": function}.get(
        way, set_them
    )


@pytest.mark.parametrize(
    "way",
    [
        *("seldom", "ended", "frozen", "none", "function"),
        *("set", "assigned", "subtracted", "data"),
    ],
)
def test_parameters_that_anything_updates_are_used(way: str, objects: list[Any]) -> None:
    """By an optimizer that does not step in the window or no longer exists, or by the training itself."""
    net = watched(Net())
    objects[:] = [optimizer(net.head)]
    action = use(way, net, objects)

    def step() -> None:
        net(paddle.ones([2, 4])).mean().backward()
        if action is not None:
            action()

    calls = recorded(step)
    assert len(nodes(calls)) > 2
    assert sum(num for *_, num in nodes(calls)) == 0
    assert lines(calls) == {}


def test_parameters_whose_memory_is_the_first_one_again_are_used(objects: list[Any]) -> None:
    """New values often lie where those of the step before last did."""
    net = watched(Net())
    weights = net.backbone.parameters()
    objects[:] = [optimizer(net.head)]
    memories = [[each.detach().clone(), each.detach()] for each in weights]
    states = []

    def step() -> None:
        states.append([(each.data_ptr(), each.inplace_version) for each in weights])
        net(paddle.ones([2, 4])).mean().backward()
        for each, memory in zip(weights, memories):
            memory[0].set_value(each.detach() - 0.1 * each.grad)
            each.data = memory[0]
            memory.reverse()

    calls = recorded(step, num_steps=2)
    assert states[0] == [(each.data_ptr(), each.inplace_version) for each in weights]
    assert states[0] != states[1]
    assert sum(num for *_, num in nodes(calls)) == 0
    assert lines(calls) == {}


def test_optimizers_are_not_looked_for_where_all_parameters_are_updated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = watched(Net())
    sgd = optimizer(net)

    def step() -> None:
        net(paddle.ones([2, 4])).mean().backward()
        sgd.step()

    searches: list[int] = []
    monkeypatch.setattr(gc, "get_objects", lambda: searches.append(1) or [])
    assert lines(recorded(step)) == {}
    assert searches == []


def test_gradients_that_are_asked_for_are_used(objects: list[Any]) -> None:
    net = watched(Net())
    objects[:] = [optimizer(net.head)]
    calls = recorded(
        lambda: paddle.grad(net(paddle.ones([2, 4])).mean(), net.backbone.parameters())
    )
    assert [num for *_, num in nodes(calls)] == [0] * 6


def test_a_layer_of_the_training_that_raises_costs_only_what_is_said_of_it(
    objects: list[Any],
) -> None:
    class Odd(Net):
        def parameters(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("no parameters")

    net = watched(Odd())
    objects[:] = [optimizer(net.head)]
    calls = recorded(lambda: net(paddle.ones([2, 4])).mean().backward())
    assert sum(num for *_, num in nodes(calls)) == 5
    assert lines(calls) == {}
