"""Changes by name: two tables of means, joined, with the noise of each difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

SURE = 5.0
"""A change is clear if it is at least this number of standard errors. Stragglers have this limit,
too."""


def changes(
    baseline: pl.DataFrame,
    experiment: pl.DataFrame,
    keys: Sequence[str],
    values: Sequence[str],
    by: str,
) -> pl.DataFrame:
    """Return the rows of two runs, joined by ``keys`` and sorted by change, the largest first.

    Args:
        baseline: ``keys``; and for each of ``values``, its mean and the variance of the mean
            (``<value>_var``, null if unknown).
        experiment: the columns of ``baseline``.
        keys: the columns that identify a row in both tables.
        values: the numeric columns to compare.
        by: one of ``values``; its absolute change sorts the result and decides is_clear.

    Returns:
        ``keys``, then the columns of `ppprof.analysis.diff.diff.Diff.operators` from status on. If
        a run lacks a row, its values are 0 there. The noise is null if a run has the row but not
        its variance.
    """
    one, other = (
        table.with_columns(pl.lit(value=True).alias(presence))
        for table, presence in ((baseline, "is_old"), (experiment, "is_new"))
    )
    joined = one.join(other, on=list(keys), how="full", coalesce=True, suffix="_new")
    status = (
        pl.when(pl.col("is_old").is_null())
        .then(pl.lit("new"))
        .when(pl.col("is_new").is_null())
        .then(pl.lit("gone"))
        .otherwise(pl.lit("both"))
    )
    columns = []
    for value in values:
        before, after = pl.col(value).fill_null(0.0), pl.col(f"{value}_new").fill_null(0.0)
        columns += [
            before.alias(f"baseline_{value}"),
            after.alias(f"experiment_{value}"),
            (after - before).alias(f"delta_{value}"),
            pl.when(before != 0)
            .then((after - before) / before)
            .alias(f"delta_ratio_{value.removesuffix('_ns')}"),
        ]
        # The noise is unknown if a side that has the row has no variance.
        variance = [
            pl.when(pl.col(presence).is_null()).then(0.0).otherwise(pl.col(name))
            for presence, name in (("is_old", f"{value}_var"), ("is_new", f"{value}_var_new"))
        ]
        columns.append((variance[0] + variance[1]).sqrt().alias(f"noise_{value}"))
    delta = pl.col(f"delta_{by}").abs()
    return (
        joined.select(*keys, status.alias("status"), *columns)
        .with_columns(is_clear=(delta > 0) & (delta >= SURE * pl.col(f"noise_{by}")))
        .sort(delta, *keys, descending=[True, *[False] * len(keys)])
    )


def per_step(
    table: pl.DataFrame, keys: Sequence[str], values: Sequence[str], ranks: Mapping[int, int]
) -> pl.DataFrame:
    """Return means over ranks and steps, and the variances of the means from step to step.

    Args:
        table: ``keys``, step and ``values``, summed over ranks. A missing row counts as 0.
        keys: the columns to group by.
        values: the columns to average.
        ranks: the number of ranks that recorded each step, keyed by step. Other steps are ignored.

    Returns:
        ``keys``; for each of ``values``, its mean, float64, and ``<value>_var``, null with one
        step.
    """
    # Sums of floats depend on the order of the rows, and threads leave them in any.
    table = table.filter(pl.col("step").is_in(list(ranks))).sort("step", *values)
    num_ranks = pl.col("step").replace_strict(dict(ranks), default=1, return_dtype=pl.Int64)
    rank_means = table.with_columns((pl.col(value) / num_ranks).alias(value) for value in values)
    return _over_steps(rank_means, keys, values, len(ranks))


def _over_steps(
    table: pl.DataFrame, keys: Sequence[str], values: Sequence[str], num: int
) -> pl.DataFrame:
    """Return means over ``num`` steps and the variances of the means (null with one step).

    A missing row counts as 0.
    """
    means = []
    for value in values:
        mean = pl.col(value).sum() / num
        spread = (pl.col(value) ** 2).sum() - num * mean**2
        variance = spread.clip(0) / ((num - 1) * num) if num > 1 else pl.lit(None, pl.Float64)
        means += [mean.alias(value), variance.alias(f"{value}_var")]
    return table.group_by(list(keys)).agg(means)
