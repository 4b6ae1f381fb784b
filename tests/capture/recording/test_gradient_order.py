"""Gradients, joined to the operators whose gradients they are.

Hooks of tensors are the reference: Paddle calls them when a gradient of the tensor is computed, just
ahead of the gradient of the operator that made the tensor.
"""

from __future__ import annotations

import functools
import gc
import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import ppprof
from ppprof import rundir
from ppprof.trace import read_window

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.usefixtures("unfinished")]

from paddle import nn  # noqa: E402
from paddle.distributed.fleet.utils import recompute  # noqa: E402

from ppprof.capture.recording import operator_calls  # noqa: E402
from ppprof.capture.recording.gradient_order import (  # noqa: E402
    GraphNode,
    leaves_below_functions,
    node_reader,
    unused_gradients,
)
from tests.jobs import toy  # noqa: E402

NUM_STEPS = 3
PRODUCTS = "Global_MatmulGradNode"


class GroupedAttention(nn.Layer):  # type: ignore[misc]
    """Attention with fewer keys than queries, whose gradients are not computed in reverse order."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.output = nn.Linear(24, 24), nn.Linear(24, 24)
        self.key, self.value = nn.Linear(24, 6), nn.Linear(24, 8)

    def forward(self, x: Any) -> Any:
        query, key, value = self.query(x), self.key(x), self.value(x)
        keys, values = paddle.concat([key] * 4, -1), paddle.concat([value] * 3, -1)
        weights = nn.functional.softmax(paddle.matmul(query, keys, transpose_y=True))
        return x + self.output(weights @ values)


def gradients(log: Path, step: Callable[[int], Any]) -> pl.DataFrame:
    """Return the gradients of a window of three steps: all columns of events, and step from 0."""
    profiler = {"enable": True, "scheduler": [1, 1 + NUM_STEPS], "profiler_log": str(log)}
    with ppprof.attach(profiler) as prof:
        for number in range(1 + NUM_STEPS):
            step(number - 1)
            prof.step()
    ((_, raw),) = rundir.raw_files(rundir.newest(log))
    events = read_window(raw).events.with_columns(
        pl.col("name", "shapes", "dtypes", "attributes").cast(pl.String), pl.col("step") - 1
    )
    names = events.select(forward_name="name").with_row_index("forward")
    return events.filter(pl.col("name").str.starts_with("Global_")).join(
        names.with_columns(pl.col("forward").cast(pl.Int64)), on="forward", how="left"
    )


def weights_of(table: pl.DataFrame, step: int) -> list[list[int]]:
    """Return the shapes of the weights in the products' gradients of a step."""
    products = table.filter((pl.col("name") == PRODUCTS) & (pl.col("step") == step))
    shapes = [json.loads(text)["X1"][0] for text in products["shapes"]]
    return [shape for shape in shapes if len(shape) == 2]


@pytest.mark.parametrize("way", ["plain", "recomputed", "beside a dropped graph"])
def test_gradients_have_the_shapes_of_their_operators(tmp_path: Path, way: str) -> None:
    blocks = [GroupedAttention() for _ in range(3)]
    order: list[list[int]] = []
    for block in blocks:
        for linear in block.children():

            def hooked(layer: Any, inputs: Any, result: Any) -> None:
                shape = list(layer.weight.shape)
                if not result.stop_gradient:
                    result.register_hook(lambda gradient: order.append(shape))

            linear.register_forward_post_hook(hooked)
    orders: dict[int, list[list[int]]] = {}

    def step(number: int) -> None:
        x = paddle.randn([2, 5 + number, 24])  # each step has another length
        x.stop_gradient = False
        order.clear()
        if way == "beside a dropped graph":  # others may lie where its nodes were
            for block in blocks:
                block(x)
        for block in blocks:
            x = recompute(block, x) if way == "recomputed" else block(x)
        x.mean().backward()
        orders[number] = list(order)

    table = gradients(tmp_path / "log", step)
    for number in range(NUM_STEPS):
        assert weights_of(table, number) == orders[number]
        assert len(orders[number]) == 12
        rows = table.filter((pl.col("name") == PRODUCTS) & (pl.col("step") == number))
        lengths = {json.loads(text)["X0"][0][1] for text in rows["shapes"]}
        assert lengths == {5 + number}
    assert orders[0][:4] != [[24, 24], [24, 8], [24, 6], [24, 24]]  # reverse order is wrong
    linked = table.filter(pl.col("name") == PRODUCTS)
    assert set(linked["forward_name"]) == {"matmul dygraph"}


def test_a_step_that_does_something_else_has_no_shapes_of_gradients(tmp_path: Path) -> None:
    net = nn.Linear(4, 8)

    def step(number: int) -> None:
        y = net(paddle.ones([2, 4]))
        (nn.functional.relu(y) if number == 1 else y).mean().backward()

    table = gradients(tmp_path / "log", step).filter(pl.col("name") == PRODUCTS)
    assert table["shapes"].is_null().to_list() == [False, True, False]


def test_only_gradients_that_are_computed_count(tmp_path: Path) -> None:
    """The first layer's input is data, which needs no gradient."""
    net = nn.Sequential(nn.Linear(4, 8, bias_attr=False), nn.Linear(8, 2, bias_attr=False))
    optimizer = paddle.optimizer.SGD(parameters=net.parameters())  # another test may have left one
    table = gradients(tmp_path / "log", lambda _: net(paddle.ones([3, 4])).mean().backward())
    assert optimizer
    products = table.filter(pl.col("name") == PRODUCTS)
    assert products["attributes"].to_list() == NUM_STEPS * [
        '{"gradients":2}',
        '{"gradients":1,"of_one_leaf":true}',
    ]


def test_a_square_is_of_one_parameter(tmp_path: Path) -> None:
    """Its gradients are for one node. Those of two parameters, of an activation, or of a distance are not."""
    p, q = (paddle.create_parameter([4, 4], "float32") for _ in range(2))
    parts = paddle.create_parameter([2, 4, 4], "float32")

    def step(_: int) -> None:
        first, second = paddle.unbind(parts)
        (p * p).sum().backward()
        (p * q).sum().backward()
        (first * second).sum().backward()
        p.square().sum().backward()
        (p - q).square().sum().backward()

    found = gradients(tmp_path, step)
    names = [f"Global_{name}GradNode" for name in ("Multiply", "Square")]
    texts = found.filter(pl.col("name").is_in(names))["attributes"]
    are_of_one = [json.loads(text).get("of_one_leaf", False) for text in texts]
    assert are_of_one == [True, False, False, True, False] * NUM_STEPS


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_operator_that_casts_an_argument_has_its_gradient(tmp_path: Path, dtype: str) -> None:
    """It calls itself behind the cast."""
    weight = paddle.create_parameter([4, 4], "float32")
    constant = paddle.ones([4, 4], dtype)

    def step(_: int) -> None:
        (weight * constant).sum().backward()

    found = gradients(tmp_path, step).filter(pl.col("name") == "Global_MultiplyGradNode")
    assert found["forward_name"].to_list() == ["multiply dygraph"] * NUM_STEPS
    assert found["shapes"].to_list() == ['{"X0":[[4,4]],"X1":[[4,4]]}'] * NUM_STEPS


@pytest.mark.parametrize("way", ["contiguous", "in place"])
def test_a_call_without_a_node_leaves_that_of_its_argument(tmp_path: Path, way: str) -> None:
    """It may return its argument, or change it without a gradient."""
    weight = paddle.create_parameter([4, 8], "float32")

    def step(_: int) -> None:
        product = paddle.matmul(paddle.ones([3, 4]), weight)
        if way == "contiguous":
            product = product.contiguous()
        else:
            with paddle.no_grad():
                product.add_(paddle.ones([1]))
        (product * product).mean().backward()

    products = gradients(tmp_path / "log", step).filter(pl.col("name") == PRODUCTS)
    shapes = [json.loads(text) for text in products["shapes"]]
    assert shapes == NUM_STEPS * [{"X0": [[3, 4]], "X1": [[4, 8]]}]


def test_micro_batches(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))

    def step(number: int) -> None:
        losses = [net(paddle.ones([size, 4])).mean() for size in (3, 5)]
        for loss in losses:
            loss.backward()

    products = gradients(tmp_path / "log", step).filter(pl.col("name") == PRODUCTS)
    sizes = [json.loads(text)["X0"][0] for text in products["shapes"]]
    assert sizes == NUM_STEPS * [[3, 8], [3, 4], [5, 8], [5, 4]]


@pytest.mark.parametrize("is_of_step_before", [False, True])
def test_gradients_of_a_retained_graph_are_of_the_same_operators(
    is_of_step_before: bool, tmp_path: Path
) -> None:
    """Two losses of a step; or a loss, and one of the result of the step before."""
    net = nn.Linear(4, 8)
    results = [net(paddle.ones([3, 4]))]

    def step(number: int) -> None:
        results.append(net(paddle.ones([3, 4])))
        results[-1].mean().backward(retain_graph=True)
        results[-2 if is_of_step_before else -1].abs().mean().backward()

    products = gradients(tmp_path / "log", step).filter(pl.col("name") == PRODUCTS)
    firsts, seconds = (products["forward"][number::2].to_list() for number in (0, 1))
    assert len({*firsts}) == NUM_STEPS
    assert seconds == (NUM_STEPS * [None] if is_of_step_before else firsts)


@pytest.mark.parametrize("is_of_hidden", [False, True])
def test_gradients_of_inputs(is_of_hidden: bool, tmp_path: Path) -> None:
    """``paddle.grad`` runs nodes that lead to its inputs, and accumulates no gradients of parameters."""
    first, second = nn.Linear(4, 8), nn.Linear(8, 2)

    def step(number: int) -> None:
        x = paddle.ones([3, 4])
        x.stop_gradient = False
        hidden = nn.functional.relu(first(x))
        paddle.grad(second(hidden).mean(), hidden if is_of_hidden else x)

    table = gradients(tmp_path / "log", step)
    expected = [[8, 2]] if is_of_hidden else [[8, 2], [4, 8]]
    assert [weights_of(table, number) for number in range(NUM_STEPS)] == NUM_STEPS * [expected]


def test_results_that_a_pipeline_frees(tmp_path: Path) -> None:
    """As Fleet does on all stages but the last: send the result, free it, wait for its gradient."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))

    def step(number: int) -> None:
        results = [net(paddle.ones([size, 4])) for size in (3, 5)]
        received = [paddle.ones_like(result) for result in results]
        for result in results:
            result._clear_dataptr()
        for result, gradient in zip(results, received):
            paddle.autograd.backward([result], [gradient])

    products = gradients(tmp_path / "log", step).filter(pl.col("name") == PRODUCTS)
    sizes = [json.loads(text)["X0"][0] for text in products["shapes"]]
    assert sizes == NUM_STEPS * [[3, 8], [3, 4], [5, 8], [5, 4]]


def test_a_large_graph_costs_the_shapes_not_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_calls, "_MOST_WALK_NS", 0)
    net = nn.Linear(4, 8)
    table = gradients(tmp_path / "log", lambda _: net(paddle.ones([3, 4])).mean().backward())
    assert len(table) == table["shapes"].null_count() > 0


@pytest.mark.parametrize("has_backward", [False, True])
def test_graphs_are_not_kept(has_backward: bool) -> None:
    """Paddle's ``Tensor.grad_fn`` keeps the graph, with its tensors, for ever."""
    net = nn.Linear(4, 8)
    recorder = operator_calls.OperatorCallRecorder(Path())
    size = functools.partial(paddle.base.core.host_memory_stat_current_value, "Allocated", 0)
    recorder.install()
    try:
        before = size()
        for _ in range(3):
            loss = nn.functional.gelu(net(paddle.ones([4096, 4]))).mean()
            if has_backward:
                loss.backward()
            del loss
        assert size() - before < 4096
    finally:
        recorder.uninstall()
    backwards = recorder.take().backwards
    names = [[node.name for node in backward.nodes[:2]] for backward in backwards]
    assert names == 3 * has_backward * [["MeanGradNode", "GeluGradNode"]]


def test_a_node_that_other_code_holds_is_not_freed() -> None:
    x = paddle.to_tensor([2.0, 3.0], stop_gradient=False)
    y = x * x
    node, read = y.grad_fn, node_reader()
    for _ in range(5):
        assert read(y) is node
    del y
    gc.collect()
    assert node.name() == "MultiplyGradNode"
    before = sys.getrefcount(node)
    assert read(x * x) is not node
    assert sys.getrefcount(node) == before


def test_a_paddle_that_counts_otherwise_costs_the_shapes_of_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown() -> None:
        raise RuntimeError("a node of the graph of gradients has 7 references")

    monkeypatch.setattr(operator_calls, "node_reader", unknown)
    net = nn.Linear(4, 8)
    table = gradients(tmp_path / "log", lambda _: net(paddle.ones([3, 4])).mean().backward())
    assert len(table) == table["shapes"].null_count() > 0


@pytest.mark.all
def test_two_hundred_windows_take_no_more_memory_than_twenty() -> None:
    step = toy.training()
    recorder = operator_calls.OperatorCallRecorder(Path())

    def resident_bytes_after(number: int) -> int:
        for _ in range(number):
            recorder.install()
            step()
            recorder.step(1)
            recorder.uninstall()
            assert recorder.take().backwards
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    few = resident_bytes_after(20)
    many = resident_bytes_after(200)
    assert many - few < 4 << 20  # a graph that is kept takes 9 KB a node, 150 MB here


def test_nodes_that_wait_for_their_gradients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_calls, "_MOST_NODES", 3)
    x = paddle.to_tensor([2.0, 3.0], stop_gradient=False)
    recorder = operator_calls.OperatorCallRecorder(Path())
    recorder.install()
    try:
        waiting = [nn.functional.gelu(x) for _ in range(5)]
        waiting[-1].mean().backward()
    finally:
        recorder.uninstall()
    recorded = recorder.take()
    assert not recorded.backwards
    assert len(recorded.calls) >= 6


def test_functions_may_hide_parameters_that_use_gradients() -> None:
    """The node of a function of Python does not show them.

    ::

        mean ─ second ─ add ┬ first ─ relu ─ u
                            └ w
    """
    nodes = {
        "MeanGradNode": [1],
        "GradNodePyLayer_Second": [2],
        "AddGradNode": [3, 6],
        "GradNodePyLayer_First": [4],
        "ReluGradNode": [5],
    }
    order = [
        GraphNode(name, row, len(below), below) for row, (name, below) in enumerate(nodes.items())
    ] + [GraphNode("GradNodeAccumulation", row, 0) for row in (5, 6)]
    assert unused_gradients(order, {5, 6}) == [0, 0, 1, 1, 1, 0, 0]
    # The second function runs for the parameters of the first one.
    assert leaves_below_functions(order, {5, 6}) == {5}
