"""Group events by name: sums, sort order and ratios of the summaries."""

from __future__ import annotations

import re

import polars as pl

from ppprof.analysis.profile.intervals import Intervals
from ppprof.trace.labels import Labels

STATS: dict[str, pl.DataType] = {
    "name": pl.String(),
    "calls": pl.Int64(),
    **{
        f"{clock}_{stat}_ns": pl.Float64() if stat == "avg" else pl.Int64()
        for clock in ("cpu", "gpu")
        for stat in ("total", "avg", "max", "min")
    },
}
"""Columns of a table with one row per name: its calls, and statistics of its CPU and GPU times."""


def grouped(
    events: pl.DataFrame,
    keys: list[str],
    clocks: tuple[str, ...] = ("cpu", "gpu"),
    gpu: str = "gpu_ns",
) -> pl.DataFrame:
    """Return the calls and the total, average, maximum and minimum time of each group of events.

    Args:
        events: events with the columns ``keys``, and cpu_ns or ``gpu``, as ``clocks`` require.
        keys: the columns to group by.
        clocks: the clocks of the returned statistics: "cpu", "gpu" or both.
        gpu: the column of GPU times: ``gpu_ns`` or ``device_ns``.

    Returns:
        ``keys``, calls int64, and for each clock ``<clock>_total_ns``, ``_avg_ns`` (float64),
        ``_max_ns`` and ``_min_ns``. Groups are in the order of their first event.
    """
    columns = {clock: {"cpu": "cpu_ns", "gpu": gpu}[clock] for clock in clocks}
    stats = []
    for clock, column in columns.items():
        time = pl.col(column)
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
    """Return ``table`` sorted by a time: the largest first, or for ``_min`` the smallest first.

    Ties keep their order.

    Args:
        table: has the column ``<key>_ns``.
        key: one of `ppprof.choices.SORT_KEYS`.
        within: columns whose equal values form blocks. Rows are sorted within their block, and
            blocks are in the order of their first row. None or empty: the whole table is one block.
    """
    if not within:
        return table.sort(f"{key}_ns", descending=not key.endswith("_min"), maintain_order=True)
    blocks = [sort_by(block, key) for _, block in table.group_by(within, maintain_order=True)]
    return pl.concat(blocks) if blocks else table


def ratio_of(column: str, whole: float, if_none: float | None = 0.0) -> pl.Expr:
    """Return ``column`` divided by ``whole``, or ``if_none`` if ``whole`` is 0.

    The default is 0.0, which Paddle prints in that case.
    """
    # Polars multiplies by the reciprocal of a scalar, which rounds ties of percentages differently.
    wholes = pl.col(column) * 0 + whole
    return pl.col(column) / wholes if whole else pl.lit(if_none, pl.Float64)


def ratio(part: int, whole: int) -> float | None:
    """Return ``part`` divided by ``whole``; None if ``whole`` is 0."""
    return part / whole if whole else None


def intervals_of(events: pl.DataFrame) -> Intervals:
    """Return the columns start_ns and end_ns of ``events`` as a set of intervals."""
    return events["start_ns"].to_numpy(), events["end_ns"].to_numpy()


def num_distinct(intervals: Intervals) -> int:
    """Return the number of distinct (start, end) pairs in a set of intervals."""
    return pl.DataFrame(intervals, ["start", "end"]).n_unique()


def matching(names: pl.Series, pattern: str) -> pl.Series:
    """Return whether each name, in lower case, contains a match of ``pattern``.

    Returns:
        Booleans, shape (N,).
    """
    contains = re.compile(pattern).search
    return pl.Series(Labels.of(names).where(lambda name: contains(name.lower()) is not None))
