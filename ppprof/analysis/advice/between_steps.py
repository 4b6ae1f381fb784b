"""The rule about pauses between steps: evaluations and checkpoints that are in no step time."""

from __future__ import annotations

import polars as pl

from ppprof.analysis.advice.evidence import Evidence, mean_of, without_slow
from ppprof.analysis.advice.finding import LEAST_RATIO, Fact, Finding
from ppprof.analysis.advice.slow_steps import EVEN, MANY_STEPS, distance_of
from ppprof.analysis.profile.step_basis import WITH_PAUSES, num_before

_LEAST_OF_A_PAUSE = 0.2
"""Share of a pause of the window. A line with less is not named."""

_REMEDIES = {"evaluation": "code-evaluation", "checkpoint": "code-checkpoint"}
"""What a pause is for, as the hooks of Trainers name it -> remedy."""


def between_steps(evidence: Evidence) -> list[Finding]:
    """Report pauses (`ppprof.capture.session.ProfilerSession.paused`) by what they add to a step.

    ::

        steps    10 10 10 10 10      10 10 10 10 10
        pauses                   50                    5 a step: a cost of 5 of 15

    Pauses ahead of the training's first step, and behind its last, are no part of it. Steps outside windows
    count if there are `MANY_STEPS` with a pause among them, else all: recording makes a pause longer, too.
    """
    every_step, steps, step_ns = _steps(evidence)
    is_pause = pl.col("paused_ns") >= max(1.0, LEAST_RATIO * step_ns)
    paused = steps.filter(is_pause)
    if paused.is_empty() or not step_ns:
        return []
    cost_ns = float(paused["paused_ns"].sum()) / steps.height
    reasons = _reasons(paused)
    reason = reasons[0] if reasons else None
    # A checkpoint, too, may come at some of the evaluations, or between them.
    has_reason = pl.lit(True) if reason is None else _names().list.contains(reason)
    of_reason = every_step.filter(is_pause & has_reason)
    distance = distance_of(of_reason)
    lines, in_window_ns = _lines(evidence, reason)
    large = lines.filter(pl.col("time_ns") >= _LEAST_OF_A_PAUSE * in_window_ns)
    line, line_ns = large.row(0) if large.height else (None, None)
    other_line, other_ns = large.row(1) if large.height > 1 else (None, None)
    if line is None:
        lines = lines.clear()
    facts: dict[str, Fact] = {
        "num_paused": paused.height,
        "num_steps": steps.height,
        "before_steps": ", ".join(map(str, of_reason["step"].head(10)))
        + ", ..." * (of_reason.height > 10),
        "distance": distance,
        "paused_for": ", ".join(reasons) or None,
        "pause_ns": mean_of(paused, "paused_ns"),
        "own_step_ns": step_ns,
        "line": line,
        "line_ns": line_ns,
        "other_line": other_line,
        "other_ns": other_ns,
        "wording": None if line is None else "line",
        "remedy": _REMEDIES.get(str(reason), "code"),
    }
    rows = lines.rename({"time_ns": "of_pause_ns"})
    if rows.is_empty():
        longest = paused.sort("paused_ns", "step", descending=[True, False])
        rows = longest.select("paused_for", before_step="step", of_pause_ns="paused_ns")
    # A single pause may be the only one of a long training.
    at_most = "moderate" if paused.height == 1 else "major"
    few = "possible" if of_reason.height < EVEN else "likely"
    confidence = few if distance is None else "sure"
    basis = (step_ns + cost_ns, WITH_PAUSES)
    return evidence.time_finding(
        "between-steps", cost_ns, confidence, facts, rows, basis, at_most=at_most
    )


def _steps(evidence: Evidence) -> tuple[pl.DataFrame, pl.DataFrame, float]:
    """Return step, paused_ns and paused_for of all steps and of those that count, and the time of one without pauses."""
    times = evidence.step_times.drop_nulls("paused_ns")
    times = times.filter(num_before(times) > 0)
    # The ranks wait for the one that pauses longest.
    longest = pl.col("paused_for", "window").sort_by("paused_ns").last()
    steps = times.group_by("step").agg(longest, pl.col("paused_ns").max()).sort("step")
    outside = steps.filter(pl.col("window").is_null())
    step_ns = evidence.step_ns
    has_pause = (outside["paused_ns"] >= LEAST_RATIO * step_ns).any()
    if outside.height < MANY_STEPS or not has_pause:
        return steps, steps, step_ns
    typical = without_slow(evidence.unrecorded)
    return steps, outside, mean_of(typical, "step_ns") or step_ns


def _names() -> pl.Expr:
    return pl.col("paused_for").str.split(", ")


def _reasons(paused: pl.DataFrame) -> list[str]:
    """Return what pauses are for, with the reason of most of the time first; each has a share of a pause for several."""
    share_ns = pl.col("paused_ns") / _names().list.len()
    sums = paused.select(name=_names(), share_ns=share_ns).drop_nulls("name").explode("name")
    sums = sums.group_by("name").agg(pl.col("share_ns").sum())
    return sums.sort("share_ns", "name", descending=[True, False])["name"].to_list()


def _lines(evidence: Evidence, reason: str | None) -> tuple[pl.DataFrame, float]:
    """Return the lines in which recorded pauses of this name pass, and how long such a pause is.

    Columns: name, time_ns of a pause, the largest first.
    """
    named = evidence.named(evidence.indicators, "paused").filter(subject=reason or "")
    num = max(1, named.select("step").n_unique()) * max(1, len(evidence.indicators))
    lines = named.group_by("name").agg(pl.col("time_ns").sum() / num)
    lines = lines.sort("time_ns", "name", descending=[True, False])
    return lines, float(lines["time_ns"].sum())
