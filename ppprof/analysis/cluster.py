"""What the ranks of a run did together: their steps side by side, their collectives, their clocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from ppprof.analysis.arrivals import arrivals, by_group
from ppprof.analysis.breakdown import breakdown
from ppprof.analysis.matching import align, collectives, matched
from ppprof.analysis.stragglers import slow_groups, slow_ranks
from ppprof.clocks import Clock
from ppprof.trace.schema import Trace


def examine(trace: Trace) -> tuple[pl.DataFrame, pl.DataFrame]:
    """One rank's part: its steps (`breakdown`) and its collectives, of a rank to be told."""
    return breakdown(trace), collectives(trace)


@dataclass(frozen=True)
class Cluster:
    """Small tables of all ranks, and what they say together."""

    steps: pl.DataFrame
    """A row a rank and step: what `ppprof.analysis.ranks.join_ranks` gave."""
    collectives: Sequence[pl.DataFrame]
    """A table a rank, on its own clock: what `ppprof.analysis.matching.collectives` gave."""
    measured: Mapping[int, Clock]
    """The clocks that the capture compared."""

    @cached_property
    def clocks(self) -> Mapping[int, Clock]:
        """Every rank's clock: as it was measured, else as its collectives bound it."""
        return align(self.collectives, self.measured)

    @cached_property
    def arrivals(self) -> pl.DataFrame:
        """Every collective once, with its verdict; see `ppprof.analysis.arrivals.arrivals`."""
        steps = self.steps["step"].unique()
        found = arrivals(matched(self.collectives, self.clocks), self.clocks)
        return found.filter(pl.col("step").is_in(steps.implode()))

    @cached_property
    def groups(self) -> pl.DataFrame:
        """The collectives of each group together; see `ppprof.analysis.arrivals.by_group`."""
        return by_group(self.arrivals, self.steps["step"].n_unique())

    @cached_property
    def slow_ranks(self) -> pl.DataFrame:
        """Who is longer at its own work than its peers; see `ppprof.analysis.stragglers`."""
        waiting = [
            name for name in self.steps.columns
            if name.startswith("exposed_") or name == "bubble_ns"
        ]  # fmt: skip
        own = self.steps.select(
            "rank", "step", "step_ns",
            own_ns=pl.col("step_ns") - pl.sum_horizontal(pl.col(waiting).fill_null(0)),
        )  # fmt: skip
        return slow_ranks(own, self._roles)

    @cached_property
    def slow_groups(self) -> pl.DataFrame:
        """Whose link is slower than those beside it; see `ppprof.analysis.stragglers`."""
        lengths = self.steps.group_by("step").agg(pl.col("step_ns").median().cast(pl.Int64))
        return slow_groups(self.arrivals, dict(lengths.iter_rows()), self._roles)

    @property
    def _roles(self) -> Mapping[int, str]:
        """Ranks of one pipeline stage do the same work."""
        stages = self.steps.select("rank", pl.col("pp").fill_null(0)).unique()
        return {rank: f"stage {stage}" for rank, stage in stages.iter_rows()}
