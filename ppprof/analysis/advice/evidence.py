"""`Evidence`: the data of all rules, and values that several of them need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import polars as pl

from ppprof.analysis.advice.finding import LEAST_RATIO, MOST_ROWS, Fact, Finding, severity_of
from ppprof.analysis.advice.indicators import STEPS, Indicators
from ppprof.analysis.ranks.cluster import Cluster
from ppprof.topology import Topology

STEP_TIMES = {
    "rank": pl.Int64,
    "step": pl.Int64,
    "batch_cost_ns": pl.Int64,
    "reader_cost_ns": pl.Int64,
    "excluded": pl.Boolean,
    "window": pl.Int64,
}
"""The columns that the rules read of a run's step times."""

SKIPPED_STEPS = 10
"""The first steps of a run are not typical, so they are skipped, as in Paddle's Perf Summary."""


@dataclass(frozen=True)
class Evidence:
    """The data of one run."""

    cluster: Cluster | None
    """All ranks; None if the run has only step times."""
    indicators: Mapping[int, Indicators] = field(default_factory=dict)
    """By rank, for the steps of ``cluster``."""
    step_times: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=STEP_TIMES))
    """The columns of `STEP_TIMES` and others; no rows if the run has no step times."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The job's resolved config; empty if unknown."""
    topology: Topology | None = None
    """The ranks' coordinates; None if unknown."""

    def setting(self, key: str) -> Any:
        """Return a value of the config by its dotted key; None if missing.

        >>> Evidence(None, config={"Global": {"micro_batch_size": 2}}).setting("Global.micro_batch_size")
        2
        """
        value: Any = self.config
        for name in key.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def number(self, key: str) -> int | None:
        """Return an integer of the config; None if missing or not an integer."""
        value = self.setting(key)
        return value if type(value) is int else None

    def text(self, key: str) -> str | None:
        """Return a value of the config as text; None if missing."""
        value = self.setting(key)
        return None if value is None else str(value)

    @property
    def remedy(self) -> str:
        """``config`` if the job's config is known, else ``code``."""
        return "config" if self.config else "code"

    def degree(self, axis: str) -> int:
        """Return the degree of an axis; 1 if unknown."""
        return 1 if self.topology is None else self.topology.degree(axis)

    @cached_property
    def steps(self) -> pl.DataFrame:
        """One row per rank and step: `Cluster.steps`; no rows without traces."""
        return pl.DataFrame() if self.cluster is None else self.cluster.steps

    @cached_property
    def sound_times(self) -> pl.DataFrame:
        """Rows of `step_times` without stalls of the profiler and without the run's first steps."""
        times = self.step_times.filter(pl.col("excluded").eq_missing(True).not_())
        return times.filter(pl.col("step") >= SKIPPED_STEPS)

    @cached_property
    def step_lengths(self) -> pl.DataFrame:
        """window, step and step_ns; each step takes the time of its slowest rank."""
        if self.steps.is_empty():
            times = self.sound_times.group_by("step").agg(step_ns=pl.col("batch_cost_ns").max())
            return times.select(pl.lit(0).alias("window"), "step", "step_ns").sort("step")
        longest = self.steps.group_by("window", "step").agg(pl.col("step_ns").max())
        return longest.sort("window", "step")

    @cached_property
    def step_ns(self) -> float:
        """The run's typical step time: the median of `step_lengths`; 0 without steps."""
        lengths = self.step_lengths["step_ns"].to_numpy()
        return float(pl.Series(lengths).median() or 0.0)  # type: ignore[arg-type]

    @cached_property
    def rank_means(self) -> pl.DataFrame:
        """One row per rank: means over its steps of every time in `steps`."""
        if self.steps.is_empty():
            return pl.DataFrame(schema={"rank": pl.Int64})
        return self.steps.group_by("rank").agg(pl.col("^.*_ns$").mean()).sort("rank")

    @cached_property
    def indicator_means(self) -> pl.DataFrame:
        """One row per rank: means over its steps of `ppprof.analysis.advice.indicators.STEPS`."""
        parts = [
            own.steps.select(pl.lit(rank, pl.Int64).alias("rank"), pl.col(list(STEPS)[1:]).mean())
            for rank, own in sorted(self.indicators.items())
            if own.steps.height
        ]
        schema = {"rank": pl.Int64, **dict.fromkeys(list(STEPS)[1:], pl.Float64)}
        return pl.concat([pl.DataFrame(schema=schema), *(part.cast(schema) for part in parts)])  # type: ignore[arg-type]

    def typical(self, column: str) -> float:
        """Return an indicator in an average step of the median rank; 0 if unknown."""
        return float(self.indicator_means[column].median() or 0.0)  # type: ignore[arg-type]

    def names(self, kind: str, by: str = "time_ns") -> pl.DataFrame:
        """Return names of one kind (`ppprof.analysis.advice.indicators.NAMES`).

        Returns:
            name, calls, time_ns (float64), per step of an average rank; the largest ``by`` first, at
            most `MOST_ROWS`.
        """
        parts = [own.names.filter(pl.col("what") == kind) for own in self.indicators.values()]
        schema = {"name": pl.String, "calls": pl.Float64, "time_ns": pl.Float64}
        if not parts:
            return pl.DataFrame(schema=schema)
        num = max(1, sum(own.steps.height for own in self.indicators.values()))
        sums = pl.concat(parts).group_by("name").agg(pl.col("calls", "time_ns").sum() / num)
        return sums.sort(by, "name", descending=[True, False]).head(MOST_ROWS)

    def time_finding(
        self,
        rule: str,
        cost_ns: float,
        confidence: str,
        facts: Mapping[str, Fact],
        rows: pl.DataFrame,
    ) -> list[Finding]:
        """Return a finding that costs time; nothing if it costs less than `LEAST_RATIO` of a step."""
        cost_ns = min(cost_ns, self.step_ns)
        if not self.step_ns or cost_ns < LEAST_RATIO * self.step_ns:
            return []
        share = cost_ns / self.step_ns
        all_facts = {"step_ns": self.step_ns, "remedy": self.remedy, **facts}
        shown = rows.head(MOST_ROWS)
        return [Finding(rule, severity_of(share), cost_ns, share, confidence, all_facts, shown)]

    def warning(
        self, rule: str, severity: str, facts: Mapping[str, Fact], rows: pl.DataFrame
    ) -> list[Finding]:
        """Return a measured finding that costs no time."""
        all_facts = {"remedy": self.remedy, **facts}
        return [Finding(rule, severity, None, None, "sure", all_facts, rows.head(MOST_ROWS))]
