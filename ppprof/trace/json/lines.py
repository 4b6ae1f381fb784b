"""Lines of JSON for trace events, built column by column, and the file for them.

Used by `ppprof.trace.paddle.json_writer`, `ppprof.trace.kineto.writer` and `ppprof.trace.merge`.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Union, cast

import polars as pl

from ppprof.paths import atomic_writer
from ppprof.trace.annotations import ANNOTATION_KEYS, has_annotations

LineParts = list[Union[pl.Expr, str]]
"""The parts of a line, which are joined in this order; a string is literal text."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]")


@contextmanager
def open_trace_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing; it appears under its name once it is complete (`atomic_writer`).

    The file is compressed with gzip if its name ends in ``.gz``.
    """
    with atomic_writer(path) as raw:
        if path.suffix != ".gz":
            yield raw
            return
        # mtime 0 and no name: the same trace gives the same bytes.
        with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=4, mtime=0) as file:
            yield cast("IO[bytes]", file)


def with_json_text(table: pl.DataFrame, column: str) -> pl.DataFrame:
    """Return the table with a column ``text``: the strings of ``column``, escaped by `escaped`.

    ``text`` is empty where ``column`` is null.
    """
    values = table[column].drop_nulls().unique()
    texts = pl.DataFrame({column: values, "text": [escaped(value) for value in values.to_list()]})
    joined = table.join(
        texts.cast({"text": pl.String}), on=column, how="left", maintain_order="left"
    )
    return joined.with_columns(pl.col("text").fill_null(""))


def escaped(name: str) -> str:
    r"""Return a name as the inside of a JSON string.

    Control characters become visible escapes: a line break becomes a backslash and an ``n``. An
    empty name becomes ``(no name)``.

    >>> escaped('a"b')
    'a\\"b'
    """
    visible = _CONTROL.sub(lambda control: repr(control[0])[1:-1], name) or "(no name)"
    return json.dumps(visible, ensure_ascii=False)[1:-1]


def json_lines(table: pl.DataFrame, *parts: pl.Expr | str) -> pl.Series:
    """Return one line of JSON per row, joined from ``parts``; a string is literal text.

    The line is null in a row where a part is null.
    """
    literal = [pl.lit(part) if isinstance(part, str) else part.cast(pl.String) for part in parts]
    return table.select(line=pl.concat_str(literal)).to_series()


def microseconds(column: str | pl.Expr) -> pl.Expr:
    """Return an expression of nanoseconds as exact text in microseconds, with three decimals.

    The text of 1250 is ``1.250``. ``column`` is a column's name or an expression.
    """
    ns = pl.col(column) if isinstance(column, str) else column
    # Take the digits of the magnitude: -1 ns is -0.001, not -1.999.
    sign = pl.when(ns < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    return pl.concat_str(
        sign,
        (ns.abs() // 1000).cast(pl.String),
        pl.lit("."),
        (ns.abs() % 1000).cast(pl.String).str.zfill(3),
    )


def optional_arg(key: str, value: pl.Expr) -> pl.Expr:
    """Return an expression of the text ``,"key":value``; empty where the value is null.

    ``value`` must give numbers or valid JSON text: it is not quoted or escaped.
    """
    return pl.concat_str(pl.lit(f',"{key}":'), value.cast(pl.String)).fill_null("")


def triple(name: str) -> pl.Expr:
    """Return an expression of the JSON list of three columns: ``grid_x``, ``grid_y``, ``grid_z``."""
    axes = [pl.col(f"{name}_{axis}").cast(pl.String) for axis in "xyz"]
    return pl.concat_str(pl.lit("["), pl.concat_str(axes, separator=","), pl.lit("]"))


def gigabytes_per_s(is_copy: pl.Expr) -> pl.Expr:
    """Return an expression of the bandwidth of copies in GB/s; null for other events."""
    return (
        pl.when(is_copy & (pl.col("dur_ns") > 0)).then(pl.col("bytes") / pl.col("dur_ns")).round(3)
    )


def with_annotation_args(events: pl.DataFrame) -> pl.DataFrame:
    """Return the events with a column ``annotations``: text to append to the ``args`` of an event.

    An example is ``,"axis":"dp","group":3``; null for an event without annotations. Reads
    ``event``, the row of each event, and the columns `ANNOTATION_KEYS` and device.
    """
    annotated = events.filter(has_annotations()).select("event", *ANNOTATION_KEYS)
    texts = [
        "".join(
            f',"{key}":{json.dumps(value, ensure_ascii=False)}'
            for key, value in zip(ANNOTATION_KEYS, row)
            if value is not None
        )
        for row in annotated.select(ANNOTATION_KEYS).iter_rows()
    ]
    args = annotated.select("event", annotations=pl.Series(texts, dtype=pl.String))
    return events.join(args, on="event", how="left", maintain_order="left")
