"""A column of texts as numbers: a rule for texts is applied once to each distinct text.

A trace has thousands of events and some hundred names::

    column   relu  gemm  relu  null        number   0  1  0  -1
                                           texts    relu, gemm
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.arrays import Array, Bool, Int64


class Labels(NamedTuple):
    """N texts, of which many are equal."""

    number: Int64
    """Position in ``texts`` of each row's text, shape (N,); -1 for null."""
    texts: tuple[str, ...]
    """The texts; some of them may be of no row."""

    @classmethod
    def of(cls, column: pl.Series) -> Labels:
        """Return a categorical column as labels, in the order of the texts' first rows."""
        code = column.to_physical()
        num_null = code.null_count()
        if num_null == len(code):
            return cls(np.full(len(code), -1), ())
        codes = (code if not num_null else code.cast(pl.Int64).fill_null(-1)).to_numpy()
        first = _first_rows(codes)
        texts = column.gather(first).cast(pl.String).to_list()
        numbers = np.full(int(codes.max()) + 2, -1)  # the last one is for null, whose code is -1
        numbers[codes[first]] = np.arange(len(first))
        return cls(numbers[codes], tuple(texts))

    def where(self, rule: Callable[[str], bool]) -> Bool:
        """Return whether the text of each row follows a rule, shape (N,); False for null.

        Args:
            rule: whether a text does.
        """
        answers = np.array([*map(rule, self.texts), False], bool)
        chosen: Bool = answers[self.number]
        return chosen

    def used(self) -> list[str]:
        """Return the texts of which there is a row."""
        return [self.texts[number] for number in np.unique(self.number).tolist() if number >= 0]

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


def _first_rows(codes: Array) -> Int64:
    """Return the first row of each distinct code that is at least 0, ascending.

    Args:
        codes: integers of at least -1, shape (N,), N > 0.
    """
    row = np.full(int(codes.max()) + 2, -1)
    row[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    rows = row[:-1]
    return np.sort(rows[rows >= 0])
