"""Both column-wise decoders against Google's own: same messages, any field order, any sizes."""

from __future__ import annotations

import ctypes
import random
import tracemalloc

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from ppprof.errors import TraceError
from ppprof.trace.fastpath import core, protobuf_native
from ppprof.trace.fastpath.protobuf_decode import NumpyBuffer
from ppprof.trace.fastpath.protobuf_messages import (
    MESSAGES,
    NUMBER,
    TEXT,
    MessageBuffer,
    padded,
)
from ppprof.trace.fastpath.protobuf_native import NativeBuffer

_FIELD = descriptor_pb2.FieldDescriptorProto
_FILE = descriptor_pb2.FileDescriptorProto(name="wire_test.proto", package="wire_test")
for _name, _fields in {
    "Item": [
        ("u", 1, _FIELD.TYPE_UINT64),
        ("i", 2, _FIELD.TYPE_INT64),
        ("text", 3, _FIELD.TYPE_STRING),
        ("f", 17, _FIELD.TYPE_FLOAT),  # a tag of two bytes
        ("d", 5, _FIELD.TYPE_DOUBLE),
        ("parts", 6, _FIELD.TYPE_STRING),
        ("fixed", 7, _FIELD.TYPE_FIXED64),
    ],
    "List": [("items", 1, _FIELD.TYPE_MESSAGE)],
}.items():
    _message = _FILE.message_type.add(name=_name)
    for _field, _number, _type in _fields:
        _message.field.add(
            name=_field,
            number=_number,
            type=_type,
            label=_FIELD.LABEL_REPEATED if _field in ("items", "parts") else _FIELD.LABEL_OPTIONAL,
            type_name=".wire_test.Item" if _type == _FIELD.TYPE_MESSAGE else None,
        )
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_FILE)
Item = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("wire_test.Item"))
List = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("wire_test.List"))

needs_compiled = pytest.mark.skipif(core.library() is None, reason="without the compiled library")

# Every length of a varint, and what lies around its ends.
numbers = st.one_of(
    st.integers(0, 2**64 - 1),
    st.sampled_from([2**k + d for k in range(7, 64, 7) for d in (-1, 0, 1)]),
    st.just(2**64 - 1),
)
items = st.fixed_dictionaries(
    {},
    optional={
        "u": numbers,
        "i": st.integers(-(2**63), 2**63 - 1),
        "text": st.text(max_size=200),
        "f": st.floats(width=32, allow_nan=False),
        "d": st.floats(allow_nan=False),
        "parts": st.lists(st.text(max_size=3), max_size=4),
        "fixed": numbers,
    },
)


_ITEM = {**dict.fromkeys((1, 2, 17, 5, 7), NUMBER), 3: TEXT, 6: MESSAGES}


def _decode(raw: bytes) -> list[dict[str, object]]:
    """All items of a List; what is missing reads as protobuf's default.

    Both decoders read them. They must return the same, or fail with the same message.
    """
    rows, complaint = _decode_or_complain(raw)
    if complaint:
        raise TraceError(complaint)
    return rows


def _decode_or_complain(raw: bytes) -> tuple[list[dict[str, object]], str]:
    plain = _outcome(NumpyBuffer(*padded(raw), "x.pb"), raw)
    library = core.library()
    if library is None:
        return plain
    native = _outcome(NativeBuffer(library, *padded(raw), "x.pb"), raw)
    assert repr(native) == repr(plain)  # a NaN equals itself
    return native


def _outcome(buffer: MessageBuffer, raw: bytes) -> tuple[list[dict[str, object]], str]:
    try:
        return _items(buffer, raw), ""
    except TraceError as error:
        return [], str(error)


def _items(buffer: MessageBuffer, raw: bytes) -> list[dict[str, object]]:
    items = buffer.fields(buffer.whole(), {1: MESSAGES}).ranges(1)
    body = buffer.fields(items, _ITEM)
    names, ids = body.texts(3)
    wide = {field: body.number(field).astype(np.uint64) for field in (1, 2, 5, 7)}
    numbers = {
        "u": wide[1],
        "i": wide[2].view(np.int64),
        "f": body.number(17).astype(np.uint32).view(np.float32),
        "d": wide[5].view(np.float64),
        "fixed": wide[7],
    }
    parts: list[list[str]] = [[] for _ in range(len(items))]
    ranges = body.ranges(6)
    for owner, start, end in zip(ranges.owner, ranges.start, ranges.end):
        parts[owner].append(raw[start:end].decode("utf-8", "replace"))
    return [
        {
            "text": names[ids[row]].decode("utf-8", "replace"),
            **{name: column[row].item() for name, column in numbers.items()},
            "parts": parts[row],
        }
        for row in range(len(items))
    ]


def _expected(message: object) -> list[dict[str, object]]:
    names = ("u", "i", "text", "f", "d", "fixed")
    return [
        {**{name: getattr(item, name) for name in names}, "parts": list(item.parts)}
        for item in message.items
    ]


# 40 stays below the size where the loop over messages hands over to numpy, 120 goes above it.
@pytest.mark.parametrize("copies", [1, 40, 120])
@given(chosen=st.lists(items, min_size=1, max_size=4))
def test_reads_messages_that_protobuf_wrote(chosen: list[dict[str, object]], copies: int) -> None:
    message = List(items=[Item(**fields) for fields in chosen] * copies)
    assert _decode(message.SerializeToString()) == _expected(message)


@given(st.lists(items, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_order_of_fields_does_not_matter(
    chosen: list[dict[str, object]], rng: random.Random
) -> None:
    raw = b""
    for fields in chosen * 20:
        singles = [Item(**{name: value}).SerializeToString() for name, value in fields.items()]
        rng.shuffle(singles)
        body = b"".join(singles)
        raw += b"\x0a" + _varint(len(body)) + body
    assert _decode(raw) == _expected(List.FromString(raw))


def test_the_last_of_a_repeated_scalar_wins() -> None:
    body = Item(u=1, text="a").SerializeToString() + Item(u=2, text="b").SerializeToString()
    raw = (b"\x0a" + _varint(len(body)) + body) * 60
    assert {(row["u"], row["text"]) for row in _decode(raw)} == {(2, "b")}


@pytest.mark.parametrize("copies", [1, 120])
def test_a_file_truncated_anywhere_is_an_error_or_a_shorter_file(copies: int) -> None:
    raw = List(items=[Item(u=2**40, text="name", parts=["x"])] * copies).SerializeToString()
    whole = _decode(raw)
    step = len(raw) // copies
    for cut in range(len(raw) - step, len(raw)):
        rows, complaint = _decode_or_complain(raw[:cut])
        assert rows == whole[: len(rows)]
        assert len(rows) == copies - 1 or complaint.startswith("x.pb: byte ")
        assert not complaint or f" of {cut}: " in complaint


def test_not_protobuf() -> None:
    with pytest.raises(TraceError, match="not a protobuf wire type; the file is truncated or"):
        _decode(b"\x0f" * 50)


def _varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


@pytest.mark.parametrize("copies", [1, 60])
@given(
    chosen=st.lists(items, min_size=1, max_size=4),
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=12)), max_size=4),
)
def test_both_decoders_read_damaged_messages_alike(
    chosen: list[dict[str, object]], copies: int, changes: list[tuple[int, bytes]]
) -> None:
    raw = bytearray(List(items=[Item(**fields) for fields in chosen] * copies).SerializeToString())
    for place, inserted in changes:
        start = place % (len(raw) + 1)
        raw[start : start + place % 3] = inserted
    _decode_or_complain(bytes(raw))


@pytest.mark.parametrize("copies", [1, 60])
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x08" + b"\xff" * 10 + b"\x01", "byte {12} of"),
        (b"\x88" + b"\x80" * 9 + b"\x01\x01", "a number of more than 10 bytes"),
        (b"\x1a\xff\xff\x7f", "a length beyond the end of the file"),
        (b"\x1a\x05ab", "a field runs past its message"),
        (b"\x0b\x0c", "not a protobuf wire type"),
        (b"\x29\xff\xff", "a field runs past its message"),
    ],
)
def test_the_first_damaged_message_is_reported(body: bytes, reason: str, copies: int) -> None:
    sound = List(items=[Item(u=7, text="a")] * copies).SerializeToString()
    other = b"\x0a\x01\x0f"  # also damaged
    raw = sound + b"\x0a" + _varint(len(body)) + body + sound + other
    _, complaint = _decode_or_complain(raw)
    expected = reason.replace("{12}", str(len(sound) + 13)) if "{" in reason else reason
    assert expected in complaint


def test_ten_bytes_of_a_number_are_cut_to_64_bits() -> None:
    body = b"\x08" + b"\xff" * 9 + b"\x7f"
    for copies in (1, 60):
        rows = _decode((b"\x0a" + _varint(len(body)) + body) * copies)
        assert {row["u"] for row in rows} == {2**64 - 1}


def test_many_distinct_texts() -> None:
    texts = [f"{'x' * (number % 40)}{number}" for number in range(3000)] * 2
    raw = List(items=[Item(text=text, parts=["a"] * 3) for text in texts]).SerializeToString()
    assert [row["text"] for row in _decode(raw)] == texts


def test_a_short_file_with_a_huge_length_takes_no_memory() -> None:
    tracemalloc.start()
    with pytest.raises(TraceError):
        _decode(b"\x0a" + _varint(2**40) + b"\x08\x01" * 40)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_the_native_decoder_refuses_bytes_without_padding() -> None:
    with pytest.raises(ValueError, match="expected 3 and a padding of 32"):
        NativeBuffer(ctypes.CDLL(None), b"abc", 3, "x.pb")


@needs_compiled
def test_too_many_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_native, "_MOST_MESSAGES", 9)
    raw = List(items=[Item(u=1)] * 10).SerializeToString()
    with pytest.raises(TraceError, match="10 messages of one type; at most 9 can be read"):
        _items(protobuf_native.message_buffer(*padded(raw), "x.pb"), raw)
