"""Other threads that run Python while the thread of the steps stands still: one lock for all of Python.

A thread that returns from an operator needs the interpreter's lock. One that runs Python gives it away
after Python's switch interval only, 5 ms unless it is changed::

    steps     op |........| op |........| op       a dot: neither runs nor waits for a processor
    reader       ##########    ##########          reads samples in Python, and holds the lock
"""

from __future__ import annotations

import polars as pl

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import LOADERS, called_by, sample_lines, sampled_steps

LEAST_RUNNING = 0.5
"""Share of the time in which a thread is in the user's code that it has to be on a processor: a thread
that sleeps, or waits for a file, holds no lock."""


def held_by_others(profile: Profile, waits_ns: float) -> pl.DataFrame:
    """Return the lines of other threads that run while the thread of the steps stands still.

    It stands still if it is on no processor, waits for none, and neither loads data nor communicates
    nor is in a line beside the training.

    Args:
        profile: one rank's window.
        waits_ns: how long, in all steps, the thread of the steps loads data, communicates, waits for
            other processes, or is in lines beside the training.

    Returns:
        step, name (the line), reads_ahead (whether a DataLoader calls it) and time_ns. The sum of time_ns
        is the time in which the thread stands still, or the time in which other threads run, if that
        is shorter. No rows if this is unknown.
    """
    nothing = pl.DataFrame(
        schema={"step": pl.Int64, "name": pl.String, "reads_ahead": pl.Boolean, "time_ns": pl.Int64}
    )
    sampled = sampled_steps(profile)
    if sampled is None or not sampled.stacks.threads:
        return nothing
    threads = sampled.stacks.threads
    stepping = sampled.samples.filter("is_step")["thread"].unique().to_list()
    others = sampled.samples.filter(~pl.col("is_step"))
    if len(stepping) != 1 or stepping[0] not in threads or others.is_empty():
        return nothing
    time = threads[stepping[0]]
    steps_ns = sampled.step_ns * sampled.num_steps
    still = steps_ns * (1 - (time.ran_ns + time.waited_ns) / time.window_ns)
    still -= waits_ns
    lines = sample_lines(sampled)
    reads = called_by(sampled, LOADERS)
    others = others.with_columns(
        name=pl.Series([lines[row] for row in others["stack"]], dtype=pl.String),
        reads_ahead=pl.Series(reads[others["stack"]], dtype=pl.Boolean),
    ).drop_nulls("name")
    running = {
        thread: min(1.0, threads[thread].ran_ns / max(1, weight_ns))
        for thread, weight_ns in others.group_by("thread").agg(pl.col("weight_ns").sum()).rows()
        if thread in threads
    }
    share = pl.col("thread").replace_strict(running, default=0.0, return_dtype=pl.Float64)
    others = others.with_columns(ran_ns=pl.col("weight_ns") * share).filter(share >= LEAST_RUNNING)
    ran_ns = float(others["ran_ns"].sum())
    if still <= 0 or not ran_ns:
        return nothing
    part = min(1.0, still / ran_ns)
    return others.select(
        "step", "name", "reads_ahead", time_ns=(pl.col("ran_ns") * part).round().cast(pl.Int64)
    )
