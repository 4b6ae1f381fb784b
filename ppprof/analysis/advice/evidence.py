"""`Evidence`: all that the rules look at, and what several of them need of it."""

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
"""Of a run's step times: its first ones say nothing of the others, as in Paddle's Perf Summary."""


@dataclass(frozen=True)
class Evidence:
    """One run, as its rules see it."""

    cluster: Cluster | None
    """All ranks; None where the run has step times alone."""
    indicators: Mapping[int, Indicators] = field(default_factory=dict)
    """By rank, of the steps that ``cluster`` has."""
    step_times: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=STEP_TIMES))
    """The columns of `STEP_TIMES` and others; no rows if the run has no step times."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The job's resolved config; empty where nobody tells."""
    topology: Topology | None = None
    """Where the ranks stand; None where nobody tells."""

    def setting(self, key: str) -> Any:
        """A value of the config by its dotted key; None where it is not there.

        >>> Evidence(None, config={"Global": {"micro_batch_size": 2}}).setting("Global.micro_batch_size")
        2
        """
        value: Any = self.config
        for name in key.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def number(self, key: str) -> int | None:
        """A whole number of the config."""
        value = self.setting(key)
        return value if type(value) is int else None

    def text(self, key: str) -> str | None:
        """A value of the config as it would be written; None where it is not there."""
        value = self.setting(key)
        return None if value is None else str(value)

    @property
    def remedy(self) -> str:
        """``config`` where the job's keys are known, else ``code``."""
        return "config" if self.config else "code"

    def degree(self, axis: str) -> int:
        """How many ranks stand along an axis; 1 where nobody tells."""
        return 1 if self.topology is None else self.topology.degree(axis)

    @cached_property
    def steps(self) -> pl.DataFrame:
        """A row a rank and step: `Cluster.steps`; no rows without traces."""
        return pl.DataFrame() if self.cluster is None else self.cluster.steps

    @cached_property
    def timed(self) -> pl.DataFrame:
        """Steps of `step_times` that no stall of ours is in, without the run's first."""
        times = self.step_times.filter(pl.col("excluded").eq_missing(True).not_())
        return times.filter(pl.col("step") >= SKIPPED_STEPS)

    @cached_property
    def step_lengths(self) -> pl.DataFrame:
        """window, step and step_ns: each step as long as on the rank where it is longest."""
        if self.steps.is_empty():
            times = self.timed.group_by("step").agg(step_ns=pl.col("batch_cost_ns").max())
            return times.select(pl.lit(0).alias("window"), "step", "step_ns").sort("step")
        longest = self.steps.group_by("window", "step").agg(pl.col("step_ns").max())
        return longest.sort("window", "step")

    @cached_property
    def step_ns(self) -> float:
        """The run's typical step: the median of `step_lengths`; 0 where there are none."""
        lengths = self.step_lengths["step_ns"].to_numpy()
        return float(pl.Series(lengths).median() or 0.0)  # type: ignore[arg-type]

    @cached_property
    def of_ranks(self) -> pl.DataFrame:
        """A row a rank: means over its steps of every time of `steps`."""
        if self.steps.is_empty():
            return pl.DataFrame(schema={"rank": pl.Int64})
        return self.steps.group_by("rank").agg(pl.col("^.*_ns$").mean()).sort("rank")

    @cached_property
    def symptom_means(self) -> pl.DataFrame:
        """A row a rank: means over its steps of every column of `ppprof.analysis.advice.indicators.STEPS`."""
        parts = [
            of.steps.select(pl.lit(rank, pl.Int64).alias("rank"), pl.col(list(STEPS)[1:]).mean())
            for rank, of in sorted(self.indicators.items())
            if of.steps.height
        ]
        schema = {"rank": pl.Int64, **dict.fromkeys(list(STEPS)[1:], pl.Float64)}
        return pl.concat([pl.DataFrame(schema=schema), *(at.cast(schema) for at in parts)])  # type: ignore[arg-type]

    def typical(self, column: str) -> float:
        """A symptom in an average step of the median rank; 0 where nobody tells."""
        return float(self.symptom_means[column].median() or 0.0)  # type: ignore[arg-type]

    def names(self, what: str, by: str = "time_ns") -> pl.DataFrame:
        """Names of one kind (`ppprof.analysis.advice.indicators.NAMES`), per step of an average rank.

        Returns:
            name, calls, time_ns (float64); the most ``by`` first, `MOST_ROWS`.
        """
        parts = [of.names.filter(pl.col("what") == what) for of in self.indicators.values()]
        schema = {"name": pl.String, "calls": pl.Float64, "time_ns": pl.Float64}
        if not parts:
            return pl.DataFrame(schema=schema)
        num = max(1, sum(of.steps.height for of in self.indicators.values()))
        sums = pl.concat(parts).group_by("name").agg(pl.col("calls", "time_ns").sum() / num)
        return sums.sort(by, "name", descending=[True, False]).head(MOST_ROWS)

    def time_finding(
        self,
        rule: str,
        cost_ns: float,
        confidence: str,
        facts: Mapping[str, Fact],
        evidence: pl.DataFrame,
    ) -> list[Finding]:
        """A finding that costs so much a step; none where that is less than `LEAST_RATIO`."""
        cost_ns = min(cost_ns, self.step_ns)
        if not self.step_ns or cost_ns < LEAST_RATIO * self.step_ns:
            return []
        share = cost_ns / self.step_ns
        told = {"step_ns": self.step_ns, "remedy": self.remedy, **facts}
        evidence = evidence.head(MOST_ROWS)
        return [Finding(rule, severity_of(share), cost_ns, share, confidence, told, evidence)]

    def warning(
        self, rule: str, severity: str, facts: Mapping[str, Fact], evidence: pl.DataFrame
    ) -> list[Finding]:
        """A finding that is measured and costs no time."""
        told = {"remedy": self.remedy, **facts}
        return [Finding(rule, severity, None, None, "sure", told, evidence.head(MOST_ROWS))]
