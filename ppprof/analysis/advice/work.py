"""Rules about avoidable work."""

from __future__ import annotations

import polars as pl

from ppprof.analysis.advice.evidence import Evidence
from ppprof.analysis.advice.finding import Fact, Finding
from ppprof.analysis.advice.memory_pressure import fullest
from ppprof.analysis.advice.waiting import num_micro_batches, scheduled_bubble

ROOM_RATIO = 0.5
"""Share of a device's memory. If the peak is below it, activations probably fit without
recomputation."""


def gradient_accumulation(evidence: Evidence) -> list[Finding]:
    """Report the accumulation of gradients, which is repeated for each micro-batch.

    The cost is the gain of half as many micro-batches of twice the size: half the accumulation
    time, minus the bubble that fewer micro-batches add.
    """
    batches = num_micro_batches(evidence)
    if batches < 2:
        return []
    accumulation_ns = evidence.typical("accumulation_ns")
    cost_ns = accumulation_ns / 2 - (scheduled_bubble(evidence) or 0.0)
    size = evidence.number("Global.micro_batch_size")
    facts = {
        "accumulation_ns": accumulation_ns,
        "micro_batches": batches,
        "micro_batch_size": size,
        "proposed_micro_batch_size": None if size is None else 2 * size,
    }
    rows = evidence.names("accumulation")
    return evidence.time_finding("gradient-accumulation", cost_ns, "possible", facts, rows)


def recompute(evidence: Evidence) -> list[Finding]:
    """Report recomputed activations, if the fullest device has enough memory to keep them.

    Nothing is reported if no device's memory is known.
    """
    held = fullest(evidence)
    if held is None or held["peak_reserved_bytes"] >= ROOM_RATIO * held["total_bytes"]:
        return []
    cost_ns = evidence.typical("recompute_ns")
    facts = {
        "recompute_ns": cost_ns,
        "peak_bytes": held["peak_reserved_bytes"],
        "total_bytes": held["total_bytes"],
        "room_bytes": held["total_bytes"] - held["peak_reserved_bytes"],
        "granularity": evidence.setting("Model.recompute_granularity") or "full",
    }
    rows = evidence.indicator_means.select("rank", "recompute_ns").sort(
        "recompute_ns", "rank", descending=[True, False]
    )
    rows = rows.filter(pl.col("recompute_ns") > 0)
    return evidence.time_finding("recompute", cost_ns, "possible", facts, rows)


LEAST_UNEXPLAINED = 0.05
"""Share of a step. Less time in one place is not worth a search."""


def largest_gap(evidence: Evidence) -> dict[str, Fact]:
    """Return the place with the most unexplained host time, as facts: gap, and gap_ns a step.

    Each is null if there is no such place.
    """
    gaps = evidence.names("gap")
    if gaps.is_empty():
        return {"gap": None, "gap_ns": None}
    return {"gap": gaps["name"][0], "gap_ns": gaps["time_ns"][0]}


def unexplained(evidence: Evidence) -> list[Finding]:
    """Report one place with much host time that no event explains, in a trace without device events.

    With device events, such time is idle time of the device, and `host_bound` names the place.
    """
    if evidence.indicator_means["idle_ns"].count():
        return []
    facts = largest_gap(evidence)
    gap_ns = facts["gap_ns"]
    if not isinstance(gap_ns, float) or gap_ns < LEAST_UNEXPLAINED * evidence.step_ns:
        return []
    return evidence.time_finding("unexplained", gap_ns, "possible", facts, evidence.names("gap"))
