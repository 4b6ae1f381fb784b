"""Rules about memory. They cost no time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from ppprof.analysis.advice.evidence import Evidence
from ppprof.analysis.advice.finding import Finding

NEAR_RATIO = 0.90
"""Of a device's memory: from here on a longer sequence ends the job (Paddle's own pool stops at 92%
by default, ``FLAGS_fraction_of_gpu_memory_to_use``)."""

FULL_RATIO = 0.97
"""Of a device's memory: what is left is less than the CUDA context and NCCL's buffers vary by."""

FRAGMENTED_RATIO = 0.20
"""Of what is held from the device and in no tensor at the peak."""

FRAGMENTED_BYTES = 1 << 30
"""Less is not worth a flag."""

FILLED_RATIO = 0.75
"""Of a device's memory: while less is held, holes in it harm nobody."""


def held(case: Evidence) -> pl.DataFrame:
    """A row a rank and device of known size: rank, `ppprof.analysis.advice.indicators.MEMORY` and more."""
    parts = [
        of.memory.select(pl.lit(rank, pl.Int64).alias("rank"), pl.all())
        for rank, of in sorted(case.indicators.items())
    ]
    if not parts:
        return pl.DataFrame()
    known = pl.concat(parts).drop_nulls().filter(pl.col("total_bytes") > 0)
    reserved = pl.max_horizontal("peak_reserved_bytes", "peak_allocated_bytes")
    return known.with_columns(peak_reserved_bytes=reserved).with_columns(
        held_ratio=pl.col("peak_reserved_bytes") / pl.col("total_bytes"),
        unused_bytes=pl.col("peak_reserved_bytes") - pl.col("peak_allocated_bytes"),
    )


def fullest(case: Evidence) -> Mapping[str, Any] | None:
    """The device with the least room; None where nobody tells."""
    table = held(case)
    if table.is_empty():
        return None
    return table.sort("held_ratio", descending=True, maintain_order=True).row(0, named=True)


def memory_limit(case: Evidence) -> list[Finding]:
    """Devices that are nearly full."""
    table = held(case)
    full = table.filter(pl.col("held_ratio") >= NEAR_RATIO) if table.height else table
    if full.is_empty():
        return []
    full = full.sort("held_ratio", descending=True, maintain_order=True)
    first = full.row(0, named=True)
    severity = "moderate" if first["held_ratio"] >= FULL_RATIO else "minor"
    facts = {
        "rank": first["rank"],
        "peak_bytes": first["peak_reserved_bytes"],
        "total_bytes": first["total_bytes"],
        "held_ratio": first["held_ratio"],
        "use_recompute": str(case.setting("Model.use_recompute") or False),
        "micro_batch_size": case.number("Global.micro_batch_size"),
    }
    evidence = full.select("rank", "place", "peak_reserved_bytes", "total_bytes", "held_ratio")
    return case.warning("memory-limit", severity, facts, evidence)


def memory_fragmented(case: Evidence) -> list[Finding]:
    """Devices that are filling up with memory that no tensor is in."""
    table = held(case)
    if table.is_empty():
        return []
    unused = pl.col("unused_bytes")
    found = table.filter(
        (pl.col("held_ratio") >= FILLED_RATIO)
        & (unused >= FRAGMENTED_BYTES)
        & (unused >= FRAGMENTED_RATIO * pl.col("peak_reserved_bytes"))
    ).sort("unused_bytes", descending=True, maintain_order=True)
    if found.is_empty():
        return []
    first = found.row(0, named=True)
    facts = {
        "rank": first["rank"],
        "unused_bytes": first["unused_bytes"],
        "peak_reserved_bytes": first["peak_reserved_bytes"],
        "peak_allocated_bytes": first["peak_allocated_bytes"],
        "unused_ratio": first["unused_bytes"] / first["peak_reserved_bytes"],
    }
    columns = ("rank", "place", "peak_allocated_bytes", "peak_reserved_bytes", "unused_bytes")
    return case.warning("memory-fragmented", "minor", facts, found.select(columns))
