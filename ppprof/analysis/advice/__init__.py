"""Advice: changes to a job and their gain, from rules over an `Evidence`.

Each rule is a small pure function; it returns nothing if its data is missing. The texts of the rules
are in ``ppprof/report/catalogue``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ppprof.analysis.advice import inputs, launches, memory_pressure, trust, waiting, work
from ppprof.analysis.advice.evidence import Evidence
from ppprof.analysis.advice.finding import LEAST_RATIO, SEVERITIES, Finding
from ppprof.analysis.advice.indicators import TINY_NS
from ppprof.analysis.diff.significance import LEAST_STEPS

__all__ = ["RULES", "Evidence", "Rule", "advise"]


@dataclass(frozen=True)
class Rule:
    """One of `RULES`."""

    name: str
    """The key of its texts."""
    find: Callable[[Evidence], list[Finding]]
    """Returns the rule's findings; none if its data is missing."""
    about: str = "time"
    """``time``, ``memory`` or ``trust`` (whether the other findings are reliable)."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """The rule's thresholds, for its description; keys end in their units."""


_TIME = {"least_ratio": LEAST_RATIO}

RULES: tuple[Rule, ...] = (
    Rule("input-bound", inputs.input_bound, thresholds=_TIME),
    Rule("slow-rank", waiting.slow_rank, thresholds={**_TIME, "data_ratio": waiting.ALL_OF_IT}),
    Rule("slow-link", waiting.slow_link, thresholds=_TIME),
    Rule(
        "pipeline-bubble",
        waiting.pipeline_bubble,
        thresholds={**_TIME, "good_bubble_ratio": waiting.GOOD_BUBBLE_RATIO},
    ),
    Rule("exposed-communication", waiting.exposed_communication, thresholds=_TIME),
    Rule("blocking-copies", launches.blocking_copies, thresholds=_TIME),
    Rule(
        "optimizer-unfused",
        launches.optimizer_unfused,
        thresholds={**_TIME, "least_updates": launches.LEAST_UPDATES},
    ),
    Rule("tiny-kernels", launches.tiny_kernels, thresholds={**_TIME, "tiny_ns": TINY_NS}),
    Rule("host-bound", launches.host_bound, thresholds=_TIME),
    Rule("gradient-accumulation", work.gradient_accumulation, thresholds=_TIME),
    Rule("recompute", work.recompute, thresholds={**_TIME, "room_ratio": work.ROOM_RATIO}),
    Rule(
        "memory-limit",
        memory_pressure.memory_limit,
        "memory",
        {"near_ratio": memory_pressure.NEAR_RATIO},
    ),
    Rule(
        "memory-fragmented",
        memory_pressure.memory_fragmented,
        "memory",
        {
            "unused_ratio": memory_pressure.FRAGMENTED_RATIO,
            "unused_bytes": memory_pressure.FRAGMENTED_BYTES,
            "filled_ratio": memory_pressure.FILLED_RATIO,
        },
    ),
    Rule("warm-up", trust.warm_up, "trust", {"times": trust.WARM_UP_RATIO}),
    Rule(
        "profiler-overhead",
        trust.profiler_overhead,
        "trust",
        {"overhead_ratio": trust.OVERHEAD_MINOR},
    ),
    Rule("short-window", trust.short_window, "trust", {"least_steps": LEAST_STEPS}),
)
"""Causes come before their effects: of findings with equal cost, the earlier rule's comes first."""

_TRUST = frozenset(rule.name for rule in RULES if rule.about == "trust")


def advise(evidence: Evidence) -> list[Finding]:
    """Return the findings of all rules, by severity, then by cost.

    A major finding about trust comes before all others; a smaller one comes after those with its
    severity that have a cost.
    """
    findings = [finding for rule in RULES for finding in rule.find(evidence)]

    def sort_key(finding: Finding) -> tuple[int, bool, float]:
        severity = SEVERITIES.index(finding.severity)
        is_major_doubt = severity == 0 and finding.rule in _TRUST
        return severity, not is_major_doubt, -(finding.cost_ns or 0.0)

    return sorted(findings, key=sort_key)
