"""Tables as bytes, in a form whose size in memory is known before anything is allocated.

A column becomes one number per row::

    null in every row         no bytes
    integers                  value - base, or 0 for null, in 1, 2 or 4 bytes if all values fit
    other integers            value, or the least int64 for null, in 8 bytes
    real numbers              value, or NaN for null, in 8 bytes
    categories and strings    row in the list of the column's distinct texts, as an integer

So a table needs at most its rows times the bytes per row of its schema, apart from its texts,
whatever the bytes are. Arrow's formats give no such bound: their buffers can be compressed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
import numpy as np
import polars as pl

from ppprof.arrays import Array, Int64

Schema = Mapping[str, tuple[pl.DataType, str]]
"""Column -> dtype and meaning, as in `ppprof.trace.schema`."""

Count = Annotated[int, msgspec.Meta(ge=0)]

_NARROW = (1, 2, 4)
_MISSING = int(np.iinfo(np.int64).min)


class PackedColumn(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """How the bytes of a column are read."""

    width: Count
    """Bytes per row: 0 (null in every row), 1, 2, 4 or 8."""
    base: int
    """Added to each number of 1, 2 or 4 bytes; else 0."""
    has_nulls: bool
    """Whether 0 (in 8 bytes: the least int64, or NaN) stands for null."""
    num_text_bytes: Count
    """Length of the JSON list of the distinct texts, which follows the numbers; else 0."""


class PackedTable(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """How the bytes of a table are read."""

    num_rows: Count
    columns: list[PackedColumn]
    """In the order of the schema."""

    def num_bytes(self) -> int:
        """Return the number of bytes of all columns together."""
        return sum(self.num_rows * column.width + column.num_text_bytes for column in self.columns)


def pack(table: pl.DataFrame, most_text_bytes: int) -> tuple[PackedTable, list[bytes]]:
    """Return how a table's bytes are read, and the bytes, in parts.

    Args:
        table: columns of integers, real numbers, categories and strings.
        most_text_bytes: as in `unpack`.

    Raises:
        ValueError: a column holds the least int64, which stands for null, or it exceeds
            ``most_text_bytes``.
    """
    columns = []
    parts = []
    for series in table.get_columns():
        column, numbers, texts = _packed(series, most_text_bytes)
        columns.append(column)
        parts += [numbers.tobytes(), texts]
    return PackedTable(table.height, columns), parts


def unpack(
    packed: PackedTable, schema: Schema, content: memoryview, most_text_bytes: int
) -> pl.DataFrame:
    """Return the table in ``content``.

    Neither ``packed`` nor ``content`` need come from `pack`: anything else is rejected.

    Args:
        packed: how the bytes are read.
        schema: the columns of the table.
        content: ``packed.num_bytes()`` bytes.
        most_text_bytes: limit of the length of a column's texts together, each counted in every
            row that holds it.

    Raises:
        ValueError: `pack` writes no such table, or a column exceeds ``most_text_bytes``.
        msgspec.MsgspecError: a list of texts is no JSON list of strings.
    """
    if len(packed.columns) != len(schema):
        raise ValueError(f"{len(packed.columns)} columns, expected {len(schema)}")
    columns = []
    position = 0
    for (name, (dtype, _)), column in zip(schema.items(), packed.columns):
        _check(column, dtype)
        text_start = position + packed.num_rows * column.width
        end = text_start + column.num_text_bytes
        if not column.width:
            values = pl.repeat(None, packed.num_rows, dtype=dtype, eager=True)
        elif _is_text(dtype):
            rows = _integers(content[position:text_start], column)
            texts = _distinct_texts(content[text_start:end], rows, most_text_bytes)
            values = texts.cast(dtype).gather(rows)
        elif dtype == pl.Float64:
            values = pl.Series(np.frombuffer(content[position:text_start], "<f8"))
            values = values.fill_nan(None) if column.has_nulls else values
        else:
            values = _integers(content[position:text_start], column)
            values = values.reinterpret(signed=False) if dtype == pl.UInt64 else values.cast(dtype)
        columns.append(values.alias(name))
        position = end
    return pl.DataFrame(columns)


def _is_text(dtype: pl.DataType) -> bool:
    return dtype in (pl.Categorical, pl.String)


def _packed(series: pl.Series, most_text_bytes: int) -> tuple[PackedColumn, Array, bytes]:
    """Return how a column is read, its numbers, and its distinct texts as JSON.

    Raises:
        ValueError: as in `pack`.
    """
    has_nulls = series.null_count() > 0
    if series.null_count() == len(series):
        return PackedColumn(0, 0, False, 0), np.zeros(0, np.uint8), b""
    if series.dtype == pl.Float64:
        return PackedColumn(8, 0, has_nulls, 0), series.fill_null(np.nan).to_numpy(), b""
    texts = b""
    if _is_text(series.dtype):
        series = series.cast(pl.Categorical)
        distinct = series.drop_nulls().unique()
        strings = distinct.cast(pl.String)
        texts = msgspec.json.encode(strings.to_list())
        physical = distinct.to_physical().to_numpy()
        row = np.zeros(int(physical.max()) + 1, np.int64)
        row[physical] = np.arange(len(physical))
        series = pl.Series(series.name, row).gather(series.to_physical())
        _check_lengths(strings, series, most_text_bytes)
    elif series.dtype == pl.UInt64:
        series = series.reinterpret(signed=True)
    least, most = int(series.min()), int(series.max())  # type: ignore[arg-type]
    if least == _MISSING:
        raise ValueError(f"{series.name}: holds {least}, which stands for null")
    values: Int64 = series.cast(pl.Int64).fill_null(_MISSING).to_numpy()
    base = least - has_nulls
    for width in _NARROW:
        if most - base < 256**width:
            numbers = np.where(values == _MISSING, 0, values - base).astype(f"<u{width}")
            return PackedColumn(width, base, has_nulls, len(texts)), numbers, texts
    return PackedColumn(8, 0, has_nulls, len(texts)), values, texts


def _check(column: PackedColumn, dtype: pl.DataType) -> None:
    """Reject a column that `pack` does not write.

    Raises:
        ValueError: the column is not one of those in the picture above.
    """
    has_base = column.width in _NARROW
    if not (
        column.width in ((0, 8) if dtype == pl.Float64 else (0, *_NARROW, 8))
        and (_MISSING <= column.base <= -(_MISSING + 1) if has_base else column.base == 0)
        and (column.num_text_bytes > 0) == (_is_text(dtype) and column.width > 0)
    ):
        raise ValueError(f"not a packed column of {dtype}: {column}")


def _integers(content: memoryview, column: PackedColumn) -> pl.Series:
    """Return a column as int64."""
    if column.width == 8:
        values = numbers = pl.Series(np.frombuffer(content, "<i8"))
    else:
        numbers = pl.Series(np.frombuffer(content, f"<u{column.width}"))
        values = numbers.cast(pl.Int64) + column.base
    null = _MISSING if column.width == 8 else 0
    return values.set(numbers == null, None) if column.has_nulls else values


def _distinct_texts(content: memoryview, rows: pl.Series, most_bytes: int) -> pl.Series:
    """Return the distinct texts of a column.

    Args:
        content: the texts as JSON.
        rows: the row of each value's text; null for null.
        most_bytes: limit of the length of all values together.

    Raises:
        ValueError: a row does not exist, or the values exceed the limit.
    """
    texts = pl.Series(msgspec.json.decode(content, type=list[str]), dtype=pl.String)
    least, most = rows.min(), rows.max()
    if not (isinstance(least, int) and isinstance(most, int) and 0 <= least <= most < len(texts)):
        raise ValueError(f"texts {least!r} to {most!r} of {len(texts)}")
    _check_lengths(texts, rows, most_bytes)
    return texts


def _check_lengths(texts: pl.Series, rows: pl.Series, most_bytes: int) -> None:
    """Reject a column whose texts, each counted in every row that holds it, exceed a limit.

    Raises:
        ValueError: they exceed ``most_bytes``.
    """
    lengths = texts.str.len_bytes()
    longest = int(lengths.max())  # type: ignore[arg-type]
    if longest * len(rows) > most_bytes and lengths.gather(rows).sum() > most_bytes:
        raise ValueError(f"texts of more than {most_bytes} bytes")
