"""What to change in a job, and what that would win: rules over a `Evidence`.

Each rule is a small pure function of a case; one that lacks its evidence says nothing. Their texts are
data: ``ppprof/report/catalogue``.
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
    """Key of its texts."""
    find: Callable[[Evidence], list[Finding]]
    """What it has to say of a case; nothing where it lacks its evidence."""
    about: str = "time"
    """``time``, ``memory`` or ``trust``: whether the other findings can be believed."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """What it goes by, for its definition; units end the key."""


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
"""Causes before what follows from them: of findings that cost the same the first is told first."""

_TRUST = frozenset(rule.name for rule in RULES if rule.about == "trust")


def advise(case: Evidence) -> list[Finding]:
    """All that the rules have to say, most costly first.

    By severity, then by cost. What says that numbers cannot be trusted comes first where it is major,
    else behind what it puts in doubt.
    """
    found = [finding for rule in RULES for finding in rule.find(case)]

    def place(finding: Finding) -> tuple[int, bool, float]:
        severity = SEVERITIES.index(finding.severity)
        is_doubt = severity == 0 and finding.rule in _TRUST
        return severity, not is_doubt, -(finding.cost_ns or 0.0)

    return sorted(found, key=place)
