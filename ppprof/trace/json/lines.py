"""Trace events as lines of JSON, put together by columns; the files they are written to.

What `ppprof.trace.paddle.json_writer` and `ppprof.trace.merge` have in common.
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
from ppprof.trace.annotations import FACTS, has_facts

Parts = list[Union[pl.Expr, str]]
"""What a line is put together from; a string is literal text."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]")


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears when it is complete (`atomic_writer`); gzip where its name ends in ``.gz``."""
    with atomic_writer(path) as raw:
        if path.suffix != ".gz":
            yield raw
            return
        # mtime 0 and no name: the same trace gives the same bytes.
        with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=4, mtime=0) as file:
            yield cast("IO[bytes]", file)


def with_text(table: pl.DataFrame, column: str) -> pl.DataFrame:
    """The table and a column ``text``: a string column as the inside of a JSON string.

    Empty where the column is null.
    """
    values = table[column].drop_nulls().unique()
    texts = pl.DataFrame({column: values, "text": [escaped(value) for value in values.to_list()]})
    joined = table.join(
        texts.cast({"text": pl.String}), on=column, how="left", maintain_order="left"
    )
    return joined.with_columns(pl.col("text").fill_null(""))


def escaped(name: str) -> str:
    r"""A name as the inside of a JSON string; control characters as visible escapes.

    >>> escaped('a"b')
    'a\\"b'
    """
    visible = _CONTROL.sub(lambda control: repr(control[0])[1:-1], name) or "(no name)"
    return json.dumps(visible, ensure_ascii=False)[1:-1]


def lines_of(table: pl.DataFrame, *parts: pl.Expr | str) -> pl.Series:
    """One JSON object a row: the parts joined; a string is literal text."""
    literal = [pl.lit(part) if isinstance(part, str) else part.cast(pl.String) for part in parts]
    return table.select(line=pl.concat_str(literal)).to_series()


def us(column: str | pl.Expr) -> pl.Expr:
    """Nanoseconds as microseconds with three decimals, exactly."""
    ns = pl.col(column) if isinstance(column, str) else column
    # Below zero the digits are those of the magnitude: -1 ns is -0.001, not -1.999.
    sign = pl.when(ns < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    return pl.concat_str(
        sign,
        (ns.abs() // 1000).cast(pl.String),
        pl.lit("."),
        (ns.abs() % 1000).cast(pl.String).str.zfill(3),
    )


def maybe(key: str, value: pl.Expr) -> pl.Expr:
    """A key of ``args`` that is left out where its value is null."""
    return pl.concat_str(pl.lit(f',"{key}":'), value.cast(pl.String)).fill_null("")


def with_facts(events: pl.DataFrame) -> pl.DataFrame:
    """The events and a column ``facts``: keys of ``args``, null where there are none."""
    told = events.filter(has_facts()).select("event", *FACTS)
    facts = [
        "".join(
            f',"{key}":{json.dumps(value, ensure_ascii=False)}'
            for key, value in zip(FACTS, row)
            if value is not None
        )
        for row in told.select(FACTS).iter_rows()
    ]
    told = told.select("event", facts=pl.Series(facts, dtype=pl.String))
    return events.join(told, on="event", how="left", maintain_order="left")
