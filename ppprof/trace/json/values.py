"""Columns of values from loosely decoded JSON. Unusable values become null."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import polars as pl


def attribute_columns(objects: Iterable[Any], dtypes: Mapping[str, Any]) -> Iterator[pl.Series]:
    """Yield a column for each name in ``dtypes``, with the attribute of this name of each object.

    A value that does not fit the column's dtype becomes null. `msgspec.Raw` values become their
    JSON text.
    """
    objects = list(objects)
    for name, dtype in dtypes.items():
        values = list(map(attrgetter(name), objects))
        if values and isinstance(values[0], msgspec.Raw):
            values = texts(values)
        yield pl.Series(name, values, dtype, strict=False)


def texts(values: Iterable[msgspec.Raw]) -> list[str]:
    """Return the JSON text of each value."""
    values = list(values)
    lines = str(b"\n".join(values), "utf-8", "replace").split("\n")  # much faster than one by one
    if len(lines) == len(values):
        return lines
    return [str(value, "utf-8", "replace") for value in values]


def drop_nonportable_numbers(values: Mapping[str, object]) -> dict[str, object]:
    """Return the values without the numbers that other formats cannot hold.

    These are infinities, NaN, and numbers outside the range of an int64. Lists and objects, which may
    hold such numbers, are left out too.

    >>> drop_nonportable_numbers({"name": "GPU", "a": float("inf"), "b": 2**64, "c": 1.5, "d": []})
    {'name': 'GPU', 'c': 1.5}
    """
    return {
        key: value
        for key, value in values.items()
        if isinstance(value, (str, type(None)))
        or (isinstance(value, (int, float)) and -(2.0**63) <= value < 2.0**63)
    }


def nanoseconds(name: str, microseconds: Sequence[str] | pl.Series) -> pl.Series:
    """Return decimal texts of microseconds as a column ``name`` of int64 nanoseconds.

    The text ``1.25``, in quotes or not, becomes 1250; null, or a text that is not a number, becomes
    null.
    """
    text = pl.Series(name, microseconds, pl.String)
    exact = _exact_nanoseconds(text)
    if exact.null_count():  # writers that quote numbers quote all of them
        text = text.str.strip_chars('"')
        exact = _exact_nanoseconds(text)
    if exact.null_count():  # not a number, or an exponent, which older polars rejects in a decimal
        rounded = (text.cast(pl.Float64, strict=False) * 1000).round()
        return exact.fill_null(rounded.cast(pl.Int64, strict=False))
    return exact


def _exact_nanoseconds(microseconds: pl.Series) -> pl.Series:
    # The physical value of a decimal(38, 3) is its number of thousandths.
    thousandths: pl.Series = microseconds.cast(pl.Decimal(38, 3), strict=False).to_physical()
    exact: pl.Series = thousandths.cast(pl.Int64, strict=False)
    return exact
