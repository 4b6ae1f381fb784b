"""What the ranks of a run did together: their steps side by side, their collectives, their clocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import polars as pl

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.ranks.arrivals import arrivals, by_group
from ppprof.analysis.ranks.clock_alignment import align_clocks
from ppprof.analysis.ranks.collectives import collectives, match_collectives
from ppprof.analysis.ranks.step_breakdown import Breakdown, breakdown
from ppprof.analysis.ranks.stragglers import slow_groups, slow_ranks
from ppprof.analysis.ranks.transfers import without_transfers
from ppprof.analysis.ranks.what_if import WHAT_IF, passes, what_if
from ppprof.topology import Topology
from ppprof.trace import Clock
from ppprof.trace.schema import Trace


class RankAnalysis(NamedTuple):
    """One rank's part, made of its trace alone; the rank is to be told."""

    breakdown: Breakdown
    collectives: pl.DataFrame
    """Filled in later, by `ppprof.analysis.ranks.collectives.with_rank`."""
    passes: pl.DataFrame
    """As `ppprof.analysis.ranks.what_if.passes` gives them."""


def analyze_rank(trace: Trace) -> RankAnalysis:
    """What `Cluster` needs of a window."""
    profile = Profile(trace)
    return rank_analysis_of(profile, breakdown(profile))


def rank_analysis_of(profile: Profile, parts: Breakdown) -> RankAnalysis:
    """The same of a profile that others read too, and its breakdown."""
    return RankAnalysis(parts, collectives(profile.whole), passes(profile))


@dataclass(frozen=True)
class Cluster:
    """Small tables of all ranks, and what they say together."""

    alone: pl.DataFrame
    """A row a rank and step: what `ppprof.analysis.ranks.join_ranks` gave."""
    bubbles: Sequence[pl.DataFrame]
    """A table a rank, on its own clock: rank, window, `ppprof.analysis.ranks.step_breakdown.STRETCHES`."""
    collectives: Sequence[pl.DataFrame]
    """A table a rank, on its own clock: what `ppprof.analysis.ranks.collectives.collectives` gave."""
    passes: Sequence[pl.DataFrame]
    """A table a rank: what `ppprof.analysis.ranks.what_if.passes` gave."""
    measured: Mapping[int, Clock]
    """The clocks that the capture compared."""
    topology: Topology | None = None
    """Where the ranks stand; None where nobody tells."""

    @cached_property
    def clocks(self) -> Mapping[int, Clock]:
        """Every rank's clock: as it was measured, else as its collectives bound it."""
        return align_clocks(self.collectives, self.measured)

    @cached_property
    def steps(self) -> pl.DataFrame:
        """A row a rank and step, transfers told from the wait for others (`without_transfers`)."""
        return without_transfers(self.alone, self.bubbles, self.matched, self.clocks)

    @cached_property
    def matched(self) -> pl.DataFrame:
        """Every collective, member by member, on one clock; see `ppprof.analysis.ranks.collectives`."""
        return match_collectives(self.collectives, self.clocks)

    @cached_property
    def arrivals(self) -> pl.DataFrame:
        """Every collective once, with its verdict; see `ppprof.analysis.ranks.arrivals.arrivals`."""
        steps = self.steps["step"].unique()
        found = arrivals(self.matched, self.clocks)
        return found.filter(pl.col("step").is_in(steps.implode()))

    @cached_property
    def groups(self) -> pl.DataFrame:
        """The collectives of each group together; see `ppprof.analysis.ranks.arrivals.by_group`."""
        return by_group(self.arrivals, self.steps["step"].n_unique())

    @cached_property
    def slow_ranks(self) -> pl.DataFrame:
        """Who is longer at its own work than its peers; see `ppprof.analysis.ranks.stragglers`."""
        waiting = [
            name
            for name in self.steps.columns
            if name.startswith("exposed_") or name == "bubble_ns"
        ]
        own = self.steps.select(
            "rank",
            "step",
            "step_ns",
            own_ns=pl.col("step_ns") - pl.sum_horizontal(pl.col(waiting).fill_null(0)),
        )
        return slow_ranks(own, self._roles)

    @cached_property
    def slow_groups(self) -> pl.DataFrame:
        """Whose link is slower than those beside it; see `ppprof.analysis.ranks.stragglers`."""
        lengths = self.steps.group_by("step").agg(pl.col("step_ns").median().cast(pl.Int64))
        return slow_groups(self.arrivals, dict(lengths.iter_rows()), self._roles)

    @cached_property
    def what_if(self) -> pl.DataFrame:
        """Step times if something were as fast as usual; see `ppprof.analysis.ranks.what_if`.

        No rows where the grid is not known or nothing can be replayed.
        """
        if self.topology is None:
            return pl.DataFrame(schema=WHAT_IF)
        steps = self.steps["step"].unique().implode()
        wanted = [part.filter(pl.col("step").is_in(steps)) for part in self.passes]
        return what_if(wanted, self.topology, self.clocks)

    @property
    def _roles(self) -> Mapping[int, str]:
        """Ranks of one pipeline stage do the same work."""
        stages = self.steps.select("rank", pl.col("pp").fill_null(0)).unique()
        return {rank: f"stage {stage}" for rank, stage in stages.iter_rows()}
