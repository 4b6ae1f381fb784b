"""Means over steps, their order, which threads leave as any, and their noise."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.analysis.diff.changes import changes, per_step, sure

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


def test_rows_of_one_key_in_a_step_vary_together() -> None:
    steps = {0: (3, 5), 1: (4, 9), 2: (1, 2)}
    rows = [("relu", step, time_ns) for step, times in steps.items() for time_ns in times]
    table = pl.DataFrame(rows, ["name", "step", "time_ns"], orient="row")
    row = per_step(table, ["name"], ["time_ns"], dict.fromkeys(steps, 1)).row(0, named=True)
    sums = [sum(times) for times in steps.values()]
    assert row["time_ns"] == pytest.approx(np.mean(sums))
    assert row["time_ns_var"] == pytest.approx(np.var(sums, ddof=1) / 3)


def table_of(steps: np.ndarray) -> pl.DataFrame:
    """Return the means of operators whose times are the rows of an array; a column is a step."""
    rows = [(f"{name:05}", step, time) for (name, step), time in np.ndenumerate(steps)]
    table = pl.DataFrame(rows, ["name", "step", "time_ns"], orient="row")
    return per_step(table, ["name"], ["time_ns"], dict.fromkeys(range(steps.shape[1]), 1))


@pytest.mark.parametrize("num_steps", [2, 3, 4, 5, 6, 20])
def test_of_a_thousand_equal_operators_one_changes_by_chance(num_steps: int) -> None:
    # 4 of 4,000 are expected; more than 12 in 3 of 10,000 samples.
    random = np.random.default_rng(num_steps)
    one, other = (random.normal(1000, 10, (4000, num_steps)) for _ in range(2))
    sure_from = sure(num_steps)
    table = changes(table_of(one), table_of(other), ["name"], ["time_ns"], "time_ns", sure_from)
    assert table["is_clear"].sum() <= 12
    slower = table_of(2 * other)
    table = changes(table_of(one), slower, ["name"], ["time_ns"], "time_ns", sure_from)
    assert table["is_clear"].mean() > 0.9
