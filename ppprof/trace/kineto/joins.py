"""Rows of one table for the values of another: joins on integers that are almost sorted."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from ppprof.arrays import Int64
from ppprof.trace.labels import Labels
from ppprof.trace.schema import nullable


def first_rows(keys: pl.Series, wanted: pl.Series) -> Int64:
    """Return the first row of ``keys`` with each value of ``wanted``; -1 for none and for null.

    Args:
        keys: int64, shape (K,), may be null.
        wanted: int64, shape (N,), may be null.

    Returns:
        Shape (N,).
    """
    values = keys.drop_nulls().to_numpy()
    if not len(values):
        return np.full(len(wanted), -1, np.int64)
    rows = np.flatnonzero(keys.is_not_null()) if keys.null_count() else np.arange(len(values))
    if (values[1:] < values[:-1]).any():
        order = np.argsort(values, kind="stable")
        rows, values = rows[order], values[order]
    targets = wanted.fill_null(0).to_numpy()
    place = np.minimum(np.searchsorted(values, targets), len(values) - 1)
    hit = values[place] == targets
    if wanted.null_count():
        hit &= wanted.is_not_null().to_numpy()
    return np.where(hit, rows[place], -1)


def looked_up(table: pl.DataFrame, rows: Int64) -> pl.DataFrame:
    """Return the rows of a table, shape (N,), with nulls for a row of -1.

    Without any row but -1, the result has no columns: `conform` adds them.
    """
    if not (rows >= 0).any():
        return pl.DataFrame()
    return table.select(pl.all().gather(nullable(rows)))


def per_text(texts: pl.Series, **columns: pl.Expr) -> pl.DataFrame:
    """Return expressions of the column ``text`` for each text; each distinct one is evaluated once."""
    labels = Labels.of(texts.cast(pl.Categorical()))
    distinct = pl.DataFrame({"text": [*labels.texts, None]}, {"text": pl.String()})
    rows = np.where(labels.number < 0, len(labels.texts), labels.number)
    return distinct.select(**columns)[rows]


def mapped(texts: pl.Series, names: Mapping[str, str]) -> pl.Series:
    """Return a categorical column in which the keys of ``names`` are replaced by their values."""
    replaced = pl.col("text").replace(names).cast(pl.Categorical())
    return per_text(texts, replaced=replaced)["replaced"]


def sorted_by(table: pl.DataFrame, values: Int64) -> pl.DataFrame:
    """Return a table sorted by ``values``, shape (N,); rows with equal values keep their order."""
    if (values[1:] >= values[:-1]).all():
        return table
    return table[np.argsort(values, kind="stable")]
