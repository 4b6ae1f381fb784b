from __future__ import annotations

import polars as pl
from hypothesis import example, given
from hypothesis import strategies as st

from ppprof.analysis.profile.grouping import ratio_of


@given(st.integers(0, 2**40), st.integers(1, 2**40))
@example(19_333_367, 21_333_371)
def test_a_ratio_is_the_nearest_float(part: int, whole: int) -> None:
    """Paddle divides in Python: one bit more or less changes a percentage that is a tie."""
    table = pl.DataFrame({"part": [part, None, part]}, {"part": pl.Int64})
    for rows in (table, table.head(1)):
        ratios = rows.select(ratio_of("part", whole)).to_series()
        assert ratios.drop_nulls().unique().to_list() == [part / whole]
        assert ratios.null_count() == rows["part"].null_count()


def test_a_ratio_to_nothing() -> None:
    table = pl.DataFrame({"part": [3, 4]})
    assert table.select(ratio_of("part", 0)).to_series().to_list() == [0.0]
    assert table.select(ratio_of("part", 0, None)).to_series().to_list() == [None]
