from __future__ import annotations

import polars as pl
from hypothesis import example, given
from hypothesis import strategies as st

from ppprof.analysis.profile.grouping import grouped, ratio_of

names = st.sampled_from(["relu", "gemm", "add", "kernel of a long name"])
times = st.integers(0, 2**40)


@given(
    rows=st.lists(st.tuples(names, names, st.integers(1, 2), times, times), max_size=30),
    keys=st.sampled_from([["a"], ["a", "b"], ["none", "a", "b"], ["none"], ["thread", "b"]]),
)
def test_statistics_of_groups_in_the_order_of_their_first_events(rows, keys):
    columns = {"a": pl.Categorical, "b": pl.Categorical, "thread": pl.Int64}
    columns.update(cpu_ns=pl.Int64, device_ns=pl.Int64)
    events = pl.DataFrame(rows, columns, orient="row").with_columns(none=pl.lit(None, pl.Int64))
    expected: dict[tuple[object, ...], list[list[int]]] = {}
    for a, b, thread, cpu, gpu in rows:
        values = {"a": a, "b": b, "thread": thread, "none": None}
        expected.setdefault(tuple(values[key] for key in keys), []).append([cpu, gpu])
    table = grouped(events, keys, gpu="device_ns")
    assert table.rows() == [
        (
            *group,
            len(times),
            *(
                stat(side)
                for side in zip(*times)
                for stat in (sum, lambda side: sum(side) / len(side), max, min)
            ),
        )
        for group, times in expected.items()
    ]
    assert table.columns == [
        *keys,
        "calls",
        *(
            f"{clock}_{stat}_ns"
            for clock in ("cpu", "gpu")
            for stat in ("total", "avg", "max", "min")
        ),
    ]
    assert table.dtypes[len(keys) :] == [pl.Int64, *[pl.Int64, pl.Float64, pl.Int64, pl.Int64] * 2]


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
