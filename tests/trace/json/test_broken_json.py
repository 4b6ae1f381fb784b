"""Everything readable is read, skipped parts are counted, other files are rejected with a reason."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path

import polars as pl
import pytest

from ppprof.errors import TraceError
from ppprof.trace import Trace, read, write
from ppprof.trace import source as source_module
from ppprof.trace.fastpath import core, ranges
from ppprof.trace.fastpath.native import scanner
from tests.fixtures.paddle_json import memcpy, operator, paddle, shapes
from tests.fixtures.torch_traces import training

CUT = "truncated end of file"
NOT_JSON = "events that are not valid JSON"


def compact(text: str) -> str:
    """Change the layout so that the decoder reads it; broken parts stay broken."""
    return text.replace("\n    ", "").replace("\n  ", "")


@pytest.fixture
def reads(tmp_path):
    """Return a function that reads a text from a file."""

    def read_text(content: str | bytes) -> Trace:
        path = tmp_path / "trace.json"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read(path)

    return read_text


def names(trace: Trace) -> list[str]:
    return trace.events["name"].cast(pl.String).to_list()


ODD_NAMES = [
    'say "hi"',
    'ends in "quotes"',
    "C:\\temp\\new",
    "\\",
    "[brackets] {braces}",
    "a, b: c",
    "тензор \U0001f680",
    "operator[](int)",
    "tab\there",
    '"',
    "",
    "[1.000 ms]",
]


@pytest.mark.parametrize("layout", [str, compact])
@pytest.mark.parametrize("name", ODD_NAMES)
def test_unescaped_names(reads, name, layout):
    if layout is compact and "\\t" in name:
        pytest.skip("also JSON as it stands, and then it means something else")
    trace = reads(layout(paddle(operator("before"), operator(name, 2), operator("after", 4))))
    assert names(trace) == ["before", name, "after"]
    assert trace.skipped == {}
    assert trace.extra_info == {"7": "Main"}


def test_a_name_over_two_lines_costs_no_other_event(reads):
    trace = reads(paddle(operator("before"), operator("two\nlines", 2), operator("after", 4)))
    assert names(trace) == ["before", "two\nlines", "after"]
    assert trace.skipped == {}


@pytest.mark.parametrize("layout", [str, compact])
@pytest.mark.parametrize("callstack", ['File "a.py", line 3\\n in f', "C:\\new\\x.py", '", "'])
def test_unescaped_call_stacks(reads, callstack, layout):
    text = layout(
        paddle(operator("one"), operator("two", 2, shapes(callstack)), operator("three", 4))
    )
    assert names(reads(text)) == ["one", "two", "three"]


@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "-nan"])
@pytest.mark.parametrize("layout", [str, compact])
def test_numbers_that_json_does_not_have(reads, number, layout):
    trace = reads(layout(paddle(operator("one"), memcpy(64, number), operator("two", 9))))
    assert names(trace) == ["one", "two", "MEMCPY"]
    assert trace.events["bytes"].to_list() == [None, None, 64]
    assert trace.skipped == {}


@pytest.mark.parametrize("layout", [str, compact])
@pytest.mark.parametrize(
    ("printed", "bandwidth", "true"),
    [
        (64, "0.000", 64),
        (-1073741824, "3221.225", 3 << 30),
        (1073741824, "5368.709", 5 << 30),
        (-2147483648, "inf", 2 << 30),
        (0, "17592186.044", 16 << 40),
    ],
)
def test_bytes_beyond_32_bits(reads, printed, bandwidth, true, layout):
    assert reads(layout(paddle(memcpy(printed, bandwidth)))).events["bytes"].to_list() == [true]


@pytest.mark.parametrize("layout", [str, compact])
def test_bytes_that_are_not_utf8(reads, layout):
    text = layout(paddle(operator("one"), operator("t\0o", 2), operator("three", 4)))
    trace = reads(text.encode().replace(b"t\0o", b"t\xff\xfeo"))
    assert names(trace) == ["one", "t\ufffd\ufffdo", "three"]


def test_a_byte_order_mark(reads):
    assert names(reads(b"\xef\xbb\xbf" + paddle(operator("one")).encode())) == ["one"]


@pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.all)])
@pytest.mark.parametrize("layout", [str, compact])
def test_truncated_anywhere(reads, layout, every):
    events = [operator(name, 2 * number) for number, name in enumerate(("one", "two", "three"))]
    text = layout(paddle(*events)).encode()
    starts = [text.index(name) for name in (b"one", b"two", b"three")]
    ends = [text.index(b"}", text.index(b"}", start) + 1) + 1 for start in starts]
    complete = text.index(b'"ExtraInfo"')
    for end in range(0, len(text), every):
        if b"[" not in text[:end]:
            with pytest.raises(TraceError, match=r"no list of events|not a|truncated|empty"):
                reads(text[:end])
            continue
        trace = reads(text[:end])
        assert names(trace) == ["one", "two", "three"][: sum(end >= whole for whole in ends)], end
        if end < complete - 10:
            assert trace.skipped[CUT] == 1, end


def test_zeros_after_a_truncation_cost_no_event(reads):
    """A machine that crashed leaves such a file."""
    text = paddle(operator("one"), operator("two", 2), tail="").encode()
    trace = reads(text + bytes(5000))
    assert names(trace) == ["one", "two"]
    assert trace.skipped == {CUT: 1}


@pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.all)])
def test_a_torch_trace_truncated_anywhere_in_its_events(reads, every):
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": number, "dur": 1}
        for number, name in enumerate(("one", "two", "three"))
    ]
    text = json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=1)
    first = text.index("[") + 1
    ends = [number for number in range(first, len(text)) if text[number - 1] == "}"][:3]
    for end in range(first, text.rindex("]"), every):
        trace = reads(text[:end])
        assert names(trace) == ["one", "two", "three"][: sum(end >= whole for whole in ends)], end
        assert trace.skipped[CUT] == 1, end


@pytest.mark.parametrize("behind", ["", "\n  {", '\n  {\n    "na'])
def test_a_truncation_between_events_with_several_readers(reads, each_core, monkeypatch, behind):
    monkeypatch.setattr(ranges, "RANGE_BYTES", 100_000)
    monkeypatch.setattr(scanner, "num_processors", lambda: 2)
    trace = reads(paddle(*(operator("a", 2 * number) for number in range(1000)), tail=behind))
    assert trace.events.height == 1000
    assert trace.skipped == {CUT: 1}


@pytest.mark.parametrize("content", ["", "[]", "[{}]"])
def test_no_events_at_all(reads, content):
    trace = reads(content or paddle())
    assert trace.events.is_empty()
    assert trace.skipped == {}


def test_one_irreparable_event_costs_only_itself(reads):
    events = [
        {
            "name": f"e{number}",
            "ph": "X",
            "cat": "Operator",
            "pid": 1,
            "tid": "1(C++)",
            "ts": 10 * number,
            "dur": 5,
        }
        for number in range(100)
    ]
    texts = [json.dumps(event) for event in events]
    texts[40] = texts[40].replace('"dur": 5', '"dur": 5 5')
    trace = reads('{"schemaVersion": "1.0.2", "traceEvents": [' + ", ".join(texts) + "]}")
    assert trace.skipped == {NOT_JSON: 1}
    assert names(trace) == [f"e{number}" for number in range(100) if number != 40]


def test_keys_without_a_value_cost_no_event(reads, each_core):
    """As torch wrote the collectives of a group that has a name and an empty description."""
    trace = training(num_steps=2, num_kernels=2)
    for kernel in trace.kernels():
        kernel["args"].update({"Process Group Description": "", "Process Group Ranks": "[0, 1]"})
    text = json.dumps({"schemaVersion": 1, "traceEvents": trace.events})
    text = text.replace('"Process Group Description": "",', '"Process Group Description": ,')
    events = reads(text).events.filter(category="Kernel")
    assert events["step"].to_list() == [0, 0, 1, 1]
    assert reads(text).skipped == {}


def test_values_of_other_types_cost_only_themselves(reads):
    event = {
        "name": ["a"],
        "ph": "X",
        "cat": "Operator",
        "pid": 1,
        "tid": "1(C++)",
        "ts": 1,
        "dur": 5,
        "args": {"start_time": {"a": 1}, "depth": "x"},
    }
    whole = {**event, "name": "b", "ts": 10, "args": {}}
    trace = reads(json.dumps({"schemaVersion": "1.0.2", "traceEvents": [event, whole]}))
    assert names(trace) == ["", "b"]
    assert sum(trace.skipped.values()) == 2


def test_events_without_time_or_thread_are_counted(reads):
    event = {
        "name": "a",
        "ph": "X",
        "cat": "Operator",
        "pid": 1,
        "tid": "1(C++)",
        "ts": 1,
        "dur": 5,
    }
    broken = [
        {**event, key: value}
        for key, value in (
            ("ts", "soon"),
            ("dur", -1),
            ("dur", None),
            ("tid", "main"),
            ("pid", None),
            ("pid", -(2**63)),
        )
    ]
    trace = reads(json.dumps({"schemaVersion": "1.0.2", "traceEvents": [*broken, event]}))
    assert trace.events.height == 1
    assert trace.skipped == {"events without time, process or thread": 6}


def test_unusable_values_in_a_torch_trace(reads):
    path = Path(__file__).parents[2] / "fixtures" / "kineto" / "gpu_ddp.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    whole = read(path)
    content["traceEvents"][3:3] = [
        {
            "ph": "X",
            "cat": ["cpu_op"],
            "name": 7,
            "pid": {},
            "tid": [],
            "ts": {},
            "dur": "x",
            "args": 3,
        }
    ]
    trace = reads(json.dumps(content))
    assert trace.events.height == whole.events.height
    assert sum(trace.skipped.values()) > sum(whole.skipped.values())
    text = json.dumps(content)
    assert 0 < reads(text[: len(text) // 2]).events.height < whole.events.height


@pytest.mark.parametrize(
    "name", ["half a character: \ud800", "\udc00\ud800", "whole: \U0001f680"], ids=ascii
)
def test_an_unpaired_surrogate_outside_the_events(reads, tmp_path, name):
    event = {"name": "a", "pid": 1, "tid": "1(C++)", "ts": 1, "dur": 5, "ph": "X"}
    expected = name.encode("utf-8", "replace").decode()
    trace = reads(
        json.dumps(
            {
                "traceEvents": [{**event, "cat": "Operator", "cname": ""}],
                "ExtraInfo": {name: name},
            }
        )
    )
    assert trace.extra_info == {expected: expected}
    write(trace, tmp_path / "again.json")
    assert read(tmp_path / "again.json").extra_info[expected] == expected
    group = {"pg_name": "1", "ranks": [name, 1]}
    args = {"Process Group Name": "1", "In msg nelems": 10, "dtype": "Float"}
    trace = reads(
        json.dumps(
            {
                "schemaVersion": 1,
                "distributedInfo": {"pg_config": [group]},
                "traceEvents": [
                    {**event, "cat": "cpu_op", "tid": 1, "name": "record_param_comms", "args": args}
                ],
            }
        )
    )
    assert trace.events["peers"].to_list() == [f"{expected},1"]


LIST = '"list": [{"name": "b"}, {"a": 1}]'


def with_lists(num_lists: int) -> str:
    """Return 100 events of torch's profiler, the first ones with a list of objects."""
    return ",\n".join(
        f'{{"ph": "X", "cat": "cpu_op", "name": "aten::n{number}", "pid": 1, "tid": 1, '
        f'"ts": {2 * number}, "dur": 1, "args": {{{LIST if number < num_lists else ""}}}}}'
        for number in range(100)
    )


@pytest.mark.parametrize("num_lists", [1, 5, 40])
@pytest.mark.parametrize("end", ["", ",\n{", ',\n{"name": "cut', f',\n{{"args": {{{LIST}, '])
@pytest.mark.parametrize("head", ['{"schemaVersion": 1, "traceEvents": [', "["])
def test_lists_of_objects_in_events_are_not_the_end_of_a_truncated_file(
    reads, head, end, num_lists
):
    """Only the events before the list were read."""
    trace = reads(head + with_lists(num_lists) + end)
    assert names(trace) == [f"aten::n{number}" for number in range(100)]
    assert trace.skipped[CUT] == 1


@pytest.mark.parametrize("num_lists", [1, 5, 40, 100])
def test_lists_of_objects_in_a_file_that_is_a_list(reads, num_lists):
    trace = reads(f"[{with_lists(num_lists)}]\n")
    assert names(trace) == [f"aten::n{number}" for number in range(100)]
    assert trace.skipped == {}


def test_a_list_of_objects_in_an_event_of_a_truncated_file(reads):
    ends = [operator("last", 8)[:-80], "{", ""]
    for end in ends:
        for change in (str, compact):
            listed = operator("one", more=f",\n      {LIST}")
            text = paddle(listed, operator("two", 2), operator("three", 4), end, tail="")
            assert names(reads(change(text))) == ["one", "two", "three"]


def test_an_unpaired_surrogate_in_a_name_changes_no_time(reads, tmp_path, monkeypatch):
    """One core took the times of such an event from floats, and the other kept the escape."""
    trace = reads(paddle(operator("one"), operator("two", 2)))
    start = pl.col("start_ns") + 1_795_488_939_118_707_458
    events = trace.events.with_columns(start)
    path = tmp_path / "a.json"
    write(dataclasses.replace(trace, events=events), path)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"one', '"\\ud800ne'), encoding="utf-8")
    for library in (core.library(), None):
        monkeypatch.setattr(core, "library", lambda library=library: library)
        again = read(path)
        assert names(again) == ["?ne", "two"]
        assert again.events["start_ns"].equals(events["start_ns"])


def test_skipped_parts_are_one_line_on_stderr(tmp_path, cli):
    path = tmp_path / "cut.json"
    path.write_text(paddle(operator("one"), operator("two", 2))[:-200], encoding="utf-8")
    assert cli("summary", path, "--views", "op").err == (
        f"{path}: partly read: the file is truncated; skipped 1 event that is not valid JSON\n"
    )


REFUSED = {
    "empty": (b"", "empty"),
    "zeros": (bytes(5000), "begins with zeros, not with a trace"),
    "text": (b"hello, world\n" * 99, "text, not a trace"),
    "binary": (bytes(range(256)) * 9, "not a"),
    "other JSON": (b'{"a": 1}', 'no list of events \\("traceEvents": \\[...\\]\\)'),
    "a number": (b"[1, 2, 3]", "none of its items is an event"),
    "brackets": (b'{"traceEvents": [{"a": ' + b"[" * 100_000, "nested too deeply for a trace"),
    "no gzip": (b"\x1f\x8b not gzip", "damaged gzip"),
    "someone else's": (
        b'{"traceEvents": [{"ph": "X", "name": "a", "cat": "toplevel", "pid": 1, "tid": 1, '
        b'"ts": 1, "dur": 2}]}',
        "neither Paddle's nor torch's profiler \\(\"cat\": toplevel\\)",
    ),
    "a browser's": (
        b'{"traceEvents": [{"ph": "X", "name": "a", "cat": "blink,devtools", "pid": 1, "tid": 1, '
        b'"ts": 1, "dur": 2}], "metadata": {"product-version": "Chrome/1"}}',
        "neither Paddle's nor torch's profiler \\(\"cat\": blink,devtools\\)",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_file_that_is_not_a_trace_is_rejected_with_a_reason(tmp_path, what):
    content, reason = REFUSED[what]
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=reason) as raised:
        read(path)
    assert str(raised.value).startswith(str(path))


def test_a_directory_and_a_missing_file_are_reported(tmp_path):
    with pytest.raises(TraceError, match="Is a directory"):
        read(tmp_path)
    with pytest.raises(TraceError, match="No such file"):
        read(tmp_path / "missing.json")


def test_a_gzip_bomb_is_rejected(tmp_path):
    path = tmp_path / "bomb.json.gz"
    head = b'{"traceEvents": ['
    path.write_bytes(gzip.compress(head + b" " * (64 << 20)))
    with pytest.raises(TraceError, match=r"unpacks to more than 250 times its size.*rejected"):
        read(path)


def test_damaged_gzip_is_read_up_to_the_damage(tmp_path):
    text = paddle(*(operator(f"n{number * 7919 % 1000}", 2 * number) for number in range(20_000)))
    packed = gzip.compress(text.encode())
    path = tmp_path / "cut.json.gz"
    path.write_bytes(packed[: len(packed) // 2])
    trace = read(path)
    assert 1000 < trace.events.height < 20_000
    assert any("damaged gzip" in kind for kind in trace.skipped)
    path.write_bytes(packed[: len(packed) // 2] + b"\xff" * 99 + packed[len(packed) // 2 + 99 :])
    flipped = read(path)
    assert flipped.events.height > 1000
    assert any("gzip" in kind for kind in flipped.skipped)


def test_a_file_without_events_for_megabytes_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(source_module, "MAX_EVENT_BYTES", 1 << 20)
    path = tmp_path / "long.json"
    path.write_bytes(b'{"traceEvents": [' + b" " * (12 << 20))
    with pytest.raises(TraceError, match=r"no event begins in the .* MiB after byte"):
        read(path)


def test_nonportable_values_can_be_written(tmp_path):
    """A memory event without a place, numbers beyond 64 and 32 bits."""
    device = '"deviceProperties": [{"id": 0, "name": "X", "totalGlobalMem": 1e400, "smCount": 99999999999999999999}],'
    events = """[
        {"name": "k", "cat": "Kernel", "ph": "X", "pid": 0, "tid": 7, "ts": 1, "dur": 1,
         "args": {"correlation id": 3, "warps per SM": 1e300}},
        {"name": "l", "cat": "CudaRuntime", "ph": "X", "pid": 1, "tid": "1(C++)", "ts": 0, "dur": 1,
         "args": {"correlation id": 3}},
        {"name": "[memory]", "cat": "Allocate", "ph": "i", "pid": 1, "tid": "1(C++)", "ts": 1,
         "args": {"addr": "7", "increase_bytes": 8}},
        {"name": "op", "cat": "Operator", "ph": "X", "pid": 1, "tid": "1(C++)", "ts": 0, "dur": 9}
    ]"""
    text = json.dumps({"schemaVersion": "1.0.2", "traceEvents": json.loads(events)})
    path = tmp_path / "odd.json"
    path.write_text(text.replace("{", "{" + device, 1))
    trace = read(path)
    assert trace.devices == ({"id": 0, "name": "X"},)
    for name in ("again.json", "again.pb"):
        write(trace, tmp_path / name)
        again = read(tmp_path / name)
        assert (again.events.height, again.memory.height) == (3, trace.memory.height)


def _repaired_times(path: Path, name: str, other: str) -> tuple[list[int], list[int]]:
    """Start and duration of an event that is not valid JSON."""
    event = (
        f'{{"ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7, "dur": 1.5,'
        f' "ts": 1795214805084970.792, "args": {{"stream": 7, "other": {other}}}}}'
    )
    path.write_bytes(f'{{"schemaVersion": 1, "traceEvents": [{event}]}}'.encode("latin-1"))
    events = read(path).events
    return events["start_ns"].to_list(), events["dur_ns"].to_list()


@pytest.mark.parametrize("name", ["a\\q", "a\xff", "a\\q\\ud800"])
@pytest.mark.parametrize(
    "other", ["1", "1e999", "1e99999999999999999999", "1e-99999999999999999999", "-0.0", "1" * 40]
)
def test_times_of_a_repaired_event_stay_exact(tmp_path, name, other):
    """As floats, they would be multiples of 250 ns."""
    found = _repaired_times(tmp_path / "a.json", name, other)
    assert found == ([1795214805084970792], [1500])
