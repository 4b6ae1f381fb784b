"""Kineto's events from compiled readers, as the tables that `KinetoColumns` collects."""

from __future__ import annotations

import ctypes
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl

from ppprof.arrays import Array, Int32
from ppprof.trace.fastpath import core
from ppprof.trace.fastpath.fixed_layout import MISSING
from ppprof.trace.fastpath.native.event_reader import (
    EventClass,
    EventForms,
    EventReader,
    EventTable,
)
from ppprof.trace.fastpath.string_table import StringTable
from ppprof.trace.json.values import IGNORED_PHASES
from ppprof.trace.kineto.fields import (
    ARGS,
    COLLECTIVE_CALL,
    DETAILS,
    FRAME,
    IGNORED_SPANS,
    SPANS,
    WAIT,
    WAIT_SPAN,
    Columns,
    KinetoArgs,
)
from ppprof.trace.kineto.inputs import converted_inputs
from ppprof.trace.kineto.terms import DEVICES, LAUNCHES, MODULE, OPERATORS
from ppprof.trace.schema import LEAST_FRAME_NS

_KEYS = {
    field.name: (field.encode_name, field.type is msgspec.Raw)
    for field in msgspec.structs.fields(KinetoArgs)
}
"""Column -> its key in ``args``, and whether its value may be any JSON."""
_CONVERSIONS = {pl.Int64: "d", pl.UInt64: "u", pl.Float64: "g", pl.String: "s", pl.Categorical: "s"}
_SPAN = {
    **{"name": ("name", "s"), "cat": ("cat", "s"), "process": ("pid", "d"), "thread": ("tid", "d")},
    **{"start_ns": ("ts", "t"), "dur_ns": ("dur", "t")},
}
_INPUTS: Columns = dict.fromkeys(("dims", "types", "concrete"), pl.String())
_COLLECTIVE_CALL: Columns = {"collective": pl.String()}


def _args(columns: Columns) -> dict[str, tuple[str, str]]:
    """Return the fields of an `EventTable` for columns that come from ``args``."""
    return {
        column: (f"args.{_KEYS[column][0]}", "r" if _KEYS[column][1] else _CONVERSIONS[type(dtype)])
        for column, dtype in columns.items()
    }


class _Part(NamedTuple):
    """The rows of a table that one reader has kept."""

    columns: dict[str, Array]
    """Column -> values, without columns that no event has; of texts, the numbers that the reader
    gave them, -1 for no text."""
    num_rows: int
    numbers: Int32
    """Number of each of the reader's texts in the texts of all readers."""


def _arg(column: str) -> str:
    return f"args.{_KEYS[column][0]}"


_TABLES = {
    **{kind: EventTable({**_SPAN, **_args(columns)}) for kind, columns in ARGS.items()},
    **{
        name: EventTable(_args(columns), _arg(required))
        for name, (_, required, columns) in DETAILS.items()
    },
    "inputs": EventTable(_args(_INPUTS), _arg("dims")),
    "calls of collectives": EventTable(_args(_COLLECTIVE_CALL), _arg("collective")),
}
_TEXTS = {
    column: conversion
    for table in _TABLES.values()
    for column, (_, conversion) in table.fields.items()
    if conversion in ("s", "r")
}
"""Column of texts -> its conversion; see `EventTable`."""
_HOST = ("hosts", *(name for name, (kind, _, _) in DETAILS.items() if kind == "hosts"))
_DEVICE = ("devices", *(name for name, (kind, _, _) in DETAILS.items() if kind == "devices"))
_CLASSES = (
    EventClass(name="thread_name", is_decoded=True),
    *(
        EventClass((*_HOST, "inputs", "calls of collectives"), "X", cat, COLLECTIVE_CALL)
        for cat in sorted(OPERATORS)
    ),
    EventClass(name=COLLECTIVE_CALL, is_decoded=True),
    *(EventClass((*_HOST, "inputs"), "X", cat) for cat in sorted(OPERATORS)),
    EventClass(_HOST, "X", "user_annotation"),
    EventClass(_HOST, "X", FRAME, f"{MODULE}*"),
    EventClass(("frames",), "X", FRAME, least_dur_ns=LEAST_FRAME_NS),
    EventClass((), "X", FRAME),
    *(EventClass(("launches",), "X", cat) for cat in sorted(LAUNCHES)),
    *(EventClass(_DEVICE, "X", cat) for cat in DEVICES),
    EventClass(("memory",), "i", name="[memory]"),
    *(EventClass((), ph) for ph in IGNORED_PHASES),
    *(EventClass((), "X", cat) for cat in sorted(IGNORED_SPANS - {FRAME})),
    EventClass(_DEVICE, "X", "", either=(_arg("stream"), _arg("device"))),
)
FORMS = EventForms(dict(_KEYS.values()), _TABLES, _CLASSES)
"""What the compiled reader reads of Kineto's events."""


def new_reader(library: ctypes.CDLL) -> EventReader:
    """Return a reader of Kineto's events.

    Raises:
        MemoryError: there is not enough memory.
    """
    return EventReader(FORMS, library)


class ScannedEvents:
    """The events that compiled readers have kept, one reader for each part of a file.

    Each part stays as arrays, and the tables are made once, at the end: a table of a part costs
    more than its rows.
    """

    def __init__(self) -> None:
        self.ignored: Counter[str] = Counter()
        """Kind -> number of events that no table needs."""
        self._texts = StringTable()
        self._parts: defaultdict[str, list[_Part]] = defaultdict(list)

    def add(self, reader: EventReader) -> None:
        """Add the events of a reader, which is empty afterwards.

        Raises:
            MemoryError: there is not enough memory.
        """
        self.ignored += _ignored(reader.counts())
        tables = reader.tables()
        numbers = self._texts.numbers(reader.texts())
        for name, columns in tables.items():
            columns["index"] = columns.pop("position")
            self._parts[name].append(_Part(columns, len(columns["index"]), numbers))

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables that `KinetoColumns.add_tables` takes. Called once, at the end."""
        texts = self._texts.all()
        tables = {
            name: _table(self._parts.pop(name, []), schema, texts)
            for name, schema in (
                *SPANS.items(),
                *((name, {"index": pl.Int64(), **own}) for name, (_, _, own) in DETAILS.items()),
                ("inputs", {"index": pl.Int64(), **_INPUTS}),
                ("calls of collectives", {"index": pl.Int64(), **_COLLECTIVE_CALL}),
            )
        }
        calls = tables.pop("calls of collectives")
        waits = calls.filter(pl.col("collective") == WAIT)["index"]
        if len(waits):
            tables = _with_waits(tables, waits)
        return {**tables, "inputs": converted_inputs(tables["inputs"])}


def _with_waits(tables: Mapping[str, pl.DataFrame], waits: pl.Series) -> dict[str, pl.DataFrame]:
    """Return the tables with these events as waits for a collective, see `KinetoColumns`."""
    is_wait = pl.col("index").is_in(waits.implode())
    hosts = tables["hosts"].with_columns(
        pl.when(is_wait).then(pl.lit(text, pl.Categorical())).otherwise(column).alias(column)
        for column, text in (("name", WAIT_SPAN), ("cat", "user_annotation"))
    )
    others = {
        name: table.filter(~is_wait)
        for name, table in tables.items()
        if name == "inputs" or (name in DETAILS and DETAILS[name][0] == "hosts")
    }
    return {**tables, **others, "hosts": hosts}


def _ignored(counts: list[int]) -> Counter[str]:
    ignored: Counter[str] = Counter()
    for kind, count in zip(_CLASSES, counts):
        if kind.cat in IGNORED_SPANS and kind.tables in ((), ("frames",)):
            ignored[kind.cat] += count
        elif kind.phs in IGNORED_PHASES and not kind.tables:
            ignored[IGNORED_PHASES[kind.phs]] += count
    return ignored


def _table(parts: Sequence[_Part], schema: Columns, texts: Sequence[bytes]) -> pl.DataFrame:
    """Return a table with the columns of ``schema``.

    Args:
        parts: the parts. They are empty afterwards, so that memory holds a column twice, not a table.
        schema: name of each column -> its dtype.
        texts: the texts of all parts.
    """
    num_rows = sum(part.num_rows for part in parts)
    columns = []
    for name, dtype in schema.items():
        if not any(name in part.columns for part in parts):
            column = pl.repeat(None, num_rows, dtype=dtype, eager=True)
        elif name in _TEXTS:
            column = _text_column(name, dtype, parts, num_rows, texts)
        else:
            column = _number_column(name, dtype, parts, num_rows)
        columns.append(column.alias(name))
    return pl.DataFrame(columns)


def _pieces(
    name: str, parts: Sequence[_Part], column: Array
) -> Iterator[tuple[_Part, Array | None, Array]]:
    """Yield each part, its values of a column, or None, and the piece of ``column`` to fill."""
    first = 0
    for part in parts:
        end = first + part.num_rows
        yield part, part.columns.pop(name, None), column[first:end]
        first = end


def _number_column(
    name: str, dtype: pl.DataType, parts: Sequence[_Part], num_rows: int
) -> pl.Series:
    missing = np.nan if dtype.is_float() else MISSING
    column = np.empty(num_rows, np.float64 if dtype.is_float() else np.int64)
    is_whole = True
    for _, values, piece in _pieces(name, parts, column):
        piece[:] = missing if values is None else values
        # A column of int32 has a value in every row.
        is_whole &= values is not None and (values.dtype == np.int32 or missing not in values)
    if dtype.is_float():
        return pl.Series(column).fill_nan(None)
    numbers = pl.Series(column)
    if not is_whole:
        numbers = numbers.set(pl.Series(column == MISSING), None)
    converted: pl.Series = numbers.cast(dtype)
    return converted


def _text_column(
    name: str, dtype: pl.DataType, parts: Sequence[_Part], num_rows: int, texts: Sequence[bytes]
) -> pl.Series:
    """Return a column of texts; without escapes, unless it holds JSON. Each text is decoded once."""
    codes = np.zeros(num_rows, np.uint32)
    code, used = np.zeros(len(texts), np.uint32), np.empty(len(texts), np.int32)
    count = 0
    for part, values, piece in _pieces(name, parts, codes):
        if values is not None:
            done = core.call(
                "code_texts", values, part.num_rows, part.numbers, code, used, count, piece
            )
            assert done is not None
            count = done
    is_raw = _TEXTS[name] == "r"
    distinct = (
        text.decode("utf-8", "replace")
        if is_raw or b"\\" not in text
        else msgspec.json.decode(b'"%b"' % text, type=str)
        for text in map(texts.__getitem__, used[:count].tolist())
    )
    return pl.Series([None, *distinct], dtype=dtype).gather(pl.Series(codes))
