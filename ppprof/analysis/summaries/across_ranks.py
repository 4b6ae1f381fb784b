"""The summaries of several ranks in one table, with a row per name and rank, or a row per name.

The functions take the events of at most one rank; the tables that they join are small.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.operators import with_remote_calls
from ppprof.analysis.summaries.views import summarize
from ppprof.remote_names import REMOTE

_SORTED = ("op", "kernel", "udf")
"""Views that are sorted by the sort key; the other views of `ACROSS` have a fixed order."""


def rank_view(profile: Profile, view: str) -> pl.DataFrame:
    """Return one view of one rank; the view ``op`` also has cpu_self_ns, see `self_time`."""
    table = summarize(profile, view)
    if view == "op":
        table = table.join(self_time(profile), on="name", how="left", maintain_order="left")
    return table


def self_time(profile: Profile) -> pl.DataFrame:
    """Return the time in each operator without the time in the operators that it calls.

    ::

        relu            ##########    10
          compute         ####           not an operator: part of relu
            add            ##          2
        relu, self      ###  #####     8

    Returns:
        name (String) and cpu_self_ns (int64); one row per name, unordered. Operators in a remote
        call have the name of the call as prefix, as in
        `ppprof.analysis.summaries.operators.operators`. The sum over all rows is the time in
        operators; within a thread, no time counts twice.

    Source: ``self_cpu_time_total`` of ``torch.autograd.profiler``, where children are operators.
    """
    return with_remote_calls(profile, _self_time)


def _self_time(profile: Profile, _: str | None) -> pl.DataFrame:
    tree, hosts = profile.tree, profile.tree.hosts
    is_operator = (hosts["category"] == "Operator").to_numpy()
    own_ns = tree.own("cpu_ns", is_operator, tree.enclosing(is_operator))
    names = hosts.select(pl.col("name").cast(pl.String), cpu_self_ns=pl.Series(own_ns))
    return names.filter(pl.Series(is_operator)).group_by("name").agg(pl.col("cpu_self_ns").sum())


def comparable(view: str, table: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of one rank's view that can be compared across ranks: one row per name.

    Args:
        view: one of `ACROSS`.
        table: the result of `rank_view` or `ppprof.analysis.summaries.views.summarize`, with
            threads merged.

    Returns:
        name (String) and the view's other columns. In the view ``op``, only the rows of kind
        operator remain, without the columns kind, thread and flops. It also has cpu_self_ns and
        cpu_self_ratio (the share of the sum over the rank's own operators, or over the operators of
        the remote call; 0 if that sum is 0). Both are null if ``table`` has no cpu_self_ns, such as
        a table that a capture wrote.
    """
    table = table.with_columns(pl.col("name").cast(pl.String))
    if view != "op":
        return table
    if "cpu_self_ns" not in table.columns:
        table = table.with_columns(cpu_self_ns=pl.lit(None, pl.Int64))
    own = pl.col("cpu_self_ns")
    operators = table.filter(pl.col("kind") == "operator").drop("thread", "kind", "flops")
    call = pl.col("name").str.extract(f"^(rpc#.*){REMOTE}")
    whole = own.sum().over(call)
    return operators.with_columns(
        cpu_self_ratio=pl.when(whole > 0).then(own / whole).otherwise(own * 0.0)
    )


def by_rank(
    view: str,
    tables: Mapping[int, pl.DataFrame],
    coordinates: Mapping[int, str | None],
    sorted_by: str,
) -> pl.DataFrame:
    """Return the views of several ranks as one table with a row per name and rank.

    ::

        name    rank   cpu_total_ns
        matmul  0      900             the ranks of a name together, ascending;
        matmul  1      400             first the name that is largest on any rank
        relu    0      500
        relu    1      500

    Args:
        view: one of `ACROSS`.
        tables: the result of `comparable` for each rank, keyed by rank.
        coordinates: ``dp0_pp0_sharding0_mp0``, keyed by rank; None if unknown.
        sorted_by: one of `ppprof.choices.SORT_KEYS`.

    Returns:
        rank int64, coordinate, then the columns of `comparable` with the values of the rank's own
        table, so ratios are relative to that rank. A rank without the name has no row. The names
        are sorted by their largest value on any rank, the largest first (for ``_min``: by their
        smallest value, the smallest first). ``model``, ``dist`` and ``memcpy`` keep the order of
        their rows.

    Source: the table with *Node ID* of PyTorch's RFC "Integrate autograd profiler with
    torch.distributed.rpc" (pytorch/pytorch issue 39675). A node there is a rank or, in a remote
    call, the worker in column node.
    """
    rows = _stack(tables, coordinates)
    key = compared(view, sorted_by)
    largest_first = view in _SORTED and not key.endswith("_min")
    if view in _SORTED:
        stat = pl.col(f"{key}_ns")
        order = stat.max() if largest_first else stat.min()
    else:
        order = pl.col("row").max()
    names = (
        rows.group_by("name", maintain_order=True)
        .agg(order.alias("order"))
        .sort("order", descending=largest_first, maintain_order=True)
    )
    return (
        names.select("name")
        .join(rows, on="name", maintain_order="left_right")
        .select("rank", "coordinate", pl.exclude("rank", "coordinate", "row"))
    )


def by_name(
    view: str,
    tables: Mapping[int, pl.DataFrame],
    coordinates: Mapping[int, str | None],
    sorted_by: str,
) -> pl.DataFrame:
    """Return one row per name with its spread over ranks, sorted by spread, the largest first.

    ::

        rank 0   1   2          min  median  max  spread  max_rank
        matmul   9   4   4        4       4    9       5         0
        embed    3   -   -        0       0    3       3         0     (absent: no calls, no time)
        relu     5   5   5        5       5    5       0      null     (no rank stands out)

    Args:
        view: one of `ACROSS`.
        tables: the result of `comparable` for each rank, keyed by rank. Ranks whose table has no
            rows count, too.
        coordinates: ``dp0_pp0_sharding0_mp0``, keyed by rank; None if unknown.
        sorted_by: selects the number that is compared; see `compared`.

    Returns:
        - name;
        - num_ranks int64: the number of ranks with this name;
        - calls int64 (null if the view has no calls), total_ns int64 (null if a rank's is unknown):
          sums over all ranks;
        - compared: the compared number, such as ``cpu_total``;
        - min_ns, median_ns (float64), max_ns, spread_ns (max - min): of the compared number, over
          ranks. min_ns, max_ns and spread_ns are float64 if averages are compared, else int64;
        - max_rank int64: the rank with the maximum (of several the lowest), null if the spread is
          0;
        - max_coordinate: the coordinate of max_rank.

        If totals are compared, a rank without the name counts as 0, and one whose time is unknown
        does not count. If averages, maxima or minima
        are compared, it does not count, since it has no calls.
    """
    stat = compared(view, sorted_by)
    total = "time_ns" if stat == "time" else f"{stat.partition('_')[0]}_total_ns"
    rows = _stack(tables, coordinates)
    if "calls" not in rows.columns:
        rows = rows.with_columns(calls=pl.lit(None, pl.Int64))
    names = rows.select("name").unique(maintain_order=True)
    nodes = pl.DataFrame(
        {"rank": list(tables), "max_coordinate": [coordinates.get(rank) for rank in tables]},
        {"rank": pl.Int64, "max_coordinate": pl.String},
    ).sort("rank")
    every = names.join(nodes.select("rank"), how="cross").join(
        rows, on=["name", "rank"], how="left", maintain_order="left"
    )
    value, calls = pl.col(f"{stat}_ns"), pl.col("calls")
    if f"{stat}_ns" == total:
        value = pl.when(pl.col("row").is_null()).then(0).otherwise(value)
    is_known = pl.col(total).count() == pl.col("row").count()
    spread = (value.max() - value.min()).alias("spread_ns")
    return (
        every.group_by("name", maintain_order=True)
        .agg(
            pl.col("row").count().cast(pl.Int64).alias("num_ranks"),
            pl.when(calls.count() > 0).then(calls.sum()).alias("calls"),
            pl.when(is_known).then(pl.col(total).sum()).alias("total_ns"),
            pl.lit(stat).alias("compared"),
            value.min().alias("min_ns"),
            value.median().cast(pl.Float64).alias("median_ns"),
            value.max().alias("max_ns"),
            spread,
            pl.when(spread > 0)
            .then(pl.col("rank").filter(value == value.max()).first())
            .alias("max_rank"),
        )
        .join(nodes, left_on="max_rank", right_on="rank", how="left", maintain_order="left")
        .sort("spread_ns", "total_ns", descending=True, nulls_last=True, maintain_order=True)
    )


def compared(view: str, sorted_by: str) -> str:
    """Return the number by which `by_name` and `by_rank` compare names in a view.

    This is the sort key. But ``dist`` has only a time, and ``kernel`` has no CPU times: for a CPU
    key, its GPU total is compared.

    >>> compared("op", "cpu_avg"), compared("kernel", "cpu_avg"), compared("dist", "cpu_avg")
    ('cpu_avg', 'gpu_total', 'time')
    """
    if view == "dist":
        return "time"
    return "gpu_total" if view == "kernel" and not sorted_by.startswith("gpu") else sorted_by


def _stack(
    tables: Mapping[int, pl.DataFrame], coordinates: Mapping[int, str | None]
) -> pl.DataFrame:
    """Return the tables of all ranks as one, by rank, with rank, coordinate and row (its number in the rank's table)."""
    return pl.concat(
        tables[rank].select(
            pl.lit(rank, pl.Int64).alias("rank"),
            pl.lit(coordinates.get(rank), pl.String).alias("coordinate"),
            pl.all(),
            row=pl.int_range(pl.len()),
        )
        for rank in sorted(tables)
    )
