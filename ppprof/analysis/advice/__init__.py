"""Advice: changes to a job and their gain, from rules that read an `Evidence`.

Each rule is a small pure function. It returns an empty list if its data is missing. The texts of
the rules are in ``ppprof/report/texts``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ppprof.analysis.advice import (
    beside,
    between_steps,
    communication,
    launches,
    memory,
    products,
    slow_steps,
    trust,
    uneven_work,
    waiting,
)
from ppprof.analysis.advice.discarded_rows import MOST_KEPT
from ppprof.analysis.advice.disjoint import IDLE, disjoint
from ppprof.analysis.advice.evidence import Evidence
from ppprof.analysis.advice.finding import LEAST_RATIO, SEVERITIES, Finding, Findings
from ppprof.analysis.advice.growing_work import LATER_STEPS, LEAST_GROWING, LEAST_LATER
from ppprof.analysis.advice.indicators import TINY_NS
from ppprof.analysis.advice.memory_growth import LAST_STEPS
from ppprof.analysis.advice.own_lines import LEAST_BESIDE
from ppprof.analysis.advice.penalties import LEAST_PARAMETERS
from ppprof.analysis.advice.slow_reason import ALIKE, REASON
from ppprof.analysis.advice.small_operators import (
    LEAST_SMALL,
    MANY_CALLS,
    MANY_OF_A_FUNCTION,
    MANY_OPERATORS,
    SMALL_NS,
)
from ppprof.analysis.advice.unexplained import LEAST_GAP_NS
from ppprof.analysis.efficiency.avoidable import LEAST_CLASSES, LEAST_WORDS
from ppprof.analysis.efficiency.copied_inputs import TIMES_USUAL
from ppprof.analysis.profile.machine_load import FULL, LEAST_OTHERS, LEAST_WAIT
from ppprof.analysis.profile.step_basis import LEAST_STEPS, SLOW
from ppprof.analysis.profile.steps import UNMARKED
from ppprof.analysis.profile.wholeness import CUT, FEW, LOST, UNLAUNCHED
from ppprof.trace.device_clock import UNSTEADY

__all__ = ["RULES", "Evidence", "Rule", "advise"]


@dataclass(frozen=True)
class Rule:
    """A rule of ``ppprof advise``: one of `RULES`."""

    name: str
    """The rule's name, also the key of its texts: ``slow-rank``."""
    find: Callable[[Evidence], list[Finding]]
    """The function that returns the rule's findings; the list is empty if its data is missing."""
    about: str = "time"
    """The subject of the findings: ``time``, ``memory`` or ``trust`` (whether the other findings
    are reliable)."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """The rule's thresholds, to fill in its description. Keys end in their units: ``tiny_ns``."""


_TIME = {"least_ratio": LEAST_RATIO}

RULES: tuple[Rule, ...] = (
    Rule(
        "input-bound",
        waiting.input_bound,
        thresholds={**_TIME, "least_steps": LEAST_STEPS, "different_ratio": waiting.DIFFERENT},
    ),
    Rule(
        "slow-steps",
        slow_steps.slow_steps,
        thresholds={**_TIME, "slow": SLOW, "least_steps": slow_steps.MANY_STEPS},
    ),
    Rule(
        "between-steps",
        between_steps.between_steps,
        thresholds={**_TIME, "least_steps": slow_steps.MANY_STEPS, "even": slow_steps.EVEN},
    ),
    Rule("interpreter-lock", beside.interpreter_lock, thresholds=_TIME),
    Rule("slow-link", waiting.slow_link, thresholds=_TIME),
    Rule(
        "slow-rank",
        waiting.slow_rank,
        thresholds={
            **_TIME,
            "data_ratio": waiting.ALL_OF_IT,
            "reason_ratio": REASON,
            "alike_ratio": ALIKE,
        },
    ),
    Rule(
        "uneven-work",
        uneven_work.uneven_work,
        thresholds={
            **_TIME,
            "correlation": uneven_work.LEAST_CORRELATION,
            "least_steps": uneven_work.LEAST_STEPS,
        },
    ),
    Rule("garbage-collection", beside.garbage_collection, thresholds=_TIME),
    Rule("stage-imbalance", waiting.stage_imbalance, thresholds=_TIME),
    Rule("remote-wait", waiting.remote_wait, thresholds=_TIME),
    Rule(
        "pipeline-bubble",
        waiting.pipeline_bubble,
        thresholds={**_TIME, "good_bubble_ratio": waiting.GOOD_BUBBLE_RATIO},
    ),
    Rule(
        "exposed-communication",
        communication.exposed_communication,
        thresholds={
            **_TIME,
            "many": communication.MANY_CALLS,
            "small_bytes": communication.SMALL_BYTES,
        },
    ),
    Rule(
        "small-collectives",
        communication.small_collectives,
        thresholds={
            "least_ratio": communication.LEAST_SYNCHRONISING,
            "most_bytes": communication.SYNCHRONISING_BYTES,
        },
    ),
    Rule("allocation", launches.allocation, thresholds=_TIME),
    Rule("pageable-copies", launches.pageable_copies, thresholds=_TIME),
    Rule("blocking-copies", launches.blocking_copies, thresholds=_TIME),
    Rule(
        "optimizer-unfused",
        launches.optimizer_unfused,
        thresholds={**_TIME, "least_updates": launches.LEAST_UPDATES},
    ),
    Rule("tiny-kernels", launches.tiny_kernels, thresholds={**_TIME, "tiny_ns": TINY_NS}),
    Rule("host-bound", launches.host_bound, thresholds=_TIME),
    Rule("written-out", products.written_out, thresholds={"least_ratio": products.LEAST_WRITTEN}),
    Rule(
        "beside-training",
        beside.beside_training,
        thresholds={"least_ratio": LEAST_BESIDE, "few": beside.FEW_SAMPLES},
    ),
    Rule(
        "without-gradients",
        beside.without_gradients,
        thresholds={"least_ratio": LEAST_BESIDE, "few": beside.FEW_SAMPLES},
    ),
    Rule("repeated-call", memory.repeated_call, thresholds=_TIME),
    Rule("zero-gradients", memory.zero_gradients, thresholds=_TIME),
    Rule(
        "penalty-in-loss",
        products.penalty_in_loss,
        thresholds={**_TIME, "least_parameters": LEAST_PARAMETERS},
    ),
    Rule(
        "many-small-operators",
        launches.many_small_operators,
        thresholds={
            "least_ratio": LEAST_SMALL,
            "many": MANY_OPERATORS,
            "many_of_function": MANY_OF_A_FUNCTION,
            "many_calls": MANY_CALLS,
            "small_ns": SMALL_NS,
        },
    ),
    Rule(
        "unexplained",
        launches.unexplained,
        thresholds={"least_ratio": launches.LEAST_UNEXPLAINED, "gap_ns": LEAST_GAP_NS},
    ),
    Rule("unused-gradients", memory.unused_gradients, thresholds=_TIME),
    Rule("wider-dtype", products.wider_dtype, thresholds=_TIME),
    Rule(
        "slow-product",
        products.slow_products,
        thresholds={
            **_TIME,
            "reachable_ratio": products.REACHABLE,
            "aligned": products.ALIGNED,
            "thin": products.THIN,
            "many": products.MANY,
        },
    ),
    Rule("padded-batches", products.padded_batches, thresholds=_TIME),
    Rule(
        "discarded-rows",
        products.discarded_rows,
        thresholds={**_TIME, "kept_ratio": MOST_KEPT},
    ),
    Rule(
        "wide-vocabulary",
        products.wide_vocabulary,
        thresholds={"least_ratio": products.LEAST_WIDE, "least_words": LEAST_WORDS},
    ),
    Rule(
        "unused-rows",
        products.unused_rows,
        thresholds={**_TIME, "least_words": LEAST_WORDS, "least_classes": LEAST_CLASSES},
    ),
    Rule(
        "strided-inputs",
        products.strided_inputs,
        thresholds={"least_ratio": products.LEAST_STRIDED, "times": TIMES_USUAL},
    ),
    Rule("casts", products.casts, thresholds={"least_ratio": products.LEAST_CASTS}),
    Rule("fusible", products.fusible, thresholds=_TIME),
    Rule("gradient-accumulation", waiting.gradient_accumulation, thresholds=_TIME),
    Rule("gradients-again", memory.gradients_again, thresholds=_TIME),
    Rule("recompute", memory.recompute, thresholds={**_TIME, "room_ratio": memory.ROOM_RATIO}),
    Rule(
        "growing-work",
        slow_steps.growing_work,
        thresholds={
            "least_ratio": LEAST_LATER,
            "later_steps": LATER_STEPS,
            "least_steps": LEAST_GROWING,
        },
    ),
    Rule(
        "growing-memory",
        memory.growing_memory,
        "memory",
        {"least_bytes": memory.LEAST_GROWTH_BYTES, "last_steps": LAST_STEPS},
    ),
    Rule(
        "memory-limit",
        memory.memory_limit,
        "memory",
        {"near_ratio": memory.NEAR_RATIO},
    ),
    Rule(
        "memory-fragmented",
        memory.memory_fragmented,
        "memory",
        {
            "unused_ratio": memory.FRAGMENTED_RATIO,
            "unused_bytes": memory.FRAGMENTED_BYTES,
            "filled_ratio": memory.FILLED_RATIO,
        },
    ),
    Rule("warm-up", trust.warm_up, "trust", {"times": trust.WARM_UP_RATIO}),
    Rule(
        "unlike-steps",
        trust.unlike_steps,
        "trust",
        {
            "operator_ns": trust.MOST_OF_OPERATOR_NS,
            "base_ns": trust.MOST_OF_STEP_NS,
            "moderate": trust.UNLIKE_MODERATE,
            "major": trust.UNLIKE_MAJOR,
        },
    ),
    Rule(
        "profiler-overhead",
        trust.profiler_overhead,
        "trust",
        {**_TIME, "overhead_ratio": trust.OVERHEAD_MINOR},
    ),
    Rule(
        "busy-machine",
        trust.busy_machine,
        "trust",
        {
            "others_ratio": LEAST_OTHERS,
            "busy_ratio": FULL,
            "wait_ratio": LEAST_WAIT,
            "moderate_ratio": trust.DISTURBED_MODERATE,
            "major_ratio": trust.DISTURBED_MAJOR,
        },
    ),
    Rule(
        "runs-ahead",
        trust.runs_ahead,
        "trust",
        {"outlived_ratio": trust.LEAST_OUTLIVED},
    ),
    Rule("no-device-events", trust.no_device_events, "trust"),
    Rule("short-window", trust.short_window, "trust", {"least_steps": LEAST_STEPS}),
)
"""All rules. A cause comes before its effects: time that both claim counts for the earlier rule
(`ppprof.analysis.advice.disjoint`), and of findings with equal severity and cost, that of the
earlier rule is listed first."""

_TRUST = frozenset(rule.name for rule in RULES if rule.about == "trust")

_LONGER = frozenset(("profiler-overhead", "unlike-steps"))
"""Say that costs are too large, or those of some steps, not that they are wrong."""

_OF_LENGTHS = frozenset(
    (
        *("slow-product", "wider-dtype", "wide-vocabulary", "unused-rows", "strided-inputs"),
        *("casts", "fusible", "tiny-kernels", "discarded-rows", "penalty-in-loss", "written-out"),
        "padded-batches",
    )
)
"""Rules about the lengths of single kernels."""

_OF_WINDOW = frozenset(("warm-up", "short-window"))
"""Rules about which steps are in a window."""

_UNDERMINED = {
    CUT: _OF_LENGTHS,
    UNLAUNCHED: IDLE,
    UNMARKED: frozenset[str](),
    LOST: _OF_WINDOW,
    FEW: frozenset(rule.name for rule in RULES if rule.about != "memory")
    - {"input-bound", "between-steps", "no-device-events"},
    UNSTEADY: IDLE,
}
"""Doubt about a recording (`ppprof.trace.schema.Trace.doubts`) -> rules whose findings it undermines.
Input is waited for by the host, and what it waits is measured on whole steps."""


def advise(evidence: Evidence) -> Findings:
    """Return the findings of all rules, sorted by severity, then by cost, the largest first.

    Findings that rest on device events which are missing or wrong are left out, and
    ``Findings.withheld`` names their rules.

    Major findings about trust come before all other findings, but for the profiler's overhead. Findings
    without a cost come after the findings of their severity with a cost.
    """
    undermined = frozenset().union(*(_UNDERMINED[doubt] for doubt in evidence.doubts))
    if evidence.is_unfinished:
        undermined |= {rule.name for rule in RULES if rule.about not in ("memory", "trust")}
    found = [finding for rule in RULES for finding in rule.find(evidence)]
    withheld = dict.fromkeys(finding.rule for finding in found if finding.rule in undermined)
    findings = disjoint((each for each in found if each.rule not in undermined), evidence)

    def sort_key(finding: Finding) -> tuple[int, bool, float]:
        severity = SEVERITIES.index(finding.severity)
        is_major_doubt = severity == 0 and finding.rule in _TRUST - _LONGER
        return severity, not is_major_doubt, -(finding.cost_ns or 0.0)

    findings = [
        evidence.with_time(evidence.with_source(each)) for each in sorted(findings, key=sort_key)
    ]
    return Findings(findings, evidence.largest, tuple(withheld), evidence.cluster is not None)
