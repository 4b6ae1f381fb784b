"""Arguments of operators, joined to the events that lie within the calls."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from ppprof.arrays import Int64
from ppprof.rundir.operator_calls import (
    Backward,
    Cleared,
    Node,
    OperatorCalls,
    Repeat,
    RepeatedFunction,
    Signature,
    write_operator_calls,
)
from ppprof.rundir.run_file import RunFile
from ppprof.trace import join_operator_calls, read_window
from ppprof.trace.join_operator_calls import with_operator_inputs
from tests.fixtures.timeline import EPOCH_NS, Thread, span, write

DTYPES = ["float32", "bfloat16", "int64"]


def call(name: str, *shapes: list[int], dtype: str = "float32") -> Signature:
    """Return a signature of tensors of these shapes."""
    inputs = {f"X{number}": [shape] for number, shape in enumerate(shapes)}
    return Signature(name, inputs, {argument: [dtype] for argument in inputs}, {})


def joined(
    tmp_path: Path,
    events: list[tuple[str, int, int]],
    calls: list[tuple[Signature, int, int]],
    result: int = 0,
    thread: int = 31,
) -> list[tuple[str, str | None, str | None]]:
    """Return name, shapes and dtypes of the operators of a window.

    Args:
        tmp_path: where the window is written.
        events: names, starts and ends of operators on thread 31.
        calls: what was called on ``thread``, from when to when.
        result: row in ``DTYPES`` of what each call returns.
        thread: the thread of the calls.
    """
    spans = [span("Operator", f"{name} dygraph", start, end) for name, start, end in events]
    raw = write(tmp_path / "window.pb", Thread(31, "main", tuple(spans)))
    rows = [
        [thread, EPOCH_NS + start, EPOCH_NS + end, row, result]
        for row, (_, start, end) in enumerate(calls)
    ]
    recorded = OperatorCalls(
        [signature for signature, *_ in calls], DTYPES, np.array(rows, np.int64).reshape(-1, 5)
    )
    write_operator_calls(RunFile(tmp_path, "window.ops"), recorded)
    table = read_window(raw).events.select(pl.col("name", "shapes", "dtypes").cast(pl.String))
    return [(name.removesuffix(" dygraph"), *inputs) for name, *inputs in table.rows()]


def test_an_event_has_the_arguments_of_the_call_around_it(tmp_path: Path) -> None:
    """
    ::

        calls    [relu] [matmul  ]      [relu]
        events    relu    matmul   gelu  relu
    """
    assert joined(
        tmp_path,
        [("relu", 1, 4), ("matmul", 7, 9), ("gelu", 13, 15), ("relu", 21, 24)],
        [
            (call("relu", [4, 8]), 0, 5),
            (call("matmul", [4, 8], [8, 2], dtype="bfloat16"), 6, 10),
            (call("relu", [4, 2]), 20, 25),
        ],
    ) == [
        ("relu", '{"X0":[[4,8]]}', '{"X0":["float32"]}'),
        ("matmul", '{"X0":[[4,8]],"X1":[[8,2]]}', '{"X0":["bfloat16"],"X1":["bfloat16"]}'),
        ("gelu", None, None),
        ("relu", '{"X0":[[4,2]]}', '{"X0":["float32"]}'),
    ]


def test_a_compressed_window_has_them_too(tmp_path: Path) -> None:
    rows = joined(tmp_path, [("relu", 1, 4)], [(call("relu", [4, 8]), 0, 5)])
    packed = tmp_path / "window.pb.gz"
    packed.write_bytes(gzip.compress((tmp_path / "window.pb").read_bytes()))
    assert rows == [("relu", '{"X0":[[4,8]]}', '{"X0":["float32"]}')]
    assert read_window(packed).events["shapes"].cast(pl.String).to_list() == ['{"X0":[[4,8]]}']


def test_a_linear_is_a_product_and_a_sum(tmp_path: Path) -> None:
    assert joined(
        tmp_path,
        [("matmul", 1, 4), ("add", 5, 9)],
        [(call("linear", [2, 16, 8], [8, 32], [32]), 0, 10)],
    ) == [
        ("matmul", '{"X0":[[2,16,8]],"X1":[[8,32]]}', '{"X0":["float32"],"X1":["float32"]}'),
        ("add", '{"X0":[[2,16,32]],"X1":[[32]]}', '{"X0":["float32"],"X1":["float32"]}'),
    ]


def test_a_dtype_is_the_one_computed_in(tmp_path: Path) -> None:
    """``auto_cast`` casts the arguments within the call."""
    assert joined(
        tmp_path,
        [("cast", 1, 2), ("cast", 3, 4), ("matmul", 5, 9)],
        [(call("matmul", [4, 8], [8, 2]), 0, 10)],
        result=1,
    ) == [
        ("cast", None, None),
        ("cast", None, None),
        ("matmul", '{"X0":[[4,8]],"X1":[[8,2]]}', '{"X0":["bfloat16"],"X1":["bfloat16"]}'),
    ]
    assert joined(tmp_path, [("cast", 1, 2)], [(call("cast", [4, 8]), 0, 10)], result=1) == [
        ("cast", '{"X0":[[4,8]]}', '{"X0":["float32"]}')
    ]


@pytest.mark.parametrize(
    ("method", "operators", "named"),
    [
        ("__add__", ["add"], "add"),
        ("__truediv__", ["divide"], "divide"),
        ("__mul__", ["scale"], "scale"),  # by a number
        ("__ne__", ["full", "not_equal"], "not_equal"),  # the number becomes a tensor
        ("relu_", ["relu_"], "relu_"),
    ],
)
def test_methods_of_tensors(tmp_path: Path, method: str, operators: list[str], named: str) -> None:
    events = [(name, 10 * place + 1, 10 * place + 4) for place, name in enumerate(operators)]
    rows = joined(tmp_path, events, [(call(method, [4, 8]), 0, 100)])
    assert [name for name, shapes, _ in rows if shapes == '{"X0":[[4,8]]}'] == [named]
    assert [name for name, shapes, _ in rows if shapes is None] == operators[:-1]


def test_a_reversed_method_has_its_arguments_in_the_order_of_the_operator(tmp_path: Path) -> None:
    ((_, shapes, _),) = joined(
        tmp_path, [("matmul", 1, 4)], [(call("__rmatmul__", [8, 2], [4, 8]), 0, 5)]
    )
    assert shapes == '{"X0":[[4,8]],"X1":[[8,2]]}'


def test_a_call_within_a_call_is_the_one_that_counts(tmp_path: Path) -> None:
    rows = joined(
        tmp_path,
        [("relu", 11, 14), ("outer", 50, 60)],
        [(call("outer", [1]), 0, 100), (call("relu", [2]), 10, 20), (call("gelu", [3]), 30, 40)],
    )
    assert [shapes for _, shapes, _ in rows] == ['{"X0":[[2]]}', '{"X0":[[1]]}']


def test_odd_arguments_of_a_reversed_method_cost_nothing(tmp_path: Path) -> None:
    odd = Signature("__rmatmul__", {"a": [[4]], "b": [[4]]}, {"a": ["x"], "b": ["x"]}, {})
    ((name, shapes, _),) = joined(tmp_path, [("matmul", 1, 4)], [(odd, 0, 5)])
    assert (name, shapes) == ("matmul", '{"a":[[4]],"b":[[4]]}')


def test_each_of_many_backward_passes_is_compared_with_a_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []

    def matches(sample: join_operator_calls._Sample, functions: Int64, run: int) -> bool:
        compared.append(run)
        return False

    monkeypatch.setattr(join_operator_calls._Sample, "matches", matches)
    num = 1000
    spans = [
        span("Operator", "Global_AddGradNode" if n else "relu dygraph", 10 * n + 1, 10 * n + 4)
        for n in range(num)
    ]
    raw = write(tmp_path / "window.pb", Thread(31, "main", tuple(spans)))
    begin = EPOCH_NS + 10 * np.arange(num)
    functions = np.arange(num) == 0  # a relu, then only backward passes
    calls = np.stack([0 * begin + 31, begin, begin + 9, functions, 0 * begin - 1], axis=1)
    backwards = [Backward(n, [Node("AddGradNode", n - 1, 1)]) for n in range(1, num)]
    run_backward = Signature("run_backward", {}, {}, {})
    recorded = OperatorCalls([run_backward, call("relu", [4])], DTYPES, calls, backwards)
    write_operator_calls(RunFile(tmp_path, "window.ops"), recorded)
    assert read_window(raw).skipped == {}
    assert num - 1 <= len(compared) <= 10 * num


def test_what_belongs_to_no_call_has_no_shapes(tmp_path: Path) -> None:
    relu = call("relu", [4])
    for start, end in ((2, 5), (0, 3), (5, 9)):  # the event ends later, or begins earlier
        assert joined(tmp_path, [("relu", 1, 4)], [(relu, start, end)]) == [("relu", None, None)]
    assert joined(tmp_path, [("relu", 1, 4)], [(relu, 0, 5)], thread=32) == [("relu", None, None)]
    assert joined(tmp_path, [("a", 1, 2), ("b", 3, 4)], [(call("c", [4]), 0, 5)]) == [
        ("a", None, None),
        ("b", None, None),
    ]
    assert joined(tmp_path, [("relu", 1, 4)], []) == [("relu", None, None)]


def test_a_damaged_file_costs_the_shapes_and_is_counted(tmp_path: Path) -> None:
    joined(tmp_path, [("relu", 1, 4)], [(call("relu", [4]), 0, 5)])
    (tmp_path / "window.ops").write_bytes(b"{}")
    trace = read_window(tmp_path / "window.pb")
    assert trace.skipped == {"files of operator shapes": 1}
    assert trace.events["shapes"].null_count() == len(trace.events)


def test_many_threads_take_no_longer_than_many_calls() -> None:
    num = 200_000
    names = pl.Series(["relu dygraph"] * num, dtype=pl.Categorical)
    threads = np.arange(num)
    events = pl.DataFrame(
        {
            "name": names,
            "category": pl.Series(["Operator"] * num, dtype=pl.Categorical),
            "thread": threads,
            "start_ns": np.full(num, 10),
            "dur_ns": np.full(num, 5),
        }
    ).with_columns(
        pl.lit(None, pl.Int64).alias("forward"),
        *(
            pl.lit(None, pl.Categorical()).alias(c)
            for c in ("shapes", "dtypes", "attributes", "callstack")
        ),
    )
    zeros = np.zeros(num, np.int64)
    rows = np.stack([threads, zeros + 9, zeros + 16, zeros, zeros - 1], axis=1)
    recorded = OperatorCalls([call("relu", [4])], DTYPES, rows)
    found = with_operator_inputs(events, recorded)["shapes"].cast(pl.String)
    assert found.unique().to_list() == ['{"X0":[[4]]}']


def test_forward_events_have_the_name_of_the_layer_that_is_called(tmp_path: Path) -> None:
    """A layer in a layer, one without a name, and an operator beside them, which has none.

    ::

        layers   ["          ["blocks.0"  ]       ]
        events     Net        Block   relu  ReLU
    """
    layers = [span("Forward", "Block", 20, 40), span("Forward", "ReLU", 50, 60)]
    net = span("Forward", "Net", 10, 90).around(*layers, span("Operator", "relu dygraph", 70, 80))
    raw = write(tmp_path / "window.pb", Thread(31, "main", (net,)))
    rows = [
        [31, EPOCH_NS + start, EPOCH_NS + end, row] for start, end, row in [(5, 95, 0), (19, 41, 1)]
    ]
    recorded = OperatorCalls(
        [], [], np.zeros((0, 5), np.int64), (), ["", "blocks.0"], np.array(rows, np.int64)
    )
    write_operator_calls(RunFile(tmp_path, "window.ops"), recorded)
    table = read_window(raw).events.select(pl.col("name", "attributes").cast(pl.String))
    assert dict(table.rows()) == {
        "Net": '{"layer":""}',
        "Block": '{"layer":"blocks.0"}',
        "ReLU": None,
        "relu dygraph": None,
    }


def test_a_repeated_call_says_its_lines(tmp_path: Path) -> None:
    """Of two calls of one layer, the second one has them."""
    calls = [span("Forward", name, start, start + 20) for name, start in (("A", 10), ("B", 40))]
    raw = write(tmp_path / "window.pb", Thread(31, "main", tuple(calls)))
    rows = [[31, EPOCH_NS + start, EPOCH_NS + start + 25, 0] for start in (9, 39)]
    recorded = OperatorCalls(
        [],
        [],
        np.zeros((0, 5), np.int64),
        (),
        ["encoder"],
        np.array(rows, np.int64),
        {},
        [Repeat(0, "line 4", "", "line 3", "line 2")],
        np.array(rows[1:], np.int64),
    )
    write_operator_calls(RunFile(tmp_path, "window.ops"), recorded)
    table = read_window(raw).events.select(pl.col("name", "attributes").cast(pl.String))
    assert dict(table.rows()) == {
        "A": '{"layer":"encoder"}',
        "B": '{"layer":"encoder","repeated":["line 4","","line 3","line 2"]}',
    }


def test_a_repeated_operator_says_the_lines_of_its_function(tmp_path: Path) -> None:
    """Of two calls, the second one has them, and not its gradient; an argument stays beside them."""
    operators = [span("Operator", "tril dygraph", start, start + 20) for start in (10, 40)]
    node = span("Operator", "Global_TrilGradNode", 75, 95)
    raw = write(tmp_path / "window.pb", Thread(31, "main", (*operators, node)))
    starts = (9, 39, 70)
    rows = [[31, EPOCH_NS + start, EPOCH_NS + start + 26, start // 70, -1] for start in starts]
    recorded = OperatorCalls(
        [
            Signature("tril", {"X0": [[4, 4]]}, {"X0": ["float32"]}, {"X1": 0}),
            Signature("run_backward", {}, {}, {}),
        ],
        [],
        np.array(rows, np.int64),
        [Backward(2, [Node("TrilGradNode", 1, 1)])],
        repeated_functions=[RepeatedFunction("line 4", "line 9", "line 3", "", [1])],
    )
    write_operator_calls(RunFile(tmp_path, "window.ops"), recorded)
    table = read_window(raw).events.filter(pl.col("shapes").is_not_null())
    assert table["attributes"].cast(pl.String).to_list() == [
        '{"X1":0}',
        '{"X1":0,"repeated":["line 4","line 9","line 3",""]}',
        '{"X1":0,"gradients":1}',
    ]


def test_a_lookup_of_padded_samples_says_their_lengths(tmp_path: Path) -> None:
    operators = [span("Operator", "embedding dygraph", start, start + 20) for start in (10, 40)]
    raw = write(tmp_path / "window.pb", Thread(31, "main", tuple(operators)))
    rows = [[31, EPOCH_NS + start, EPOCH_NS + start + 26, 0, -1] for start in (9, 39)]
    recorded = OperatorCalls(
        [Signature("embedding", {"X0": [[2, 8]]}, {"X0": ["int64"]}, {"X2": -1})],
        [],
        np.array(rows, np.int64),
        lengths={1: [8, 5, 3]},
    )
    write_operator_calls(RunFile(tmp_path, "window.ops"), recorded)
    assert read_window(raw).events["attributes"].cast(pl.String).to_list() == [
        '{"X2":-1}',
        '{"X2":-1,"lengths_of_samples":[8,5,3]}',
    ]


def test_a_call_whose_gradients_are_cleared_says_its_lines(tmp_path: Path) -> None:
    """The other call of the layer does not."""
    layers = [span("Forward", name, start, start + 20) for name, start in (("A", 10), ("B", 40))]
    raw = write(tmp_path / "window.pb", Thread(31, "main", tuple(layers)))
    rows = np.array([[31, EPOCH_NS + start, EPOCH_NS + start + 22, 0] for start in (9, 39)])
    recorded = OperatorCalls(
        *([], [], np.zeros((0, 5), np.int64)),
        layers=["encoder"],
        layer_calls=rows,
        cleared=[Cleared(0, "line 4", "line 9")],
        cleared_calls=rows[1:],
    )
    write_operator_calls(RunFile(tmp_path, "window.ops"), recorded)
    table = read_window(raw).events.select(pl.col("name", "attributes").cast(pl.String))
    assert dict(table.rows()) == {
        "A": '{"layer":"encoder"}',
        "B": '{"cleared":["line 4","line 9"],"layer":"encoder"}',
    }


def test_layers_and_gradients_say_what_no_optimizer_updates(tmp_path: Path) -> None:
    """Of the weight of a product that no optimizer has, and whose input needs a gradient."""
    product = span("Forward", "Linear", 10, 40).around(span("Operator", "matmul dygraph", 20, 30))
    node = span("Operator", "Global_MatmulGradNode", 60, 70)
    raw = write(tmp_path / "window.pb", Thread(31, "main", (product, node)))
    line = 'File "train.py", line 3, in step'
    calls = [Signature("matmul", {}, {}, {}, line), Signature("run_backward", {}, {}, {})]
    rows = [[31, EPOCH_NS + start, EPOCH_NS + start + 20, start // 50, -1] for start in (15, 55)]
    recorded = OperatorCalls(
        calls,
        [],
        np.array(rows, np.int64),
        [Backward(1, [Node("MatmulGradNode", 0, 2, 1, True)])],
        [""],
        np.array([[31, EPOCH_NS + 9, EPOCH_NS + 41, 0]], np.int64),
        {0: line},
    )
    write_operator_calls(RunFile(tmp_path, "window.ops"), recorded)
    table = read_window(raw).events.select(pl.col("name", "attributes").cast(pl.String))
    assert dict(table.rows()) == {
        "Linear": '{"layer":"","not_updated":"File \\"train.py\\", line 3, in step"}',
        "matmul dygraph": None,
        "Global_MatmulGradNode": '{"gradients":2,"of_one_leaf":true,"unused_gradients":1}',
    }


A, B = call("relu", [4, 4]), call("tanh", [4, 4])
MORE, RUN_BACKWARD = call("exp", [9, 4]), Signature("run_backward", {}, {}, {})


def linked(tmp_path: Path, steps: list[list[Signature]]) -> list[list[int | None]]:
    """Return for the gradients of tanh and relu in each step the place of their operator among the step's calls.

    Args:
        tmp_path: where the window is written.
        steps: what each step calls, ahead of a backward that runs the nodes of A and B of the first step; if it calls
            several itself, each runs those of the next A and B.
    """
    spans, rows, signatures, begins = [], [], [A, B, MORE, RUN_BACKWARD], []
    for number, called in enumerate(steps):
        begin = 1000 * number
        begins.append(begin)
        spans.append(span("ProfileStep", f"ProfileStep#{number}", begin, begin + 999))
        for place, signature in enumerate(
            called if RUN_BACKWARD in called else [*called, RUN_BACKWARD]
        ):
            start = begin + 10 + 50 * place
            rows.append([31, start, start + 40, signatures.index(signature), -1])
            if signature is not RUN_BACKWARD:
                spans.append(span("Operator", f"{signature.name} dygraph", start + 5, start + 30))
                continue
            spans.append(span("Operator", "Global_TanhGradNode", start + 5, start + 10))
            spans.append(span("Operator", "Global_ReluGradNode", start + 15, start + 20))
    first = steps[0] if RUN_BACKWARD in steps[0] else [*steps[0], RUN_BACKWARD]
    places = {
        id(each): [place for place, other in enumerate(first) if other is each]
        for each in (A, B, RUN_BACKWARD)
    }
    backwards = [
        Backward(own, [Node("TanhGradNode", b, 1), Node("ReluGradNode", a, 1)])
        for a, b, own in zip(*places.values())
    ]
    raw = write(tmp_path / "window.pb", Thread(31, "main", tuple(spans)))
    calls = np.array(rows, np.int64) + np.array([0, EPOCH_NS, EPOCH_NS, 0, 0])
    recorded = OperatorCalls(signatures, DTYPES, calls, backwards)
    write_operator_calls(RunFile(tmp_path, "window.ops"), recorded)
    events = read_window(raw).events
    starts = (events["start_ns"] - EPOCH_NS).to_list()
    names = events["name"].cast(pl.String).to_list()
    found: list[list[int | None]] = [[] for _ in steps]
    for name, start, forward in zip(names, starts, events["forward"].to_list()):
        if name.startswith("Global_"):
            begin = 1000 * (start // 1000)
            place = None if forward is None else (starts[forward] - begin - 15) // 50
            found[start // 1000].append(place)
    return found


def test_a_step_with_more_calls_has_the_gradients_of_its_own(tmp_path: Path) -> None:
    """Between, ahead of and behind the operators of the first step; and with fewer calls than it."""
    steps = [[A, B], [A, MORE, MORE, B], [MORE, A, B, MORE], [A, B]]
    assert linked(tmp_path, steps) == [[1, 0], [3, 0], [2, 1], [1, 0]]
    assert linked(tmp_path, [[A, MORE, B], [A, B]]) == [[2, 0], [1, 0]]


def test_an_operator_that_a_step_calls_more_often_is_unknown(tmp_path: Path) -> None:
    """Which of the calls has the gradient cannot be known, nor can that of an operator that is missing."""
    none = [None, None]
    assert linked(tmp_path, [[A, B], [A, B, MORE, B], [A, MORE]]) == [[1, 0], none, none]


def test_which_of_two_losses_a_backward_is_of_is_not_guessed(tmp_path: Path) -> None:
    """Both are computed ahead of their Backwards, and a later step has one Backward more."""
    both = [A, B, A, B, RUN_BACKWARD, RUN_BACKWARD]
    more = [A, MORE, B, A, B, RUN_BACKWARD, RUN_BACKWARD, RUN_BACKWARD]
    first, other = linked(tmp_path, [both, more])
    assert first == [1, 0, 3, 2]
    assert other == [None, None, 4, 3, None, None]


def test_calls_of_other_steps_do_not_count(tmp_path: Path) -> None:
    assert linked(tmp_path, [[A, B], [MORE, A], [B, MORE]]) == [[1, 0], [None, None], [None, None]]


def test_no_more_calls_are_looked_at_than_there_is_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_operator_calls, "_MOST_ALIGNED", 1)
    steps = [[A, B], [A, MORE, B], [A, MORE, B]]
    assert linked(tmp_path, steps) == [[1, 0], [2, 0], [None, None]]
