"""The inputs of operators as messages of Paddle's protobuf: `ppprof.trace.operator_inputs` there.

A module of its own, because JSON needs no protobuf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Union

import msgspec

from ppprof.trace.fastpath.protobuf_decode import LEN, VARINT
from ppprof.trace.fastpath.protobuf_encode import header, varint
from ppprof.trace.fastpath.protobuf_messages import varint_at
from ppprof.trace.operator_inputs import to_json


def decode_shapes(message: bytes) -> str | None:
    """Return the JSON text of an ``input_shape_proto``; None if it is empty or damaged."""
    return _decode(message, lambda vector: [_sizes(shape) for shape in _messages(vector, 1)])


def decode_dtypes(message: bytes) -> str | None:
    """Return the JSON text of a ``dtype_proto``; None if it is empty or damaged."""
    return _decode(message, lambda vector: [_text(dtype) for dtype in _messages(vector, 1)])


def encode_shapes(text: str) -> bytes | None:
    """Return the ``input_shape_proto`` of a JSON text; None if it is not inputs as JSON."""
    return _encode(text, _Shapes, lambda shape: b"".join(b"\x08" + varint(size) for size in shape))


def encode_dtypes(text: str) -> bytes | None:
    """Return the ``dtype_proto`` of a JSON text; None if it is not inputs as JSON."""
    return _encode(text, _Dtypes, lambda dtype: dtype.encode("utf-8", "replace"))


_Shapes = Mapping[str, list[list[int]]]
_Dtypes = Mapping[str, list[str]]
_Values = Iterator[tuple[int, Union[int, bytes]]]


def _decode(message: bytes, values_of: Callable[[bytes], list[Any]]) -> str | None:
    """Return the JSON text of parallel lists of keys (field 1) and vectors (field 2)."""
    try:
        keys = [_text(key) for key in _messages(message, 1)]
        vectors = [values_of(vector) for vector in _messages(message, 2)]
    except ValueError:
        return None
    inputs = dict(zip(keys, vectors))
    return to_json(inputs)


def _encode(text: str, form: Any, value_of: Callable[[Any], bytes]) -> bytes | None:
    try:
        inputs = msgspec.json.decode(text, type=form)
        vectors = [b"".join(_field(1, value_of(item)) for item in row) for row in inputs.values()]
    except (msgspec.DecodeError, OverflowError):
        return None
    keys = [_field(1, key.encode("utf-8", "replace")) for key in inputs]
    return b"".join([*keys, *(_field(2, vector) for vector in vectors)])


def _field(number: int, content: bytes) -> bytes:
    return header(number, len(content)) + content


def _messages(message: bytes, number: int) -> Iterator[bytes]:
    """Yield the content of each field ``number`` that has a length."""
    return (value for key, value in _fields(message) if key == number and isinstance(value, bytes))


def _sizes(shape: bytes) -> list[int]:
    """Return the sizes of a ``shape``, packed or not; -1 is an unknown size."""
    sizes: list[int] = []
    for key, value in _fields(shape):
        if key == 1 and isinstance(value, int):
            sizes.append(value)
        elif key == 1 and isinstance(value, bytes):
            position = 0
            while position < len(value):
                size, position = varint_at(value, position)
                sizes.append(size)
    return [size - (1 << 64) if size >= 1 << 63 else size for size in sizes]


def _fields(message: bytes) -> _Values:
    """Yield number and value of each field; fixed-size fields are unknown here."""
    position = 0
    while position < len(message):
        key, position = varint_at(message, position)
        value, position = varint_at(message, position)
        if key & 7 == VARINT:
            yield key >> 3, value
        elif key & 7 == LEN and position + value <= len(message):
            yield key >> 3, message[position : position + value]
            position += value
        else:
            raise ValueError


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
