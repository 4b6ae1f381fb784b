"""The column-wise decoder against Google's own: same messages, any field order, any sizes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from ppprof.errors import TraceError
from ppprof.trace.fastpath.protobuf_decode import Buffer

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


def _decode(raw: bytes) -> list[dict[str, object]]:
    """All items of a List, read with `Buffer`; what is missing reads as protobuf's default."""
    buffer = Buffer(raw, "x.pb")
    top = buffer.fields(buffer.whole())
    body = buffer.fields(top.ranges(1))
    texts, ids = buffer.strings(body.range(3))
    parts = body.ranges(6)
    part_texts, part_ids = buffer.strings(parts)
    return [
        {
            "u": int(body.number(1)[row]),
            "i": int(body.number(2).view(np.int64)[row]),
            "text": texts[ids[row]],
            "f": float(body.number(17).astype(np.uint32).view(np.float32)[row]),
            "d": float(body.number(5).view(np.float64)[row]),
            "parts": [part_texts[part_ids[k]] for k in np.flatnonzero(parts.owner == row)],
            "fixed": int(body.number(7)[row]),
        }
        for row in range(body.num_messages)
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


def _decode_or_complain(raw: bytes) -> tuple[list[dict[str, object]], str]:
    try:
        return _decode(raw), ""
    except TraceError as error:
        return [], str(error)


def test_not_protobuf() -> None:
    with pytest.raises(TraceError, match="not a protobuf wire type; the file is truncated or"):
        _decode(b"\x0f" * 50)


def _varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])
