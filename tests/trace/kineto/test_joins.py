"""Joins on integers that are almost sorted."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import example, given
from hypothesis import strategies as st

from ppprof.trace.kineto.joins import first_rows, looked_up, mapped, per_text, sorted_by

values = st.lists(st.one_of(st.none(), st.integers(-3, 12)), max_size=20)


@given(values, values)
@example([0], [None, 0])
def test_the_first_row_with_each_value(keys, wanted):
    rows = first_rows(pl.Series(keys, dtype=pl.Int64), pl.Series(wanted, dtype=pl.Int64))
    assert rows.tolist() == [
        keys.index(value) if value is not None and value in keys else -1 for value in wanted
    ]


def test_rows_with_nulls_for_those_that_are_missing():
    table = pl.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    chosen = looked_up(table, np.array([1, -1, 0, 1]))
    assert chosen.rows() == [(2, "y"), (None, None), (1, "x"), (2, "y")]
    assert looked_up(table, np.array([-1, -1])).width == 0
    assert looked_up(table.clear(), np.array([], np.int64)).width == 0


@given(st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=20))
def test_texts_are_replaced(texts):
    names = {"a": "A", "b": "c"}
    column = mapped(pl.Series(texts, dtype=pl.Categorical()), names)
    assert column.dtype == pl.Categorical
    assert column.cast(pl.String).to_list() == [names.get(text, text) for text in texts]


@given(st.lists(st.sampled_from(["a", "b", None, ""]), max_size=20))
def test_an_expression_of_each_text(texts):
    table = per_text(
        pl.Series(texts, dtype=pl.Categorical()), twice=pl.col("text") + pl.col("text")
    )
    assert table["twice"].to_list() == [None if text is None else text * 2 for text in texts]


@given(st.lists(st.integers(0, 5), max_size=20))
def test_rows_with_equal_values_keep_their_order(numbers):
    table = pl.DataFrame({"row": range(len(numbers))}, schema={"row": pl.Int64})
    rows = sorted_by(table, np.array(numbers, np.int64))["row"].to_list()
    assert rows == sorted(range(len(numbers)), key=lambda row: numbers[row])
