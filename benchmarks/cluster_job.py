"""Write the run directory of a synthetic job with many ranks and matching collectives.

A rank's trace is two steps of a small GPU job (`gpu_job`), with changed collectives: each rank is in
a tensor parallel group of 8 ranks and in a data parallel group. Ranks begin some microseconds apart.
There are no clock readings.
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
"""Range of the ranks' begins. Collectives take longer, so none ends before all ranks have begun."""
_AXES = {"mp_allreduce": "mp", "all_reduce": "dp"}
"""Collective of `gpu_job` -> axis."""
_BYTES = {"mp": 33_554_432, "dp": 100_663_296}
_WHEN = datetime(2026, 11, 20, 20, 15, 30)


def make(folder: Path, num_ranks: int) -> None:
    """Write the run directory of such a job in a folder."""
    topology = Topology.of(dp=num_ranks // MP_DEGREE, mp=MP_DEGREE)
    run = claim(folder)
    block = ProfilerConfig.from_mapping({"enable": True}).to_mapping()
    axes = {"order": topology.order, "degrees": topology.degrees}
    ranks = [
        {"rank": rank, "host": f"host-{rank // MP_DEGREE}", "coordinate": topology.coordinate(rank)}
        for rank in range(num_ranks)
    ]
    write_manifest(run, {"profiler": block, "axes": axes, "ranks": ranks})
    first = write(folder / "first.pb", *gpu_job.threads(NUM_STEPS, NUM_LAYERS), devices=(0,))
    trace = read(first)
    for rank in range(num_ranks):
        name = TraceName(rank, topology.label(rank), _WHEN, 0)
        write_paddle_pb(trace_of_rank(trace, topology, rank), run / name.raw)
    first.unlink()


def trace_of_rank(trace: Trace, topology: Topology, rank: int) -> Trace:
    """Return the trace with the start times and collectives of a rank."""
    groups = {
        axis: next(group for group in topology.groups(axis) if rank in group) for axis in _BYTES
    }
    peers = {axis: ",".join(map(str, group)) for axis, group in groups.items()}
    shift = Random(rank).randrange(APART_NS)
    is_collective = (pl.col("category") == "Communication") & pl.col("name").is_in(list(_AXES))
    axis = pl.col("name").cast(pl.String).replace_strict(_AXES, default=None)

    def by_axis(values: Mapping[str, object], dtype: type[pl.DataType]) -> pl.Expr:
        value = axis.replace_strict(values, default=None, return_dtype=dtype)
        return pl.when(is_collective).then(value)

    events = trace.events.with_columns(
        pl.when(is_collective)
        .then(pl.lit("all_reduce"))
        .otherwise(pl.col("name").cast(pl.String))
        .cast(pl.Categorical)
        .alias("name"),
        pl.col("start_ns") + shift,
        pl.when(is_collective).then(axis).cast(pl.Categorical).alias("axis"),
        pl.coalesce(by_axis(_BYTES, pl.Int64), "bytes").alias("bytes"),
        by_axis(peers, pl.String).alias("peers"),
    )
    return replace(
        trace, events=events, memory=trace.memory.with_columns(pl.col("time_ns") + shift)
    )


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]))
