"""A column of texts as numbers."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from ppprof.trace.labels import Labels, renumbered, rows_by_number

texts = st.lists(st.sampled_from(["relu", "gemm", "", "a b", None]), max_size=12)


def labels_of(values: list[str | None]) -> Labels:
    return Labels.of(pl.Series(values, dtype=pl.Categorical))


@given(texts)
def test_labels_hold_the_texts_each_once(values: list[str | None]) -> None:
    labels = labels_of(values)
    assert labels.column().to_list() == values
    assert list(labels.texts) == list(dict.fromkeys(text for text in values if text is not None))
    assert sorted(labels.used()) == sorted(labels.texts)


@given(texts)
def test_a_rule_counts_in_every_row_of_a_text_and_never_for_null(values: list[str | None]) -> None:
    chosen = labels_of(values).where(lambda text: "e" in text)
    assert chosen.tolist() == [text is not None and "e" in text for text in values]


@given(texts, st.data())
def test_some_rows_and_another_text_in_some_rows(
    values: list[str | None], data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.integers(-1, len(values) - 1), max_size=5))
    labels = labels_of([*values, None])
    taken = labels.take(np.array(rows, np.int64))  # -1 is the last row, which is null
    wanted = [None if row < 0 else values[row] for row in rows]
    assert taken.column().to_list() == wanted
    is_first = np.arange(len(rows)) == 0
    assert (
        taken.with_text("gemm", is_first).column().to_list() == ["gemm", *wanted[1:]][: len(rows)]
    )


@given(
    rows=st.lists(st.integers(-1, 5), max_size=20),
    number=st.lists(st.integers(0, 99), min_size=6, max_size=6),
    is_same=st.booleans(),
)
def test_new_numbers(rows, number, is_same):
    number = list(range(6)) if is_same else number
    new = renumbered(np.array(rows, np.int32), np.array(number, np.int32))
    assert new.tolist() == [number[row] if row >= 0 else -1 for row in rows]
    assert new.dtype == np.int32


@given(st.lists(st.integers(-1, 5), max_size=20))
def test_rows_by_number(numbers):
    rows = rows_by_number(np.array(numbers, np.int32))
    chosen = [row for row, number in enumerate(numbers) if number >= 0]
    assert rows.tolist() == sorted(chosen, key=lambda row: numbers[row])
