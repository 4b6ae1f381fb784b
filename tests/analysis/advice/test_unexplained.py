from __future__ import annotations

import json

import polars as pl

from ppprof.analysis.advice.unexplained import LEAST_GAP_NS, unexplained_gaps
from ppprof.analysis.profile.profile import Profile
from ppprof.rundir import GARBAGE_COLLECTION
from ppprof.trace import read
from ppprof.trace.kineto.names import LEAST_FRAME_NS
from tests.fixtures.timeline import Shapes, Span, Thread, span, write

MS = 1_000_000


def operator(name: str, start: int, end: int, line: int | None = None) -> Span:
    """An operator, in ms; with a call stack as Paddle records it, if a line is given."""
    found = span("Operator", name, start * MS, end * MS)
    if line is None:
        return found
    stack = (
        f'  File "train.py", line {line}, in train\n    loss = net(x)\n'
        '  File "/usr/lib/python3/dist-packages/paddle/tensor/linalg.py", line 268, in matmul\n'
    )
    return found.around(Shapes({}, {}, stack))


def gaps(tmp_path, *inside):
    step = span("ProfileStep", "ProfileStep#0", 0, 100 * MS, *inside)
    return gaps_in(write(tmp_path / "a.pb", Thread(1, "main", (step,))))


def gaps_in(path):
    profile = Profile(read(path))
    bubbles = pl.DataFrame(schema={"start_ns": pl.Int64, "end_ns": pl.Int64})
    found = unexplained_gaps(profile, bubbles)
    return {name: time_ns // MS for name, time_ns in found.select("name", "time_ns").iter_rows()}


def test_a_gap_names_the_lines_beside_it_where_the_trace_has_them(tmp_path):
    """A layer has those of its first and last call."""
    layer = span("Forward", "GPT", 10 * MS, 60 * MS).around(
        operator("matmul", 10, 20, 31), operator("add", 40, 60, 40)
    )
    assert gaps(tmp_path, layer, operator("sgd", 60, 100)) == {
        "GPT (train.py:31 to train.py:40)": 20,
        "step, before GPT (train.py:31)": 10,
    }


def test_one_line_is_named_once_and_none_where_none_is_known(tmp_path):
    loop = (operator("matmul", 0, 40, 7), operator("matmul", 50, 60, 7))
    assert gaps(tmp_path, *loop, operator("sgd", 90, 100)) == {
        "step, after matmul, before matmul (train.py:7)": 10,
        "step, after matmul, before sgd (train.py:7)": 30,
    }


def test_a_garbage_collection_explains_itself(tmp_path):
    collection = span("PythonUserDefined", GARBAGE_COLLECTION, 60 * MS, 90 * MS)
    assert gaps(tmp_path, operator("matmul", 0, 50), collection, operator("sgd", 95, 100)) == {
        f"step, after matmul, before {GARBAGE_COLLECTION}": 10,
        f"step, after {GARBAGE_COLLECTION}, before sgd": 5,
    }


def test_a_gap_names_the_python_function_around_it(tmp_path):
    """
    ::

        train.py(5): train         ##################     0 to 100 ms
          wait.py(31): wait            ########           30 to 70
            installed, and sleep        ######            31 to 69
        operators                 ####        ####        0 to 30, 70 to 100; a short gap at 80
    """

    def event(cat, name, start, end, **args):
        common = {"ph": "X", "pid": 1, "tid": 7, "ts": 1e6 + start * 1000, "args": args}
        return {**common, "cat": cat, "name": name, "dur": (end - start) * 1000}

    frames = [
        event("python_function", "train.py(5): train", 0, 100),
        event("python_function", "/me/python-packages/wait.py(31): wait", 30, 70),
        event("python_function", "/lib/site-packages/torch/x.py(9): nap", 31, 69),
        event("python_function", "<built-in function sleep>", 32, 68),
        event("python_function", "train.py(60): log", 80, 80.4),
    ]
    operators = [
        event("user_annotation", "ProfilerStep#0", 0, 100),
        *(event("cpu_op", f"aten::{name}", *times) for name, *times in OPERATORS),
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [*operators, *frames]}))
    trace = read(path)
    assert trace.frames["name"].cast(pl.String).to_list() == [frame["name"] for frame in frames[:4]]
    assert trace.ignored["python_function"] == 5
    assert gaps_in(path) == {
        "step, after aten::mm, before aten::add (/me/python-packages/wait.py(31): wait)": 40,
        "step, after aten::add, before aten::exp (train.py(5): train)": 1,
    }


def test_paddles_json_names_the_lines_too(tmp_path):
    """There, a call stack has single quotation marks, and only its line breaks are escaped."""
    stack = r"  File 'C:\users\train.py', line 31, in train\n    y = f(x)\n"
    inputs = (
        f',\n      "input_shapes": {{}},\n      "input_dtypes": {{}},\n      "callstack": "{stack}"'
    )

    def event(category, name, start, end):
        track, more = ("C++", inputs) if category == "Operator" else ("Python", "")
        return (
            f'\n  {{\n    "name": "{name}[1.000 us]", "pid": 4, "tid": "7({track})",\n'
            f'    "ts": {1_000_000 + start * 1000}, "dur": {(end - start) * 1000}.000,\n'
            f'    "ph": "X", "cat": "{category}",\n    "cname": "thread_state_runnable",\n'
            f'    "args": {{\n      "start_time": "{start * 1000}.000 us",\n'
            f'      "end_time": "{end * 1000}.000 us"{more}\n    }}\n  }},\n  '
        )

    path = tmp_path / "a.json"
    path.write_text(
        '\n  {\n    "displayTimeUnit": "ms",\n    "schemaVersion": "1.0.2",\n    "traceEvents": [\n  '
        + event("ProfileStep", "ProfileStep#0", 0, 100)
        + event("Operator", "mm", 0, 40)
        + event("Operator", "add", 60, 100)
        + '{}\n  ],\n  \n  "ExtraInfo": {\n     "7": "Main"\n   \n  }\n  }\n  '
    )
    stacks = read(path).events["callstack"].drop_nulls().unique().cast(pl.String).to_list()
    assert stacks == ["  File 'C:\\users\\train.py', line 31, in train\n    y = f(x)\n"]
    assert gaps_in(path) == {"step, after mm, before add (C:\\users\\train.py:31)": 20}


OPERATORS = (("mm", 0, 30), ("add", 70, 80), ("exp", 81, 100))


def test_no_gap_is_too_short_for_its_function():
    assert LEAST_FRAME_NS <= LEAST_GAP_NS


def test_a_pause_is_explained(tmp_path):
    """An evaluation that the training's callback reported, with operators and gaps in it."""
    pause = span("PythonUserDefined", "paused: evaluation", 20 * MS, 80 * MS).around(
        operator("matmul", 30, 40)
    )
    assert gaps(tmp_path, operator("add", 0, 20), pause) == {"step, after paused: evaluation": 20}
    other = span("UserDefined", "paused in my code", 20 * MS, 80 * MS)
    assert gaps(tmp_path, operator("add", 0, 20), other) == {
        "paused in my code": 60,
        "step, after paused in my code": 20,
    }
