"""Means over steps, and their order: threads leave the rows of a table in any."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from ppprof.analysis.diff.changes import per_step

ROWS = [
    ("relu", step, time_ns)
    for step in range(7)
    for time_ns in (10**9 // 3 + step, 7 + 11**step, 3 * 10**12 + step)
]


@given(st.permutations(ROWS))
def test_means_do_not_depend_on_the_order_of_rows(rows: list[tuple[str, int, int]]) -> None:
    ranks = dict.fromkeys(range(7), 3)

    def means(some: list[tuple[str, int, int]]) -> list[dict[str, object]]:
        table = pl.DataFrame(some, ["name", "step", "time_ns"], orient="row")
        return per_step(table, ["name"], ["time_ns"], ranks).to_dicts()

    assert means(rows) == means(ROWS)
