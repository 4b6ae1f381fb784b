"""The summaries of several ranks in one table: a row a name and rank, or a name over all ranks.

Small tables in, a small table out: nothing here needs the events of more than one rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.views import summarize
from ppprof.errors import UsageError
from ppprof.trace import REMOTE

ACROSS = ("model", "dist", "op", "kernel", "memcpy", "udf")
"""The views whose rows are names that ranks share, in the order of `ppprof.analysis.summaries.views`."""

WAYS = ("rank", "name")
"""A row a name and rank (`by_rank`), or a row a name (`by_name`)."""

_SORTED = ("op", "kernel", "udf")
"""Those that put the largest first; the others have an order of their own."""


def check_across(views: Sequence[str], by: str) -> None:
    """Whether these views can be had so.

    Raises:
        UsageError: a view without names that ranks share, or another way than `WAYS`.
    """
    if by not in WAYS:
        raise UsageError(f"by {by!r}: expected {' or '.join(WAYS)}")
    others = [view for view in views if view not in ACROSS]
    if others:
        raise UsageError(
            f"{', '.join(map(repr, others))}: expected some of {', '.join(ACROSS)}, "
            "whose rows are names that ranks share"
        )


def of_rank(profile: Profile, view: str) -> pl.DataFrame:
    """The view of one rank; operators also with what `self_time` says of them."""
    table = summarize(profile, view)
    if view == "op":
        table = table.join(self_time(profile), on="name", how="left", maintain_order="left")
    return table


def self_time(profile: Profile) -> pl.DataFrame:
    """Time in operators without that in the operators that they call.

    ::

        relu            ##########    10
          compute         ####           no operator: part of relu
            add            ##          2
        relu, self      ###  #####     8

    Returns:
        name (String), cpu_self_ns int64; one row a name, in no order; those of remote calls as
        `ppprof.analysis.summaries.operators` names them. The sum is the time in operators, nothing counted
        twice within a thread.

    Source: ``self_cpu_time_total`` of ``torch.autograd.profiler``, where children are operators.
    """
    return pl.concat(
        [
            _self_time(profile),
            *(
                _self_time(of_call).with_columns(
                    name=pl.concat_str(pl.lit(f"{call}{REMOTE}"), "name")
                )
                for call, of_call in profile.remote.items()
            ),
        ]
    )


def _self_time(profile: Profile) -> pl.DataFrame:
    tree, hosts = profile.tree, profile.tree.hosts
    is_operator = (hosts["category"] == "Operator").to_numpy()
    own_ns = tree.own("cpu_ns", is_operator, tree.enclosing(is_operator))
    names = hosts.select(pl.col("name").cast(pl.String), cpu_self_ns=pl.Series(own_ns))
    return names.filter(pl.Series(is_operator)).group_by("name").agg(pl.col("cpu_self_ns").sum())


def comparable(view: str, table: pl.DataFrame) -> pl.DataFrame:
    """What of one rank's view can be held against another rank's: one row a name.

    Args:
        view: one of `ACROSS`.
        table: what `of_rank` or `ppprof.analysis.summaries.views.summarize` returns, threads merged.

    Returns:
        name (String) and the view's own columns. ``op`` has its operators only, without kind,
        thread and flops, and with cpu_self_ns and cpu_self_ratio (as cpu_ratio, of all of this rank's
        or remote call's; both
        null where the table does not hold the first, as those that a capture has left).
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
    """A row a name and rank.

    ::

        name    rank   cpu_total_ns
        matmul  0      900             a name's ranks together, ascending;
        matmul  1      400             the name first that is the largest on any rank
        relu    0      500
        relu    1      500

    Args:
        view: one of `ACROSS`.
        tables: rank -> what `comparable` returned.
        coordinates: rank -> ``dp0_pp0_sharding0_mp0``, None where it is not known.
        sorted_by: one of `ppprof.analysis.profile.SORT_KEYS`.

    Returns:
        rank int64, coordinate, then the columns of `comparable`, as they are in the rank's own
        table: ratios are of that rank. No row where a rank does not have the name. ``model``,
        ``dist`` and ``memcpy`` keep the order of their rows.

    Source: the table with *Node ID* of PyTorch's RFC "Integrate autograd profiler with
    torch.distributed.rpc" (pytorch/pytorch issue 39675); a node is a rank or, of what ran in a
    remote call, the worker in column node.
    """
    rows = _together(tables, coordinates)
    key = compared(view, sorted_by)
    largest_first = view in _SORTED and not key.endswith("_min")
    if view in _SORTED:
        stat = pl.col(f"{key}_ns")
        place = stat.max() if largest_first else stat.min()
    else:
        place = pl.col("row").max()
    names = (
        rows.group_by("name", maintain_order=True)
        .agg(place.alias("place"))
        .sort("place", descending=largest_first, maintain_order=True)
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
    """A row a name: how much it differs between ranks, what differs most on top.

    ::

        rank 0   1   2          min  median  max  spread  max_rank
        matmul   9   4   4        4       4    9       5         0
        embed    3   -   -        0       0    3       3         0     (absent: no calls, no time)
        relu     5   5   5        5       5    5       0      null     (nobody stands out)

    Args:
        view: one of `ACROSS`.
        tables: rank -> what `comparable` returned; a rank without rows counts as well.
        coordinates: as `by_rank` has it.
        sorted_by: which number of a rank is held against the others'; see `compared`.

    Returns:
        name, num_ranks (that have it) int64, calls int64 and total_ns int64 (of all ranks
        together; calls null where the view counts none), compared (``cpu_total``...), min_ns,
        median_ns float64, max_ns, spread_ns (max - min; these three float64 where averages are
        compared, else int64), max_rank int64 (the first one of several) and max_coordinate. Where
        a rank does not have the name, its calls and total are 0, and so is what counts in min,
        median and max where totals are compared; it has no average, longest or shortest call, and
        is left out of these. max_rank is null where the spread is 0.
    """
    of = compared(view, sorted_by)
    total = "time_ns" if of == "time" else f"{of.partition('_')[0]}_total_ns"
    rows = _together(tables, coordinates)
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
    value, calls = pl.col(f"{of}_ns"), pl.col("calls")
    if f"{of}_ns" == total:
        value = value.fill_null(0)
    spread = (value.max() - value.min()).alias("spread_ns")
    return (
        every.group_by("name", maintain_order=True)
        .agg(
            pl.col("row").count().cast(pl.Int64).alias("num_ranks"),
            pl.when(calls.count() > 0).then(calls.sum()).alias("calls"),
            pl.col(total).sum().alias("total_ns"),
            pl.lit(of).alias("compared"),
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
    """Which number of a rank `by_name` compares: the sort key; what the view has instead of it.

    >>> compared("op", "cpu_avg"), compared("kernel", "cpu_avg"), compared("dist", "cpu_avg")
    ('cpu_avg', 'gpu_total', 'time')
    """
    if view == "dist":
        return "time"
    return "gpu_total" if view == "kernel" and not sorted_by.startswith("gpu") else sorted_by


def _together(
    tables: Mapping[int, pl.DataFrame], coordinates: Mapping[int, str | None]
) -> pl.DataFrame:
    """The ranks below one another, ascending, and each row's number in its own table."""
    return pl.concat(
        tables[rank].select(
            pl.lit(rank, pl.Int64).alias("rank"),
            pl.lit(coordinates.get(rank), pl.String).alias("coordinate"),
            pl.all(),
            row=pl.int_range(pl.len()),
        )
        for rank in sorted(tables)
    )
