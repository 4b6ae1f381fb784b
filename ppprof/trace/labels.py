"""A column of texts as numbers: a rule for texts is applied once to each distinct text.

A trace has thousands of events and some hundred names::

    column   relu  gemm  relu  null        number   0  1  0  -1
                                           texts    relu, gemm
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from ppprof.arrays import Array, Bool, Int32, Int64

_CHUNK = 1 << 14  # rows at a time: a tenth of a command's memory would be temporaries of all
_NO_CODE = 2**32 - 1
"""For a null. A column has fewer texts."""


class Labels(NamedTuple):
    """N texts, of which many are equal."""

    number: Array
    """Position in ``texts`` of each row's text, int32 or int64, shape (N,); -1 for null."""
    texts: tuple[str, ...]
    """The texts; some of them may be of no row."""

    @classmethod
    def of(cls, column: pl.Series) -> Labels:
        """Return a categorical column as labels, in the order of the texts' first rows."""
        code = column.to_physical()
        if code.null_count() == len(code):
            return cls(np.full(len(code), -1, np.int32), ())
        codes = (code.fill_null(_NO_CODE) if code.null_count() else code).to_numpy()
        number, first = numbered(codes, int(code.max()) + 1)  # type: ignore[arg-type]
        return cls(number, tuple(column.gather(first).to_list()))

    def where(self, rule: Callable[[str], bool]) -> Bool:
        """Return whether the text of each row follows a rule, shape (N,); False for null.

        Args:
            rule: whether a text does.
        """
        answers = np.zeros(len(self.texts) + 1, bool)  # the last one: for null
        for number in self._used_numbers():
            answers[number] = rule(self.texts[number])
        chosen: Bool = answers[self.number]
        return chosen

    def is_one_of(self, *texts: str) -> Bool:
        """Return whether the text of each row is one of ``texts``, shape (N,); False for null."""
        answers = np.zeros(len(self.texts) + 1, bool)  # the last one: for null
        answers[[number for number, text in enumerate(self.texts) if text in texts]] = True
        chosen: Bool = answers[self.number]
        return chosen

    def used(self) -> list[str]:
        """Return the texts of which there is a row."""
        return [self.texts[number] for number in self._used_numbers()]

    def _used_numbers(self) -> list[int]:
        is_used = np.zeros(len(self.texts) + 1, bool)
        is_used[self.number] = True
        numbers: list[int] = np.flatnonzero(is_used[:-1]).tolist()
        return numbers

    def take(self, rows: Array | slice) -> Labels:
        """Return the labels of some rows: a slice, a mask or row numbers."""
        return Labels(self.number[rows], self.texts)

    def with_text(self, text: str, chosen: Bool) -> Labels:
        """Return the labels with another text in the chosen rows."""
        texts = self.texts if text in self.texts else (*self.texts, text)
        return Labels(np.where(chosen, texts.index(text), self.number), texts)

    def column(self) -> pl.Series:
        """Return the texts as a column of strings."""
        texts = pl.Series([*self.texts, None], dtype=pl.String)
        return texts.gather(np.where(self.number < 0, len(self.texts), self.number))


def map_texts(
    column: pl.Series, function: Callable[[str], Any], dtype: type[pl.DataType] = pl.String
) -> pl.Series:
    """Return the result of a function for each text, null for null; it is called once for each distinct text.

    Args:
        column: strings, or a categorical column.
        function: what to return for a text.
        dtype: of the results.
    """
    results = {text: function(text) for text in column.unique().drop_nulls().cast(pl.String)}
    texts: pl.Series = column.cast(pl.String)
    series: pl.Series = texts.replace_strict(results, default=None, return_dtype=dtype)
    return series


def numbered(codes: Array, num_codes: int) -> tuple[Int32, Int64]:
    """Return the number of each code, and the first row of each number.

    Codes are numbered from 0 in the order of their first rows.

    Args:
        codes: integers of 32 bits, not negative, shape (N,).
        num_codes: codes from here on have the number -1.
    """
    number: Int32 = np.empty(len(codes), np.int32)
    of_code = np.full(num_codes + 1, -1, np.int32)  # the last one: for codes without a number
    first = np.empty(0, np.int64)
    for begin in range(0, len(codes), _CHUNK):
        indexes = np.minimum(codes[begin : begin + _CHUNK], num_codes).astype(np.int64)
        rows = np.flatnonzero((of_code[indexes] < 0) & (indexes < num_codes))
        if len(rows):
            new = rows[np.sort(np.unique(indexes[rows], return_index=True)[1])]
            of_code[indexes[new]] = np.arange(len(first), len(first) + len(new))
            first = np.append(first, begin + new)
        number[begin : begin + _CHUNK] = of_code[indexes]
    return number, first


def renumbered(values: Int32, number: Int32) -> Int32:
    """Return ``number[value]`` of each value, and -1 for -1; ``values`` itself if no number changes.

    Args:
        values: indices into ``number``, or -1, shape (N,).
        number: new number of each index.
    """
    if np.array_equal(number, np.arange(len(number))):
        return values
    new: Int32 = np.append(number, np.int32(-1))[values]
    return new


def rows_by_number(number: Int32) -> Int32:
    """Return the rows whose number is at least 0, sorted by it; rows of one number in their order.

    Args:
        number: shape (N,).
    """
    rows = np.flatnonzero(number >= 0).astype(np.int32)
    return rows[np.argsort(number[rows], kind="stable")]
