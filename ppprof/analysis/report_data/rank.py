"""The data of one rank in a report, computed from one reading of its trace."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from ppprof.analysis.advice.indicators import Indicators, collect_indicators
from ppprof.analysis.diff.costs import Costs, costs_of
from ppprof.analysis.diff.naming import Naming
from ppprof.analysis.efficiency.efficiency import efficiency
from ppprof.analysis.efficiency.roof import Roof, roof_of
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.remote_calls import remote_flows
from ppprof.analysis.profile.steps import select_steps, with_step
from ppprof.analysis.ranks.cluster import RankAnalysis, analyze_profile
from ppprof.analysis.report_data.memory_timeline import Memory, memory_levels
from ppprof.analysis.report_data.operators_of_modules import module_work
from ppprof.analysis.report_data.places import longest_events, peak_places
from ppprof.analysis.report_data.timeline import Timeline, timeline
from ppprof.analysis.summaries.overview import model
from ppprof.choices.steps import StepRange
from ppprof.trace.schema import Trace

_NUM_LEVELS = 400
"""Number of points in the memory curve of a place."""


MOST_EVENTS = 1_600_000
"""Most events of all timelines of a page together: they take 3 to 6 bytes each."""

MOST_SPANS = 100_000
"""Most spans of all thinned timelines together: a browser draws them within a frame."""


class Details(NamedTuple):
    """The timeline and memory of a rank that the report draws; it draws only some ranks."""

    timeline: Timeline
    """On the rank's own clock."""
    memory: Memory
    remote_flows: pl.DataFrame
    """The result of `ppprof.analysis.profile.remote_calls.remote_flows`, on the rank's own clock."""


class RankReportData(NamedTuple):
    """The data of one rank's window in a report."""

    analysis: RankAnalysis
    costs: Costs
    indicators: Indicators
    efficiency: pl.DataFrame
    """The result of `ppprof.analysis.efficiency.efficiency.efficiency`."""
    roof: Roof
    phases: pl.DataFrame
    """The result of `ppprof.analysis.summaries.overview.model`."""
    places: pl.DataFrame
    """Columns of `ppprof.analysis.report_data.places.PLACES`, on the rank's own clock."""
    module_work: pl.DataFrame
    """The result of `ppprof.analysis.report_data.operators_of_modules.module_work`."""
    details: Details | None
    """The rank's timeline and memory; None if the rank is not drawn."""


class BaselineData(NamedTuple):
    """The data of one rank's window of a report's baseline."""

    costs: Costs
    module_work: pl.DataFrame
    """The result of `ppprof.analysis.report_data.operators_of_modules.module_work`."""
    num_steps: int
    """Number of recorded steps."""


def collect_baseline_data(trace: Trace, naming: Naming) -> BaselineData:
    """Return the data of one rank's window of the baseline.

    Args:
        trace: the window.
        naming: how operators and kernels are named.
    """
    profile = Profile(with_step(trace))
    return BaselineData(costs_of(profile, naming), module_work(profile, naming), len(profile.steps))


def collect_rank_report_data(
    trace: Trace, naming: Naming, steps: StepRange | None = None, share: float = 0.0
) -> RankReportData:
    """Return the report data of one rank's window.

    Args:
        trace: the window.
        naming: how operators and kernels are named.
        steps: the steps to keep; None: all steps.
        share: the rank's share of a page's timelines, 0 to 1; 0: ``details`` is not computed.
    """
    trace = with_step(trace)
    profile = Profile(trace if steps is None else select_steps(trace, steps))
    costs = costs_of(profile, naming)
    details = _details(profile, share) if share else None
    places = longest_events(profile, naming, costs.breakdown)
    if details is not None:
        places = pl.concat([places, peak_places(details.memory)])
    return RankReportData(
        analyze_profile(profile, costs.breakdown),
        costs,
        collect_indicators(profile, costs.breakdown),
        efficiency(profile),
        roof_of(profile.trace),
        model(profile),
        places,
        module_work(profile, naming),
        details,
    )


def _details(profile: Profile, share: float) -> Details:
    drawn = timeline(profile, int(MOST_EVENTS * share), int(MOST_SPANS * share))
    return Details(drawn, memory_levels(profile, _NUM_LEVELS), remote_flows(profile))
