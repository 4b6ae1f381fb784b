"""Annotations in names: parsed, formatted, and preserved by every format."""

from __future__ import annotations

import dataclasses
import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from ppprof.trace import Trace, json_reader, read, write_paddle_json, write_paddle_pb
from ppprof.trace.annotations import (
    ANNOTATION_KEYS,
    format_annotation,
    has_annotations,
    parse_annotation,
)
from ppprof.trace.schema import EVENTS
from tests.fixtures.same_traces import assert_same, without_memories
from tests.fixtures.timeline import Thread, span, write

ALL = (
    "x[op=y axis=dp+sharding group=-3 bytes=64 dtype=float32 peers=0,4 "
    "stage=1 chunk=0 micro_batch=3 phase=cool-down]"
)
NAMES = {
    "all_reduce[axis=dp group=3 bytes=4198400 dtype=float32 peers=0,4]": (
        "all_reduce",
        {"axis": "dp", "group": 3, "bytes": 4198400, "dtype": "float32", "peers": "0,4"},
    ),
    "wait[op=isend axis=pp group=5 bytes=8 dtype=float32 peers=1]": (
        "isend.wait",
        {"axis": "pp", "group": 5, "bytes": 8, "dtype": "float32", "peers": "1"},
    ),
    "batch_isend_irecv[axis=pp group=5 bytes=12 dtype=float32 peers=>1:8,<3:4]": (
        "batch_isend_irecv",
        {"axis": "pp", "group": 5, "bytes": 12, "dtype": "float32", "peers": ">1:8,<3:4"},
    ),
    "reduce[axis=dp+sharding group=7 peers=0,2]": (
        "reduce",
        {"axis": "dp+sharding", "group": 7, "peers": "0,2"},
    ),
    "all_reduce[group=0 bytes=64 peers=0,1]": (  # the form before axis and dtype were added
        "all_reduce",
        {"group": 0, "bytes": 64, "peers": "0,1"},
    ),
    "wait[op=isend]": ("isend.wait", {}),
}
SPANS = {
    "forward[stage=0 micro_batch=3 phase=warm-up]": (
        "forward",
        {"stage": 0, "micro_batch": 3, "phase": "warm-up"},
    ),
    "backward[stage=1 chunk=1 micro_batch=3 phase=steady]": (
        "backward",
        {"stage": 1, "chunk": 1, "micro_batch": 3, "phase": "steady"},
    ),
}
NO_FACTS = [
    "all_reduce",
    "all_reduce[]",
    "all_reduce[ ]",
    "all_reduce[group=0 ]",
    "all_reduce[ group=0]",
    "all_reduce[group=0  bytes=1]",
    "all_reduce[bytes=1 group=0]",  # another order
    "all_reduce[group=0 colour=red]",
    "all_reduce[group=zero]",
    "all_reduce[group=1234567890123456789]",  # may not fit an int64
    "all_reduce[axis=]",
    "forward[stage=-1]",
    "forward[stage=\u0663]",  # a digit of another script
    "[group=0]",
    "not one[group=0]",
    "x[group=0][group=1]",
]


@pytest.mark.parametrize(("text", "parts"), {**NAMES, **SPANS}.items())
def test_an_annotated_name_is_parsed(text, parts):
    name, facts = parts
    assert parse_annotation(text) == (name, {**dict.fromkeys(ANNOTATION_KEYS), **facts})


@pytest.mark.parametrize("text", NO_FACTS)
def test_a_name_without_annotations_is_unchanged(text):
    assert parse_annotation(text) is None


def test_the_keys_have_one_order():
    name, facts = parse_annotation(ALL)
    assert name == "y.x"
    assert list(facts) == list(ANNOTATION_KEYS)
    assert None not in facts.values()
    assert format_annotation(name, facts) == ALL


words = st.from_regex(r"[A-Za-z0-9_]+", fullmatch=True)
numbers = st.integers(0, 10**18 - 1)
sound = {
    "axis": st.lists(st.sampled_from(["dp", "pp", "sharding", "sep", "mp"]), min_size=1).map(
        "+".join
    ),
    "group": st.integers(-5, 10**18 - 1),
    "bytes": numbers,
    "dtype": words,
    "peers": st.lists(st.integers(0, 10**5), min_size=1).map(lambda of: ",".join(map(str, of))),
    "stage": numbers,
    "chunk": numbers,
    "micro_batch": numbers,
    "phase": st.sampled_from(["warm-up", "steady", "cool-down"]) | words,
}
names = words | st.builds("{}.{}".format, words, words) | st.just("c10d::allreduce_")
facts_of_events = st.fixed_dictionaries(
    {key: st.none() | values for key, values in sound.items()}
).filter(lambda facts: any(value is not None for value in facts.values()))
any_facts = st.fixed_dictionaries(
    {
        key: st.none()
        | values
        | (st.integers(-(2**62), 2**62) if EVENTS[key][0] == pl.Int64 else st.text())
        for key, values in sound.items()
    }
)


@given(names, facts_of_events)
def test_formatted_annotations_are_parsed_back(name, facts):
    assert parse_annotation(format_annotation(name, facts)) == (name, facts)


@given(st.text(), any_facts)
def test_annotations_that_cannot_be_parsed_back_are_not_formatted(name, facts):
    text = format_annotation(name, facts)
    assert text is None or parse_annotation(text) == (name, facts)


def spans(directory, *texts: str, category: str) -> Trace:
    """Return a step with these events in sequence."""
    inside = (
        span(category, text, 10 * number, 10 * number + 5) for number, text in enumerate(texts)
    )
    step = span("ProfileStep", "ProfileStep#0", 0, 10 * len(texts) + 10, *inside)
    return read(write(directory / "spans.pb", Thread(1, "t", (step,))))


def annotations_of(trace: Trace) -> list[tuple[str, dict[str, object]]]:
    """Return name and annotations of the events in the step."""
    rows = trace.events.filter(pl.col("category") != "ProfileStep").rows(named=True)
    return [
        (row["name"], {key: row[key] for key in ANNOTATION_KEYS if row[key] is not None})
        for row in rows
    ]


@pytest.mark.parametrize(
    ("category", "expected"),
    [("Communication", NAMES), ("Forward", SPANS), ("Backward", SPANS)],
)
def test_through_every_format(category, expected, tmp_path):
    trace = spans(tmp_path, *expected, category=category)
    assert annotations_of(trace) == list(expected.values())
    assert write_paddle_json(trace, tmp_path / "a.json") == {}
    assert_same(read(tmp_path / "a.json"), trace)
    assert write_paddle_pb(read(tmp_path / "a.json"), tmp_path / "b.pb") == {}
    assert_same(read(tmp_path / "b.pb"), trace)


@pytest.mark.parametrize("category", ["Operator", "UserDefined", "Optimization"])
def test_other_events_keep_their_names(category, tmp_path):
    texts = [*NAMES, *SPANS]
    assert annotations_of(spans(tmp_path, *texts, category=category)) == [
        (text, {}) for text in texts
    ]


def test_an_event_that_shares_a_name_with_a_collective_keeps_it(tmp_path):
    text = next(iter(NAMES))
    inside = (
        span(kind, text, start, start + 1)
        for start, kind in enumerate(("Operator", "Communication"))
    )
    step = span("ProfileStep", "ProfileStep#0", 0, 9, *inside)
    trace = read(write(tmp_path / "a.pb", Thread(1, "t", (step,))))
    assert annotations_of(trace) == [(text, {}), NAMES[text]]


@pytest.mark.paddle
@pytest.mark.parametrize(("category", "expected"), [("Communication", NAMES), ("Forward", SPANS)])
def test_paddles_json_has_annotations_in_its_names(category, expected, tmp_path):
    from tests.oracles import paddle_tables

    spans(tmp_path, *expected, category=category)
    paddle_tables.load_result(tmp_path / "spans.pb").save(str(tmp_path / "theirs.json"), "json")
    assert annotations_of(read(tmp_path / "theirs.json")) == list(expected.values())


def test_annotations_from_capture_are_scanned_without_decoding(tmp_path, monkeypatch):
    expected = {
        **SPANS,
        "all_reduce[axis=dp group=3 bytes=64 dtype=float32 peers=0,4]": 1,
        "all_reduce[group=3 bytes=64 dtype=float32 peers=0,3]": 1,
        "barrier[axis=mp group=3 peers=0,1]": 1,
        "barrier[group=3 peers=0,3]": 1,
    }
    decoded = []

    def counted(self, pieces):
        pieces = list(pieces)
        decoded.extend(event for _, events in pieces for event in events)
        add(self, pieces)

    add = json_reader.PaddleColumns.add_decoded
    monkeypatch.setattr(json_reader.PaddleColumns, "add_decoded", counted)
    for category in ("Communication", "Forward"):
        texts = [text for text in expected if (text in SPANS) == (category == "Forward")]
        trace = spans(tmp_path, *texts, category=category)
        write_paddle_json(trace, tmp_path / "a.json")
        assert_same(read(tmp_path / "a.json"), trace)
    assert [event.name for event in decoded if event.ph == "X"] == []


def split_annotated_names(trace: Trace, rows) -> Trace:
    """Return the trace with these names and annotations in the events of the step."""
    inside = trace.events.with_row_index("row").filter(pl.col("category") != "ProfileStep")["row"]
    table = trace.events.rows(named=True)
    for row, (name, facts) in zip(inside, rows):
        table[row].update(name=name, **facts)
    schema = {name: dtype for name, (dtype, _) in EVENTS.items()}
    return dataclasses.replace(trace, events=pl.DataFrame(table, schema, infer_schema_length=None))


@given(
    rows=st.lists(st.tuples(names, any_facts), max_size=4),
    category=st.sampled_from(["Forward", "Operator"]),
)
def test_json_keeps_all_annotations_of_host_events(rows, category, tmp_path):
    trace = split_annotated_names(spans(tmp_path, *("x" for _ in rows), category=category), rows)
    assert write_paddle_json(trace, tmp_path / "a.json") == {}
    json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert_same(read(tmp_path / "a.json"), trace)


@given(rows=st.lists(st.tuples(names, facts_of_events), max_size=4))
def test_a_pb_keeps_every_annotation_that_a_name_can_hold(rows, tmp_path):
    trace = split_annotated_names(
        spans(tmp_path, *("x" for _ in rows), category="Communication"), rows
    )
    assert write_paddle_pb(trace, tmp_path / "a.pb") == {}
    assert_same(read(tmp_path / "a.pb"), trace)


@given(
    rows=st.lists(st.tuples(names, any_facts), max_size=4),
    category=st.sampled_from(["Communication", "Backward", "Operator"]),
)
def test_annotations_that_a_pb_omits_are_counted(rows, category, tmp_path):
    trace = split_annotated_names(spans(tmp_path, *("x" for _ in rows), category=category), rows)
    skipped = write_paddle_pb(trace, tmp_path / "a.pb").get("event annotations", 0)
    found = read(tmp_path / "a.pb").events
    is_bare = ~found.select(has_annotations()).to_series()
    had = trace.events.select(has_annotations()).to_series()
    assert skipped == (had & is_bare).sum()
    bare = trace.events.with_columns(
        pl.when(~is_bare).then(pl.col(key)).alias(key) for key in ANNOTATION_KEYS
    )
    assert_frame_equal(found, bare, categorical_as_str=True)


@pytest.mark.parametrize("suffix", [".json", ".pb"])
def test_annotations_of_launches_are_counted(suffix, tmp_path):
    from tests.fixtures import gpu_traces

    exact = read(write(tmp_path / "a.pb", *gpu_traces.training()))
    is_first = pl.int_range(pl.len()) == exact.events["category"].eq("CudaRuntime").arg_max()
    events = exact.events.with_columns(stage=pl.when(is_first).then(pl.lit(1)))
    writer = {".json": write_paddle_json, ".pb": write_paddle_pb}[suffix]
    skipped = writer(dataclasses.replace(exact, events=events), tmp_path / f"b{suffix}")
    num_copies = exact.events["category"].eq("Memcpy").sum()
    memories = {"memories of copies": num_copies} if suffix == ".json" else {}
    assert skipped == {"event annotations": 1, **memories}
    expected = without_memories(exact) if suffix == ".json" else exact
    assert_same(read(tmp_path / f"b{suffix}"), expected)
