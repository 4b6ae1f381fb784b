"""Gradients that are 0 for a product with the number 0, of real graphs and against all paths of small ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ppprof
from ppprof import rundir
from ppprof.trace import read_window
from ppprof.trace.operator_inputs import MULTIPLIED, ZERO

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.usefixtures("unfinished")]

from paddle import nn  # noqa: E402

from ppprof.capture.recording.gradient_order import (  # noqa: E402
    ACCUMULATION,
    GraphNode,
    zero_gradients,
)
from ppprof.capture.recording.zero_products import BackwardGraph, ZeroProducts  # noqa: E402

NUM_STEPS = 3


def events_of(log: Path, step: Callable[[int], Any]) -> pl.DataFrame:
    """Return step (from 0), name, zero and multiplied (the lines, null without), shapes, of a window's operators."""
    profiler = {"enable": True, "scheduler": [1, 1 + NUM_STEPS], "profiler_log": str(log)}
    with ppprof.attach(profiler) as prof:
        for number in range(1 + NUM_STEPS):
            step(number - 1)
            prof.step()
    ((_, raw),) = rundir.raw_files(rundir.newest(log))
    events = read_window(raw).events.filter(pl.col("category") == "Operator")
    attributes = [json.loads(text or "{}") for text in events["attributes"].cast(pl.String)]
    lines = {name: [each.get(name) for each in attributes] for name in (ZERO, MULTIPLIED)}
    return events.select(
        step=pl.col("step") - 1,
        name=pl.col("name").cast(pl.String),
        shapes=pl.col("shapes").cast(pl.String),
        zero=pl.Series(lines[ZERO], dtype=pl.List(pl.String)),
        multiplied=pl.Series(lines[MULTIPLIED], dtype=pl.List(pl.String)),
    ).drop_nulls("step")


def names_of(events: pl.DataFrame, column: str, step: int = 0) -> list[str]:
    """Return the names of a step's events that have lines in a column."""
    return events.filter(pl.col("step") == step).drop_nulls(column)["name"].to_list()


class Net(nn.Layer):  # type: ignore[misc]
    """A trunk with two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 3)

    def forward(self, x: Any) -> tuple[Any, Any]:
        hidden = self.trunk(x)
        return self.first(hidden).mean(), self.second(hidden).square().mean()


PRODUCTS: dict[str, Callable[[Any], Any]] = {
    "term * 0.0": lambda term: term * 0.0,
    "0 * term": lambda term: 0 * term,
    "scale": lambda term: paddle.scale(term, 0.0),
    "scale, with a bias": lambda term: paddle.scale(term, 0.0, bias=1.0),
    "0 * (2 * term)": lambda term: 0 * (2 * term),
}


@pytest.mark.parametrize("way", PRODUCTS)
def test_gradients_of_a_term_that_is_multiplied_by_0_are_0(way: str, tmp_path: Path) -> None:
    """Those of the trunk are not, for the other head needs them."""
    net = Net()

    def step(_: int) -> None:
        loss, term = net(paddle.ones([5, 4]))
        (loss + PRODUCTS[way](term)).backward()

    events = events_of(tmp_path / "log", step)
    num_products = way.count("*") + way.count("scale")
    scales = ["Global_ScaleGradNode"] * num_products
    term = [f"Global_{name}GradNode" for name in ("Mean", "Square", "Add", "Matmul")]
    operators = ["matmul", "add", "square", "mean", *["scale"] * num_products]
    for number in range(NUM_STEPS):
        assert sorted(names_of(events, "zero", number)) == sorted([*scales, *term])
        multiplied = names_of(events, "multiplied", number)
        assert multiplied == [f"{name} dygraph" for name in operators]
    products = events.drop_nulls("zero").filter(name="Global_MatmulGradNode")
    assert {json.loads(text)["X1"][0][1] for text in products["shapes"]} == {3}
    ((line, below),) = {tuple(each) for each in events["zero"].drop_nulls()}
    assert line.endswith("in <lambda>")
    assert below.endswith("in <lambda>" if "2" in way else "in Net.forward")


@pytest.mark.parametrize(
    "combine",
    [
        lambda loss, term: 0 + loss + term,
        lambda loss, term: loss + (term + 0.0),
        lambda loss, term: loss - (0 - term),
        lambda loss, term: loss + 0.5 * term,
        lambda loss, term: loss + paddle.scale(term, 1.0, bias=0.0),
        lambda loss, term: loss + term * paddle.to_tensor(0.0),  # unknown
        lambda loss, term: loss + 0.0 * term.detach(),
    ],
)
def test_other_sums_and_products_have_gradients(
    combine: Callable[[Any, Any], Any], tmp_path: Path
) -> None:
    net = Net()
    events = events_of(tmp_path / "log", lambda _: combine(*net(paddle.ones([5, 4]))).backward())
    assert events["zero"].null_count() == events["multiplied"].null_count() == len(events)


def test_two_backwards_whose_terms_of_weight_0_share_a_head(tmp_path: Path) -> None:
    net = Net()

    def step(_: int) -> None:
        hidden = net.trunk(paddle.ones([5, 4]))
        first, second = net.first(hidden), net.second(hidden)
        for loss, term in ((first.mean(), second.mean()), (first.max(), second.square().mean())):
            (loss + 0.0 * term).backward(retain_graph=True)

    events = events_of(tmp_path / "log", step)
    assert events["shapes"].drop_nulls().len() > 0  # what was recorded has been joined
    for number in range(NUM_STEPS):
        zero = names_of(events, "zero", number)
        assert zero.count("Global_MatmulGradNode") == 2
        assert "matmul dygraph" in names_of(events, "multiplied", number)


def test_a_weight_counts_in_the_steps_in_which_it_is_0(tmp_path: Path) -> None:
    """As that of a term that a training begins with later."""
    net, weights = Net(), (0.0, 0.0, 0.0, 0.1)

    def step(number: int) -> None:
        loss, term = net(paddle.ones([5, 4]))
        (loss + weights[number + 1] * term).backward()

    events = events_of(tmp_path / "log", step)
    assert [len(names_of(events, "zero", number)) for number in range(NUM_STEPS)] == [5, 5, 0]
    assert [len(names_of(events, "multiplied", number)) for number in range(NUM_STEPS)] == [5, 5, 0]


def test_of_two_products_one_that_is_no_longer_0_ends_both(tmp_path: Path) -> None:
    """A part that both have could have gradients: which one, the recording does not say."""
    net = Net()

    def step(number: int) -> None:
        loss, term = net(paddle.ones([5, 4]))
        (loss + 0.0 * term + (0.1 if number == 1 else 0.0) * term).backward()

    events = events_of(tmp_path / "log", step)
    assert [len(names_of(events, "zero", number)) for number in range(NUM_STEPS)] == [6, 0, 6]


def test_a_loss_of_its_own_has_gradients(tmp_path: Path) -> None:
    """A second Backward begins at the term, and another one leads to its operators."""
    net = Net()

    def step(_: int) -> None:
        loss, term = net(paddle.ones([5, 4]))
        paddle.autograd.backward([loss + 0.0 * term, term])

    events = events_of(tmp_path / "log", step)
    assert names_of(events, "zero") == ["Global_ScaleGradNode"]
    assert names_of(events, "multiplied") == ["scale dygraph"]


def test_operators_of_another_loss_are_needed(tmp_path: Path) -> None:
    net = Net()

    def step(_: int) -> None:
        loss, term = net(paddle.ones([5, 4]))
        (loss + 0.0 * term).backward(retain_graph=True)
        term.backward()

    events = events_of(tmp_path / "log", step)
    assert len(names_of(events, "zero")) == 5
    assert names_of(events, "multiplied") == ["scale dygraph"]


def test_gradients_of_gradients(tmp_path: Path) -> None:
    """Nodes that C++ creates have no call, and the gradients that the term is computed from are for nothing, too."""
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def derivative(y: Any, x: Any) -> Any:
        return paddle.grad(y, x, create_graph=True)[0]

    def step(_: int) -> None:
        x = paddle.ones([5, 1])
        x.stop_gradient = False
        first = derivative(net(x), x)
        second = derivative(first, x)
        third = derivative(second, x)
        (first.square().mean() + 0.0 * (second.mean() + third.mean())).backward()

    events = events_of(tmp_path / "log", step)
    for number in range(NUM_STEPS):
        zero = names_of(events, "zero", number)
        assert {"Global_TanhDoubleGradNode", "Global_TanhTripleGradNode"} <= {*zero}
        multiplied = names_of(events, "multiplied", number)
        others = [name for name in multiplied if not name.startswith("Global_")]
        assert others == ["mean dygraph", "mean dygraph", "add dygraph", "scale dygraph"]
        # Of the three calls of paddle.grad, the first one is for the loss.
        of_step = events.filter(pl.col("step") == number, pl.col("name").str.starts_with("Global_"))
        lengths = of_step["multiplied"].is_not_null().rle().struct.unnest()["len"].to_list()
        assert lengths[:2] == [6, 15]  # the first call of paddle.grad, then the two others
        assert len(lengths) == 3


class WithAuxiliary(paddle.autograd.PyLayer):  # type: ignore[misc]
    """A result with a gradient of 1 for a loss beside it, as mixtures of experts have it."""

    @staticmethod
    def forward(ctx: Any, x: Any, auxiliary: Any) -> Any:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient, paddle.ones_like(gradient)


def test_a_function_of_python_may_return_any_gradient(tmp_path: Path) -> None:
    net = Net()

    def step(_: int) -> None:
        loss, term = net(paddle.ones([5, 4]))
        (loss + 0.0 * WithAuxiliary.apply(loss, term)).backward()

    events = events_of(tmp_path / "log", step)
    assert names_of(events, "zero") == ["Global_ScaleGradNode"]


def test_nothing_is_noted_behind_the_first_step(tmp_path: Path) -> None:
    """The later ones have the same graphs."""
    net, noted = Net(), []
    original = ZeroProducts.note

    def note(self: ZeroProducts, call: tuple[int, int], address: int) -> None:
        noted.append(call)
        original(self, call, address)

    def step(_: int) -> None:
        loss, term = net(paddle.ones([5, 4]))
        (loss + 0.0 * term).backward()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ZeroProducts, "note", note)
        events = events_of(tmp_path / "log", step)
    assert len(noted) == 2  # in the step in which the window is prepared, and in its first one
    assert len(events.drop_nulls("zero")) == 5 * NUM_STEPS


def paths_from(address: int, below: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Yield the paths that begin at a node, to each node that it leads to."""
    yield (address,)
    for other in below[address]:
        for path in paths_from(other, below):
            yield (address, *path)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[list[int]], set[int], set[int], set[int]]:
    """Draw the nodes below each node, and some roots, products with 0, and functions of Python."""
    num = draw(st.integers(1, 7))
    below = [
        draw(st.lists(st.integers(row + 1, num - 1), max_size=3)) if row + 1 < num else []
        for row in range(num)
    ]
    some = st.sets(st.integers(0, num - 1))
    return below, draw(some) | {0}, draw(some), draw(some)


@given(graphs())
def test_a_node_is_0_exactly_if_all_paths_to_it_pass_a_product(
    graph: tuple[list[list[int]], set[int], set[int], set[int]],
) -> None:
    """From a root, or from a function of Python: what it returns may be anything."""
    below, roots, products, functions = graph
    products -= functions
    paths = [path for start in roots for path in paths_from(start, below)]
    reached = {path[-1] for path in paths}
    free = set()
    for path in [*paths, *(p for each in functions & reached for p in paths_from(each, below))]:
        if products.isdisjoint(path):
            free.add(path[-1])
    order = [
        GraphNode("GradNodePyLayer_F" if row in functions else "AddGradNode", row, 0, below[row])
        for row in sorted(reached)
    ]
    marks = zero_gradients(order, roots, {row: row for row in products})
    assert {node.address for node, mark in zip(order, marks) if mark >= 0} == (
        reached - free - functions
    )
    # The product that is named leads to the node.
    for node, mark in zip(order, marks):
        assert mark < 0 or any(mark in path for path in paths if path[-1] == node.address)


def graph_of(*nodes: GraphNode, created: Sequence[tuple[int, int] | None]) -> BackwardGraph:
    return BackwardGraph([*nodes], [*created], False, frozenset((nodes[0].address,)), [None] * 9)


@pytest.mark.parametrize(("below", "products"), [(7, [-1, 1, 1, -1]), (8, [-1, -1, -1, -1])])
def test_a_node_that_lies_where_that_of_a_product_was_is_none(
    below: int, products: list[int]
) -> None:
    """A node without a call, as of gradients of gradients, leads elsewhere."""
    calls = [(1, 10), (1, 20), (1, 30)]
    zero = ZeroProducts()
    zero.note(calls[1], 7)
    graph = graph_of(
        GraphNode("AddGradNode", 1, 1, [2]),
        GraphNode("ScaleGradNode", 2, 1, [below]),
        GraphNode("MeanGradNode", below, 1, [9]),
        GraphNode(ACCUMULATION, 9, 0),
        created=[None, calls[1], calls[0], None],
    )
    rows = {call: row for row, call in enumerate(calls)}
    found = zero.found({calls[2]: graph}, {**rows}, frozenset((1,)))
    assert [found[calls[2]].products] == [products] if found else products == [-1] * 4
    assert not found or found[calls[2]].multiplied == [(0, 1), (1, 1)]
