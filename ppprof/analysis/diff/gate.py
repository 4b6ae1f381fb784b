"""Thresholds that a comparison must not exceed: ``step_time > 5%``, ``op.matmul.gpu > 0.2ms``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.diff.run_costs import METRICS
from ppprof.analysis.diff.significance import Change
from ppprof.errors import UsageError

_THRESHOLD = re.compile(
    r"\s*(?P<target>\S.*?)\s*(?P<sign>[<>])\s*(?P<number>[-+]?\d+(\.\d+)?)\s*(?P<unit>%|[a-zA-Z]*)\s*"
)
_UNITS = {
    **{"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9},
    **{"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30},
}
_COLUMNS = {
    "op": {
        **{"cpu": "cpu_total_ns", "gpu": "gpu_total_ns", "calls": "calls"},
        **{"cpu_self": "cpu_self_ns", "gpu_self": "gpu_self_ns"},
    },
    "kernel": {"gpu": "gpu_total_ns", "calls": "calls"},
}
_METRICS = {metric: kind for metric, kind in METRICS.items() if kind != "text"}
"""The units of the metrics that are numbers, keyed by metric."""
_UNITS_OF = {
    "ns": ("%", "ns", "us", "ms", "s"),
    "bytes": ("%", "B", "KB", "MB", "GB", "KiB", "MiB", "GiB"),
    "ratio": ("%",),
    "per_s": ("%", ""),
    "calls": ("%", ""),
}
_EXPECTED = (
    "expected METRIC > NUMBER% or METRIC > NUMBER and a unit (ms, us, s, MB, GB), where METRIC is "
    f"one of {', '.join(_METRICS)}, op.NAME.cpu (gpu, cpu_self, gpu_self, calls), kernel.NAME.gpu "
    "(calls) or module.NAME; and < for values that must not fall, such as ips < -5%"
)
_SURE = 2.0
"""Number of standard errors below and above a change, for an interval of about 95%."""


class Outcome(NamedTuple):
    """The result of checking a comparison against one threshold."""

    rule: str
    """The threshold, as the user wrote it."""
    status: str
    """``pass`` if the change is within the limit. If it is beyond: ``fail`` if its whole interval
    is beyond the limit, too, or if the value is exact (not a mean over steps); else
    ``inconclusive``. A ratio to a baseline of 0 fails if the threshold limits increases, and else
    passes."""
    detail: str
    """The change and its interval, as text."""

    def __str__(self) -> str:
        return f"{_STATUS_TEXTS[self.status]}: {self.rule}: {self.detail}"


_STATUS_TEXTS = {"pass": "passed", "fail": "failed", "inconclusive": "inconclusive"}


class _Interval(NamedTuple):
    """A change and its 95% interval: ratios, or nanoseconds, bytes or calls.

    Without an interval, ``low`` and ``high`` have the value None.
    """

    value: float | None
    """The change; None if it is a ratio to a baseline of 0."""
    low: float | None
    high: float | None
    is_exact: bool = False
    """Whether the value has no interval because it is not a mean over steps."""


@dataclass(frozen=True)
class Threshold:
    """A limit for the change of a metric, operator, kernel or module."""

    text: str
    """The threshold, as the user wrote it."""
    target: str
    """The metric, operator, kernel or module: ``step_time``, ``op.matmul.gpu``."""
    above: bool
    """Whether changes above the limit fail (``>``). If False, changes below it fail (``<``)."""
    limit: float
    """A ratio (0.05 for 5%), or a number of nanoseconds, bytes or calls."""
    is_ratio: bool
    """Whether ``limit`` is a ratio to the baseline."""

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Return the threshold that ``text`` states.

        >>> threshold = Threshold.parse("step_time > 5%")
        >>> threshold.target, threshold.above, threshold.limit, threshold.is_ratio
        ('step_time', True, 0.05, True)

        Raises:
            UsageError: the text has another form, its metric is unknown, or its unit does not fit
                the metric; the message says what was expected.
        """
        match = _THRESHOLD.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r}: {_EXPECTED}")
        target, unit = match["target"], match["unit"]
        if not _is_target(target):
            raise UsageError(f"{text!r}: {_EXPECTED}")
        is_calls = target.endswith(".calls") and not target.startswith("module.")
        units = _UNITS_OF[_METRICS.get(target, "calls" if is_calls else "ns")]
        if unit not in units:
            expected = ", ".join(name or "none" for name in units)
            raise UsageError(f"{text!r}: unit {unit or 'missing'}: expected one of {expected}")
        number = float(match["number"])
        limit = number / 100 if unit == "%" else number * _UNITS.get(unit, 1.0)
        return cls(text.strip(), target, match["sign"] == ">", limit, unit == "%")

    def check(self, diff: Diff) -> Outcome:
        """Return the outcome of checking a comparison against this threshold.

        Raises:
            UsageError: neither run has the operator, kernel or module, or the metric is not known
                for both runs.
        """
        change = self._change(diff)
        if change.value is None:
            status = "fail" if self.above else "pass"
            return Outcome(self.text, status, "new: the baseline has none of it")
        detail = self._format(change.value)
        if change.low is None or change.high is None:
            beyond = "fail" if change.is_exact else "inconclusive"
            status = beyond if self._is_beyond(change.value) else "pass"
            if not change.is_exact:
                detail += f"; no interval: {diff.change.reason or 'one step'}"
            return Outcome(self.text, status, detail)
        detail += f", 95% interval {self._format(change.low)} to {self._format(change.high)}"
        if not self._is_beyond(change.value):
            return Outcome(self.text, "pass", detail)
        is_sure = self._is_beyond(change.low if self.above else change.high)
        return Outcome(self.text, "fail" if is_sure else "inconclusive", detail)

    def _is_beyond(self, value: float) -> bool:
        return value > self.limit if self.above else value < self.limit

    def _format(self, value: float) -> str:
        if self.is_ratio:
            return f"{value:+.1%}"
        match = _THRESHOLD.fullmatch(self.text)
        unit = match["unit"] if match else ""
        return f"{value / _UNITS.get(unit, 1.0):+.3g}{' ' if unit else ''}{unit}"

    def _change(self, diff: Diff) -> _Interval:
        kind, _, rest = self.target.partition(".")
        if self.target in _METRICS:
            return self._metric_change(diff)
        if kind == "module":
            return self._module_change(diff, rest)
        name, _, value = rest.rpartition(".")
        table = diff.operators if kind == "op" else diff.kernels
        rows = table.filter(pl.col("name") == name)
        if rows.is_empty():
            raise UsageError(f"{self.text!r}: neither run has {_KINDS[kind]} {name!r}")
        row = rows.row(0, named=True)
        column = _COLUMNS[kind][value]
        return self._interval(*(row[f"{side}_{column}"] for side in ("baseline", "delta", "noise")))

    def _metric_change(self, diff: Diff) -> _Interval:
        rows = diff.overview.filter(metric=self.target)
        if rows.is_empty() or rows["delta"].null_count():
            raise UsageError(f"{self.text!r}: {self.target} is not known for both runs")
        row = rows.row(0, named=True)
        if self.target in ("step_time", "ips", "tokens_per_s"):
            return self._step_time_change(diff.change, row)
        noise = diff.noise_of(self.target)
        change = self._interval(row["baseline"], row["delta"], noise)
        return change._replace(is_exact=noise is None)

    def _step_time_change(self, change: Change, row: Mapping[str, Any]) -> _Interval:
        """Return the change of the step time or of a rate, with its interval.

        A rate is the number of samples or tokens of a step over the time of the step, so its
        interval follows from that of the step time.

        Args:
            change: the change of the step time.
            row: the row of the target in `Diff.overview`.
        """
        scale = 1.0 if self.is_ratio else row["baseline"]
        ratio = row["delta_ratio"]
        if ratio is None or change.ratio is None or change.low is None or change.high is None:
            return _Interval(0.0 if ratio is None else ratio * scale, None, None)
        low, high = change.low, change.high
        if self.target != "step_time":
            samples = (1 + ratio) * (1 + change.ratio)  # of a step, over the baseline's
            low, high = samples / (1 + change.high) - 1, samples / (1 + max(change.low, -0.99)) - 1
        return _Interval(ratio * scale, low * scale, high * scale)

    def _module_change(self, diff: Diff, name: str) -> _Interval:
        rows = diff.modules.filter(pl.col("name") == name)
        if rows.is_empty():
            raise UsageError(f"{self.text!r}: neither run has a module {name!r}")
        outermost = rows.filter(_is_outermost(diff.modules, name))
        before, after = (
            float(outermost[f"{side}_time_ns"].fill_null(0.0).to_numpy().sum())
            for side in ("baseline", "experiment")
        )
        noises = outermost["noise_time_ns"]
        noise = None if noises.null_count() else float(np.linalg.norm(noises.to_numpy()))
        return self._interval(before, after - before, noise)

    def _interval(self, baseline: float, delta: float, noise: float | None) -> _Interval:
        if self.is_ratio and not baseline:
            ratio = None if delta else 0.0
            return _Interval(ratio, ratio, ratio)
        scale = baseline if self.is_ratio else 1.0
        if noise is None:
            return _Interval(delta / scale, None, None)
        return _Interval(
            delta / scale, (delta - _SURE * noise) / scale, (delta + _SURE * noise) / scale
        )


_KINDS = {"op": "an operator", "kernel": "a kernel"}


def _is_target(target: str) -> bool:
    """Return whether a threshold can limit ``target``: ``step_time``, ``op.matmul.gpu``..."""
    kind, _, rest = target.partition(".")
    if kind in _COLUMNS:
        return "." in rest and rest.rpartition(".")[2] in _COLUMNS[kind]
    return target in _METRICS or (kind == "module" and target != "module.")


def _is_outermost(modules: pl.DataFrame, name: str) -> pl.Series:
    """Return, for each row with this name, whether it lies in no other module with this name.

    Args:
        modules: depth and name, in pre-order.
        name: the name of the module.

    Returns:
        One boolean per row with this name.
    """
    is_outermost, enclosing_depth = [], None
    for depth, module in modules.select("depth", "name").iter_rows():
        if enclosing_depth is not None and depth <= enclosing_depth:
            enclosing_depth = None
        if module == name:
            is_outermost.append(enclosing_depth is None)
            enclosing_depth = depth if enclosing_depth is None else enclosing_depth
    return pl.Series(is_outermost, dtype=pl.Boolean)


def check(thresholds: Sequence[Threshold], diff: Diff) -> list[Outcome]:
    """Return the outcome of checking a comparison against each threshold.

    Raises:
        UsageError: some thresholds cannot be checked, see `Threshold.check`; the message has a line
            for each of them.
    """
    outcomes, problems = [], []
    for threshold in thresholds:
        try:
            outcomes.append(threshold.check(diff))
        except UsageError as error:
            problems.append(str(error))
    if problems:
        raise UsageError("\n".join(problems))
    return outcomes
