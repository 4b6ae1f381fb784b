"""The compiled core and the decoder read the same events from the same file."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.trace import Trace, source
from ppprof.trace.fastpath import core
from ppprof.trace.json.recovery import start_of_events
from ppprof.trace.kineto.event_fields import KinetoArgs
from tests.fixtures.hostile_bytes import mutated
from tests.fixtures.kineto_files import (
    FILES,
    FIXTURES,
    assert_same,
    assert_same_text,
    file_of,
    text_of,
    with_core,
)

pytestmark = pytest.mark.skipif(
    core.load(core.FOLDER)[0] is None,
    reason="needs the compiled core: run `python tools/build_core.py`",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture
def small_blocks(monkeypatch):
    """Divide files of some kilobytes into blocks, as large ones are."""
    monkeypatch.setattr(source, "BLOCK_BYTES", 4096)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@pytest.mark.parametrize("block_bytes", [4 << 20, 5000, 700])
def test_recorded_traces(path, block_bytes, monkeypatch):
    monkeypatch.setattr(source, "BLOCK_BYTES", block_bytes)
    trace = assert_same(path)
    assert trace.events.height > 50
    assert not trace.skipped


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_core_leaves_few_events_to_the_decoder(path, monkeypatch):
    """Names of threads and processes, and waits for collectives."""
    decoded: Counter[str] = Counter()
    from ppprof.trace.kineto.columns import KinetoColumns

    add_decoded = KinetoColumns.add_decoded

    def counted(columns, first, events):
        decoded.update(event.name for event in events)
        add_decoded(columns, first, events)

    monkeypatch.setattr(KinetoColumns, "add_decoded", counted)
    with_core(core.NATIVE, path)
    metadata = {"thread_name", "process_name", "process_labels"}
    assert set(decoded) <= {*metadata, "record_param_comms", "PyTorch Profiler (0)"}


@given(seed=st.integers(0, 2**32))
def test_changed_bytes(folder, seed):
    rng = random.Random(seed)
    path = rng.choice([FIXTURES / "gpu_ddp.json", FIXTURES / "cpu_small_net.json.gz"])
    text = text_of(path)
    start = start_of_events(text)
    piece = text[start : start + 40_000]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "BLOCK_BYTES", rng.choice([4096, 1 << 20]))
        assert_same_text(text[:start] + mutated(piece, rng) + text[start + 40_000 :], folder)


@given(seed=st.integers(0, 2**32))
def test_truncated_files(folder, seed):
    rng = random.Random(seed)
    text = text_of(FIXTURES / "gpu_ddp.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "BLOCK_BYTES", rng.choice([4096, 1 << 20]))
        assert_same_text(text[: rng.randrange(2000, len(text))], folder)


# Single events

PLAIN = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5.25, "dur": 2.5}
LAUNCH = {"ph": "X", "cat": "cuda_runtime", "name": "l", "pid": 4, "tid": 4, "ts": 1, "dur": 1}
ODD = [
    *("null", "true", "-0", "0", "-7", "1.5", "1e3", "1E-2", "12.3456", "-1.25", "0.001"),
    *("123456789012345678", "1234567890123456789", "99999999999999999999999999", "1e999"),
    *("9007199254740993", "0.1000000000000000055", "123456789012.123456789", "9999999999999999.9"),
    *("12345678901234567", "12345678901234567.5", "1712195495519689.047"),
    *('"5"', '"-5"', '"05"', '"1.5"', '"name"', '""', '"a\\"b"', '"\\u00e9"', '"\\ud83d\\ude00"'),
    *('"\\ud800"', '"µs"', "[]", "{}", "[1, 2, 3]", "[4,1,1]", '{"a": [1, {"b": "}"}]}', "[[[]]]"),
    *("[1,]", "01", "1.", ".5", "+1", "nul", "inf", "NaN", "-Infinity", '"a\tb"', '"\\x"', "["),
    *('["", "4"]', '"all_reduce"', '"wait"', '"[0, 1]"', '"Float"'),
]
KEYS = [
    *("ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id"),
    *(f"args.{key}" for key in KinetoArgs.__struct_encode_fields__),
    *("args.External id", "args.unknown"),
]


def event_text(fields: dict[str, str]) -> str:
    """An event with these JSON texts; keys with the prefix ``args.`` belong to its args."""
    own = {key: text for key, text in fields.items() if not key.startswith("args.")}
    args = {key[5:]: text for key, text in fields.items() if key.startswith("args.")}
    if args:
        own.setdefault("args", "{" + ",".join(f'"{key}": {args[key]}' for key in args) + "}")
    return "{" + ", ".join(f'"{key}": {text}' for key, text in own.items()) + "}"


def texts_of(values: dict[str, object]) -> dict[str, str]:
    return {key: json.dumps(value) for key, value in values.items()}


def is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=lambda _: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return False
    return True


USUAL = [event_text(texts_of(PLAIN)), event_text(texts_of(LAUNCH))]
BASES = [
    *(
        {**PLAIN, "cat": cat, "args.stream": 7, "args.correlation": 3}
        for cat in ("kernel", "cpu_op", "python_function", "cuda_runtime", "new_device", "")
    ),
    {**PLAIN, "ph": "i", "name": "[memory]"},
    {**PLAIN, "cat": "cpu_op", "args.Input Dims": [[2]], "args.Input type": ["int"]},
    {**PLAIN, "args.In msg nelems": 4, "args.dtype": "Float"},
]


@pytest.mark.parametrize("key", KEYS)
def test_each_value_of_each_key(folder, key):
    values = [value for value in ODD if is_json(value)]
    odd = [event_text({**texts_of(base), key: value}) for value in values for base in BASES]
    assert_same_text(file_of(*USUAL, *odd, *USUAL), folder)


def test_one_text_between_two_values_in_several_places(folder):
    """The reader remembers such texts: it must not mistake a key of args for one of an event."""
    launch = '"cat": "cuda_runtime", "name": "l", "pid": 4, "tid": 4, "ts": 1, "dur": 1'
    events = [
        f'{{"ph": "X", {launch}}}',
        f'{{"ph": "X", {launch}, "args": {{"ph": "X", "name": "a"}}}}',
        f'{{"ph": "X", {launch}, "args": {{"name": "a", "ts": 7, "correlation": 3}}, "id": 5}}',
        f'{{"ph": "X", {launch}, "args": {{}}, "ts": 8}}',
        f'{{"args": {{"correlation": 3, "args": {{"ts": 9}}}}, "ph": "X", {launch}}}',
        f'{{"args" :{{"correlation": 4 }} , "ph": "X",{launch} }}',
        *("{}", "{ }", f'{{"ph": "X", {launch}, "args": {{ }}}}'),
    ]
    for number in range(20):
        random.Random(number).shuffle(events)
        assert_same_text(file_of(*USUAL, *events, *events, *USUAL), folder)
    for broken in ('{, "ph": "X"}', '{"ph": "X" "cat": "kernel"}', '{"ph": "X",}'):
        assert_same_text(file_of(*USUAL, *events, broken, *USUAL), folder)


@pytest.mark.parametrize("value", [value for value in ODD if not is_json(value)])
def test_values_that_are_not_json(folder, value):
    for key in ("ts", "id", "args.stream"):
        odd = [event_text({**texts_of(base), key: value}) for base in BASES[:1]]
        assert_same_text(file_of(*USUAL, *odd, *USUAL), folder)


@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(["X", "X", "X", "i", "M", "s", "f", "C", "?", "XX", ""]),
            st.sampled_from(
                ["cpu_op", "kernel", "python_function", "cuda_runtime", "Trace", "odd", "", None]
            ),
            st.sampled_from(
                [
                    *("k", "nn.Module: Linear_0", "[memory]", "thread_name", "record_param_comms"),
                    *("ProfilerStep#3", "nn.Mod\\u0075le: Linear_0", "thread\\u005fname", "a\\\\b"),
                ]
            ),
            st.dictionaries(st.sampled_from(KEYS[3:]), st.sampled_from(ODD[:41]), max_size=5),
            st.permutations(range(4)),
        ),
        max_size=20,
    ),
    gap=st.sampled_from([",", ", ", "\n,\n", " ,\t"]),
)
def test_random_events(folder, events, gap):
    """Valid JSON with any keys in any order: nothing makes the core reject a whole block."""
    texts = []
    for ph, cat, name, others, order in events:
        fields = {"ph": f'"{ph}"', "name": f'"{name}"', **texts_of({"ts": 1.5, "dur": 600.25})}
        fields = {key: fields[key] for key in [list(fields)[place] for place in order]}
        if cat is not None:
            fields["cat"] = f'"{cat}"'
        texts.append(event_text({**fields, "pid": "1", "tid": "2", **others}))
    body = gap.join(texts)
    assert_same_text(f'{{"schemaVersion": 1, "traceEvents": [{body}]}}'.encode(), folder)


@pytest.mark.parametrize(
    "body",
    [
        *("", ",", ",,", "{}", "{},", "{},,{}", "{} {}", "[]", "1", "{}]", '{"a": 1,}', '{"a"}'),
        *('{"a": {"b": [1, 2}}', '{"a" 1}', "{a: 1}", '{"a": "\x01"}', '{"a": tru}', "{" * 9),
        *('{"a": ' + "[" * 64 + "]" * 64 + "}", '{"a": ' + "[" * 65 + "]" * 65 + "}"),
        *(
            '{"name": "a", "name": "b"}',
            '{"args": {}, "args": {"stream": 1}}',
            '{"n\\u0061me": "a"}',
        ),
        *('{"a": "é"}', '{"a": "\\uD834\\uDD1E"}', '{"args": null}', '{"args": []}', '{"args": 1}'),
    ],
)
def test_lists_of_other_things(folder, body):
    usual = event_text(texts_of({**PLAIN, "args.stream": 7}))
    for text in (body, f"{usual},{body},{usual}"):
        assert_same_text(f'{{"schemaVersion": 1, "traceEvents": [{text}]}}'.encode(), folder)


@pytest.mark.parametrize(
    "again", ['"args": {"device": 2}', '"args": {}', '"args": null', '"ts": 9', '"name": "other"']
)
def test_a_key_that_comes_twice(folder, again):
    event = event_text(texts_of({**PLAIN, "args.stream": 7}))
    assert_same_text(file_of(f"{event[:-1]}, {again}}}", event), folder)


def test_bytes_that_are_not_utf8(folder):
    usual = event_text(texts_of({**PLAIN, "args.stream": 7})).encode()
    pieces = [
        b"\xff",
        b"\xc3",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xc3\xa9",
        b"\xf0\x9f\x9a\x80",
    ]
    for piece in pieces:
        for key in (b"k", b"kernel"):
            event = usual.replace(b'"%b"' % key, b'"%b%b"' % (key, piece))
            text = b'{"schemaVersion": 1, "traceEvents": [%b,%b]}' % (event, usual)
            assert_same_text(text, folder)


def test_a_broken_event_leaves_the_other_blocks_to_the_core(folder, small_blocks):
    text = text_of(FIXTURES / "gpu_ddp.json")
    start = start_of_events(text) + 10_000
    place = text.index(b'"dur": ', start) + len(b'"dur": ')
    trace = assert_same_text(text[:place] + b"inf, " + text[place:], folder)
    assert isinstance(trace, Trace)
    assert trace.events.height > 90
