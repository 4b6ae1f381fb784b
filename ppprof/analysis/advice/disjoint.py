"""Costs of findings that are parts of one step: a time that one finding claims counts for no other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from ppprof.analysis.advice.communication import synchronising_calls
from ppprof.analysis.advice.evidence import Evidence, mean_of
from ppprof.analysis.advice.finding import LEAST_RATIO, SEVERITIES, Fact, Finding, severity_of
from ppprof.analysis.profile.step_basis import RECORDED
from ppprof.trace import GARBAGE_COLLECTION

SYNCHRONISING = "small-collectives"
"""The rule whose cost is a replay in which ranks do not wait at some collectives."""

WAITING = frozenset(
    (
        *("slow-rank", "stage-imbalance", "slow-link", "pipeline-bubble", "exposed-communication"),
        *("uneven-work", SYNCHRONISING),
    )
)
"""Rules about the time in which ranks wait for each other or communicate."""

COMPUTATION = frozenset(
    (
        *("recompute", "wider-dtype", "gradient-accumulation", "slow-product"),
        *(
            "wide-vocabulary",
            "unused-rows",
            "padded-batches",
            "discarded-rows",
            "penalty-in-loss",
            "written-out",
            "strided-inputs",
            "casts",
            "fusible",
            "unused-gradients",
            "zero-gradients",
            "gradients-again",
            "repeated-call",
        ),
    )
)
"""Rules about the time in which a device computes, or without a device the host."""

IDLE = frozenset(
    ("allocation", "blocking-copies", "optimizer-unfused", "tiny-kernels", "host-bound")
)
"""Rules about the time in which a device is idle with an empty queue, or copies to a host that waits for it."""

HOST = frozenset(("garbage-collection", "beside-training", "without-gradients", "unexplained"))
"""Rules about the time of the host outside the training's operators, communication and data loading."""

STATEMENT = "beside-training"
"""The rule with a finding for each statement, which has the times of its lines."""

PARTED = (STATEMENT, "without-gradients")
"""Rules that part the samples beside the training among them: a line may have some of each."""

LOCK = "interpreter-lock"
"""The rule about a thread that stands still, which may be in stretches without an event."""

PENALTY = "penalty-in-loss"
"""The rule about operators that `many-small-operators` may find in one loop, too."""

WRITTEN = "written-out"
"""The rule about operators that may be in a line beside the training, too."""

_OF_OPERATORS = (
    *("unused-rows", "gradient-accumulation", "unused-gradients", "discarded-rows"),
    *("zero-gradients", "repeated-call", "padded-batches", WRITTEN),
    PENALTY,
)
"""Rules that name a line for the operators that it calls, for a Backward, or for a layer."""

SLOW_STEPS = "slow-steps"
"""The rule about other steps than the typical ones."""

BESIDE = frozenset((SLOW_STEPS, "between-steps"))
"""Rules whose cost is no part of the typical step."""


def disjoint(findings: Iterable[Finding], evidence: Evidence) -> list[Finding]:
    """Return the findings with costs that do not overlap.

    The rules look at one step from several sides: a rank that is late makes the others wait in
    their communication. So each time belongs to the first finding that claims it::

        rank 0   ####______rr       waits 6 for rank 1, and communicates for 2
        rank 1   ##########rr
        slow-rank  6, exposed-communication  2 of 8

    Findings with ``changes`` cost what replays win (`replayed`).

    Args:
        findings: in the order of the rules: causes before their effects.
        evidence: provides how long ranks wait and compute.

    Returns:
        The findings in their order, with lower costs where an earlier finding has claimed a part; not
        those of which less than `LEAST_RATIO` of a step is left. The costs add up to a step at most,
        those of `WAITING` rules to what the rank that waits longest waits, those of `COMPUTATION`
        rules to the computation of the median rank, and those of `IDLE` rules to the idle time of the
        median device, without that in which a device waits for the excess of a slow rank. Slow steps,
        and pauses between steps, are beside that sum, the former without what another finding has of their cause.
    """
    whole = 1.0
    pools = {
        WAITING: _longest_wait_ns(evidence),
        COMPUTATION: _computation_ns(evidence),
        IDLE: _idle_ns(evidence),
        HOST: evidence.step_ns,
    }
    kept = []
    claimed: dict[str, float] = {}
    of_statements: list[Mapping[str, float]] = []
    for finding in _on_top(replayed(list(findings), evidence), evidence):
        if finding.cost_ns is None or finding.share is None or finding.rule in BESIDE:
            kept.append(finding)
            continue
        step_ns = finding.cost_ns / finding.share
        pool = next((rules for rules in pools if finding.rule in rules), None)
        left_ns = whole * step_ns
        if pool is not None and not finding.changes:
            left_ns = min(left_ns, pools[pool])
        cost_ns = finding.cost_ns - _claimed_ns(finding, claimed, of_statements)
        share = min(cost_ns, left_ns) / step_ns
        if share < LEAST_RATIO:
            continue
        whole -= share
        if pool is not None:
            pools[pool] -= share * step_ns
        if finding.rule == "input-bound":
            pools[WAITING] -= _waited_for_data_ns(evidence, finding.facts)
        if finding.rule == "many-small-operators":  # computation, and the Python between
            pools[COMPUTATION] -= share * step_ns
        if finding.rule == "slow-rank":
            pools[HOST] = _rest_ns(evidence, finding.facts, share * step_ns)
            pools[IDLE] = _idle_ns(evidence, finding.facts, share * step_ns)
            claimed.update(_of_reason(evidence, finding.facts))
        claimed.update(_claims(finding, share))
        if finding.rule == STATEMENT:
            of_statements.append(dict(finding.evidence.select("name", "time_ns").iter_rows()))
        if share < finding.share:
            facts = _lowered_facts(finding, evidence.usual("idle_ns") - share * step_ns)
            finding = dataclasses.replace(_lowered(finding, share * step_ns, share), facts=facts)
        kept.append(finding)
    return [found for finding in kept if (found := _beside(finding, kept)) is not None]


def _lowered(finding: Finding, cost_ns: float, share: float) -> Finding:
    """Return a finding with the part of its cost that other findings leave it."""
    return dataclasses.replace(
        finding,
        cost_ns=cost_ns,
        share=share,
        severity=max(severity_of(share), finding.severity, key=SEVERITIES.index),
        alone_ns=finding.cost_ns if finding.alone_ns is None else finding.alone_ns,
    )


def _beside(finding: Finding, others: Sequence[Finding]) -> Finding | None:
    """Return slow steps without the time that another finding has of their cause; other findings as they are.

    What slows every second step down is in half of the recorded steps, typical ones, too; the slow steps are
    then others, which were not recorded. None if too little is left.
    """
    if finding.rule != SLOW_STEPS or not finding.cost_ns or finding.share is None:
        return finding
    place, cause = finding.facts.get("gap"), finding.facts.get("wording")
    is_wait = cause is None or (cause == "part" and finding.facts.get("part") == "exposed")
    known_ns = 0.0
    for other in others:
        # Ranks that are slow in turn make steps slow only because they wait for each other. The cost of these
        # waits is that of all recorded steps, with slow ones; those of other findings are of typical steps.
        if other.rule == SYNCHRONISING and is_wait:
            known_ns += other.share * finding.cost_ns / finding.share if other.share else 0.0
        if finding.facts["basis"] == RECORDED:
            continue
        if cause in ("collection", "collections") and other.rule == "garbage-collection":
            known_ns += other.cost_ns or 0.0
        if cause == "line" and other.rule in PARTED:
            times = dict(other.evidence.select("name", "time_ns").iter_rows())
            is_place = place in (other.facts.get("line"), other.facts.get("statement"))
            whole_ns = other.cost_ns or 0.0
            known_ns += min(times.get(place, whole_ns if is_place else 0.0), whole_ns)
    if not known_ns:
        return finding
    cost_ns = finding.cost_ns - known_ns
    share = finding.share * cost_ns / finding.cost_ns
    return None if share < LEAST_RATIO else _lowered(finding, cost_ns, share)


def _lowered_facts(finding: Finding, other_idle_ns: float) -> Mapping[str, Fact]:
    """Return the facts of a finding whose cost is lowered: what others explain is more, unless by rounding."""
    if finding.rule != "host-bound" or other_idle_ns < 1:
        return finding.facts
    return {**finding.facts, "other_idle_ns": other_idle_ns}


def replayed(findings: Sequence[Finding], evidence: Evidence) -> list[Finding]:
    """Return the findings, those with ``changes`` with the cost that replays show.

    The one that wins most comes first, then the one that wins most on top of it, and so on: together
    they cost what a replay of all wins. Those that win nothing on top of the others are left out. But
    causes on two ranks may win nothing alone and much together: then they keep the cost of their rules.
    """
    replays, least_ns = evidence.replays, LEAST_RATIO * evidence.step_ns
    left = [number for number, finding in enumerate(findings) if finding.changes]
    if replays is None or not left:
        return list(findings)
    costs: dict[int, float] = {}
    known: list[str] = []
    known_ns = 0.0
    while left:
        won = {n: replays.saved_ns([*known, *findings[n].changes]) - known_ns for n in left}
        best = max(left, key=won.__getitem__)
        if won[best] < least_ns:
            break
        costs[best] = won[best]
        known += findings[best].changes
        known_ns += won[best]
        left.remove(best)
    others = [change for number in left for change in findings[number].changes]
    are_kept = bool(left) and replays.saved_ns([*known, *others]) - known_ns >= least_ns
    result = []
    for number, finding in enumerate(findings):
        if number in costs:
            cost_ns = costs[number]
            share = cost_ns / evidence.step_ns
            finding = dataclasses.replace(
                finding,
                cost_ns=cost_ns,
                share=share,
                severity=severity_of(share, finding.at_most),
                alone_ns=replays.saved_ns(finding.changes),
            )
        elif number in left:
            if not are_kept:
                continue
            finding = dataclasses.replace(finding, changes=())
        result.append(finding)
    return result


def _on_top(findings: Sequence[Finding], evidence: Evidence) -> list[Finding]:
    """Return the findings; what ranks win that do not wait at small collectives is on top of the others' changes."""
    replays = evidence.replays_of_all_steps
    known = [change for finding in findings for change in finding.changes]
    if replays is None or not known:
        return list(findings)
    result = []
    for finding in findings:
        if finding.rule == SYNCHRONISING:
            apart = synchronising_calls(evidence)
            cost_ns = replays.saved_ns(known, apart) - replays.saved_ns(known)
            share = cost_ns / replays.step_ns
            if share < LEAST_RATIO:
                continue
            finding = _lowered(finding, cost_ns, share)
        result.append(finding)
    return result


def _longest_wait_ns(evidence: Evidence) -> float:
    """Return the exposed communication and bubble of the rank that has most of both; a step without traces."""
    means = evidence.rank_means
    if evidence.typical is None:
        return evidence.step_ns
    names = [name for name in means.columns if name.startswith("exposed_") or name == "bubble_ns"]
    if not names or means.is_empty():
        return 0.0
    waits = means.select(pl.sum_horizontal(pl.col(names).fill_null(0))).to_series()
    return float(waits.to_numpy().max())


def _computation_ns(evidence: Evidence) -> float:
    """Return how long the median rank computes in a step; the length of a step if that is unknown."""
    if "computation_ns" not in evidence.rank_means.columns:
        return evidence.step_ns
    known = evidence.rank_means["computation_ns"].median()
    return evidence.step_ns if known is None else float(known)  # type: ignore[arg-type]


def _waited_for_data_ns(evidence: Evidence, facts: Mapping[str, object]) -> float:
    """Return how long the other ranks wait for the rank that waits longest for data."""
    others = evidence.rank_means.filter(pl.col("rank") != facts["rank"])
    if others.is_empty() or "data_loading_ns" not in others.columns:
        return 0.0
    own = evidence.rank_means.filter(pl.col("rank") == facts["rank"])["data_loading_ns"]
    least = others["data_loading_ns"].min()
    if own.is_empty() or own[0] is None or least is None:
        return 0.0
    return float(max(0.0, own[0] - least))


def _claimed_ns(
    finding: Finding, claimed: Mapping[str, float], of_statements: Sequence[Mapping[str, float]]
) -> float:
    """Return the time of a finding's lines that others claim.

    Statements, and layers without gradients, have no time in common, but may have lines: those of a
    function that they call.
    """
    claims = (claimed,) if finding.rule in PARTED else (claimed, *of_statements)
    return sum(each.get(line, 0.0) for each in claims for line in _lines_of(finding))


def _claims(finding: Finding, share: float) -> Mapping[str, float]:
    """Return what a finding claims of lines and rules, with a share of a step that may be less than its own."""
    if finding.cost_ns is None or finding.share is None:
        return {}
    if finding.rule in (LOCK, PENALTY):
        step_ns = finding.cost_ns / finding.share
        return {_claim(finding.rule, finding.facts.get("line")): share * step_ns}
    line_ns = finding.facts.get("line_ns")
    # Maybe in a function beside the training, such as one that clips gradients.
    if finding.rule == WRITTEN and isinstance(line_ns, float):
        return {_claim(WRITTEN, finding.facts["line"]): line_ns * share / finding.share}
    return {}


def _claim(rule: str, line: object) -> str:
    """Return the name of what a rule claims: for some, that of the operators that a line calls."""
    return f"{rule} {line}" if rule in (PENALTY, WRITTEN) else rule


def _lines_of(finding: Finding) -> list[str]:
    """Return the names of lines, layers and rules whose time a finding contains, too.

    Time that ``unexplained`` reports contains that in which the thread waits for the interpreter's lock.
    """
    if finding.rule == STATEMENT:
        names = finding.evidence["name"].to_list()
        return [*names, *(_claim(WRITTEN, name) for name in names)]
    if finding.rule == "unexplained":
        return [LOCK]
    if finding.rule in _OF_OPERATORS:
        return []  # the cost is that of operators, not of the line's Python
    lines = [str(finding.facts[name]) for name in ("line", "layer") if finding.facts.get(name)]
    if finding.rule == "many-small-operators":
        return [*lines, *(_claim(PENALTY, line) for line in lines)]
    return [*lines, GARBAGE_COLLECTION] if finding.rule == "garbage-collection" else lines


def _of_reason(evidence: Evidence, facts: Mapping[str, object]) -> Mapping[str, float]:
    """Return line -> what it takes longer on a slow rank than on its peers, on average over all ranks.

    Garbage collections are one.
    """
    excess_ns = facts.get("reason_ns")
    if facts.get("reason_kind") not in ("line", "collection") or not isinstance(excess_ns, float):
        return {}
    return {str(facts["reason"]): excess_ns / max(1, evidence.rank_means.height)}


def _rest_ns(evidence: Evidence, facts: Mapping[str, object], excess_ns: float) -> float:
    """Return the longest time of the host outside all else, without the excess of a slow rank in it."""
    if "rest_ns" not in evidence.rank_means.columns:
        return evidence.step_ns
    known = evidence.rank_means.select("rank", time_ns=pl.col("rest_ns").fill_null(0))
    more_ns = _more_ns(known, facts["rank"])
    if more_ns is None:
        return evidence.step_ns
    return float(known["time_ns"].to_numpy().max()) - min(excess_ns, more_ns)


def _idle_ns(
    evidence: Evidence, facts: Mapping[str, object] | None = None, excess_ns: float = 0.0
) -> float:
    """Return the idle time of the median device, without the excess of a slow rank; a step without devices.

    Copies to the host that the host waits for count as idle time.

    ::

        device 0   ########____##     waits for rank 1: no idle time
        rank 1     ####sleeps!!##     its device is idle for the excess, and no other cause has it
    """
    known = evidence.indicator_means.select(
        "rank", time_ns=pl.col("idle_ns") + pl.col("exposed_reads_ns")
    ).drop_nulls()
    if known.is_empty():
        return evidence.step_ns
    if facts is not None:
        less_ns = min(excess_ns, _more_ns(known, facts["rank"]) or 0.0)
        is_slow = pl.col("rank") == pl.lit(facts["rank"])
        known = known.with_columns(pl.col("time_ns") - pl.when(is_slow).then(less_ns).otherwise(0))
    return float(known["time_ns"].median() or 0.0)  # type: ignore[arg-type]


def _more_ns(known: pl.DataFrame, rank: object) -> float | None:
    """Return how much longer a rank's time is than the median of the others; None without either."""
    is_slow = pl.col("rank") == pl.lit(rank)
    own, others = known.filter(is_slow)["time_ns"], known.filter(~is_slow)["time_ns"]
    if own.is_empty() or others.is_empty():
        return None
    return max(0.0, mean_of(known.filter(is_slow), "time_ns") - float(others.median()))  # type: ignore[arg-type]
