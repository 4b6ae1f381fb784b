"""Kineto's events from compiled readers, as the tables that `KinetoColumns` collects."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl

from ppprof.arrays import Array, Int32
from ppprof.trace.fastpath.fixed_layout import MISSING
from ppprof.trace.fastpath.native.event_reader import EventReader
from ppprof.trace.fastpath.string_table import StringTable
from ppprof.trace.json.trace_events import IGNORED_PHASES
from ppprof.trace.kineto.columns import dtypes_of
from ppprof.trace.kineto.fields import DETAILS, IGNORED_SPANS, SPANS, WAIT, WAIT_SPAN, Columns
from ppprof.trace.kineto.forms import CALLS, CLASSES, INPUTS, TEXTS
from ppprof.trace.kineto.inputs import converted_inputs
from ppprof.trace.labels import numbered


class _Part(NamedTuple):
    """The rows of a table that one reader has kept."""

    columns: dict[str, Array]
    """Column -> values, without columns that no event has; of texts, the numbers that the reader
    gave them, -1 for no text."""
    num_rows: int
    numbers: Int32
    """Number of each of the reader's texts in the texts of all readers."""


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
                *((name, {"index": "Int64", **own}) for name, (_, _, own) in DETAILS.items()),
                ("inputs", {"index": "Int64", **INPUTS}),
                ("calls of collectives", {"index": "Int64", **CALLS}),
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
    for kind, count in zip(CLASSES, counts):
        if kind.cat in IGNORED_SPANS and kind.tables in ((), ("frames",), ("overheads",)):
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
    for name, dtype in dtypes_of(schema).items():
        if not any(name in part.columns for part in parts):
            column = pl.repeat(None, num_rows, dtype=dtype, eager=True)
        elif name in TEXTS:
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
    numbers = np.full(num_rows, -1, np.int32)
    for part, values, piece in _pieces(name, parts, numbers):
        if values is not None:
            piece[:] = np.append(part.numbers, np.int32(-1))[values]
    ids, first = numbered(numbers.view(np.uint32), len(texts))
    is_raw = TEXTS[name] == "r"
    distinct = (
        text.decode("utf-8", "replace")
        if is_raw or b"\\" not in text
        else msgspec.json.decode(b'"%b"' % text, type=str)
        for text in map(texts.__getitem__, numbers[first].tolist())
    )
    ids += 1  # 0: no text
    return pl.Series([None, *distinct], dtype=dtype).gather(pl.Series(ids.view(np.uint32)))
