"""The run of a job of many ranks, whose collectives match.

A rank's trace is two steps of a small GPU job (`gpu_job`), rewritten: each rank is in a group of 8 for
tensor parallelism and in one with all others of its kind for data parallelism, and began some
microseconds apart. Nothing measured the clocks.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from random import Random

import polars as pl

from benchmarks import gpu_job
from ppprof.config import ProfilerConfig
from ppprof.rundir import TraceName, claim, write_manifest
from ppprof.topology import Topology
from ppprof.trace import Trace, read
from ppprof.trace.paddle.pb_writer import write_paddle_pb
from tests.fixtures.timeline import write

NUM_STEPS, NUM_LAYERS = 2, 6
MP_DEGREE = 8
APART_NS = 8_000
"""How far apart ranks begin; collectives take longer, so nobody leaves one before all have come."""
_AXES = {"mp_allreduce": "mp", "all_reduce": "dp"}
"""Collective of `gpu_job` -> axis."""
_BYTES = {"mp": 33_554_432, "dp": 100_663_296}
_WHEN = datetime(2026, 11, 20, 20, 15, 30)


def make(folder: Path, num_ranks: int) -> None:
    """Leaves the run directory of such a job in a folder."""
    grid = Topology.of(dp=num_ranks // MP_DEGREE, mp=MP_DEGREE)
    run = claim(folder)
    block = ProfilerConfig.from_mapping({"enable": True}).to_mapping()
    axes = {"order": grid.order, "degrees": grid.degrees}
    ranks = [
        {"rank": rank, "host": f"host-{rank // MP_DEGREE}", "coordinate": grid.coordinate(rank)}
        for rank in range(num_ranks)
    ]
    write_manifest(run, {"profiler": block, "axes": axes, "ranks": ranks})
    first = write(folder / "first.pb", *gpu_job.threads(NUM_STEPS, NUM_LAYERS), devices=(0,))
    trace = read(first, cache=False)
    for rank in range(num_ranks):
        name = TraceName(rank, grid.label(rank), _WHEN, 0)
        write_paddle_pb(of_rank(trace, grid, rank), run / name.raw)
    first.unlink()


def of_rank(trace: Trace, grid: Topology, rank: int) -> Trace:
    """The trace as this rank would have left it."""
    groups = {axis: next(group for group in grid.groups(axis) if rank in group) for axis in _BYTES}
    peers = {axis: ",".join(map(str, group)) for axis, group in groups.items()}
    shift = Random(rank).randrange(APART_NS)
    told = (pl.col("category") == "Communication") & pl.col("name").is_in(list(_AXES))
    axis = pl.col("name").cast(pl.String).replace_strict(_AXES, default=None)

    def tell(of_axis: Mapping[str, object], dtype: type[pl.DataType]) -> pl.Expr:
        return pl.when(told).then(axis.replace_strict(of_axis, default=None, return_dtype=dtype))

    events = trace.events.with_columns(
        pl.when(told)
        .then(pl.lit("all_reduce"))
        .otherwise(pl.col("name").cast(pl.String))
        .cast(pl.Categorical)
        .alias("name"),
        pl.col("start_ns") + shift,
        pl.when(told).then(axis).cast(pl.Categorical).alias("axis"),
        pl.coalesce(tell(_BYTES, pl.Int64), "bytes").alias("bytes"),
        tell(peers, pl.String).alias("peers"),
    )
    return replace(
        trace, events=events, memory=trace.memory.with_columns(pl.col("time_ns") + shift)
    )


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]))
