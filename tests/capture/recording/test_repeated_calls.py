"""Calls of layers that compute again what the step has computed, recorded with Paddle."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [
    pytest.mark.paddle,
    pytest.mark.usefixtures("unfinished"),
    pytest.mark.filterwarnings("ignore:When training, we now always track:UserWarning"),
]

from paddle import nn  # noqa: E402
from paddle.distributed.fleet.utils import recompute  # noqa: E402

from ppprof.capture.recording import value_numbers  # noqa: E402
from tests.fixtures.recorded_calls import received, recorded, watched  # noqa: E402

Step = Callable[[], Any]


def repeated(*steps: Step) -> list[str]:
    """Return the names of the layers whose calls are repeated, in the order of these calls."""
    calls = recorded(*steps)
    return [calls.layers[calls.repeats[row].layer] for row in calls.repeated_calls[:, 3]]


class Encoder(nn.Layer):
    """An embedding, a block of a transformer without dropout, and a convolution with its normalization."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout)
        self.convolution = nn.Sequential(nn.Conv1D(8, 8, 3, padding=1), nn.BatchNorm1D(8))

    def forward(self, ids: Any) -> Any:
        x = self.table(ids)
        mask = paddle.triu(paddle.full([4, 4], -1e9), diagonal=1)
        return self.convolution(self.block(x, mask).transpose([0, 2, 1])).mean(axis=-1)


@pytest.mark.parametrize("is_received", [True, False])
def test_a_buffer_into_which_other_ranks_may_write_has_other_values(is_received: bool) -> None:
    """As that of a pipeline, which receives one micro-batch after the other."""
    layer, buffer = watched(nn.Linear(4, 4)), paddle.ones([2, 4])

    def step() -> None:
        for _ in range(2):
            layer(buffer)
            received.extend([0] * is_received)

    assert repeated(step) == ([] if is_received else [""])


def test_an_encoder_that_each_loss_calls_is_repeated() -> None:
    encoder, heads = watched(Encoder()), [watched(nn.Linear(8, size)) for size in (2, 3)]
    ids = paddle.ones([2, 4], "int64")

    def step() -> None:
        losses = [head(encoder(ids)).mean() for head in heads]
        (losses[0] + losses[1]).backward()

    assert repeated(step) == [""]  # the encoder; not also what is in it, and no head


def test_inputs_may_be_computed_again_by_operators_outside_of_layers() -> None:
    """As `model.encode(x)` embeds and adds positions ahead of the encoder."""
    encoder = watched(nn.Linear(4, 4))
    x, shift = paddle.ones([2, 4]), paddle.ones([4])
    assert repeated(lambda: [encoder(x * 2 + shift) for _ in range(3)]) == ["", ""]
    assert repeated(lambda: [encoder(x * factor + shift) for factor in (2, 3)]) == []
    assert repeated(lambda: [encoder(x * factor + shift) for factor in (2.0, 2.5)]) == []
    assert repeated(lambda: [encoder(x[row]) for row in (0, 1, 0)]) == [""]


class Model(nn.Layer):
    """Returns the loss and the logits, or the logits alone, as models of PaddleNLP do."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.body, self.dropout = nn.Linear(4, 4), nn.Dropout(dropout)

    def forward(self, x: Any, labels: Any = None) -> Any:
        logits = self.dropout(self.body(x))
        if labels is None:
            return logits
        return nn.functional.cross_entropy(logits, labels), logits


@pytest.mark.parametrize("has_graph", [True, False])
def test_a_call_for_values_that_the_model_has_returned_is_repeated(has_graph: bool) -> None:
    """As that of a metric, with a graph that is not used or in no_grad."""
    model, x, labels = watched(Model()), paddle.ones([2, 4]), paddle.zeros([2], "int64")

    def step(other: Any = x, is_first: bool = False) -> None:
        loss = None if is_first else model(x, labels)[0]
        with contextlib.nullcontext() if has_graph else paddle.no_grad():
            model(other).argmax(-1)
        (model(x, labels)[0] if loss is None else loss).backward()

    assert repeated(step) == [""]
    assert repeated(lambda: step(x + 1)) == []  # an evaluation on other data
    # Nothing with gradients is there yet; the layers in the model do not count.
    assert repeated(lambda: step(is_first=True)) == []


def test_another_copy_and_dropout_have_other_values() -> None:
    """A teacher, a target network, and a model whose two calls draw random numbers."""
    x, labels = paddle.ones([2, 4]), paddle.zeros([2], "int64")
    random = watched(Model(0.5))
    for pair in ((watched(Model()), watched(Model())), (random, random)):

        def step(pair: Any = pair) -> None:
            loss = pair[0](x, labels)[0]
            with paddle.no_grad():
                pair[1](x)
            loss.backward()

        assert repeated(step) == []


class Scaled(nn.Layer):
    """Computes with numbers of its own, or with those that it is called with."""

    def forward(self, x: Any, numbers: Any = (1.0, 2.0)) -> Any:
        if numbers is None:
            numbers = [float(x.mean()), 1.0]
        return x[:, None, :2] * paddle.to_tensor(numbers)


def test_a_layer_with_constants_is_repeated_but_not_one_that_is_called_with_data() -> None:
    """An observation of a simulator may be equal by chance, and so may a value that was read from a tensor."""
    layer, x = watched(Scaled()), paddle.ones([2, 4])
    assert repeated(lambda: [layer(x) for _ in range(2)]) == [""]
    for data in (np.ones(2, "float32"), [1.0, 2.0], None):
        assert repeated(lambda data=data: [layer(x, data) for _ in range(2)]) == []


def test_the_lines_are_those_of_both_calls() -> None:
    encoder = watched(nn.Linear(4, 4))
    x = paddle.ones([2, 4])

    def first() -> Any:
        return encoder(x)

    def second() -> Any:
        return encoder(x)

    def step() -> None:
        first()
        second()

    (repeat,) = recorded(step).repeats
    stacks = (repeat.callstack, repeat.caller, repeat.earlier, repeat.earlier_caller)
    lines = [int(stack.split("line ")[1].split(",")[0]) for stack in stacks]
    code = (second, step, first, step)
    begins = [function.__code__.co_firstlineno for function in code]
    assert [line - begin for line, begin in zip(lines, begins)] == [1, 2, 1, 1]


def test_later_steps_repeat_the_same_calls_if_they_call_the_same_layers() -> None:
    first, second = watched(nn.Linear(4, 4)), watched(nn.Linear(4, 4))
    x = paddle.ones([2, 4])

    def step() -> None:
        first(x)
        second(first(x))

    def other() -> None:
        first(x)
        first(second(x))

    calls = recorded(step, other, step)
    starts = calls.layer_calls[:, 1].tolist()
    assert [starts.index(start) for start in calls.repeated_calls[:, 1]] == [1, 7]
    assert repeated(other, step) == []  # in the first step, none


class Router(nn.Layer):
    """Adds noise that it draws, or counts its calls."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.gate = nn.Linear(4, 4)
        self.calls = 0
        self.register_buffer("total", paddle.zeros([4]))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        out = self.gate(x)
        if self.kind == "noise":
            return out + paddle.randn([4])
        if self.kind == "count":
            return out * self.calls
        if self.kind == "in place":
            self.total.add_(paddle.ones([4]))
        else:
            self.total.set_value(self.total + 1)
        return out + self.total


@pytest.mark.parametrize("kind", ["noise", "count", "in place", "set"])
def test_a_layer_with_noise_or_a_state_is_not_repeated(kind: str) -> None:
    router, x = watched(Router(kind)), paddle.ones([2, 4])
    assert "" not in repeated(lambda: (router(x), router(x)))


def test_dropout_in_training_draws_other_numbers() -> None:
    """SimCSE wants two of one input."""
    encoder, ids = watched(Encoder(0.1)), paddle.ones([2, 4], "int64")
    assert repeated(lambda: (encoder(ids), encoder(ids))) == []  # though it looks up the same rows
    encoder.eval()
    assert "" in repeated(lambda: (encoder(ids), encoder(ids)))
    lstm = watched(nn.LSTM(4, 4, num_layers=2, dropout=0.5))
    x = paddle.ones([2, 3, 4])
    assert repeated(lambda: (lstm(x), lstm(x))) == []


def test_a_layer_that_each_block_calls_is_repeated() -> None:
    class Block(nn.Layer):
        def __init__(self, positions: Any) -> None:
            super().__init__()
            self.positions = positions

        def forward(self, x: Any, ids: Any) -> Any:
            return x + self.positions(ids)

    class Net(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            positions = nn.Embedding(4, 4)
            self.blocks = nn.LayerList([Block(positions) for _ in range(3)])

        def forward(self, ids: Any) -> Any:
            x = paddle.ones([4, 4])
            for block in self.blocks:
                x = block(x, ids)
            return x

    net, ids = watched(Net()), paddle.ones([4], "int64")
    assert repeated(lambda: net(ids)) == ["blocks.0.positions"] * 2


def test_a_layer_that_calls_another_one_twice_may_run_again_itself() -> None:
    class Twice(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return (self.inner(x) + self.inner(x)) * paddle.rand([1])

    net, x = watched(Twice()), paddle.ones([2, 4])
    assert repeated(lambda: (net(x), net(x))) == ["inner", "inner"]  # one in each


def linear() -> Any:
    return watched(nn.Linear(4, 4))


def healthy() -> dict[str, Step]:
    net, x = linear(), paddle.ones([2, 4])
    others = [paddle.full([2, 4], value) for value in (1.0, 2.0)]
    sgd = paddle.optimizer.SGD(0.1, parameters=net.parameters())

    def updated() -> None:
        for _ in range(2):
            net(x).mean().backward()
            sgd.step()
            sgd.clear_grad()

    def backward_between() -> None:
        for _ in range(2):
            net(x).mean().backward()

    def buffer_of_inputs(change: Callable[[Any], Any]) -> Step:
        static = paddle.ones([2, 4])

        def step() -> None:
            for _ in range(2):
                net(static)
                change(static)

        return step

    def other_values() -> None:
        """An evolution strategy."""
        for factor in (2, 3):
            net(x)
            net.weight.data = net.weight.detach() * factor

    def frozen_memory(tensor: Any) -> None:
        tensor.detach().copy_(paddle.zeros([2, 4]), False)

    def modes() -> None:
        with paddle.no_grad():
            net(x)
        net(x)

    def detached() -> None:
        fake = x * net.weight.mean()
        net(fake.detach())
        net(fake)

    def new_objects() -> None:
        for value in (1.0, 2.0, 3.0):  # each may lie where the last one did
            net(paddle.to_tensor(np.full([2, 4], value, "float32")))

    def checkpointed() -> None:
        recompute(net, x).mean().backward()

    def own_output() -> None:
        net(net(net(x)))

    def training_flag() -> None:
        layer = watched(nn.BatchNorm1D(4))
        layer(x)
        layer.eval()
        layer(x)
        layer.train()
        layer(x * 2)
        layer.eval()
        layer(x)  # with other running statistics

    norm = watched(nn.BatchNorm1D(4))
    program = paddle.jit.to_static(norm.forward)

    def changed_by_a_program() -> None:
        for _ in range(2):
            norm.eval()
            norm(x)
            norm.train()
            program(x * 2)  # changes the running statistics

    def other_layers() -> None:
        linear()(x)
        linear()(x)

    return {
        "siamese": lambda: [net(each) for each in others],
        "updated": updated,
        "backward between": backward_between,
        "set_value": buffer_of_inputs(lambda tensor: tensor.set_value(tensor + 1)),
        "copy_": buffer_of_inputs(lambda tensor: tensor.copy_(tensor + 1, False)),
        "add_": buffer_of_inputs(lambda tensor: tensor.add_(paddle.ones([2, 4]))),
        "setitem": buffer_of_inputs(lambda tensor: tensor.__setitem__(0, 3.0)),
        "assign": buffer_of_inputs(lambda tensor: paddle.assign(tensor + 1, tensor)),
        "uniform_": buffer_of_inputs(lambda tensor: tensor.uniform_()),
        "by another name": buffer_of_inputs(frozen_memory),
        "data": other_values,
        "no_grad": modes,
        "detached": detached,
        "new objects": new_objects,
        "recompute": checkpointed,
        "own output": own_output,
        "training flag": training_flag,
        "changed by a program": changed_by_a_program,
        "other layers": other_layers,
        "no tensor": lambda: [net.state_dict() for _ in range(2)],
    }


HEALTHY = (
    *("siamese", "updated", "backward between", "set_value", "copy_", "add_", "setitem", "assign"),
    *("uniform_", "by another name", "data", "no_grad", "detached", "new objects", "recompute"),
    *("own output", "training flag", "changed by a program", "other layers", "no tensor"),
)
"""Not made here: the layers would live in all other tests."""


@pytest.mark.parametrize("name", HEALTHY)
def test_other_calls_are_not_repeated(name: str) -> None:
    steps = healthy()
    assert tuple(steps) == HEALTHY
    assert repeated(steps[name]) == []


def test_a_backward_that_keeps_its_graph_leaves_results_usable() -> None:
    """As of a network whose gradients for its inputs are a part of the loss."""
    net = linear()
    x = paddle.ones([2, 4])
    x.stop_gradient = False

    def step() -> None:
        paddle.grad(net(x).sum(), x, create_graph=True)
        net(x)

    assert repeated(step) == [""]


def test_no_tensor_is_kept_alive() -> None:
    net, alive = linear(), []

    def step() -> None:
        x = paddle.ones([2, 4])
        out = net(x)
        alive.extend([weakref.ref(x), weakref.ref(out)])
        del x, out
        gc.collect()
        assert [each() for each in alive] == [None, None]

    assert repeated(step) == []
    assert len(alive) == 2


def test_unknown_arguments_make_results_unknown() -> None:
    class Shifted(nn.Layer):
        def forward(self, x: Any, shift: Any) -> Any:
            return {"out": (x + shift, None, 1)}

    layer, x = watched(Shifted()), paddle.ones([4])
    assert repeated(lambda: [layer(x, np.float32(1)) for _ in range(2)]) == [""]
    assert repeated(lambda: [layer(x, np.float32(each)) for each in range(2)]) == []


def test_a_window_with_too_many_tensors_knows_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = linear(), paddle.ones([2, 4])
    results: list[Any] = []

    def step() -> None:
        results.extend(net(x) for _ in range(8))

    assert len(repeated(step)) == 7
    monkeypatch.setattr(value_numbers, "_MOST_TENSORS", 5)  # x, two parameters, and three results
    assert len(repeated(step)) == 1
