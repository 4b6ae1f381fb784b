"""Rows by name: how the summaries add events up, sort them and relate them to a whole."""

from __future__ import annotations

import polars as pl

from ppprof.analysis.profile.intervals import Intervals

STATS: dict[str, pl.DataType] = {
    "name": pl.String(),
    "calls": pl.Int64(),
    **{
        f"{clock}_{stat}_ns": pl.Float64() if stat == "avg" else pl.Int64()
        for clock in ("cpu", "gpu")
        for stat in ("total", "avg", "max", "min")
    },
}
"""Columns of a table of calls and times by name."""


def grouped(
    events: pl.DataFrame,
    keys: list[str],
    clocks: tuple[str, ...] = ("cpu", "gpu"),
    gpu: str = "gpu_ns",
) -> pl.DataFrame:
    """Calls, total, average, maximum and minimum by ``keys``, groups in the order of the rows."""
    columns = {"cpu": "cpu_ns", "gpu": gpu}
    stats = []
    for clock in clocks:
        time = pl.col(columns[clock])
        stats += [
            time.sum().alias(f"{clock}_total_ns"),
            (time.sum() / pl.len()).alias(f"{clock}_avg_ns"),
            time.max().alias(f"{clock}_max_ns"),
            time.min().alias(f"{clock}_min_ns"),
        ]
    return events.group_by(keys, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("calls"), *stats
    )


def sort_by(table: pl.DataFrame, key: str, within: list[str] | None = None) -> pl.DataFrame:
    """By ``key``, ties as they were; blocks of ``within`` in the order of their first row."""
    if not within:
        return table.sort(f"{key}_ns", descending=not key.endswith("_min"), maintain_order=True)
    blocks = [sort_by(block, key) for _, block in table.group_by(within, maintain_order=True)]
    return pl.concat(blocks) if blocks else table


def ratio_of(column: str, whole: float, if_none: float | None = 0.0) -> pl.Expr:
    """``column`` over ``whole``; ``if_none`` where there is no whole (Paddle prints 0)."""
    return pl.col(column) / whole if whole else pl.lit(if_none, pl.Float64)


def ratio(part: int, whole: int) -> float | None:
    """``part`` over ``whole``; None where there is no whole."""
    return part / whole if whole else None


def intervals_of(events: pl.DataFrame) -> Intervals:
    """Start and end of events, from start_ns and end_ns."""
    return events["start_ns"].to_numpy(), events["end_ns"].to_numpy()


def num_distinct(intervals: Intervals) -> int:
    """How many different (start, end) there are."""
    return pl.DataFrame(intervals, ["start", "end"]).n_unique()


def matching(names: pl.Series, pattern: str) -> pl.Series:
    """Which names, a categorical column, match in lower case; as many booleans as names."""
    distinct = names.unique()
    found = distinct.filter(distinct.cast(pl.String).str.to_lowercase().str.contains(pattern))
    return names.is_in(found.implode())
