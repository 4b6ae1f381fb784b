"""The file of operators' arguments: what is written is read, and damaged files are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ppprof.rundir.operator_calls import (
    Backward,
    Node,
    OperatorCalls,
    Repeat,
    RepeatedFunction,
    Signature,
    read_operator_calls,
    write_operator_calls,
)
from ppprof.rundir.run_file import RunFile

MATMUL = Signature(
    "matmul", {"X0": [[2, 3]], "X1": [[3, 4]]}, {"X0": ["float32"], "X1": ["float32"]}, {"X2": True}
)
CONCAT = Signature("concat", {"X0": [[2], [3]]}, {"X0": ["int64", "int64"]}, {"X1": 0})
CALLS = np.array([[7, 50, 60, 0, 0], [7, 10, 20, 1, -1], [5, 30, 40, -1, 0]], np.int64)


def written(tmp_path: Path) -> RunFile:
    file = RunFile(tmp_path, "raw/a.ops")
    write_operator_calls(file, OperatorCalls([MATMUL, CONCAT], ["float32"], CALLS))
    return file


def test_calls_are_read_as_they_were_written_sorted_by_thread_and_start(tmp_path: Path) -> None:
    recorded = read_operator_calls(written(tmp_path))
    assert (recorded.signatures, recorded.dtypes) == ([MATMUL, CONCAT], ["float32"])
    assert recorded.calls.tolist() == CALLS[[2, 1, 0]].tolist()


LAYER_CALLS = np.array([[7, 9, 99, 1], [7, 5, 200, 0]], np.int64)


def with_layers(tmp_path: Path) -> RunFile:
    file = RunFile(tmp_path, "a.ops")
    calls = OperatorCalls([MATMUL, CONCAT], ["float32"], CALLS, (), ["", "a.0"], LAYER_CALLS)
    write_operator_calls(file, calls)
    return file


def test_calls_of_layers_are_apart(tmp_path: Path) -> None:
    recorded = read_operator_calls(with_layers(tmp_path))
    assert recorded.calls.tolist() == CALLS[[2, 1, 0]].tolist()
    assert (recorded.layers, recorded.layer_calls.tolist()) == (
        ["", "a.0"],
        LAYER_CALLS[::-1].tolist(),
    )


def test_a_layer_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    file = with_layers(tmp_path)
    file.write(file.read(1 << 20).replace(b'["","a.0"]', b'[""]'))
    with pytest.raises(ValueError, match="a layer that does not exist"):
        read_operator_calls(file)


def with_repeats(tmp_path: Path) -> RunFile:
    file = RunFile(tmp_path, "a.ops")
    calls = OperatorCalls(
        [MATMUL, CONCAT],
        ["float32"],
        CALLS,
        (),
        ["", "a.0"],
        LAYER_CALLS,
        {},
        [Repeat(1, "line 4", "", "line 3", "line 2")],
        np.array([[7, 9, 99, 0]], np.int64),
    )
    write_operator_calls(file, calls)
    return file


def test_repeated_calls_are_apart(tmp_path: Path) -> None:
    recorded = read_operator_calls(with_repeats(tmp_path))
    assert recorded.layer_calls.tolist() == LAYER_CALLS[::-1].tolist()
    assert recorded.repeats == [Repeat(1, "line 4", "", "line 3", "line 2")]
    assert recorded.repeated_calls.tolist() == [[7, 9, 99, 0]]


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"repeats":[[1,', b'"repeats":[[2,'), (b'[[1,"line 4","","line 3","line 2"]]', b"[]")],
)
def test_a_repeat_that_does_not_exist_is_refused(tmp_path: Path, old: bytes, new: bytes) -> None:
    file = with_repeats(tmp_path)
    content = file.read(1 << 20)
    assert old in content
    file.write(content.replace(old, new))
    with pytest.raises(ValueError, match="a layer that does not exist"):
        read_operator_calls(file)


def test_a_window_without_calls(tmp_path: Path) -> None:
    file = RunFile(tmp_path, "a.ops")
    write_operator_calls(file, OperatorCalls([], [], np.zeros((0, 5), np.int64)))
    assert read_operator_calls(file).calls.shape == (0, 5)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"{", b"["),
        (b'"matmul"', b'"mat\\u0000mul"'),
        (b'"matmul"', b"1"),
        (b"[[2,3]]", b"[2,3]"),
        (b'"dtypes":["float32"]', b'"dtypes":[]'),
        (b'{"X0":["float32"],', b'{"X3":["float32"],'),
        (b'{"X0":["float32"],', b'{"X0":[],'),
        (b'"signatures":[[', b'"signatures":[[],['),
        (b"\n", b"\n0"),
        (b"\n", b""),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, old: bytes, new: bytes) -> None:
    file = written(tmp_path)
    content = file.read(1 << 20)
    assert old in content
    file.write(content.replace(old, new, 1))
    with pytest.raises(ValueError, match=r"."):
        read_operator_calls(file)


@pytest.mark.parametrize("row", [[7, 1, 2, 2, 0], [7, 1, 2, -5, 0], [7, 1, 2, 0, 1]])
def test_a_row_that_does_not_exist_is_refused(tmp_path: Path, row: list[int]) -> None:
    file = RunFile(tmp_path, "a.ops")
    calls = OperatorCalls([MATMUL, CONCAT], ["float32"], np.array([row], np.int64))
    write_operator_calls(file, calls)
    with pytest.raises(ValueError, match="a row that does not exist"):
        read_operator_calls(file)


def with_function(*rows: int) -> OperatorCalls:
    """Return the calls, with a function whose repeated operators are in some rows."""
    function = RepeatedFunction("line 4", "line 9", "line 3", "line 8", [*rows])
    return OperatorCalls([MATMUL, CONCAT], ["float32"], CALLS, repeated_functions=[function])


def test_repeated_operators_move_with_their_calls(tmp_path: Path) -> None:
    file = RunFile(tmp_path, "a.ops")
    write_operator_calls(file, with_function(0, 2))
    (function,) = read_operator_calls(file).repeated_functions
    assert function == RepeatedFunction("line 4", "line 9", "line 3", "line 8", [2, 0])


@pytest.mark.parametrize("row", [-1, 3, 1 << 70])
def test_a_repeated_operator_that_does_not_exist_is_refused(tmp_path: Path, row: int) -> None:
    file = RunFile(tmp_path, "a.ops")
    write_operator_calls(file, with_function(0))
    file.write(file.read(1 << 20).replace(b"[0]]]", b"[%d]]]" % row))
    with pytest.raises(ValueError, match=r"a call that does not exist|Integer|range"):
        read_operator_calls(file)


def with_lengths(row: int, *lengths: int) -> OperatorCalls:
    """Return the calls, with the lengths of samples that one looks up."""
    return OperatorCalls([MATMUL, CONCAT], ["float32"], CALLS, lengths={row: [*lengths]})


def test_lengths_of_samples_move_with_their_calls(tmp_path: Path) -> None:
    file = RunFile(tmp_path, "a.ops")
    write_operator_calls(file, with_lengths(0, 8, 3, 0, 8))
    assert read_operator_calls(file).lengths == {2: [8, 3, 0, 8]}


def with_backward(*nodes: Node, call: int = 0) -> OperatorCalls:
    """Return the calls, with a backward pass."""
    return OperatorCalls([MATMUL, CONCAT], ["float32"], CALLS, [Backward(call, list(nodes))])


def test_a_backward_pass_moves_with_its_calls(tmp_path: Path) -> None:
    file = RunFile(tmp_path, "a.ops")
    write_operator_calls(
        file,
        with_backward(
            Node("MatmulGradNode", 1, 2, 1),
            Node("GradNodeAccumulation", -1, 0),
            Node("MultiplyGradNode", 0, 2, 0, True),
        ),
    )
    (backward,) = read_operator_calls(file).backwards
    assert backward.call == 2
    assert [node.call for node in backward.nodes[:2]] == [1, -1]
    assert [node.num_unused for node in backward.nodes] == [1, 0, 0]
    assert [node.is_of_one_leaf for node in backward.nodes] == [False, False, True]


def test_products_with_0_move_with_their_calls(tmp_path: Path) -> None:
    file = RunFile(tmp_path, "a.ops")
    nodes = [Node("ScaleGradNode", 1, 1, product=1), Node("MeanGradNode", 2, 1)]
    backward = Backward(0, nodes, [(1, 0), (2, 1)])
    write_operator_calls(file, OperatorCalls([MATMUL, CONCAT], ["float32"], CALLS, [backward]))
    (read,) = read_operator_calls(file).backwards
    assert [(node.call, node.product) for node in read.nodes] == [(1, 1), (0, -1)]
    assert read.multiplied == [(1, 2), (0, 1)]


@pytest.mark.parametrize(
    ("node", "multiplied"),
    [(Node("ScaleGradNode", 1, 1, product=3), []), (Node("ScaleGradNode", 1, 1), [(-1, 1)])],
)
def test_a_product_that_does_not_exist_is_refused(
    node: Node, multiplied: list[tuple[int, int]], tmp_path: Path
) -> None:
    file = RunFile(tmp_path, "a.ops")
    backward = Backward(0, [node], multiplied)
    write_operator_calls(file, OperatorCalls([MATMUL, CONCAT], ["float32"], CALLS, [backward]))
    with pytest.raises(ValueError, match="a call that does not exist"):
        read_operator_calls(file)


def test_a_file_of_an_earlier_version_has_no_unused_gradients(tmp_path: Path) -> None:
    file = RunFile(tmp_path, "a.ops")
    write_operator_calls(file, with_backward(Node("MatmulGradNode", 1, 2)))
    content = file.read(1 << 20)
    file.write(
        content.replace(b"1,2,0,false,-1]],[]]", b"1,2]]]").replace(
            b',"not_updated":{},"repeats":[],"repeated_functions":[],"cleared":[],"lengths":{}', b""
        )
    )
    assert b"1,2]]]" in file.read(1 << 20)
    recorded = read_operator_calls(file)
    (node,) = recorded.backwards[0].nodes
    assert (node.num_unused, node.is_of_one_leaf, node.product) == (0, False, -1)
    assert recorded.backwards[0].multiplied == []
    assert (recorded.not_updated, recorded.repeated_functions, recorded.cleared) == ({}, [], [])
    assert recorded.lengths == {}


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (with_backward(call=3), "a call that does not exist"),
        (with_backward(call=-1), "a call that does not exist"),
        (with_backward(Node("AddGradNode", 3, 1)), "a call that does not exist"),
        (with_backward(Node("AddGradNode", 1, -1)), "more gradients than"),
        (with_backward(Node("AddGradNode", 1, 1 << 70)), "."),
        (with_backward(Node("AddGradNode", 1, 1, 2)), "more unused gradients than"),
        (with_lengths(3, 8, 3), "a call that does not exist"),
        (with_lengths(0, 8, 9), "longer than its batch"),
        (with_lengths(0, 8, -1), "longer than its batch"),
        (with_lengths(0, 8), "longer than its batch"),
        (with_lengths(0), "."),
    ],
)
def test_a_backward_pass_or_lengths_of_other_calls_are_refused(
    tmp_path: Path, calls: OperatorCalls, message: str
) -> None:
    file = RunFile(tmp_path, "a.ops")
    write_operator_calls(file, calls)
    with pytest.raises(ValueError, match=message):
        read_operator_calls(file)


def test_more_backward_passes_than_a_step_has_are_refused(tmp_path: Path) -> None:
    file = RunFile(tmp_path, "a.ops")
    many = [Backward(0, [])] * 10_001
    write_operator_calls(file, OperatorCalls([MATMUL, CONCAT], ["float32"], CALLS, many))
    with pytest.raises(ValueError, match="10001 backward passes in one step"):
        read_operator_calls(file)
    nodes = [Node("AddGradNode", 1, 1)] * 200_001
    write_operator_calls(file, with_backward(*nodes))
    with pytest.raises(ValueError, match="more nodes than"):
        read_operator_calls(file)
