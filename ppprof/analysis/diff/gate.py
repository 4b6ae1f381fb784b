"""Thresholds that a comparison must not exceed: ``step_time > 5%``, ``op.matmul.gpu > 0.2ms``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.diff.diff import PARTS_OF_STEP, Diff
from ppprof.analysis.diff.several_runs import RunTime, runs_change, wait_difference
from ppprof.analysis.diff.significance import BETWEEN_RUNS, Change, student, verdict_of
from ppprof.analysis.diff.thresholds import COLUMNS, METRICS, Threshold
from ppprof.errors import UsageError

_RATES = ("ips", "tokens_per_s")
_STEP_TIMES = ("step_time", *_RATES)
"""What has the interval of the step time."""
_LEAST_MORE = 0.01
"""Change of the samples or tokens of a step from which on their rate does not follow from the step time alone."""


_WITHIN_RUNS = BETWEEN_RUNS / (1 - BETWEEN_RUNS)
"""Change of a rate that equal runs may have."""


class Outcome(NamedTuple):
    """The result of checking a comparison against one threshold."""

    rule: str
    """The threshold, as the user wrote it."""
    status: str
    """``pass`` if the change is within the limit. If it is beyond: ``fail`` if its whole interval
    is beyond the limit, too, or if the value is exact (not a mean over steps); else
    ``inconclusive``. A ratio to a baseline of 0 fails if the threshold limits increases and the interval
    of the difference is above 0. A time of the host and a utilisation are ``inconclusive`` if other processes disturbed a
    run; the step time and rates are, if equal runs differ as much (`Change.is_within_runs`)."""
    detail: str
    """The change and its interval, as text."""

    def __str__(self) -> str:
        return f"{_STATUS_TEXTS[self.status]}: {self.rule}: {self.detail}"


_STATUS_TEXTS = {"pass": "passed", "fail": "failed", "inconclusive": "inconclusive"}


class RateChange(NamedTuple):
    """The change of a rate where the steps of both runs do not have as many samples or tokens."""

    metric: str
    """``ips`` or ``tokens_per_s``."""
    verdict: str
    """``higher`` or ``lower``, as for step times, else ``no difference seen`` or ``inconclusive``."""
    ratio: float
    """Rate of the experiment over that of the baseline, minus 1."""
    low: float | None
    high: float | None
    """``low`` and ``high`` are the 95% interval of ``ratio``; None if the step time has none."""
    count_ratio: float
    """The same of the samples or tokens of a step, on average."""


class _Interval(NamedTuple):
    """A change and its 95% interval: ratios, nanoseconds, bytes or calls; None for a bound that is unknown."""

    value: float | None
    """The change; None if it is a ratio to a baseline of 0."""
    low: float | None
    high: float | None
    is_exact: bool = False
    """Whether the value has no interval because it is not a mean over steps."""
    is_new: bool = False
    """Whether it is a ratio to a baseline of 0, which the experiment surely exceeds."""


def outcome_of(threshold: Threshold, diff: Diff) -> Outcome:
    """Return the outcome of checking a comparison against a threshold.

    Raises:
        UsageError: neither run has the operator, kernel or module, a run has recorded no step, or the
            metric is not known for both runs.
    """
    change = _change(threshold, diff)
    detail = "new: the baseline has none of it"
    if change.value is not None:
        detail = threshold.format(change.value)
    if diff.disturbance and _is_of_host(threshold):
        return Outcome(threshold.text, "inconclusive", f"{detail}; {diff.disturbance}")
    if change.value is None:
        beyond = "fail" if change.is_new else "inconclusive"
        detail += "" if change.is_new else "; it is unknown whether by chance"
        return Outcome(threshold.text, beyond if threshold.above else "pass", detail)
    is_of_step_time = threshold.target in _STEP_TIMES
    reason = "" if change.is_exact else "one recorded step"
    if is_of_step_time:
        reason = diff.change.reason
    outcome = interval_outcome(threshold, change.value, change.low, change.high, reason)
    is_small = is_of_step_time and (diff.change.is_within_runs or threshold.target in _RATES)
    if outcome.status == "fail" and is_small and _is_small(threshold, diff):
        return outcome._replace(
            status="inconclusive", detail=f"{outcome.detail}; {diff.change.advice}"
        )
    return outcome


def _is_small(threshold: Threshold, diff: Diff) -> bool:
    """Return whether equal runs may differ so in a metric of the step: a rate may be of other batches, too."""
    ratio = diff.overview.filter(metric=threshold.target)["delta_ratio"].item()
    return ratio is not None and abs(ratio) <= _WITHIN_RUNS


def interval_outcome(
    threshold: Threshold, value: float, low: float | None, high: float | None, reason: str
) -> Outcome:
    """Return the outcome of checking a change with its interval against a threshold.

    Args:
        threshold: the limit.
        value: the change, in the unit of the limit.
        low: the low end of its 95% interval; None if it has no interval.
        high: the high end, as ``low``.
        reason: why there is no interval; empty for an exact value.
    """
    detail = threshold.format(value)
    if low is None or high is None:
        beyond = "inconclusive" if reason else "fail"
        status = beyond if threshold.is_exceeded_by(value) else "pass"
        return Outcome(
            threshold.text, status, f"{detail}; no interval: {reason}" if reason else detail
        )
    detail += f", 95% interval {threshold.format(low)} to {threshold.format(high)}"
    if not threshold.is_exceeded_by(value):
        return Outcome(threshold.text, "pass", detail)
    is_sure = threshold.is_exceeded_by(low if threshold.above else high)
    return Outcome(threshold.text, "fail" if is_sure else "inconclusive", detail)


def runs_outcome(
    threshold: Threshold, baseline: Sequence[RunTime], experiment: Sequence[RunTime]
) -> Outcome:
    """Return the outcome of checking the step times of several runs of either side against a threshold.

    What is within the limit without the waits for a processor, and beyond it with them, is ``inconclusive`` if
    the waits differ: the program may cause them.
    """
    sides = baseline, experiment
    change = runs_change(*([time.mean_ns for time in side] for side in sides))
    too_few = "2 runs a side give one"
    outcome = interval_outcome(threshold, change.ratio, change.low, change.high, too_few)
    waits = wait_difference(baseline, experiment)
    wall = runs_change(*([time.wall_ns for time in side] for side in sides))
    if waits and outcome.status == "pass" and threshold.is_exceeded_by(wall.ratio):
        return outcome._replace(status="inconclusive", detail=f"{outcome.detail}; {waits}")
    return outcome


def _is_of_host(threshold: Threshold) -> bool:
    """Return whether a threshold is about a time on the host, a rate or a utilisation."""
    if threshold.target in METRICS:
        return METRICS[threshold.target] in ("ns", "per_s", "ratio")
    kind, _, name = threshold.target.partition(".")
    return kind == "module" or name.rpartition(".")[2] not in ("gpu", "gpu_self", "calls")


def _change(threshold: Threshold, diff: Diff) -> _Interval:
    kind, _, rest = threshold.target.partition(".")
    if threshold.target in METRICS:
        return _metric_change(threshold, diff)
    if side := diff.unrecorded_side:
        raise UsageError(f"{threshold.text!r}: the {side} has recorded no step")
    if kind == "module":
        return _module_change(threshold, diff, rest)
    name, _, value = rest.rpartition(".")
    table = diff.operators if kind == "op" else diff.kernels
    rows = table.filter(pl.col("name") == name)
    if rows.is_empty():
        raise UsageError(f"{threshold.text!r}: neither run has {_KINDS[kind]} {name!r}")
    row = rows.row(0, named=True)
    column = COLUMNS[kind][value]
    return _interval(
        threshold, diff, *(row[f"{side}_{column}"] for side in ("baseline", "delta", "noise"))
    )


def _metric_change(threshold: Threshold, diff: Diff) -> _Interval:
    rows = diff.overview.filter(metric=threshold.target)
    if rows.is_empty() or rows["delta"].null_count():
        raise UsageError(f"{threshold.text!r}: {threshold.target} is not known for both runs")
    row = rows.row(0, named=True)
    if threshold.target in _STEP_TIMES:
        return _step_time_change(threshold, diff.change, row)
    noise = diff.noise_of(threshold.target)
    change = _interval(threshold, diff, row["baseline"], row["delta"], noise)
    return change._replace(is_exact=threshold.target not in PARTS_OF_STEP)


def _step_time_change(threshold: Threshold, change: Change, row: Mapping[str, Any]) -> _Interval:
    """Return the change of the step time or of a rate, with its interval.

    A rate is the number of samples or tokens of a step over the time of the step, so its
    interval follows from that of the step time.
    """
    scale = 1.0 if threshold.is_ratio else row["baseline"]
    ratio = row["delta_ratio"]
    if ratio is None or change.ratio is None or change.low is None or change.high is None:
        return _Interval(0.0 if ratio is None else ratio * scale, None, None)
    low, high = change.low, change.high
    if threshold.target != "step_time":
        low, high = _rate_interval((1 + ratio) * (1 + change.ratio), low, high)
    return _Interval(ratio * scale, low * scale, high * scale)


def _rate_interval(samples: float, low: float, high: float) -> tuple[float, float]:
    """Return the interval of a rate by that of the step time; ``samples`` of a step, over the baseline's."""
    return samples / (1 + high) - 1, samples / (1 + max(low, -0.99)) - 1


def rate_changes(diff: Diff) -> list[RateChange]:
    """Return the changes of samples and tokens per second if steps have more or fewer of them, by over 1%.

    Of batches of another size, the step time says nothing about the speed of the training.
    """
    changes = []
    step = diff.change
    rows = diff.overview.filter(pl.col("metric").is_in(_RATES)).drop_nulls("delta_ratio")
    for metric, ratio in rows.select("metric", "delta_ratio").iter_rows():
        samples = (1 + ratio) * (1 + (step.ratio or 0.0))
        if step.ratio is None or abs(samples - 1) <= _LEAST_MORE:
            continue
        low, high = None, None
        if step.low is not None and step.high is not None:
            low, high = _rate_interval(samples, step.low, step.high)
        verdict = verdict_of(low, high)
        verdict = {"slower": "higher", "faster": "lower"}.get(verdict, verdict)
        if verdict in ("higher", "lower") and abs(ratio) <= _WITHIN_RUNS:
            verdict = "inconclusive"
        changes.append(RateChange(metric, verdict, ratio, low, high, samples - 1))
    return changes


def _module_change(threshold: Threshold, diff: Diff, name: str) -> _Interval:
    names = pl.col("name")
    is_renamed = names.str.starts_with(f"{name} -> ") | names.str.ends_with(f" -> {name}")
    is_named = diff.modules.select((names == name) | is_renamed).to_series()
    rows = diff.modules.filter(is_named)
    if rows.is_empty():
        raise UsageError(f"{threshold.text!r}: neither run has a module {name!r}")
    outermost = rows.filter(_is_outermost(diff.modules["depth"], is_named))
    before, after = (
        float(outermost[f"{side}_time_ns"].fill_null(0.0).to_numpy().sum())
        for side in ("baseline", "experiment")
    )
    noises = outermost["noise_time_ns"]
    noise = None if noises.null_count() else float(np.linalg.norm(noises.to_numpy()))
    return _interval(threshold, diff, before, after - before, noise)


def _interval(
    threshold: Threshold, diff: Diff, baseline: float, delta: float, noise: float | None
) -> _Interval:
    half = None if noise is None else student(diff.fewest_steps - 1) * noise
    if threshold.is_ratio and not baseline:
        if delta:
            return _Interval(None, None, None, is_new=half is not None and delta > half)
        return _Interval(0.0, 0.0, 0.0)
    scale = baseline if threshold.is_ratio else 1.0
    if half is None:
        return _Interval(delta / scale, None, None)
    # No time, size or number of calls is below 0: a mean decreases by all of it at most.
    low = max(delta - half, min(delta, -baseline))
    return _Interval(delta / scale, low / scale, (delta + half) / scale)


_KINDS = {"op": "an operator", "kernel": "a kernel"}


def _is_outermost(depths: pl.Series, is_named: pl.Series) -> pl.Series:
    """Return, for each named module in a tree in pre-order, whether it lies in no other named one."""
    is_outermost, enclosing_depth = [], None
    for depth, is_module in zip(depths, is_named):
        if enclosing_depth is not None and depth <= enclosing_depth:
            enclosing_depth = None
        if is_module:
            is_outermost.append(enclosing_depth is None)
            enclosing_depth = depth if enclosing_depth is None else enclosing_depth
    return pl.Series(is_outermost, dtype=pl.Boolean)


def check(thresholds: Sequence[Threshold], diff: Diff) -> list[Outcome]:
    """Return the outcome of checking a comparison against each threshold.

    Raises:
        UsageError: some thresholds cannot be checked, see `outcome_of`; the message has a line
            for each of them.
    """
    outcomes, problems = [], []
    for threshold in thresholds:
        try:
            outcomes.append(outcome_of(threshold, diff))
        except UsageError as error:
            problems.append(str(error))
    if problems:
        raise UsageError("\n".join(problems))
    return outcomes
