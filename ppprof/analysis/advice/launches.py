"""Rules about devices that wait for the host, and about the optimizer's many launches.

The time in which no device has anything to do is told once: what follows a blocking copy, lies in the
optimizer or between two tiny kernels is that rule's, the rest is host-bound.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from ppprof.analysis.advice.evidence import Evidence
from ppprof.analysis.advice.finding import LEAST_RATIO, Finding
from ppprof.analysis.advice.indicators import TINY_NS

LEAST_UPDATES = 16
"""Of parameters in a step: with fewer there is nothing to fuse."""

FUSED_UPDATES = 2
"""What a fused optimizer is left with: parameters with weight decay, and those without."""


def idle_costs(case: Evidence) -> Mapping[str, float]:
    """Time in which devices wait for the host, by rule.

    What costs too little for a rule of its own is host-bound's.
    """
    parts = {
        "blocking-copies": case.typical("idle_after_copies_ns"),
        "optimizer-unfused": _fusible(case, "idle_in_optimizer_ns"),
        "tiny-kernels": case.typical("idle_between_tiny_ns"),
    }
    told = {rule: ns for rule, ns in parts.items() if ns >= LEAST_RATIO * case.step_ns}
    return {**told, "host-bound": case.typical("idle_ns") - sum(told.values())}


def host_bound(case: Evidence) -> list[Finding]:
    """No device has anything to do, and the host waits for nothing: it does not launch fast enough."""
    cost_ns = idle_costs(case)["host-bound"]
    ranks = case.symptom_means.select("rank", "idle_ns", "num_kernels")
    facts = {
        "idle_ns": case.typical("idle_ns"),
        "other_idle_ns": case.typical("idle_ns") - cost_ns,
        "num_kernels": case.typical("num_kernels"),
    }
    return case.time_finding("host-bound", cost_ns, "likely", facts, _most(ranks, "idle_ns"))


def tiny_kernels(case: Evidence) -> list[Finding]:
    """Kernels that are over before the next is launched. Costs what devices idle between them."""
    cost_ns = idle_costs(case).get("tiny-kernels", 0.0)
    num, tiny = case.typical("num_kernels"), case.typical("num_tiny_kernels")
    facts = {
        "num_kernels": num,
        "num_tiny_kernels": tiny,
        "tiny_ratio": tiny / num if num else None,
        "tiny_ns": TINY_NS,
        "idle_ns": cost_ns,
    }
    return case.time_finding(
        "tiny-kernels", cost_ns, "likely", facts, case.names("kernel", "calls")
    )


def blocking_copies(case: Evidence) -> list[Finding]:
    """Copies that the host waits for: then it has launched nothing ahead. Costs the idling behind."""
    cost_ns = idle_costs(case).get("blocking-copies", 0.0)
    copies = case.names("copy", "calls")
    facts = {
        "num_copies": case.typical("num_blocking_copies"),
        "copies_ns": case.typical("blocking_copies_ns"),
        "idle_ns": cost_ns,
        "caller": copies["name"][0] if copies.height else None,
        "logging_freq": case.number("Engine.logging_freq"),
    }
    return case.time_finding("blocking-copies", cost_ns, "likely", facts, copies)


def optimizer_unfused(case: Evidence) -> list[Finding]:
    """An update for each parameter. Costs what of the updates is not computation.

    On a device that is the idling from the first to the last of them, on a CPU their time outside of
    kernels; less the part of the `FUSED_UPDATES` that are left. Clipping is no update.

        optimizer   norm norm norm  u##_u##_u##_      # kernels, the rest of the updates is won
    """
    cost_ns = idle_costs(case).get("optimizer-unfused") or _fusible(case, "optimizer_overhead_ns")
    facts = {
        "num_updates": case.typical("num_updates"),
        "optimizer_ns": case.typical("optimizer_ns"),
        "overhead_ns": cost_ns,
        "name": case.setting("Optimizer.name"),
        "use_multi_tensor": str(case.setting("Optimizer.use_multi_tensor") or False),
    }
    return case.time_finding("optimizer-unfused", cost_ns, "likely", facts, case.names("optimizer"))


def _fusible(case: Evidence, column: str) -> float:
    updates = case.typical("num_updates")
    if updates < LEAST_UPDATES:
        return 0.0
    return case.typical(column) * (1 - FUSED_UPDATES / updates)


def _most(table: pl.DataFrame, column: str) -> pl.DataFrame:
    return table.sort(column, "rank", descending=[True, False])
