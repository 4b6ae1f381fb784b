"""Shapes, dtypes and call stacks of operators: read, written, and read again.

``static_graph_26.pb`` is a recording by Paddle 2.6.2 with record_shapes, the last release that
records them, of a static graph: ``mean(concat([y, relu(y)]))`` of ``y = matmul(x, w)``, where x is
``full([4, 8], 1.0)`` and w has the shape (8, 16). Only the folders in its call stacks were replaced.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from ppprof.trace import formats, read
from ppprof.trace.operator_inputs import INPUT_KEYS, compact
from ppprof.trace.paddle.pb_inputs import (
    decode_dtypes,
    decode_shapes,
    encode_dtypes,
    encode_shapes,
)
from tests.fixtures.paddle_proto import NodeTrees
from tests.fixtures.timeline import Shapes, Thread, span, write

STATIC_GRAPH = Path(__file__).parents[1] / "fixtures/paddle/static_graph_26.pb"
COLUMNS = list(INPUT_KEYS)


def supplements(path):
    """The messages with the inputs, by Google's protobuf."""
    return [
        supplement.op_supplement_event
        for tree in NodeTrees.FromString(path.read_bytes()).thread_trees
        for node in tree.host_nodes
        for supplement in node.op_supplement_nodes
    ]


def inputs(trace):
    """The inputs of the events that have any."""
    has_any = pl.any_horizontal(pl.col(COLUMNS).is_not_null())
    return trace.events.filter(has_any).select("name", *COLUMNS).cast(pl.String)


def num_keys(path):
    """How often a key of inputs has a value in a JSON trace."""
    return Counter(
        key
        for event in json.loads(path.read_bytes())["traceEvents"]
        for key in INPUT_KEYS.values()
        if event.get("args", {}).get(key)
    )


def test_what_paddle_recorded_of_a_static_graph():
    found = inputs(read(STATIC_GRAPH))
    assert found["shapes"].to_list() == [
        *(None, '{"X":[[4,8]],"Y":[[8,16]]}', '{"X":[[4,16]]}', '{"X":[[4,16],[4,16]]}'),
        '{"X":[[8,16]]}',
    ]
    assert found["dtypes"][3] == '{"X":["LOD_TENSOR","LOD_TENSOR"]}'
    recorded = supplements(STATIC_GRAPH)
    assert Counter(found["callstack"]) == Counter(event.callstack for event in recorded)
    assert 'y = paddle.matmul(x, w)\n  File "site-packages' in found["callstack"][1]


@pytest.mark.parametrize("suffixes", [(".json",), (".pb",), (".json.gz", ".pb", ".json")])
def test_nothing_is_lost_in_a_conversion(suffixes, tmp_path, cli):
    path = STATIC_GRAPH
    for number, suffix in enumerate(suffixes):
        target = tmp_path / f"{number}{suffix}"
        cli("convert", path, target)
        path = target
    assert_frame_equal(inputs(read(path)), inputs(read(STATIC_GRAPH)))
    if suffixes[-1] == ".pb":
        ours, theirs = (
            [(e.input_shapes, e.dtypes, e.callstack, e.op_type) for e in supplements(source)]
            for source in (path, STATIC_GRAPH)
        )
        assert [row[:3] for row in ours] == [row[:3] for row in theirs]
    else:
        assert num_keys(path) == {"input_shapes": 4, "input_dtypes": 4, "callstack": 5}


def test_a_merged_timeline_has_them(tmp_path, cli):
    target = tmp_path / "merged.json"
    cli("merge", STATIC_GRAPH, "-o", target)
    assert num_keys(target) == {"input_shapes": 4, "input_dtypes": 4, "callstack": 5}


def test_paddles_json_is_read_with_its_inputs(tmp_path):
    """The text of Paddle's writer, both as it stands and in another order of its keys."""
    args = (
        '"start_time": "0.000 us",\n      "end_time": "1.000 us",\n'
        '      "input_shapes": {"Y":[[2,3]],"X":[[-1,2],[]]},\n      "input_dtypes": {"X":["float"]},\n'
        '      "callstack": "  File \'a.py\', line 3\\n    y = f(x)"'
    )
    event = (
        '\n  {\n    "name": "relu dygraph[1.000 us]", "pid": 4, "tid": "7(C++)",\n'
        '    "ts": 1000000, "dur": 1.000,\n    "ph": "X", "cat": "Operator",\n'
        f'    "cname": "thread_state_runnable",\n    "args": {{\n      {args}\n    }}\n  }},\n  '
    )
    head = '\n  {\n    "displayTimeUnit": "ms",\n    "schemaVersion": "1.0.2",\n    "traceEvents": [\n  '
    tail = '{}\n  ],\n  \n  "ExtraInfo": {\n     "7": "Main"\n   \n  }\n  }\n  '
    path = tmp_path / "a.json"
    path.write_text(head + event * 2 + tail)
    expected = (
        *('{"X":[[-1,2],[]],"Y":[[2,3]]}', '{"X":["float"]}', None),
        "  File 'a.py', line 3\n    y = f(x)",
    )
    assert inputs(read(path)).drop("name").rows() == [expected] * 2
    content = json.loads(path.read_text())
    (tmp_path / "b.json").write_text(json.dumps(content, indent=1))
    assert inputs(read(tmp_path / "b.json")).drop("name").rows() == [expected] * 2


def test_what_has_no_form_is_counted_or_left_out(tmp_path):
    odd = {"X": {"dims": [3]}}
    step = span("ProfileStep", "ProfileStep#0", 0, 9, span("Operator", "relu", 1, 3))
    path = write(tmp_path / "a.pb", Thread(1, "main", (step,)))
    trace = read(path)
    formats.write(trace, tmp_path / "a.json")
    content = json.loads((tmp_path / "a.json").read_text())
    (operator,) = (event for event in content["traceEvents"] if event.get("cat") == "Operator")
    operator["args"] |= {"input_shapes": odd, "input_dtypes": ["float"], "callstack": ""}
    (tmp_path / "b.json").write_text(json.dumps(content))
    found = read(tmp_path / "b.json")
    assert inputs(found).rows() == [
        ("relu", json.dumps(odd, separators=(",", ":")), None, None, None)
    ]
    assert formats.write(found, tmp_path / "b.pb") == {"inputs of operators": 1}
    assert inputs(read(tmp_path / "b.pb")).is_empty()


names = st.text(min_size=1)
sizes = st.integers(-1, 2**63 - 1)


@given(st.dictionaries(names, st.lists(st.lists(sizes)), min_size=1))
def test_shapes_in_protobuf(shapes):
    text = compact(json.dumps(shapes).encode())
    message = type(NodeTrees().thread_trees.add().host_nodes.add().op_supplement_nodes.add())()
    theirs = message.op_supplement_event.input_shapes
    theirs.ParseFromString(encode_shapes(text))
    assert {
        name: [
            [size - 2**64 if size >= 2**63 else size for size in shape.size] for shape in row.shapes
        ]
        for name, row in zip(theirs.key, theirs.shape_vecs)
    } == json.loads(text)
    assert decode_shapes(theirs.SerializeToString()) == text


@given(st.dictionaries(names, st.lists(st.text()), min_size=1))
def test_dtypes_in_protobuf(dtypes):
    text = compact(json.dumps(dtypes).encode())
    assert decode_dtypes(encode_dtypes(text)) == text


@given(st.binary())
def test_damaged_messages_are_nothing(message):
    for decode in (decode_shapes, decode_dtypes):
        text = decode(message)
        assert text is None or isinstance(json.loads(text), dict)


def test_inputs_of_a_trace_that_we_wrote_ourselves(tmp_path):
    shapes = Shapes({"X": [[4, 128]], "Y": []}, {"X": ["bfloat16"], "Y": []}, 'a\n"b"\\n')
    operator = span("Operator", "matmul dygraph", 1, 8).around(shapes)
    step = span("ProfileStep", "ProfileStep#0", 0, 9, operator)
    trace = read(write(tmp_path / "a.pb", Thread(1, "main", (step,))))
    formats.write(trace, tmp_path / "b.json")
    for read_again in (trace, read(tmp_path / "b.json")):
        assert inputs(read_again).rows() == [
            (
                "matmul dygraph",
                '{"X":[[4,128]],"Y":[]}',
                '{"X":["bfloat16"],"Y":[]}',
                None,
                'a\n"b"\\n',
            )
        ]


def test_attributes_are_kept_in_json(tmp_path):
    shapes = Shapes({"X0": [[4, 128]]}, {"X0": ["bfloat16"]})
    spans = [span("Operator", name, 1, 3).around(shapes) for name in ("matmul dygraph", "relu")]
    threads = [Thread(number, "main", (each,)) for number, each in enumerate(spans)]
    trace = read(write(tmp_path / "a.pb", *threads))
    attributes = pl.Series(['{"X2":[1,"a"],"transpose_y":true}', None], dtype=pl.Categorical)
    trace = dataclasses.replace(trace, events=trace.events.with_columns(attributes=attributes))
    formats.write(trace, tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text()
    (tmp_path / "b.json").write_text(json.dumps(json.loads(text), indent=1))
    for path in (tmp_path / "a.json", tmp_path / "b.json"):  # as we print it, and decoded
        assert inputs(read(path)).equals(inputs(trace))
