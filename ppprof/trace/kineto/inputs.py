"""The inputs of torch's operators, to and from the columns shapes, dtypes and attributes.

torch writes lists with an item for each argument::

    "Input Dims":      [[16, 8], [], [[2], [3]]]
    "Input type":      ["c10::BFloat16", "Scalar", "TensorList"]
    "Concrete Inputs": ["", "True", ""]

Source: ``saveExtraArgs`` and ``inputTypes`` in torch/csrc/profiler of pytorch/pytorch.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import polars as pl

from ppprof.trace.operator_inputs import OWN_ATTRIBUTES, to_json

_DTYPES = {
    **{"float": "float32", "double": "float64", "c10::Half": "float16"},
    **{"c10::BFloat16": "bfloat16", "bool": "bool", "unsigned char": "uint8"},
    **{"signed char": "int8", "short int": "int16", "short": "int16", "int": "int32"},
    **{"long int": "int64", "long": "int64", "long long": "int64"},
    **{"c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2"},
    **{"c10::complex<float>": "complex64", "c10::complex<double>": "complex128"},
}
"""Name of the C++ type of a tensor's elements -> dtype."""
_TYPES = {dtype: name for name, dtype in reversed(_DTYPES.items())}
"""dtype -> name of the C++ type; the first of `_DTYPES`, which Linux writes."""
_TENSORS = "TensorList"
_PLACE = re.compile(r"X(0|[1-9]\d{0,2})")
_LONGEST = 200
"""Longest text of a concrete input to keep: lists may have thousands of numbers."""

Inputs = tuple["str | None", "str | None", "str | None"]
"""Texts of the columns shapes, dtypes and attributes; see `ppprof.trace.operator_inputs`."""


def inputs_of(dims: str, types: str, concrete: str) -> Inputs:
    """Return the inputs of an operator; None for those that it lacks, or that are not of the form above.

    >>> inputs_of('[[16, 8], []]', '["c10::Half", "Scalar"]', '["", "4"]')
    ('{"X0":[[16,8]]}', '{"X0":["float16"]}', '{"X1":4}')
    """
    try:
        shapes_of = msgspec.json.decode(dims, type=list[Any])
        names = msgspec.json.decode(types, type=list[str])
        values = msgspec.json.decode(concrete or "[]", type=list[Any])
    except msgspec.DecodeError:
        return None, None, None
    shapes: dict[str, list[list[int]]] = {}
    dtypes: dict[str, list[str]] = {}
    attributes: dict[str, Any] = {}
    for place, (shape, name) in enumerate(zip(shapes_of, names)):
        argument = f"X{place}"
        tensors = shape if name == _TENSORS else [shape]
        if (name in _DTYPES or name == _TENSORS) and tensors and all(map(_is_shape, tensors)):
            shapes[argument] = tensors
            dtypes[argument] = [_DTYPES.get(name, "unknown")] * len(tensors)
        elif place < len(values) and values[place] not in ("", None):
            attributes[argument] = _value(values[place])
    return to_json(shapes), to_json(dtypes), to_json(attributes)


def lists_of(shapes: str | None, dtypes: str | None, attributes: str | None) -> str:
    """Return the inputs of an operator as text to append to the ``args`` of its event.

    The arguments X0, X1... have their places; those with other names, as Paddle's, come behind them in
    the order of their names, which the format has no room for. Empty without arguments, and for texts of another form.

    >>> lists_of('{"X0":[[16,8]]}', '{"X0":["float16"]}', '{"X1":4}')
    ',"Input Dims":[[16,8],[]],"Input type":["c10::Half","Scalar"],"Concrete Inputs":["","4"]'
    """
    try:
        shapes_of = msgspec.json.decode(shapes or "{}", type=dict[str, list[list[int]]])
        dtypes_of = msgspec.json.decode(dtypes or "{}", type=dict[str, list[str]])
        values_of = msgspec.json.decode(attributes or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return ""
    names = sorted({*shapes_of, *values_of} - OWN_ATTRIBUTES)
    numbers = [int(match[1]) for name in names if (match := _PLACE.fullmatch(name))]
    placed = [f"X{number}" for number in range(max(numbers, default=-1) + 1)]
    arguments = [*placed, *(name for name in names if not _PLACE.fullmatch(name))]
    if not arguments:
        return ""
    dims: list[Any] = []
    types, values = [], []
    for argument in arguments:
        tensors = shapes_of.get(argument)
        elements = [_TYPES.get(dtype, dtype) for dtype in dtypes_of.get(argument, ())]
        is_list = tensors is not None and (len(tensors) != 1 or elements == ["unknown"])
        dims.append(tensors if is_list else tensors[0] if tensors else [])
        if tensors is not None:
            types.append(_TENSORS if is_list or not elements else elements[0])
        else:
            types.append("Scalar" if argument in values_of else "")
        values.append(_concrete(values_of.get(argument, "")))
    keys = ("Input Dims", "Input type", "Concrete Inputs")
    return "".join(
        f',"{key}":{msgspec.json.encode(items).decode()}'
        for key, items in zip(keys, (dims, types, values))
    )


def _concrete(value: Any) -> str:
    """Return a value as torch writes it: ``[1, 2]``, ``True``, ``1e-05``, ``sum``."""
    if isinstance(value, (bool, list)):
        return str(value)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def converted_inputs(recorded: pl.DataFrame) -> pl.DataFrame:
    """Return the inputs of operators as columns of the events table.

    A few hundred distinct inputs occur in a trace of a million operators; each is converted once.

    Args:
        recorded: index; and the JSON texts dims, types and concrete, empty or null if missing.

    Returns:
        index, shapes, dtypes and attributes.
    """
    keys = ("dims", "types", "concrete")
    distinct = recorded.select(keys).unique()
    converted = [inputs_of(*(text or "" for text in row)) for row in distinct.iter_rows()]
    columns = dict.fromkeys(("shapes", "dtypes", "attributes"), pl.Categorical())
    inputs = pl.DataFrame(converted, columns, orient="row")
    return recorded.join(
        pl.concat([distinct, inputs], how="horizontal"),
        on=keys,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    ).drop(keys)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int for size in value)


def _value(text: Any) -> Any:
    """Return a number, a list of numbers, True or False for its text; else the text.

    >>> _value("[1, 2]"), _value("True"), _value("sum"), _value("1e-05")
    ([1, 2], True, 'sum', 1e-05)
    """
    if not isinstance(text, str) or len(text) > _LONGEST:
        return str(text)[:_LONGEST]
    if text in ("True", "False"):
        return text == "True"
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    is_plain = isinstance(value, (int, float)) or _is_shape(value)
    return value if is_plain else text
