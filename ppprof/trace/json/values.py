"""Values of JSON that were decoded loosely, as columns; what is unusable becomes null."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Union

import msgspec
import polars as pl

Scalar = Union[int, float, str, bool, None]
"""As loose as real files: ROCm writes numbers as text, and some ids are names."""

NO_TEXT = msgspec.Raw()


def attributes(things: Iterable[Any], dtypes: Mapping[str, Any]) -> Iterator[pl.Series]:
    """A column an attribute; `msgspec.Raw` values as their text."""
    things = list(things)
    for name, dtype in dtypes.items():
        values = list(map(attrgetter(name), things))
        if values and isinstance(values[0], msgspec.Raw):
            values = texts(values)
        yield pl.Series(name, values, dtype, strict=False)


def texts(values: Iterable[msgspec.Raw]) -> list[str]:
    """The JSON text of each."""
    return [str(value, "utf-8", "replace") for value in values]


def without_odd_numbers(values: Mapping[str, object]) -> dict[str, object]:
    """What other formats can hold: no infinite numbers, and none beyond 64 bits.

    >>> without_odd_numbers({"name": "GPU", "a": float("inf"), "b": 2**64, "c": 1.5})
    {'name': 'GPU', 'c': 1.5}
    """
    return {
        key: value
        for key, value in values.items()
        if not isinstance(value, (int, float)) or -(2.0**63) <= value < 2.0**63
    }


def nanoseconds(name: str, microseconds: Iterable[str]) -> pl.Series:
    """Decimal text, three places behind the point, to int64; null where it is no number."""
    text = pl.Series(name, microseconds, pl.String)
    # A decimal's physical value is its number of thousandths.
    thousandths: pl.Series = text.cast(pl.Decimal(38, 3), strict=False).to_physical()
    exact: pl.Series = thousandths.cast(pl.Int64, strict=False)
    if exact.null_count():  # an exponent, which older polars takes for no decimal, or no number
        rounded = (text.cast(pl.Float64, strict=False) * 1000).round()
        return exact.fill_null(rounded.cast(pl.Int64, strict=False))
    return exact
