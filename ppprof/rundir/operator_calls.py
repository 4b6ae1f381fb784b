"""What operators were called with in a window: a file beside the raw capture.

The file is one line of JSON, then 5 little-endian int64 for each call of an operator from Python::

    {"signatures": [["matmul", {"X0": [[4,128]], "X1": [[128,64]]}, {"X0": ["float32"], ...}, {}]],
     "dtypes": ["float32", "bfloat16"]}
    thread id | start_ns | end_ns | row of the signature or -1 | row of the result's dtype or -1
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Union

import msgspec
import numpy as np

from ppprof.arrays import Int64
from ppprof.rundir.run_file import RunFile

_MOST_BYTES, _MOST_TEXT_BYTES = 256 << 20, 32 << 20
"""Limits of the whole file, some 6 million calls, and of its line of JSON."""
_COLUMNS = 5
_NAME = re.compile(r"[A-Za-z_0-9]{1,100}")

Attribute = Union[bool, int, str, list[Union[bool, int, str]]]


class Signature(msgspec.Struct, array_like=True, frozen=True):
    """The inputs that many calls share. X0 is the first argument, X1 the second."""

    name: str
    """The function, such as ``matmul`` or ``__add__``."""
    shapes: Mapping[str, list[list[int]]]
    """Shape of each tensor, by argument; a list for an argument that is a list of tensors."""
    dtypes: Mapping[str, list[str]]
    """Element type of each tensor, likewise."""
    attributes: Mapping[str, Attribute]
    """Arguments that are neither tensors nor real numbers."""


class _Header(msgspec.Struct):
    signatures: list[Signature]
    dtypes: list[str]


@dataclass(frozen=True)
class OperatorCalls:
    """The calls of a window."""

    signatures: list[Signature]
    dtypes: list[str]
    """Names of element types."""
    calls: Int64
    """One row per call, columns as in the file; sorted by thread, then start."""


def write_operator_calls(file: RunFile, calls: OperatorCalls) -> None:
    """Write the calls of a window.

    Raises:
        OSError: the file cannot be written.
    """
    header = msgspec.json.encode(_Header(calls.signatures, calls.dtypes))
    file.write(b"\n".join([header, calls.calls.astype("<i8").tobytes()]))


def read_operator_calls(file: RunFile) -> OperatorCalls:
    """Read the calls of a window.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be read.
        ValueError: it is damaged.
    """
    text, _, numbers = file.read(_MOST_BYTES).partition(b"\n")
    if len(text) > _MOST_TEXT_BYTES:
        raise ValueError(f"a line of {len(text)} bytes")
    header = msgspec.json.decode(text, type=_Header)
    calls: Int64 = np.frombuffer(numbers, "<i8").astype(np.int64).reshape(-1, _COLUMNS)
    names = [signature.name for signature in header.signatures]
    if not all(_NAME.fullmatch(name) for name in (*names, *header.dtypes)):
        raise ValueError("a name that no operator has")
    for column, rows in ((3, header.signatures), (4, header.dtypes)):
        if len(calls) and not -1 <= calls[:, column].min() <= calls[:, column].max() < len(rows):
            raise ValueError("a row that does not exist")
    if not all(map(_is_consistent, header.signatures)):
        raise ValueError("shapes without dtypes")
    order = np.lexsort((calls[:, 1], calls[:, 0]))
    return OperatorCalls(header.signatures, header.dtypes, calls[order])


def _is_consistent(signature: Signature) -> bool:
    """Return whether each argument has a shape and a dtype for each of its tensors, at least one."""
    shapes, dtypes = signature.shapes, signature.dtypes
    return shapes.keys() == dtypes.keys() and all(
        0 < len(shapes[argument]) == len(dtypes[argument]) for argument in shapes
    )
