"""Rules that a change may break: ``step_time > 5%``, ``op.matmul.gpu > 0.2ms``."""

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

_RULE = re.compile(
    r"\s*(?P<what>\S.*?)\s*(?P<sign>[<>])\s*(?P<number>[-+]?\d+(\.\d+)?)\s*(?P<unit>%|[a-zA-Z]*)\s*"
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
"""Those that are numbers, and of what kind."""
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
    "(calls) or module.NAME; and < for what may not fall, such as ips < -5%"
)
_SURE = 2.0
"""Standard errors on either side of an operator's change: about 95%."""


class Outcome(NamedTuple):
    """What a rule says of a comparison."""

    rule: str
    status: str
    """``broken``; ``unsure``, where the change is beyond the limit and its interval is not; ``kept``."""
    told: str
    """The change, and how sure it is."""

    def __str__(self) -> str:
        return f"{self.status}: {self.rule}: {self.told}"


class _Seen(NamedTuple):
    """A change and its interval, in the rule's terms."""

    value: float | None
    """None where the baseline has nothing that a ratio could be of."""
    low: float | None
    high: float | None
    is_exact: bool = False
    """Whether there is no interval because it is no mean over steps."""


@dataclass(frozen=True)
class Threshold:
    """A limit to a change."""

    text: str
    what: str
    above: bool
    """Whether more than the limit breaks it; else less."""
    limit: float
    """A ratio, or nanoseconds, bytes, calls."""
    is_ratio: bool

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """From ``METRIC > 5%``.

        Raises:
            UsageError: says what was expected.
        """
        match = _RULE.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r}: {_EXPECTED}")
        what, unit = match["what"], match["unit"]
        kind = what.partition(".")[0]
        known = (
            what in _METRICS
            or (
                kind in _COLUMNS
                and what.count(".") >= 2
                and what.rpartition(".")[2] in _COLUMNS[kind]
            )
            or (kind == "module" and what != "module.")
        )
        if not known:
            raise UsageError(f"{text!r}: {_EXPECTED}")
        of_calls = "calls" if what.endswith(".calls") and kind != "module" else "ns"
        measured = _METRICS.get(what, of_calls)
        if unit not in _UNITS_OF[measured]:
            units = ", ".join(at or "none" for at in _UNITS_OF[measured])
            raise UsageError(f"{text!r}: unit {unit or 'missing'}: expected one of {units}")
        number = float(match["number"])
        limit = number / 100 if unit == "%" else number * _UNITS.get(unit, 1.0)
        return cls(text.strip(), what, match["sign"] == ">", limit, unit == "%")

    def check(self, diff: Diff) -> Outcome:
        """Whether a comparison breaks it.

        Raises:
            UsageError: neither run has such an operator, kernel, module or metric.
        """
        seen = self._seen(diff)
        if seen.value is None:
            status = "broken" if self.above else "kept"
            return Outcome(self.text, status, "new: the baseline has none of it")
        told = self._told(seen.value)
        if seen.low is None or seen.high is None:
            # What is no mean over steps, a peak of memory say, is what it is.
            beyond = "broken" if seen.is_exact else "unsure"
            status = beyond if self._is_beyond(seen.value) else "kept"
            because = "" if seen.is_exact else f"; no interval: {diff.change.reason or 'one step'}"
            return Outcome(self.text, status, f"{told}{because}")
        told = f"{told}, 95% interval {self._told(seen.low)} to {self._told(seen.high)}"
        if not self._is_beyond(seen.value):
            return Outcome(self.text, "kept", told)
        is_sure = self._is_beyond(seen.low if self.above else seen.high)
        return Outcome(self.text, "broken" if is_sure else "unsure", told)

    def _is_beyond(self, value: float) -> bool:
        return value > self.limit if self.above else value < self.limit

    def _told(self, value: float) -> str:
        if self.is_ratio:
            return f"{value:+.1%}"
        unit = _RULE.fullmatch(self.text)
        name = unit["unit"] if unit else ""
        return f"{value / _UNITS.get(name, 1.0):+.3g}{' ' if name else ''}{name}"

    def _seen(self, diff: Diff) -> _Seen:
        kind, _, rest = self.what.partition(".")
        if self.what in _METRICS:
            return self._of_metric(diff)
        if kind == "module":
            return self._of_module(diff, rest)
        name, _, of = rest.rpartition(".")
        table = diff.operators if kind == "op" else diff.kernels
        rows = table.filter(pl.col("name") == name)
        column = _COLUMNS[kind][of]
        if rows.is_empty():
            raise UsageError(f"{self.text!r}: neither run has {_WORDS[kind]} {name!r}")
        row = rows.row(0, named=True)
        of_column = (row[f"{at}_{column}"] for at in ("baseline", "delta", "noise"))
        return self._interval(*of_column)

    def _of_metric(self, diff: Diff) -> _Seen:
        rows = diff.overview.filter(metric=self.what)
        if rows.is_empty() or rows["delta"].null_count():
            raise UsageError(f"{self.text!r}: not both runs tell their {self.what}")
        row = rows.row(0, named=True)
        if self.what in ("step_time", "ips", "tokens_per_s"):
            return self._of_step_time(diff.change, row)
        noise = diff.noise_of(self.what)
        seen = self._interval(row["baseline"], row["delta"], noise)
        return seen._replace(is_exact=noise is None)

    def _of_step_time(self, change: Change, row: Mapping[str, Any]) -> _Seen:
        """The step time, or a rate, which is what a step does over it, by the time's interval."""
        scale = 1.0 if self.is_ratio else row["baseline"]
        ratio = row["delta_ratio"]
        if ratio is None or change.ratio is None or change.low is None or change.high is None:
            return _Seen(0.0 if ratio is None else ratio * scale, None, None)
        low, high = change.low, change.high
        if self.what != "step_time":
            done = (1 + ratio) * (1 + change.ratio)  # samples of a step, over the baseline's
            low, high = done / (1 + change.high) - 1, done / (1 + max(change.low, -0.99)) - 1
        return _Seen(ratio * scale, low * scale, high * scale)

    def _of_module(self, diff: Diff, name: str) -> _Seen:
        rows = diff.modules.filter(pl.col("name") == name)
        if rows.is_empty():
            raise UsageError(f"{self.text!r}: neither run has a module {name!r}")
        outermost = rows.filter(_is_outermost(diff.modules, name))
        before, after = (
            float(outermost[f"{of}_time_ns"].fill_null(0.0).to_numpy().sum())
            for of in ("baseline", "experiment")
        )
        noises = outermost["noise_time_ns"]
        noise = None if noises.null_count() else float(np.linalg.norm(noises.to_numpy()))
        return self._interval(before, after - before, noise)

    def _interval(self, baseline: float, delta: float, noise: float | None) -> _Seen:
        if self.is_ratio and not baseline:
            return _Seen(None if delta else 0.0, None if delta else 0.0, None if delta else 0.0)
        scale = baseline if self.is_ratio else 1.0
        if noise is None:
            return _Seen(delta / scale, None, None)
        return _Seen(
            delta / scale, (delta - _SURE * noise) / scale, (delta + _SURE * noise) / scale
        )


def _is_outermost(modules: pl.DataFrame, name: str) -> pl.Series:
    """Of the rows with this name, in pre-order: whether they lie in no other of the name."""
    found, inside = [], None
    for depth, own in modules.select("depth", "name").iter_rows():
        if inside is not None and depth <= inside:
            inside = None
        if own == name:
            found.append(inside is None)
            inside = depth if inside is None else inside
    return pl.Series(found, dtype=pl.Boolean)


_WORDS = {"op": "an operator", "kernel": "a kernel"}


def check(rules: Sequence[Threshold], diff: Diff) -> list[Outcome]:
    """What each rule says.

    Raises:
        UsageError: of all rules that speak of something that is in neither run.
    """
    outcomes, problems = [], []
    for rule in rules:
        try:
            outcomes.append(rule.check(diff))
        except UsageError as error:
            problems.append(str(error))
    if problems:
        raise UsageError("\n".join(problems))
    return outcomes
