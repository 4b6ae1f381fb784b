"""All that a report shows of one rank's window, in one reading of its trace."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from ppprof.analysis.advice.indicators import Indicators, collect_indicators
from ppprof.analysis.diff.costs import Costs, costs_of
from ppprof.analysis.diff.naming import Naming
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.steps import StepRange, select_steps
from ppprof.analysis.ranks.cluster import RankAnalysis, analyze_profile
from ppprof.analysis.report_data.memory_timeline import Memory, memory_levels
from ppprof.analysis.report_data.timeline import lanes
from ppprof.analysis.summaries.overview import model
from ppprof.trace.schema import Trace

_PIECES = 400
"""Of a window's time, in the curve of its memory."""


class Details(NamedTuple):
    """What is drawn of some ranks only."""

    lanes: pl.DataFrame
    """Columns of `ppprof.analysis.report_data.timeline.LANES`, on the rank's own clock."""
    memory: Memory


class RankReportData(NamedTuple):
    """One rank's window."""

    analysis: RankAnalysis
    costs: Costs
    indicators: Indicators
    phases: pl.DataFrame
    """`ppprof.analysis.summaries.overview.model`."""
    details: Details | None
    """None of a rank that is not drawn."""


def collect_rank_report_data(
    trace: Trace, naming: Naming, steps: StepRange | None = None, budget: int = 0
) -> RankReportData:
    """What a report shows of one rank's window.

    Args:
        trace: its window.
        naming: the names of operators and kernels.
        steps: only these; None: all.
        budget: how many spans its timeline may have; 0: it is not drawn, and has no details.
    """
    profile = Profile(trace if steps is None else select_steps(trace, steps))
    cost = costs_of(profile, naming)
    return RankReportData(
        analyze_profile(profile, cost.breakdown),
        cost,
        collect_indicators(profile),
        model(profile),
        _details(profile, budget) if budget else None,
    )


def _details(profile: Profile, budget: int) -> Details:
    return Details(lanes(profile, budget), memory_levels(profile, _PIECES))
