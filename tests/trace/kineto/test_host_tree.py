"""The host event that encloses a launch."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from ppprof.trace.kineto.host_tree import nested, with_parent

TICKS = st.integers(0, 12)


def hosts_of(spans: list[tuple[int, int, int]]) -> pl.DataFrame:
    """Events from thread, start and length."""
    thread, start, dur = zip(*spans) if spans else ((), (), ())
    table = pl.DataFrame(
        {"key": thread, "start_ns": start, "dur_ns": dur},
        dict.fromkeys(("key", "start_ns", "dur_ns"), pl.Int64),
    )
    names = pl.Series([f"op{row}" for row in range(len(spans))], dtype=pl.Categorical())
    return table.with_columns(
        end_ns=pl.col("start_ns") + pl.col("dur_ns"),
        index=pl.int_range(pl.len()),
        name=names,
        category=names,
        node=pl.lit(None, pl.Categorical()),
    )


@given(
    spans=st.lists(st.tuples(st.integers(0, 1), TICKS, TICKS), max_size=12),
    launches=st.lists(st.tuples(st.integers(0, 2), TICKS), max_size=6),
)
def test_the_parent_is_the_last_event_that_began_before_and_ends_after(spans, launches):
    hosts = nested(hosts_of(spans), 0)
    table = pl.DataFrame(launches, {"key": pl.Int64, "start_ns": pl.Int64}, orient="row")
    found = with_parent(hosts, table)["parent"].to_list()
    expected = []
    for key, time in launches:
        enclosing = [
            row
            for row, host in enumerate(hosts.iter_rows(named=True))
            if host["key"] == key and host["start_ns"] <= time < host["end_ns"]
        ]
        expected.append(max(enclosing, default=None))
    assert found == expected
