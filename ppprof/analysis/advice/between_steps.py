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
    reason = reasons[0]
    named = [each for each in reasons if each is not None] if reason else []
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
        "distance": None if distance == 1 else distance,
        "paused_for": ", ".join(named) or None,
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
    # What one rank pauses longer, the others wait in a step: it is in their step times.
    shortest = pl.col("paused_for", "window").sort_by("paused_ns").first()
    steps = times.group_by("step").agg(shortest, pl.col("paused_ns").min()).sort("step")
    outside = steps.filter(pl.col("window").is_null())
    step_ns = evidence.step_ns
    has_pause = (outside["paused_ns"] >= LEAST_RATIO * step_ns).any()
    if outside.height < MANY_STEPS or not has_pause:
        return steps, steps, step_ns
    typical = without_slow(evidence.unrecorded)
    return steps, outside, mean_of(typical, "step_ns") or step_ns


def _names() -> pl.Expr:
    return pl.col("paused_for").str.split(", ")


def _reasons(paused: pl.DataFrame) -> list[str | None]:
    """Return what pauses are for, with the reason of most of the time first; None for pauses without a name.

    Of several names of a pause, the first one took the longest. So it gets the largest share::

        evaluation, checkpoint, log     3/6, 2/6, 1/6
    """
    names = paused.select("paused_ns", name=_names()).with_row_index("row").explode("name")
    num = pl.len().cast(pl.Int64).over("row")
    names = names.with_columns(num=num, place=pl.int_range(pl.len()).over("row"))
    share = (pl.col("num") - pl.col("place")) / (pl.col("num") * (pl.col("num") + 1) / 2)
    sums = names.group_by("name", maintain_order=True).agg(
        pl.col("place").min(), share_ns=(pl.col("paused_ns") * share).sum()
    )
    order = sums.sort("share_ns", "place", descending=[True, False], maintain_order=True)
    return order["name"].to_list()


def _lines(evidence: Evidence, reason: str | None) -> tuple[pl.DataFrame, float]:
    """Return the lines in which recorded pauses of this name pass, and how long such a pause is.

    Columns: name, time_ns of a pause of a rank that has one, the largest first.
    """
    subject = reason or ""
    named = evidence.named(evidence.indicators, "paused").filter(subject=subject)
    of_ranks = (own.names.filter(what="paused") for own in evidence.indicators.values())
    num = sum(names.filter(subject=subject)["step"].n_unique() for names in of_ranks)
    lines = named.group_by("name").agg(pl.col("time_ns").sum() / max(1, num))
    lines = lines.sort("time_ns", "name", descending=[True, False])
    return lines, float(lines["time_ns"].sum())
