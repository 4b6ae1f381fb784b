"""Shapes, dtypes and other arguments of torch's operators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.analysis.efficiency.operator_work import work_of_operators
from ppprof.trace import read
from ppprof.trace.kineto.inputs import inputs_of, lists_of

KINETO = Path(__file__).parents[2] / "fixtures/kineto"


def read_one(
    tmp_path: Path, name: str, args: dict[str, Any], cat: str = "cpu_op"
) -> tuple[Any, ...]:
    """Return shapes, dtypes and attributes of one operator."""
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0", "ts": 0, "dur": 90}
    operator = {"ph": "X", "cat": cat, "name": name, "ts": 10, "dur": 5, "args": args}
    events = [{**event, "pid": 1, "tid": 1} for event in (step, operator)]
    (tmp_path / "a.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    table = read(tmp_path / "a.json").events
    columns = table.select(pl.col("shapes", "dtypes", "attributes").cast(pl.String))
    return columns.row(-1)


def test_arguments_are_named_by_their_place(tmp_path: Path) -> None:
    args = {
        "Input Dims": [[4, 128], [[2], [3]], [], []],
        "Input type": ["c10::BFloat16", "TensorList", "Scalar", "ScalarList"],
        "Concrete Inputs": ["", "", "True", "[1, 2]"],
    }
    assert read_one(tmp_path, "aten::f", args) == (
        '{"X0":[[4,128]],"X1":[[2],[3]]}',
        '{"X0":["bfloat16"],"X1":["unknown","unknown"]}',
        '{"X2":true,"X3":[1,2]}',
    )


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"Input Dims": [[4]]},
        {"Input Dims": 7, "Input type": ["float"]},
        {"Input Dims": [["a"]], "Input type": ["float"]},
        {"Input Dims": [[4]], "Input type": [None]},
        {"Input Dims": [[4]], "Input type": ["something"]},
    ],
)
def test_other_forms_have_no_inputs(tmp_path: Path, args: dict[str, Any]) -> None:
    assert read_one(tmp_path, "aten::f", args) == (None, None, None)


def test_only_operators_have_inputs(tmp_path: Path) -> None:
    args = {"Input Dims": [[4]], "Input type": ["float"], "Concrete Inputs": [""]}
    assert read_one(tmp_path, "aten::f", args)[0] == '{"X0":[[4]]}'
    assert read_one(tmp_path, "gloo:f", args, cat="user_annotation")[0] is None


def test_a_recording_by_torch() -> None:
    """Two linear layers, 8 to 16 to 8, of a batch of 4; two steps."""
    events = read(KINETO / "cpu_ddp_rank1.json.gz").events
    work = work_of_operators(events)
    names = events["name"].cast(pl.String).gather(work["row"])
    shapes = events["shapes"].cast(pl.String).gather(work["row"])
    found = work.with_columns(name=names, shapes=shapes)
    linear = found.filter(pl.col("name") == "aten::addmm").group_by("shapes", "flops").len()
    assert sorted(linear.rows()) == [
        ('{"X0":[[16]],"X1":[[4,8]],"X2":[[8,16]]}', 2 * 4 * 8 * 16, 4),
        ('{"X0":[[8]],"X1":[[4,16]],"X2":[[16,8]]}', 2 * 4 * 16 * 8, 4),
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=8,
)


@given(
    JSON | st.lists(st.lists(st.integers())), JSON | st.lists(st.sampled_from(["float", ""])), JSON
)
def test_anything_else_is_left_out(dims: Any, types: Any, concrete: Any) -> None:
    for text in inputs_of(json.dumps(dims), json.dumps(types), json.dumps(concrete)):
        assert text is None or isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    ("inputs", "lists"),
    [
        ((None, None, None), ""),
        (('{"X"', None, None), ""),
        (
            ('{"X1":[[2],[3]]}', '{"X1":["float32","float32"]}', '{"X2":"sum","X3":[1,2]}'),
            (
                [[], [[2], [3]], [], []],
                ["", "TensorList", "Scalar", "Scalar"],
                ["", "", "sum", "[1, 2]"],
            ),
        ),
        (
            ('{"y":[[4]],"x":[[2,4]]}', '{"x":["int64"],"y":["pstring"]}', '{"axis":-1}'),
            ([[], [2, 4], [4]], ["Scalar", "long int", "pstring"], ["-1", "", ""]),
        ),
        (
            (
                '{"X0":[[2]]}',
                '{"X0":["unknown"]}',
                '{"gradients":2,"unused_gradients":1,"of_one_leaf":true}',
            ),
            ([[[2]]], ["TensorList"], [""]),
        ),
    ],
)
def test_inputs_become_lists(inputs: tuple[Any, ...], lists: Any) -> None:
    text = lists_of(*inputs)
    keys = ("Input Dims", "Input type", "Concrete Inputs")
    assert json.loads("{" + text[1:] + "}") == (dict(zip(keys, lists)) if lists else {})


@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.lists(st.integers(0, 99)), st.sampled_from(["float", "c10::Half"]), st.just("")
            ),
            st.tuples(
                st.lists(st.lists(st.integers(0, 99)), min_size=1),
                st.just("TensorList"),
                st.just(""),
            ),
            st.tuples(
                st.just([]),
                st.just("Scalar"),
                st.sampled_from(["1", "1e-05", "True", "sum", "[1, 2]"]),
            ),
        ),
        max_size=5,
    )
)
def test_inputs_are_the_same_after_writing_and_reading(arguments: list[Any]) -> None:
    first = inputs_of(
        *(json.dumps([argument[side] for argument in arguments]) for side in range(3))
    )
    lists = json.loads("{" + lists_of(*first)[1:] + "}")
    keys = ("Input Dims", "Input type", "Concrete Inputs")
    assert inputs_of(*(json.dumps(lists.get(key, [])) for key in keys)) == first
