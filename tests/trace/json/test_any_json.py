"""Valid JSON loses nothing, wherever blocks divide it: the oracle is `json.loads`."""

from __future__ import annotations

import json

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ppprof.trace import read
from ppprof.trace import source as source_module

KEYS = ("name", "id", "ts", "args", "of", "traceEvents")
texts = st.one_of(
    st.text(max_size=9), st.sampled_from(["}]", '},{"name":', '],"a":1}', "[{", "\\"])
)
numbers = st.one_of(
    st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.integers(10**17, 10**40)
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
        st.lists(st.dictionaries(st.sampled_from(KEYS), inner, min_size=1, max_size=2), max_size=4),
    ),
    max_leaves=12,
)
separators = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " : ")])


def event(at: int, of: object, is_kineto: bool) -> dict[str, object]:
    return {
        **{"name": f"e{at}", "ph": "X", "cat": "cpu_op" if is_kineto else "Operator", "pid": 1},
        **{"tid": 1 if is_kineto else "1(C++)", "ts": 10 * at, "dur": 5, "args": {"of": of}},
    }


@example([[{"name": None}] * 2], {"a": "a" * 300}, 300, (", ", ": "), False)
@given(
    st.lists(values, min_size=1, max_size=12),
    st.dictionaries(st.sampled_from(("a", "b", "c")), values),
    st.integers(300, 2000),
    separators,
    st.booleans(),
)
def test_lists_in_events_and_after_them(
    tmp_path, monkeypatch, within, behind, more_bytes, separators, is_kineto
):
    path = tmp_path / "trace.json"
    content = {
        "schemaVersion": 1 if is_kineto else "1.0.2",
        "traceEvents": [event(ts, args, is_kineto) for ts, args in enumerate(within)],
        **behind,
        "ExtraInfo": {"7": "Main"},
    }
    path.write_text(json.dumps(content, separators=separators), encoding="utf-8")
    longest = max(len(json.dumps(item, separators=separators)) for item in content["traceEvents"])
    monkeypatch.setattr(source_module, "BLOCK_BYTES", longest + more_bytes)
    trace = read(path)
    assert trace.skipped == {}
    found = trace.events.select(pl.col("name").cast(pl.String), "start_ns", "dur_ns").rows()
    start = found[0][1]
    assert [(name, began - start, dur) for name, began, dur in found] == [
        (item["name"], item["ts"] * 1000, item["dur"] * 1000)
        for item in json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    ]
    assert is_kineto or trace.extra_info == {"7": "Main"}


PAIR = [{"name": "b"}, {"name": "c"}]


@pytest.mark.parametrize("num_behind", [1, 20, 2000])
@pytest.mark.parametrize("num_within", [0, 1, 20, 2000])
def test_many_lists_in_events_and_after_them(tmp_path, monkeypatch, num_within, num_behind):
    monkeypatch.setattr(source_module, "BLOCK_BYTES", 10_000)
    path = tmp_path / "trace.json"
    events = [event(number, {"x": PAIR, "y": 1}, is_kineto=False) for number in range(num_within)]
    events.append(event(num_within, None, is_kineto=False))
    behind = {f"a{number}": PAIR for number in range(num_behind)}
    path.write_text(
        json.dumps({"traceEvents": events, **behind, "ExtraInfo": {"7": "Main"}}), encoding="utf-8"
    )
    trace = read(path)
    assert trace.skipped == {}
    assert trace.events["name"].to_list() == [item["name"] for item in events]
    assert trace.extra_info == {"7": "Main"}
