"""Late arrivals at collectives: the last rank, its cost, and the transfer after its arrival."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import polars as pl

from ppprof.analysis.ranks.collectives import KEYS
from ppprof.trace import Clock

_SIZE = pl.col("members").str.count_matches(r"[,>]") + 1

_BUS_FACTORS = {
    "allreduce": 2 * (_SIZE - 1) / _SIZE,
    "allgather": (_SIZE - 1).cast(pl.Float64),
    "reducescatter": (_SIZE - 1) / _SIZE,
    "alltoall": (_SIZE - 1) / _SIZE,
}
"""Bytes on the slowest link of a ring per byte that a rank contributes, keyed by the start of the
operation's name without underscores. The factor of all other operations is 1.

Source: nccl-tests, doc/PERFORMANCE.md. Its factor of an all_gather is (n - 1) / n, because its size
is that of all ranks together; here, a size is one rank's.
"""

_DOMINANT = 0.75
"""If one cause takes at least this share of a collective's time, it is the verdict."""


def arrivals(collectives: pl.DataFrame, clocks: Mapping[int, Clock]) -> pl.DataFrame:
    """Return one row per collective: the last rank to arrive, what it costs, and the transfer time.

    ::

        rank 0   [ wait | transfer ]       first
        rank 4      [   | transfer ]       median: the lower one of the two middle ranks
        rank 1         [| transfer ]       last: costs the others last - median

    Args:
        collectives: the result of `ppprof.analysis.ranks.collectives.match_collectives`.
        clocks: each rank's clock with its error, keyed by rank. A rank without a clock counts as
            exact, but for the transfer.

    Returns:
        One row per collective, sorted by members, op, step and index, with the columns:

        - members, axis, op, step, index: as in ``collectives``;
        - last_rank int64: the last rank to arrive;
        - wait_ns int64: how long a member waits for the last arrival, mean over members: the time
          that it spends in the collective, without the transfer;
        - cost_ns int64: the last arrival minus the median arrival;
        - transfer_ns int64: from the last arrival to the end, mean over members, at least 0. If a
          member has no clock, the shortest time that any member spends in the collective, as the
          last one to arrive does not wait;
        - bytes int64: the most that a member contributes, null if unknown;
        - error_ns int64: the sum of the clock errors of the first and the last rank to arrive;
        - verdict: *skew* (a rank was late) if the wait is at least 75% of wait and transfer,
          *transfer* (the link) if it is at most 25%, else *mixed*. If the arrivals differ by no
          more than error_ns, the verdict is *transfer* if the transfer is at least 75% even if all
          of error_ns is wait, else *inconclusive*.
    """
    errors = {rank: clock.error_ns for rank, clock in clocks.items()}
    error_ns = pl.col("rank").replace_strict(errors, default=0, return_dtype=pl.Int64)
    start, length = pl.col("start_ns"), pl.col("end_ns") - pl.col("start_ns")
    is_known = pl.col("rank").is_in(list(clocks)).all()
    transfer = pl.when(is_known).then((pl.col("end_ns") - start.last()).mean())
    # With clock errors, kernels of a late rank may begin after those of others end.
    table = (
        collectives.with_columns(error_ns=error_ns)
        .sort(*KEYS, "start_ns", "rank")
        .group_by(KEYS, maintain_order=True)
        .agg(
            pl.col("axis").first(),
            num=pl.len(),
            first_ns=start.first(),
            median_ns=start.get((pl.len() - 1) // 2),
            last_ns=start.last(),
            last_rank=pl.col("rank").last(),
            mean_ns=length.mean().cast(pl.Int64),
            transfer_ns=transfer.otherwise(length.min()).cast(pl.Int64).clip(0),
            bytes=pl.col("bytes").max(),
            error_ns=pl.col("error_ns").first() + pl.col("error_ns").last(),
        )
        .with_columns(
            wait_ns=pl.col("mean_ns") - pl.col("transfer_ns"),
            cost_ns=pl.col("last_ns") - pl.col("median_ns"),
        )
    )
    skew = pl.col("last_ns") - pl.col("first_ns")
    share = pl.col("wait_ns") / (pl.col("wait_ns") + pl.col("transfer_ns"))
    # The link dominates even if the whole clock error is skew.
    is_link = (
        pl.col("transfer_ns") * (1 - _DOMINANT)
        >= (pl.col("wait_ns") + pl.col("error_ns")) * _DOMINANT
    )
    verdict = (
        pl.when(skew > pl.col("error_ns"))
        .then(
            pl.when(share >= _DOMINANT)
            .then(pl.lit("skew"))
            .when(share <= 1 - _DOMINANT)
            .then(pl.lit("transfer"))
            .otherwise(pl.lit("mixed"))
        )
        .when(is_link)
        .then(pl.lit("transfer"))
        .otherwise(pl.lit("inconclusive"))
    )
    return table.with_columns(verdict=verdict).select(
        *KEYS[:1],
        "axis",
        *KEYS[1:],
        "last_rank",
        "wait_ns",
        "cost_ns",
        "transfer_ns",
        "bytes",
        "error_ns",
        "verdict",
    )


_ALGORITHM_FACTORS = {"allgather": _SIZE.cast(pl.Float64)}
"""Bytes of the operation's result in nccl-tests per byte that a rank contributes; 1 for others."""


def _with_factor(factors: Mapping[str, pl.Expr]) -> pl.Expr:
    """Return the factor of an operation, by the start of its name; 1 if it is not listed.

    Torch names it ``c10d::_allgather_base_`` or ``nccl:all_gather``.
    """
    name = pl.col("op").str.replace(r"^\w+::?", "").str.replace_all("_", "", literal=True)
    factor = pl.lit(1.0)
    for op, op_factor in factors.items():
        factor = pl.when(name.str.starts_with(op)).then(op_factor).otherwise(factor)
    return factor


def by_size(
    arrivals: pl.DataFrame,
    num_steps: Mapping[str, int],
    links: Mapping[str, float] = MappingProxyType({}),
) -> pl.DataFrame:
    """Return one row per axis, operation, number of ranks and size, sorted by transfer time.

    Args:
        arrivals: the result of the function `arrivals`.
        num_steps: members of a group -> the number of steps that all of them have recorded.
        links: members of a group -> bytes per second that the link of a member can send at best.
            Groups with unknown links are missing.

    Returns:
        The columns, the longest transfer first:

        - axis, op; ranks int64: how many ranks the groups have; bytes int64: what a rank contributes;
        - calls float64: the number of collectives per step, over all groups;
        - transfer_ns float64: of one collective, the median;
        - algorithm_bytes_per_s, bus_bytes_per_s float64: algbw and busbw of nccl-tests, with the
          median transfer time;
        - link_ratio float64: bus_bytes_per_s over what the slowest link can send; null if the link of
          one of the groups is unknown.

        Collectives of unknown size, and those without a transfer time, have no row.
    """
    key = ["axis", "op", "ranks", "bytes"]
    known = arrivals.filter((pl.col("bytes") > 0) & (pl.col("transfer_ns") > 0)).with_columns(
        ranks=_SIZE.cast(pl.Int64),
        algorithm=pl.col("bytes") * _with_factor(_ALGORITHM_FACTORS),
        bus=pl.col("bytes") * _with_factor(_BUS_FACTORS),
        link=pl.col("members").replace_strict(links, default=None, return_dtype=pl.Float64),
    )
    seconds = pl.col("transfer_ns") / 1e9
    table = known.group_by(key, maintain_order=True).agg(
        calls=_per_step(num_steps).sum(),
        whole_ns=pl.col("transfer_ns").sum(),
        transfer_ns=pl.col("transfer_ns").median(),
        algorithm=pl.col("algorithm").first(),
        bus=pl.col("bus").first(),
        link=pl.when(pl.col("link").null_count() == 0).then(pl.col("link").min()),
    )
    return table.sort("whole_ns", *key, descending=[True, *[False] * 4]).select(
        *key,
        "calls",
        "transfer_ns",
        algorithm_bytes_per_s=pl.col("algorithm") / seconds,
        bus_bytes_per_s=pl.col("bus") / seconds,
        link_ratio=pl.col("bus") / seconds / pl.col("link"),
    )


def _per_step(num_steps: Mapping[str, int]) -> pl.Expr:
    """Return the share of one collective in a step of its group."""
    num = pl.col("members").replace_strict(dict(num_steps), default=None, return_dtype=pl.Float64)
    return 1 / num


def by_group(arrivals: pl.DataFrame, num_steps: Mapping[str, int]) -> pl.DataFrame:
    """Return one row per group of ranks, sorted by the wait per step, the longest first.

    Args:
        arrivals: the result of the function `arrivals`.
        num_steps: members of a group -> the number of steps that all of them have recorded.

    Returns:
        The columns:

        - members, axis;
        - calls int64: the number of collectives;
        - transfer, skew, mixed, inconclusive int64: the number of collectives with each verdict;
        - last_rank: the rank that most often arrived last (of several the lowest);
        - last_ratio: the share of collectives at which last_rank arrived last, 0 to 1;
        - wait_ns, cost_ns, transfer_ns float64: sums over the collectives, per step;
        - bus_bytes_per_s float64: bytes over the slowest link of a ring, over the transfer time.
          Unknown bytes count as 0. Null if all are unknown, or if the transfer time is 0.
    """
    bus = pl.col("bytes") * _with_factor(_BUS_FACTORS)
    last = pl.col("last_rank").mode().min()
    per_step = _per_step(num_steps)
    return (
        arrivals.with_columns(bus=bus)
        .group_by("members", maintain_order=True)
        .agg(
            pl.col("axis").first(),
            calls=pl.len().cast(pl.Int64),
            **{
                verdict: (pl.col("verdict") == verdict).sum().cast(pl.Int64)
                for verdict in ("transfer", "skew", "mixed", "inconclusive")
            },
            last_rank=last,
            last_ratio=(pl.col("last_rank") == last).mean(),
            wait_ns=(pl.col("wait_ns") * per_step).sum(),
            cost_ns=(pl.col("cost_ns") * per_step).sum(),
            transfer_ns=(pl.col("transfer_ns") * per_step).sum(),
            known=pl.col("bus").count(),
            bus_bytes_per_s=pl.col("bus").sum() / (pl.col("transfer_ns").sum() / 1e9),
        )
        .with_columns(
            bus_bytes_per_s=pl.when(pl.col("bus_bytes_per_s").is_finite() & (pl.col("known") > 0))
            .then("bus_bytes_per_s")
            .otherwise(None)
        )
        .drop("known")
        .sort("wait_ns", descending=True, maintain_order=True)
    )
