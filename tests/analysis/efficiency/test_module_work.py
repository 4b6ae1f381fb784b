"""FLOPs and rates of layers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import polars as pl
import pytest

from ppprof.analysis.efficiency.efficiency import LAYERS, layers
from ppprof.analysis.profile.profile import Profile
from ppprof.report.text.summary import TableOptions
from ppprof.trace import read
from ppprof.trace.schema import Trace
from tests.fixtures.rendered import render
from tests.fixtures.timeline import Shapes, Span, Thread, span, write

MS = 1_000_000


def product(name: str, start: int, end: int, attributes: str | None = None) -> Span:
    """Return a product of 1,024 FLOPs in forward passes."""
    shapes = Shapes({"X0": [[8, 8]], "X1": [[8, 8]]}, {"X0": ["float32"], "X1": ["float32"]})
    return span("Operator", name, start * MS, end * MS).around(shapes)


def step(number: int, begin: int) -> Span:
    """Return a step of 30 ms::

    GPT           0 to 10    Block 1 to 5 (matmul 2 to 4), Block 6 to 9 (matmul 7 to 8)
    Backward     10 to 22    gradient of the second Block 11 to 13, of the first 14 to 20
    """

    def at(ms: int) -> int:
        return (begin + ms) * MS

    blocks = [
        span(
            "Forward",
            "Block",
            at(start),
            at(end),
            product("matmul dygraph", begin + start + 1, begin + end - 1),
        )
        for start, end in ((1, 5), (6, 9))
    ]
    gradients = [
        product("Global_MatmulGradNode", begin + start, begin + end)
        for start, end in ((11, 13), (14, 20))
    ]
    return span(
        "ProfileStep",
        f"ProfileStep#{number}",
        at(0),
        at(30),
        span("Forward", "GPT", at(0), at(10), *blocks),
        span("Backward", "Gradient Backward", at(10), at(22), *gradients),
    )


def linked(trace: Trace) -> Trace:
    """Return the trace with links: the first gradient of a step is that of its second product."""
    events = trace.events.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    forward: dict[int, int] = {}
    for number in (0, 1):
        of_step = events.filter(step=number)
        first, second = of_step.filter(pl.col("name") == "matmul dygraph")["row"]
        gradients = of_step.filter(pl.col("name") == "Global_MatmulGradNode")["row"]
        forward.update(zip(gradients, (second, first)))
    row = pl.col("row")
    events = events.with_columns(
        forward=row.replace_strict(forward, default=None, return_dtype=pl.Int64),
        attributes=pl.when(row.is_in(list(forward)))
        .then(pl.lit('{"gradients":2}'))
        .cast(pl.Categorical),
    )
    return dataclasses.replace(trace, events=events.drop("row"))


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    thread = Thread(31, "main", (step(0, 0), step(1, 30)))
    return linked(read(write(tmp_path / "a.pb", thread)))


def test_forward_and_backward_of_each_layer(trace: Trace) -> None:
    table = layers(Profile(dataclasses.replace(trace, stated_flops=1e6)))
    ms = table.select("depth", "name", "forward_ns", "backward_ns").rows()
    assert ms == [
        (0, "GPT", 10 * MS, 8 * MS),
        (1, "Block", 4 * MS, 6 * MS),
        (1, "Block", 3 * MS, 2 * MS),
    ]
    assert table.select("steps", "flops", "backward_flops").rows() == [
        (2, 2048, 4096),
        (2, 1024, 2048),
        (2, 1024, 2048),
    ]
    assert table["flops_per_s"].to_list() == [
        pytest.approx(6144 / 18e-3),
        pytest.approx(3072 / 10e-3),
        pytest.approx(3072 / 5e-3),
    ]
    assert table["mfu"][0] == pytest.approx(6144 / 18e-3 / 1e6)


def test_layers_have_their_names_in_the_model(trace: Trace) -> None:
    names = {"GPT": '{"layer":""}', "Block": '{"layer":"gpt.blocks.0"}'}
    name = pl.col("name").cast(pl.String)
    attributes = name.replace_strict(names, default=pl.col("attributes").cast(pl.String))
    events = trace.events.with_columns(attributes=attributes.cast(pl.Categorical))
    table = layers(Profile(dataclasses.replace(trace, events=events)))
    assert table["attribute"].to_list() == ["", "gpt.blocks.0", "gpt.blocks.0"]
    assert layers(Profile(trace))["attribute"].null_count() == 3


def test_without_links_backward_is_unknown(trace: Trace) -> None:
    events = trace.events.with_columns(forward=pl.lit(None, pl.Int64))
    table = layers(Profile(dataclasses.replace(trace, events=events)))
    assert table["backward_ns"].null_count() == table["backward_flops"].null_count() == 3
    assert table["flops_per_s"][0] == pytest.approx(2048 / 10e-3)
    assert table["mfu"].null_count() == 3


def test_no_layers(tmp_path: Path) -> None:
    relu = span("Operator", "relu dygraph", 10, 20)
    profile = Profile(read(write(tmp_path / "a.pb", Thread(31, "main", (relu,)))))
    table = layers(profile)
    assert table.is_empty()
    assert dict(table.schema) == LAYERS
    assert render(profile, ["layer"], TableOptions()) == ""


def test_as_printed(trace: Trace) -> None:
    lines = render(Profile(trace), ["layer"], TableOptions()).splitlines()
    (row,) = (line.split() for line in lines if line.startswith("GPT"))
    assert row == ["GPT", "10.00", "8.00", "60.00", "2.05e-06", "4.1e-06", "3.41e-07", "-"]
