"""Who arrives last at collectives, what that costs, and what the links do once all are there."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from ppprof.trace import Clock

_KEYS = ["members", "op", "step", "index"]

_SIZE = pl.col("members").str.count_matches(r"[,>]") + 1

_BUS_FACTORS = {
    "all_reduce": 2 * (_SIZE - 1) / _SIZE,
    "all_gather": (_SIZE - 1).cast(pl.Float64),
    "reduce_scatter": (_SIZE - 1) / _SIZE,
    "alltoall": (_SIZE - 1) / _SIZE,
}
"""Bytes on the slowest link of a ring for each that a rank puts in; 1 for other operations.

Source: nccl-tests, doc/PERFORMANCE.md; there all_gather's size is that of all ranks together.
"""

_MOST = 0.75
"""Share of a collective's time from which on it is called by one cause alone."""


def arrivals(matched: pl.DataFrame, clocks: Mapping[int, Clock]) -> pl.DataFrame:
    """Each collective once: who came last, and how long it took from then on.

    ::

        rank 0   [ wait | transfer ]       first
        rank 4      [   | transfer ]       median: the lower of the two middle ones
        rank 1         [| transfer ]       last: costs everybody last - median

    Args:
        matched: what `ppprof.analysis.ranks.collectives.match_collectives` gave.
        clocks: how well each rank's clock is known; a rank that has none is taken as exact.

    Returns:
        members, axis, op, step, index; last_rank int64; wait_ns, mean over members of the time
        until the last arrival; cost_ns, last arrival minus median; transfer_ns, from the last
        arrival to the last end, 0 where that is before; bytes; error_ns, what is not known of
        first and last arrival; verdict: *transfer* (the link), *skew* (somebody was late),
        *mixed*, or *inconclusive* where the clocks are not known well enough to say.
    """
    errors = {rank: clock.error_ns for rank, clock in clocks.items()}
    known = pl.col("rank").replace_strict(errors, default=0, return_dtype=pl.Int64)
    start = pl.col("start_ns")
    # Kernels of a late rank may begin after others end, on clocks that are not quite right.
    found = (
        matched.with_columns(error_ns=known)
        .sort(*_KEYS, "start_ns", "rank")
        .group_by(_KEYS, maintain_order=True)
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
    # Even if all of the clocks' error were skew, the link would be the larger part.
    is_link = (
        pl.col("transfer_ns") * (1 - _MOST) >= (pl.col("wait_ns") + pl.col("error_ns")) * _MOST
    )
    verdict = (
        pl.when(skew > pl.col("error_ns"))
        .then(
            pl.when(share >= _MOST)
            .then(pl.lit("skew"))
            .when(share <= 1 - _MOST)
            .then(pl.lit("transfer"))
            .otherwise(pl.lit("mixed"))
        )
        .when(is_link)
        .then(pl.lit("transfer"))
        .otherwise(pl.lit("inconclusive"))
    )
    return found.with_columns(verdict=verdict).select(
        *_KEYS[:1],
        "axis",
        *_KEYS[1:],
        "last_rank",
        "wait_ns",
        "cost_ns",
        "transfer_ns",
        "bytes",
        "error_ns",
        "verdict",
    )


def by_group(found: pl.DataFrame, num_steps: int) -> pl.DataFrame:
    """The collectives of each group together.

    Args:
        found: what `arrivals` gave.
        num_steps: of the window, for what a step costs.

    Returns:
        One row a group, the one that waits longest first: members, axis, calls; transfer, skew,
        mixed, inconclusive: how many of each verdict; last_rank, the one that came last most
        often, and last_ratio, how often; per step: wait_ns, cost_ns and transfer_ns, float64;
        bus_bytes_per_s, float64, null where bytes or time are not known: bytes that pass the
        slowest link of a ring in the time after the last arrival.
    """
    factor = pl.lit(1.0)
    for op, of in _BUS_FACTORS.items():
        factor = pl.when(pl.col("op").str.starts_with(op)).then(of).otherwise(factor)
    bus = pl.col("bytes") * factor
    last = pl.col("last_rank").mode().min()
    per_step = 1 / max(1, num_steps)
    return (
        found.with_columns(bus=bus)
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
