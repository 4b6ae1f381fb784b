"""Which ranks are slow, from step times alone: without a window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

from ppprof.analysis.ranks.stragglers import slow_ranks
from ppprof.topology import Topology

RANKS = {
    "rank": pl.Int64,
    "role": pl.String,
    "num_steps": pl.Int64,
    "step_ns": pl.Float64,
    "communication_ns": pl.Float64,
    "reader_ns": pl.Float64,
    "own_ns": pl.Float64,
    "excess_ns": pl.Float64,
    "noise_ns": pl.Float64,
    "is_slow": pl.Boolean,
}
_FIRST_STEPS = 2
"""Steps at the start that are left out: they load libraries and compile."""


def roles_of_ranks(topology: Topology | None, ranks: Iterable[int]) -> dict[int, str]:
    """Return the kind of work of each rank: ranks of one pipeline stage do the same.

    Ranks that the topology does not know may be stages of a pipeline, too, and have no peers. Without
    a pipeline, all ranks have the role "".
    """
    roles = {}
    for rank in ranks:
        if topology is None or rank >= topology.world_size:
            roles[rank] = f"rank {rank}"
        else:
            is_staged = topology.degree("pp") > 1
            roles[rank] = f"stage {topology.coordinate(rank)['pp']}" if is_staged else ""
    return roles


def unrecorded_ranks(times: pl.DataFrame, roles: Mapping[int, str]) -> pl.DataFrame:
    """Return how each rank spends its steps outside windows, and whether it is slower than its peers.

    ::

                 computes   communicates (waits)
        rank 0   # # # #    . . . . . .            both steps take 10; own 4 and 7:
        rank 1   # # # # # # #    . . .            rank 1 is slow, excess 3

    Args:
        times: the columns of `ppprof.rundir.step_times.STEP_TIMES`.
        roles: the kind of work of each rank; ranks of one role are compared (`slow_ranks`).

    Returns:
        Columns of `RANKS`, one row per rank, the largest excess first: num_steps; medians of the step, of its
        communication, of reading and of the rest, own_ns; excess_ns, noise_ns and is_slow as
        `slow_ranks` defines them. Steps count that are neither in a window nor excluded, whose
        communication is known, and that were timed on the host: on a device that queues its work,
        the time in calls says little about waiting. No rows without such steps.
    """
    steps = times.filter(
        pl.col("window").is_null()
        & ~pl.col("excluded").fill_null(False)
        & pl.col("communication_ns").is_not_null()
        & pl.col("device_timed").is_null()
        & (pl.col("step") >= _FIRST_STEPS)
    ).with_columns(reader_ns=pl.col("reader_cost_ns").fill_null(0), step_ns=pl.col("batch_cost_ns"))
    if steps.is_empty():
        return pl.DataFrame(schema=RANKS)
    own = pl.col("step_ns") - pl.col("communication_ns") - pl.col("reader_ns")
    steps = steps.with_columns(own_ns=pl.max_horizontal(own, 0))
    medians = steps.group_by("rank").agg(
        pl.len().alias("num_steps"),
        pl.col("step_ns", "communication_ns", "reader_ns", "own_ns").median(),
    )
    scores = slow_ranks(steps.select("rank", "step", "own_ns", "step_ns"), roles)
    return (
        scores.join(medians, "rank")
        .select(*RANKS)
        .cast(RANKS)  # type: ignore[arg-type]
        .sort("excess_ns", "rank", descending=[True, False])
    )
