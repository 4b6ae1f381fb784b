"""Rules about work that could be less."""

from __future__ import annotations

import polars as pl

from ppprof.analysis.advice.evidence import Evidence
from ppprof.analysis.advice.finding import Finding
from ppprof.analysis.advice.memory_pressure import fullest
from ppprof.analysis.advice.waiting import num_micro_batches, scheduled_bubble

ROOM_RATIO = 0.5
"""Of a device's memory: where not even this much was ever held, activations may well fit."""


def gradient_accumulation(case: Evidence) -> list[Finding]:
    """What gradient nodes do beside their own computation, each micro-batch again.

    Costs what half as many micro-batches of twice the size would win: half of it, less the bubble
    that fewer micro-batches have more of.
    """
    batches = num_micro_batches(case)
    if batches < 2:
        return []
    accumulation_ns = case.typical("accumulation_ns")
    cost_ns = accumulation_ns / 2 - (scheduled_bubble(case) or 0.0)
    size = case.number("Global.micro_batch_size")
    facts = {
        "accumulation_ns": accumulation_ns,
        "micro_batches": batches,
        "micro_batch_size": size,
        "proposed_micro_batch_size": None if size is None else 2 * size,
    }
    evidence = case.names("accumulation")
    return case.time_finding("gradient-accumulation", cost_ns, "possible", facts, evidence)


def recompute(case: Evidence) -> list[Finding]:
    """Activations computed again, on devices with room to keep them."""
    held = fullest(case)
    if held is None or held["peak_reserved_bytes"] >= ROOM_RATIO * held["total_bytes"]:
        return []
    cost_ns = case.typical("recompute_ns")
    facts = {
        "recompute_ns": cost_ns,
        "peak_bytes": held["peak_reserved_bytes"],
        "total_bytes": held["total_bytes"],
        "room_bytes": held["total_bytes"] - held["peak_reserved_bytes"],
        "granularity": case.setting("Model.recompute_granularity") or "full",
    }
    evidence = case.symptom_means.select("rank", "recompute_ns").sort(
        "recompute_ns", "rank", descending=[True, False]
    )
    evidence = evidence.filter(pl.col("recompute_ns") > 0)
    return case.time_finding("recompute", cost_ns, "possible", facts, evidence)
