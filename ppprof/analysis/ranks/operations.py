"""The operations of pipeline workers, from the passes of all ranks.

`ppprof.analysis.ranks.what_if` says what a worker is, and how its operations are replayed.
"""

from __future__ import annotations

import polars as pl

from ppprof.topology import Topology

CELL = ["step", "replica"]
WORKER = [*CELL, "stage"]


def with_workers(rows: pl.DataFrame, topology: Topology) -> pl.DataFrame:
    """Return ``rows`` with the replica and stage of each row's rank.

    In a pipeline, rows of kind ``own`` are removed.
    """
    coordinates = {rank: topology.coordinate(rank) for rank in rows["rank"].unique()}
    replica = {
        rank: coordinate["dp"] * topology.degree("sharding") + coordinate["sharding"]
        for rank, coordinate in coordinates.items()
    }
    stage = {rank: coordinate["pp"] for rank, coordinate in coordinates.items()}
    with_workers = rows.with_columns(
        replica=pl.col("rank").replace_strict(replica, return_dtype=pl.Int64),
        stage=pl.col("rank").replace_strict(stage, return_dtype=pl.Int64),
    )
    # In a pipeline, a stage's own work does not show when it waited for another stage.
    is_own = (pl.col("kind") == "own") & pl.lit(topology.degree("pp") > 1)
    return with_workers.filter(is_own.not_())


def members_of_workers(rows: pl.DataFrame) -> dict[tuple[int, int], list[int]]:
    """Return the ranks of each worker, ascending, keyed by (replica, stage)."""
    workers = rows.group_by("replica", "stage").agg(pl.col("rank").unique().sort())
    return {(replica, stage): ranks for replica, stage, ranks in workers.rows()}


def ends_of_steps(rows: pl.DataFrame) -> pl.DataFrame:
    """Return step, recorded_ns and tail_ns of each step, in nanoseconds.

    recorded_ns is the length of the step, lower median over ranks. tail_ns is the time from a
    rank's last pass to its end of the step, the shortest of all ranks, since that rank does not
    wait::

        rank 0   F0 ... B3 [ wait | sum gradients, optimizer ]
        rank 2   F0 ...... B3     [ sum gradients, optimizer ]    the shortest
    """
    is_step = pl.col("kind") == "step"
    by_rank = rows.group_by("step", "rank").agg(
        length=(pl.col("end_ns") - pl.col("start_ns")).filter(is_step).first(),
        tail=pl.col("end_ns").filter(is_step).first() - pl.col("end_ns").filter(~is_step).max(),
    )
    return by_rank.group_by("step").agg(
        recorded_ns=lower_median(pl.col("length")), tail_ns=pl.col("tail").min()
    )


def lower_median(values: pl.Expr) -> pl.Expr:
    """Return the lower median of ``values``, int64; nulls are ignored."""
    return values.quantile(0.5, "lower").cast(pl.Int64)


def operations_of(rows: pl.DataFrame, num_stages: int) -> pl.DataFrame:
    """Return the operations of each worker, sorted by worker and time.

    Besides the passes (or ``own``), the workers of stage 0 have an operation of kind ``head``: the
    time from the start of the step to their first pass.

    Returns:
        - step, replica, stage, kind, chunk, micro_batch;
        - first_rank: the lowest rank of the worker;
        - dur_ns: the longest duration among the worker's ranks (of a head: the shortest);
        - end_ns: the latest end among these ranks (of a head: the earliest);
        - start_ns: end_ns - dur_ns;
        - usual_ns: lower median of dur_ns over all operations of the kind in the step;
        - balanced_ns: mean of dur_ns over the worker's operations of the kind and chunk in the
          step, lower median of these over replicas, then the mean over stages and chunks, rounded;
        - steady_ns: lower median of dur_ns over the worker's operations of the kind in all steps;
        - needs_stage, needs_chunk: the stage and chunk whose pass of the same kind and micro-batch
          must be done first. needs_stage is null if the operation needs no such pass.
    """
    operations = (
        rows.filter(pl.col("kind") != "step")
        .group_by(*WORKER, "kind", "chunk", "micro_batch")
        .agg(
            first_rank=pl.col("rank").min(),
            dur_ns=(pl.col("end_ns") - pl.col("start_ns")).max(),
            end_ns=pl.col("end_ns").max(),
        )
        .with_columns(start_ns=pl.col("end_ns") - pl.col("dur_ns"))
    )
    is_step = pl.col("kind") == "step"
    heads = (
        rows.group_by(*WORKER, "rank")
        .agg(
            dur_ns=pl.col("start_ns").filter(~is_step).min()
            - pl.col("start_ns").filter(is_step).first(),
            end_ns=pl.col("start_ns").filter(~is_step).min(),
        )
        .group_by(WORKER)
        .agg(pl.col("rank").min().alias("first_rank"), pl.col("dur_ns", "end_ns").min())
        .filter(pl.col("stage") == 0)
        .drop_nulls()
        .with_columns(kind=pl.lit("head"), start_ns=pl.col("end_ns") - pl.col("dur_ns"))
    )
    last = num_stages - 1
    stage, chunk = pl.col("stage"), pl.col("chunk")
    is_forward, is_backward = pl.col("kind") == "forward", pl.col("kind") == "backward"
    forward, backward = is_forward & (stage > 0), is_backward & (stage < last)
    wraps_forward = is_forward & (chunk > 0)
    wraps_backward = is_backward & (chunk < chunk.max())
    return (
        pl.concat([operations, heads], how="diagonal")
        .with_columns(
            usual_ns=lower_median(pl.col("dur_ns")).over("step", "kind"),
            in_worker_ns=pl.col("dur_ns").mean().over(*WORKER, "kind", "chunk"),
            steady_ns=lower_median(pl.col("dur_ns")).over("replica", "stage", "kind"),
            needs_stage=pl.when(forward)
            .then(stage - 1)
            .when(backward)
            .then(stage + 1)
            .when(wraps_forward & pl.lit(last > 0))
            .then(last)
            .when(wraps_backward & pl.lit(last > 0))
            .then(0),
            needs_chunk=pl.when(forward | backward)
            .then(chunk)
            .when(wraps_forward)
            .then(chunk - 1)
            .otherwise(chunk + 1),
        )
        .with_columns(
            in_stage_ns=pl.col("in_worker_ns")
            .quantile(0.5, "lower")
            .over("step", "kind", "stage", "chunk")
        )
        .with_columns(
            balanced_ns=pl.col("in_stage_ns").mean().round().cast(pl.Int64).over("step", "kind")
        )
        .sort(*WORKER, pl.col("kind") != "head", "start_ns", "end_ns")
    )
