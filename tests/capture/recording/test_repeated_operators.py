"""Functions whose operators compute again what the step has computed, recorded with Paddle."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ppprof.rundir.operator_calls import OperatorCalls, RepeatedFunction

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.usefixtures("unfinished")]

from paddle import nn  # noqa: E402
from paddle.distributed.fleet.utils import recompute  # noqa: E402

from ppprof.capture.recording import repeated_operators  # noqa: E402
from tests.fixtures.recorded_calls import received, recorded, watched  # noqa: E402

Step = Callable[[], Any]


def line_of(stack: str, function: Callable[..., Any]) -> int:
    """Return which line of a function a call stack has; 1 is the first one below its name."""
    return int(stack.split("line ")[1].split(",")[0]) - function.__code__.co_firstlineno


def name_of(stack: str) -> str:
    return stack.rpartition(" in ")[2].rpartition(".")[2]


def functions(*steps: Step) -> dict[str, int]:
    """Return the number of repeated operators of each function that is found."""
    found: dict[str, int] = {}
    for each in recorded(*steps).repeated_functions:
        name = name_of(each.callstack)
        found[name] = found.get(name, 0) + len(each.calls)
    return found


def names_of(calls: OperatorCalls, function: RepeatedFunction) -> list[str]:
    """Return the names of the repeated operators of a function."""
    return [calls.signatures[calls.calls[row, 3]].name for row in function.calls]


def bias(ids: Any) -> Any:
    keep = (ids != 0).astype("float32")
    return (1.0 - keep) * -1e9


class Block(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any, ids: Any) -> Any:
        return self.linear(x) + bias(ids)


class Net(nn.Layer):
    def __init__(self, num: int = 3) -> None:
        super().__init__()
        self.blocks = nn.LayerList([Block() for _ in range(num)])

    def forward(self, x: Any, ids: Any) -> Any:
        for block in self.blocks:
            x = block(x, ids)
        return x


def test_a_mask_that_each_block_computes_is_repeated() -> None:
    net, x, ids = watched(Net()), paddle.ones([2, 4]), paddle.ones([4], "int64")
    calls = recorded(lambda: net(x, ids).mean().backward())
    (function,) = calls.repeated_functions
    assert (name_of(function.callstack), name_of(function.caller)) == ("bias", "forward")
    assert line_of(function.caller, Block.forward) == 1
    assert (name_of(function.earlier), function.earlier_caller) == ("bias", function.caller)
    once = ["__ne__", "cast", "__rsub__", "__mul__"]
    called = names_of(calls, function)
    assert [name for name in called if name in once] == once * 2
    assert not {"linear", "mean", "__add__"} & set(called)


def test_later_steps_repeat_the_operators_that_their_lines_call_as_often() -> None:
    net, x = watched(Net()), paddle.ones([2, 4])

    def step(num: int = 4, more: int = 0) -> None:
        for _ in range(more):
            paddle.ones([2, 4]) * 3.0  # a log
        net(paddle.ones([2, num]), paddle.ones([num], "int64"))

    net.blocks[0].linear = net.blocks[1].linear = net.blocks[2].linear = nn.Identity()
    one = functions(step)["bias"]
    assert one > 0
    assert functions(step, step)["bias"] == 2 * one
    assert functions(step, lambda: step(6, more=2))["bias"] == 2 * one

    def other() -> None:
        net.blocks[0](x, paddle.ones([4], "int64"))

    assert functions(step, other, step)["bias"] == 2 * one  # other layers


SLOPES = [0.5, 0.25, 0.125, 0.0625]


def slopes_of_a_list(x: Any) -> Any:
    return paddle.to_tensor(SLOPES).reshape([4, 1]) * paddle.arange(4, dtype="float32")


def slopes_of_an_array(x: Any) -> Any:
    return paddle.exp(-(paddle.arange(4, dtype="float32") * np.array(SLOPES, "float32")))


def distances_of_slices(x: Any) -> Any:
    places = paddle.arange(4, dtype="float32")
    return paddle.abs(places[None, :] - places[:, None])[..., :4]


def filled_mask(x: Any) -> Any:
    scores = paddle.ones([4, 4])
    return paddle.where(scores > 0, scores, -1e4)


def chosen_rows(x: Any) -> Any:
    return paddle.exp(paddle.ones([8, 4]))[[0, 2, 4, 6]]


class Biased(nn.Layer):
    """Two blocks that each call a function."""

    def __init__(self, function: Callable[[Any], Any], num: int = 2) -> None:
        super().__init__()
        self.function, self.num = function, num
        self.blocks = nn.LayerList([Biased(function, 0) for _ in range(num)])

    def forward(self, x: Any, data: Any = None) -> Any:
        if not self.num:
            return x + (self.function(x) if data is None else self.function(data))
        for block in self.blocks:
            x = block(x, data)
        return x


@pytest.mark.parametrize(
    "function",
    [slopes_of_a_list, slopes_of_an_array, distances_of_slices, filled_mask, chosen_rows],
    ids=lambda each: each.__name__,
)
def test_constants_of_the_code_are_equal_in_each_layer(function: Callable[[Any], Any]) -> None:
    net, x = watched(Biased(function)), paddle.ones([4, 4])
    name = function.__name__
    one = functions(lambda: net(x))
    assert set(one) == {name}
    assert functions(lambda: net(x), lambda: net(x)) == {name: 2 * one[name]}


def crop(x: Any, begin: int) -> Any:
    return x[begin] * 2.0


def test_arguments_that_are_equal_by_chance_do_not_count() -> None:
    x = paddle.ones([8, 4])
    begins = iter([3, 3, 1, 4])

    def step() -> None:
        for _ in range(2):
            crop(x, next(begins))

    assert functions(step, step) == {}
    begins = iter([3, 3, 4, 4])
    assert functions(step, step)["crop"] > 0


def rotary(x: Any) -> Any:
    """A small table, and much work on an argument."""
    table = paddle.cos(paddle.ones([2]))
    for _ in range(50):
        x = paddle.matmul(x, x)
    return x * table.sum()


def test_a_function_counts_only_if_repeated_operators_have_most_of_its_time() -> None:
    inputs = [paddle.rand([64, 64]) for _ in range(3)]
    assert functions(lambda: [rotary(x) for x in inputs]) == {}
    assert functions(lambda: [rotary(inputs[0]) for _ in range(3)])["rotary"] >= 2 * 50


def test_layers_that_a_repeated_function_calls_are_no_other_work_of_it() -> None:
    """Their own repeated calls are those of the layers."""
    table, ids = watched(nn.Embedding(4, 512)), paddle.ones([64], "int64")

    def embed() -> Any:
        return table(ids) + 1.0

    def step() -> None:
        for _ in range(3):
            embed()

    calls = recorded(step)
    assert len(calls.repeated_calls) == 2
    (function,) = calls.repeated_functions
    assert names_of(calls, function) == ["__add__"] * 2


def slopes() -> Any:
    return paddle.exp(-paddle.ones([4]))


def alibi() -> Any:
    return slopes() * paddle.ones([2, 4])


def test_a_function_is_a_part_of_the_one_that_calls_it() -> None:
    calls = recorded(lambda: [alibi() for _ in range(2)])
    (function,) = calls.repeated_functions
    assert name_of(function.callstack) == "alibi"
    assert "exp" in names_of(calls, function)


def test_a_function_with_two_callers_is_no_part_of_one() -> None:
    def step() -> None:
        alibi(), alibi()
        slopes()

    assert set(functions(step)) == {"alibi", "slopes"}


def first() -> Any:
    return bias(paddle.to_tensor([1, 0]))


def test_the_earlier_call_may_be_of_another_line_or_function() -> None:
    ids = paddle.ones([4], "int64")

    def step() -> None:
        bias(ids)
        bias(ids)

    (function,) = recorded(step).repeated_functions
    lines = [line_of(stack, step) for stack in (function.caller, function.earlier_caller)]
    assert lines == [2, 1]


def healthy() -> dict[str, Step]:
    x = paddle.ones([2, 4])
    x.stop_gradient = False
    net, shared = watched(Net()), watched(Block())

    def micro_batches() -> None:
        for value in (1, 2):
            bias(paddle.full([4], value, "int64"))

    def new_tensors() -> None:
        first(), first()

    def noise() -> None:
        for _ in range(2):
            corrupted()

    def corrupted() -> Any:
        return paddle.rand([4]) * 2.0

    def states() -> None:
        for value in (1.0, 2.0):
            state = empty()
            state[0] = value
            state * 2.0

    def empty() -> Any:
        return paddle.zeros([64, 64])

    def in_place() -> None:
        for value in (1.0, 2.0):
            empty().add_(paddle.full([64, 64], value))

    def after_backward() -> None:
        for _ in range(2):
            loss(x).backward()

    def loss(x: Any) -> Any:
        return (x * x).mean()

    def checkpointed() -> None:
        recompute(Net(1), x, paddle.ones([4], "int64")).mean().backward()

    def received_between() -> None:
        ids = paddle.ones([4], "int64")
        for _ in range(2):
            bias(ids)
            received.append(0)

    def modes() -> None:
        with paddle.no_grad():
            loss(x)
        loss(x)

    def two_views() -> None:
        """The same layer, twice: SimCSE."""
        ids = paddle.ones([4], "int64")
        for _ in range(2):
            shared(paddle.rand([2, 4]), ids)

    def random_python() -> None:
        for _ in range(2):
            scaled(random.random())

    def scaled(factor: float) -> Any:
        return paddle.full([4], factor) * factor

    def samples() -> None:
        for _ in range(2):
            sampled(x)

    def sampled(x: Any) -> Any:
        return nn.functional.gumbel_softmax(x) * 2.0

    def buffers() -> None:
        """Numbers are forgotten before they are written."""
        made = [empty() for _ in range(2)]
        received.append(0)
        for number, each in enumerate(made):
            each.add_(paddle.full([64, 64], float(number)))

    def comprehension() -> None:
        many(x)

    def many(x: Any) -> Any:
        masks = [(x > 0).astype("float32") for _ in range(3)]
        for number in range(9):
            x = paddle.matmul(x, x, transpose_y=True)[:, :1].expand([2, 4]) * float(number)
        return x, masks

    def tensor_of(data: Any) -> Any:
        return paddle.exp(paddle.to_tensor(data)) * 2.0

    def observations() -> None:
        """A simulator may stay where it is."""
        policy = watched(Biased(tensor_of))
        policy(x, np.ones(4, "float32"))
        policy(x, [1.0, 2.0, 3.0, 4.0])

    def no_layer() -> None:
        tensor_of([1.0]), tensor_of([1.0])

    def read_values() -> None:
        watched(Biased(lambda x: tensor_of(x.numpy().argsort(1))))(x)

    def read_first() -> None:
        def function(x: Any) -> Any:
            return x + tensor_of([1.0] if float(x.sum()) > 0 else [2.0])

        watched(Biased(function))(x)

    def noise_of_numpy() -> None:
        watched(Biased(lambda x: tensor_of(np.random.default_rng().random(4))))(x)

    def drawn_by_numpy() -> None:
        """A mask that is true in both layers, by chance."""
        watched(Biased(lambda x: tensor_of((np.random.rand(4) < 2).astype("float32"))))(x)

    def drawn_by_python() -> None:
        watched(Biased(lambda x: tensor_of([float(random.random() < 2)])))(x)

    def written() -> None:
        def function(x: Any) -> Any:
            made = paddle.to_tensor(SLOPES)
            made[0] = float(next(values))
            return paddle.exp(made)

        values = iter(range(9))
        watched(Biased(function))(x)

    def crops() -> None:
        cropped = iter([(1, 3), (1, 3)])

        def function(x: Any) -> Any:
            begin, end = next(cropped)
            return paddle.exp(x[:, begin:end]).sum()

        picture = paddle.ones([2, 4])
        function(picture), function(picture)

    return {
        "observations": observations,
        "data outside of layers": no_layer,
        "values of tensors": read_values,
        "a value of a tensor decides": read_first,
        "noise of NumPy": noise_of_numpy,
        "drawn by NumPy": drawn_by_numpy,
        "drawn by Python": drawn_by_python,
        "written constants": written,
        "crops": crops,
        "Gumbel": samples,
        "buffers": buffers,
        "comprehension": comprehension,
        "micro-batches": micro_batches,
        "new tensors": new_tensors,
        "noise": noise,
        "setitem": states,
        "in place": in_place,
        "Backward between": after_backward,
        "recompute": checkpointed,
        "received": received_between,
        "no_grad": modes,
        "two views": two_views,
        "random numbers of Python": random_python,
        "one block": lambda: net.blocks[0](x, paddle.ones([4], "int64")),
    }


HEALTHY = (
    *("observations", "data outside of layers", "values of tensors", "a value of a tensor decides"),
    *("noise of NumPy", "drawn by NumPy", "drawn by Python", "written constants", "crops"),
    *("Gumbel", "buffers", "comprehension"),
    *("micro-batches", "new tensors", "noise", "setitem", "in place", "Backward between"),
    *("recompute", "received", "no_grad", "two views", "random numbers of Python", "one block"),
)
"""Not made here: the layers would live in all other tests."""


@pytest.mark.parametrize("name", HEALTHY)
def test_other_functions_are_not_repeated(name: str) -> None:
    steps = healthy()
    assert tuple(steps) == HEALTHY
    assert functions(steps[name]) == {}


def test_a_step_with_too_many_operators_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = paddle.ones([4], "int64")

    def step() -> None:
        for _ in range(4):
            bias(ids)

    num = functions(step, step)["bias"]
    monkeypatch.setattr(repeated_operators, "_MOST_ROWS", 2 * (num // 2) - 1)
    assert functions(step, step)["bias"] == num // 2  # only the first step's
    monkeypatch.setattr(repeated_operators, "_MOST_OPERATORS", 10)
    assert functions(step) == {}
