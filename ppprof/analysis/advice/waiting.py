"""Rules about ranks that wait for one another."""

from __future__ import annotations

import re

import polars as pl

from ppprof.analysis.advice.evidence import Evidence
from ppprof.analysis.advice.finding import Fact, Finding
from ppprof.analysis.advice.inputs import loading

ALL_OF_IT = 0.5
"""From this part of a slow rank's excess on, data that it waits for is what makes it slow."""

GOOD_BUBBLE_RATIO = 0.1
"""Bubble of a pipeline from which on more micro-batches win little, and cost in smaller kernels."""

_AXES = ("dp", "mp", "sep", "sharding", "pp")


def exposed_communication(case: Evidence) -> list[Finding]:
    """Communication that no computation hides, an axis each, without the wait for whoever is late."""
    found: list[Finding] = []
    for column in case.of_ranks.columns:
        if column.startswith("exposed_"):
            found += _exposed(case, column.removeprefix("exposed_").removesuffix("_ns"))
    return found


def _exposed(case: Evidence, axis: str) -> list[Finding]:
    exposed, whole = f"exposed_{axis}_ns", f"communication_{axis}_ns"
    ranks = case.of_ranks.filter(pl.col(whole) > 0).select("rank", exposed, whole)
    if ranks.is_empty() or case.cluster is None:
        return []
    # Of a pipeline's transfers the wait for the other side is bubble, and taken off already.
    ratio = 1.0 if axis == "pp" else _transfer_ratio(case, axis)
    each_ns = float(ranks[exposed].median() or 0.0)  # type: ignore[arg-type]
    slow = case.cluster.slow_groups.filter(pl.col("is_slow") & (pl.col("axis") == axis))
    slow_ns = float(slow["excess_ns"].max() or 0.0)  # type: ignore[arg-type]
    cost_ns = each_ns * (1.0 if ratio is None else ratio) - slow_ns
    on_axis = axis if axis in _AXES else "other"
    facts: dict[str, Fact] = {
        "axis": axis,
        "exposed_ns": each_ns,
        "communication_ns": float(ranks[whole].median() or 0.0),  # type: ignore[arg-type]
        "transfer_ratio": ratio,
        "degree": case.degree(axis) if axis in _AXES else None,
        "remedy": f"{case.remedy}-{on_axis}",
        "present": case.text(_KEYS[axis]) if axis in _KEYS else None,
    }
    groups = case.cluster.groups.filter(pl.col("axis") == axis)
    evidence = groups.select("members", "axis", "calls", "wait_ns", "transfer_ns")
    if groups.is_empty():
        evidence = ranks.sort(exposed, "rank", descending=[True, False])
    # How much of it can be hidden or left out is not known: this is the most.
    return case.time_finding("exposed-communication", cost_ns, "possible", facts, evidence)


_KEYS = {
    "sharding": "Distributed.sharding.reduce_overlap",
    "mp": "Distributed.mp_degree",
    "dp": "Global.local_batch_size",
    "pp": "Model.virtual_pp_degree",
}


def _transfer_ratio(case: Evidence, axis: str) -> float | None:
    """Of the time in an axis' collectives what goes on after all have come; None: nobody tells.

    Whoever comes last waits for nobody, so the shortest of the members' times is the transfer, on
    whatever clocks:

        rank 0   [ wait | transfer ]
        rank 1          [ transfer ]
    """
    parts = case.cluster.collectives if case.cluster else ()
    if not parts:
        return None
    met = pl.concat(parts).filter(
        (pl.col("axis") == axis) & pl.col("step").is_in(case.steps["step"].unique().implode())
    )
    lengths = (
        met.with_columns(time_ns=pl.col("end_ns") - pl.col("start_ns"))
        .group_by("members", "op", "step", "index")
        .agg(pl.len(), least=pl.col("time_ns").min(), mean=pl.col("time_ns").mean())
        .filter(pl.col("len") > 1)
    )
    transfer, whole = lengths.select(pl.col("least").sum(), pl.col("mean").sum()).row(0)
    return transfer / whole if whole else None


def slow_rank(case: Evidence) -> list[Finding]:
    """Ranks that are longer at their own work than their peers, step after step.

    One whose data is what it waits for is input-bound instead. Slow ranks are slow at the same time:
    together they cost as much as the slowest, and no more than a replay without it wins.
    """
    if case.cluster is None:
        return []
    waits = loading(case).group_by("rank").agg(pl.col("loading_ns").median())
    usual = pl.col("loading_ns").sort().get((pl.len() - 1) // 2)
    waits = waits.with_columns(loading_ns=pl.col("loading_ns") - usual)
    slow = case.cluster.slow_ranks.filter("is_slow").join(waits, on="rank", how="left")
    slow = slow.filter(pl.col("loading_ns").fill_null(0) < ALL_OF_IT * pl.col("excess_ns"))
    slow = slow.sort("excess_ns", descending=True)
    if slow.is_empty():
        return []
    first = slow.row(0, named=True)
    place = case.steps.filter(pl.col("rank") == first["rank"]).row(0, named=True)
    means = case.of_ranks.filter(pl.col("rank") == first["rank"]).row(0, named=True)
    facts = {
        "rank": first["rank"],
        "host": place["host"],
        "peers": first["peers"],
        "role": first["role"],
        "excess_ns": first["excess_ns"],
        "noise_ns": first["noise_ns"],
        "num_slow": slow.height,
        "host_bound_ns": means.get("host_bound_ns"),
        "saved_ns": _saved(case, first["rank"]),
    }
    cost_ns = min(first["excess_ns"], facts["saved_ns"] or first["excess_ns"])
    evidence = slow.select("rank", "role", "peers", "excess_ns", "noise_ns")
    return case.time_finding("slow-rank", cost_ns, "sure", facts, evidence)


def _saved(case: Evidence, rank: int) -> float | None:
    """What a replay wins with this rank's worker as fast as usual; None where that tells nothing."""
    table = case.cluster.what_if if case.cluster else pl.DataFrame()
    if table.is_empty() or table.filter(fixed="nothing")["error_ratio"][0] > 0.1:
        return None
    workers = table.filter(pl.col("fixed") == "worker")
    of_rank = workers.filter(pl.col("ranks").str.split(",").list.contains(str(rank)))
    if of_rank.is_empty():
        return None
    saved = float(table.filter(fixed="nothing")["step_ns"][0] - of_rank["step_ns"][0])
    return saved if saved > 0 else None


def slow_link(case: Evidence) -> list[Finding]:
    """Groups whose transfers take longer than those of the groups beside them."""
    if case.cluster is None:
        return []
    slow = case.cluster.slow_groups.filter("is_slow").sort("excess_ns", descending=True)
    if slow.is_empty():
        return []
    first = slow.row(0, named=True)
    ranks = [int(rank) for rank in re.split("[,>]", first["members"])]
    on = case.steps.filter(pl.col("rank").is_in(ranks))["host"].drop_nulls().unique().sort()
    facts = {
        "members": first["members"],
        "axis": first["axis"],
        "hosts": ", ".join(on) or None,
        "siblings": first["siblings"],
        "excess_ns": first["excess_ns"],
        "noise_ns": first["noise_ns"],
    }
    evidence = slow.select("members", "axis", "siblings", "excess_ns", "noise_ns")
    return case.time_finding("slow-link", first["excess_ns"], "sure", facts, evidence)


def pipeline_bubble(case: Evidence) -> list[Finding]:
    """Stages that wait because the schedule has too few micro-batches.

    Of p stages with m micro-batches in v chunks each (p - 1) / (v m + p - 1) is bubble; with m' of
    them, the same samples in smaller pieces, m / m' of it is left. What is more bubble than the
    schedule's is not won: that is stages which are not equal, or somebody late.
    """
    bubble = scheduled_bubble(case)
    if bubble is None:
        return []
    stages, batches, chunks = case.degree("pp"), num_micro_batches(case), num_chunks(case)
    proposed = proposed_micro_batches(stages, batches, chunks, samples(case))
    remedy = case.remedy
    if proposed == batches:  # the samples cannot be cut finer
        proposed = proposed_micro_batches(stages, batches, chunks, None)
        remedy = f"{remedy}-more-samples"
    ratio, then = ((stages - 1) / (chunks * number + stages - 1) for number in (batches, proposed))
    facts = {
        "bubble_ns": bubble,
        "stages": stages,
        "micro_batches": batches,
        "proposed_micro_batches": proposed,
        "chunks": chunks,
        "bubble_ratio": ratio,
        "proposed_bubble_ratio": then,
        "local_batch_size": samples(case),
        "micro_batch_size": case.number("Global.micro_batch_size"),
        "proposed_micro_batch_size": (samples(case) or 0) // proposed or None,
        "remedy": remedy,
    }
    evidence = case.steps.group_by("pp").agg(pl.col("step_ns", "bubble_ns").mean()).sort("pp")
    return case.time_finding(
        "pipeline-bubble", bubble * (1 - batches / proposed), "likely", facts, evidence
    )


def scheduled_bubble(case: Evidence) -> float | None:
    """The measured bubble of the median rank, no more than the schedule has; None without one."""
    stages, batches = case.degree("pp"), num_micro_batches(case)
    if case.cluster is None or stages < 2 or not batches:
        return None
    passes = pl.concat(case.cluster.passes)
    passes = passes.filter(pl.col("kind").is_in(["forward", "backward"]))
    passes = passes.filter(pl.col("step").is_in(case.steps["step"].unique().implode()))
    busy = passes.group_by("rank", "step").agg(
        busy_ns=(pl.col("end_ns") - pl.col("start_ns")).sum()
    )
    if busy.is_empty():
        return None
    of_schedule = busy["busy_ns"].to_numpy().mean() * (stages - 1) / (num_chunks(case) * batches)
    measured = float(case.of_ranks["bubble_ns"].median() or 0.0)  # type: ignore[arg-type]
    return min(measured, float(of_schedule))


def num_micro_batches(case: Evidence) -> int:
    """Of a step of one replica; 0 where nobody tells."""
    told = [part.drop_nulls("micro_batch") for part in case.cluster.passes] if case.cluster else []
    most = [int(part["micro_batch"].to_numpy().max()) + 1 for part in told if part.height]
    return max(most, default=round(case.typical("num_micro_batches")))


def num_chunks(case: Evidence) -> int:
    """Virtual stages of a stage."""
    told = [part.drop_nulls("chunk") for part in case.cluster.passes] if case.cluster else []
    return max((int(part["chunk"].to_numpy().max()) + 1 for part in told if part.height), default=1)


def samples(case: Evidence) -> int | None:
    """That a replica takes in a step; None where nobody tells."""
    return case.number("Global.local_batch_size")


def proposed_micro_batches(stages: int, present: int, chunks: int, samples: int | None) -> int:
    """As few as make the bubble `GOOD_BUBBLE_RATIO`, or as many as the samples can be cut into.

    >>> proposed_micro_batches(2, 1, 1, 8), proposed_micro_batches(2, 1, 1, None)
    (8, 9)
    >>> proposed_micro_batches(4, 8, 1, 64), proposed_micro_batches(4, 8, 1, 8)
    (32, 8)
    """
    needed = -(-round((stages - 1) * (1 / GOOD_BUBBLE_RATIO - 1)) // chunks)
    if samples is None:
        return max(present, needed)
    cuts = [number for number in range(present, samples + 1) if samples % number == 0]
    enough = [number for number in cuts if number >= needed]
    return enough[0] if enough else max(cuts, default=present)
