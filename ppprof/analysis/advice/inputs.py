"""Rules about data loading."""

from __future__ import annotations

import math

import polars as pl

from ppprof.analysis.advice.evidence import Evidence
from ppprof.analysis.advice.finding import Finding
from ppprof.analysis.profile.step_basis import NOT_RECORDED, is_enough

MOST_WORKERS = 16
"""Maximum number of workers to propose per rank: a machine with 8 devices rarely has more than 16
cores per device."""

DIFFERENT = 0.25
"""Difference between two waits, as a share of the longer one, above which they are not the same."""

_KEY = "Data.Train.loader.num_workers"


def loading(evidence: Evidence) -> pl.DataFrame:
    """Return the time of data loading: rank, window, step, loading_ns and step_ns.

    Without traces, the values are those of the run's step times, with window 0. Steps whose data
    loading is unknown, since the trace lacks the events of a device that may have worked meanwhile,
    have no row.
    """
    if evidence.steps.is_empty():
        return evidence.sound_times.drop_nulls("reader_cost_ns").select(
            "rank",
            pl.lit(0).alias("window"),
            "step",
            loading_ns="reader_cost_ns",
            step_ns="batch_cost_ns",
        )
    return evidence.steps.select(
        "rank", "window", "step", "step_ns", loading_ns="data_loading_ns"
    ).drop_nulls("loading_ns")


def exposed_reading(evidence: Evidence) -> pl.DataFrame:
    """Return the data loading that a device did not hide, of steps that were not recorded.

    A host that runs ahead reads its next batch while the device works::

        host     L|launch L|launch L|launch
        device            #########_#########       1 of 3 L is exposed: data_loading of a trace

    Outside windows, only the reader cost L is known. It counts by the exposed share of the recorded
    steps of its rank.

    Returns:
        rank, window (0), step, step_ns and loading_ns. No rows if the share is unknown for any rank
        whose trace has device events. A rank whose data loading is unknown in its trace has no rows.
    """
    read = evidence.step_times.drop_nulls("window").select(
        "rank", "window", "step", "reader_cost_ns"
    )
    waits, reads = pl.col("data_loading_ns").sum(), pl.col("reader_cost_ns").sum()
    recorded = evidence.steps.drop_nulls("data_loading_ns")
    shares = (
        recorded.join(read, ["rank", "window", "step"], "left")
        .group_by("rank")
        .agg(
            on_device=pl.col("host_launch_ns").count() > 0,
            share=pl.when(reads > 0).then((waits / reads).clip(0, 1)),
        )
        .select("rank", share=pl.when("on_device").then("share").otherwise(1.0))
    )
    known = evidence.unrecorded.drop_nulls("reader_cost_ns").join(shares, on="rank")
    if known["share"].has_nulls():
        known = known.clear()
    return known.select(
        "rank",
        "step",
        "step_ns",
        window=pl.lit(0, pl.Int64),
        loading_ns=(pl.col("reader_cost_ns") * pl.col("share")).round().cast(pl.Int64),
    )


def input_bound(evidence: Evidence) -> list[Finding]:
    """Report training threads that wait for batches.

    The cost is the longest wait of any rank, mean over steps::

        rank 0   LLLL########      costs 4 per step: the longest wait delays all ranks
        rank 1   L####___####

    Recording can make data slower, as a loader's process shares the cores with it. So the waits are
    those of steps that were not recorded, if their reader cost is known for enough of them. If they
    differ from the recorded ones by more than `DIFFERENT`, the finding is ``likely``. Of a run on a
    device without traces, nothing says how much the device hides: the finding is ``possible``.
    """
    recorded = loading(evidence)
    table, basis = recorded, evidence.basis
    if not evidence.steps.is_empty():
        known = exposed_reading(evidence)
        if is_enough(known):
            table, basis = known, NOT_RECORDED
    if table.is_empty():
        return []
    cost_ns, step_ns = _longest(table, "loading_ns"), _longest(table, "step_ns")
    recorded_ns = _longest(recorded, "loading_ns")
    differs = abs(cost_ns - recorded_ns) > DIFFERENT * max(cost_ns, recorded_ns)
    ranks = (
        table.group_by("rank")
        .agg(pl.col("loading_ns", "step_ns").mean())
        .with_columns(loading_ratio=pl.col("loading_ns") / pl.col("step_ns"))
        .sort("loading_ns", "rank", descending=[True, False])
    )
    slowest = ranks.row(0, named=True)
    present = evidence.number(_KEY)
    facts = {
        "rank": slowest["rank"],
        "loading_ns": slowest["loading_ns"],
        "loading_ratio": slowest["loading_ratio"],
        "rank_step_ns": slowest["step_ns"],
        "recorded_loading_ns": recorded_ns,
        "num_workers": present,
        "proposed_workers": proposed_workers(present or 0, step_ns, cost_ns),
    }
    confidence = "likely" if differs else "sure"
    if evidence.steps.is_empty() and evidence.is_on_device:
        confidence = "possible"
    step = (step_ns, basis)
    return evidence.time_finding("input-bound", cost_ns, confidence, facts, ranks, step)


def _longest(table: pl.DataFrame, column: str) -> float:
    """Return the largest value of any rank, mean over steps; 0 for no steps."""
    longest = table.group_by("window", "step").agg(pl.col(column).max())[column].drop_nulls()
    return float(longest.to_numpy().mean()) if len(longest) else 0.0


def proposed_workers(present: int, step_ns: float, loading_ns: float) -> int:
    """Return the number of workers that load batches as fast as the rank can train on them.

    A step that waits for data takes as long as the present workers need to load a batch:

        1 worker    LLLLLLLLL           a batch in 9
        step        wwwwww###           6 of waiting, 3 of training: 3 workers load as fast

    >>> proposed_workers(1, 9, 6), proposed_workers(0, 100, 48), proposed_workers(4, 10, 1)
    (3, 2, 5)

    Args:
        present: the present number of workers; 0 means that the process loads batches itself.
        step_ns: the time of a step.
        loading_ns: the part of ``step_ns`` in which the step waits for data.

    Returns:
        At least ``present`` + 1, and at most `MOST_WORKERS` unless ``present`` is that many
        already.
    """
    training_ns = max(step_ns - loading_ns, step_ns / MOST_WORKERS, 1.0)
    needed = math.ceil(max(present, 1) * step_ns / training_ns)
    return min(max(present + 1, needed), max(MOST_WORKERS, present + 1))
