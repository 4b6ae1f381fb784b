"""Late arrivals at collectives: the last rank, its cost, and the transfer once all have arrived."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from ppprof.analysis.ranks.collectives import KEYS
from ppprof.trace import Clock

_SIZE = pl.col("members").str.count_matches(r"[,>]") + 1

_BUS_FACTORS = {
    "all_reduce": 2 * (_SIZE - 1) / _SIZE,
    "all_gather": (_SIZE - 1).cast(pl.Float64),
    "reduce_scatter": (_SIZE - 1) / _SIZE,
    "alltoall": (_SIZE - 1) / _SIZE,
}
"""Bytes on the slowest link of a ring per byte that a rank contributes; 1 for other operations.

Source: nccl-tests, doc/PERFORMANCE.md. Its size of an all_gather is that of all ranks together.
"""

_DOMINANT = 0.75
"""From this share of a collective's time on, one cause names the verdict."""


def arrivals(collectives: pl.DataFrame, clocks: Mapping[int, Clock]) -> pl.DataFrame:
    """Return one row per collective: the last rank to arrive, and the time from then on.

    ::

        rank 0   [ wait | transfer ]       first
        rank 4      [   | transfer ]       median: the lower one of the two middle ranks
        rank 1         [| transfer ]       last: costs the others last - median

    Args:
        collectives: `ppprof.analysis.ranks.collectives.match_collectives`.
        clocks: by rank, with their errors; a rank without a clock counts as exact.

    Returns:
        members, axis, op, step, index; last_rank int64; wait_ns, mean over members of the time
        until the last arrival; cost_ns, last arrival minus median; transfer_ns, from the last
        arrival to the last end, at least 0; bytes; error_ns, the clock error of the first and last
        arrival together; verdict: *transfer* (the link), *skew* (a rank was late), *mixed*, or
        *inconclusive* if the clocks are not known well enough.
    """
    errors = {rank: clock.error_ns for rank, clock in clocks.items()}
    error_ns = pl.col("rank").replace_strict(errors, default=0, return_dtype=pl.Int64)
    start = pl.col("start_ns")
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
            mean_ns=(start - start.first()).mean(),
            done_ns=pl.col("end_ns").max(),
            bytes=pl.col("bytes").max(),
            error_ns=pl.col("error_ns").first() + pl.col("error_ns").last(),
        )
        .with_columns(
            wait_ns=(pl.col("last_ns") - pl.col("first_ns") - pl.col("mean_ns")).cast(pl.Int64),
            cost_ns=pl.col("last_ns") - pl.col("median_ns"),
            transfer_ns=(pl.col("done_ns") - pl.col("last_ns")).clip(0),
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


def by_group(arrivals: pl.DataFrame, num_steps: int) -> pl.DataFrame:
    """Return one row per group, the longest wait first.

    Args:
        arrivals: what the function of that name returns.
        num_steps: steps in the window.

    Returns:
        members, axis, calls; transfer, skew, mixed, inconclusive: the number of each verdict;
        last_rank, the rank that most often arrived last, and last_ratio, how often; per step:
        wait_ns, cost_ns and transfer_ns, float64; bus_bytes_per_s, float64: bytes over the slowest
        link of a ring in the time after the last arrival, null if bytes or time are unknown.
    """
    factor = pl.lit(1.0)
    for op, op_factor in _BUS_FACTORS.items():
        factor = pl.when(pl.col("op").str.starts_with(op)).then(op_factor).otherwise(factor)
    bus = pl.col("bytes") * factor
    last = pl.col("last_rank").mode().min()
    per_step = 1 / max(1, num_steps)
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
            wait_ns=pl.col("wait_ns").sum() * per_step,
            cost_ns=pl.col("cost_ns").sum() * per_step,
            transfer_ns=pl.col("transfer_ns").sum() * per_step,
            bus_bytes_per_s=pl.col("bus").sum() / (pl.col("transfer_ns").sum() / 1e9),
        )
        .with_columns(
            bus_bytes_per_s=pl.when(pl.col("bus_bytes_per_s").is_finite())
            .then("bus_bytes_per_s")
            .otherwise(None)
        )
        .sort("wait_ns", descending=True, maintain_order=True)
    )
