"""All ranks of a run together: their steps, collectives, clocks and stragglers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import polars as pl

from ppprof.analysis.efficiency.efficiency import roof_of
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import LINES, lines_by_step
from ppprof.analysis.profile.steps import WHOLE_TRACE, with_step
from ppprof.analysis.ranks.arrivals import arrivals, by_group, by_size
from ppprof.analysis.ranks.clock_alignment import align_clocks
from ppprof.analysis.ranks.collectives import collectives_of, match_collectives
from ppprof.analysis.ranks.device_queue import QUEUE
from ppprof.analysis.ranks.passes import passes
from ppprof.analysis.ranks.step_breakdown import Breakdown, breakdown
from ppprof.analysis.ranks.step_table import own_time, without_transfers
from ppprof.analysis.ranks.stragglers import slow_groups, slow_ranks
from ppprof.analysis.ranks.what_if import WHAT_IF, what_if
from ppprof.topology import Topology
from ppprof.trace import Clock
from ppprof.trace.schema import Trace


class RankAnalysis(NamedTuple):
    """Tables from one rank's trace.

    The column rank of ``collectives`` and ``passes`` is -1; the caller fills in the rank later.
    """

    breakdown: Breakdown
    """The parts of each step: the result of `ppprof.analysis.ranks.step_breakdown.breakdown`."""
    collectives: pl.DataFrame
    """The result of `ppprof.analysis.ranks.collectives.collectives_of`. The functions `with_rank` and
    `with_members` of that module fill in the rank and members."""
    passes: pl.DataFrame
    """The result of `ppprof.analysis.ranks.passes.passes`."""
    has_steps: bool = True
    """False if the trace has no steps, so that all of it counts as step 0."""
    link_bytes_per_s: float | None = None
    """What the device can send to the devices of its host: `ppprof.hardware.LINKS`; None if unknown."""
    lines: pl.DataFrame = pl.DataFrame(schema=LINES)
    """The result of `ppprof.analysis.profile.python_lines.lines_by_step`."""


def analyze_rank(trace: Trace) -> RankAnalysis:
    """Return the breakdown of steps, the collectives and the passes of one rank's window.

    A `Cluster` is built from these tables of all ranks.
    """
    profile = Profile(with_step(trace)).without_pauses
    return analyze_profile(profile, breakdown(profile))


def analyze_profile(profile: Profile, parts: Breakdown) -> RankAnalysis:
    """Return the same tables as `analyze_rank`, for a profile whose breakdown is already known."""
    names = profile.tree.of_category("ProfileStep")["name"]
    has_steps = not (names == WHOLE_TRACE).any()
    device = roof_of(profile.trace).device
    link = device.link_bandwidth if device is not None else None
    tables = parts, collectives_of(profile), passes(profile)
    return RankAnalysis(*tables, has_steps, link, lines_by_step(profile, attribute_backward=False))


@dataclass(frozen=True)
class Cluster:
    """Small tables of all ranks, and the results that need the tables of several ranks."""

    steps_per_trace: pl.DataFrame
    """One row per rank and step: the result of `ppprof.analysis.ranks.step_table.join_ranks`, in a
    run with the times of `ppprof.analysis.profile.step_basis.with_measured_times`."""
    bubbles: Sequence[pl.DataFrame]
    """One table per rank, on the rank's own clock: rank, window, then the columns of
    `ppprof.analysis.ranks.step_breakdown.STRETCHES`."""
    collectives: Sequence[pl.DataFrame]
    """One table per rank, on the rank's own clock: the result of
    `ppprof.analysis.ranks.collectives.collectives`."""
    passes: Sequence[pl.DataFrame]
    """One table per rank, on the rank's own clock: the result of
    `ppprof.analysis.ranks.passes.passes`."""
    measured_clocks: Mapping[int, Clock]
    """The clocks that the capture measured, keyed by rank; empty if it measured no clock."""
    topology: Topology | None = None
    """The ranks' coordinates; None if unknown."""
    queue: pl.DataFrame = field(
        default_factory=lambda: pl.DataFrame(schema={"rank": pl.Int64, "window": pl.Int64, **QUEUE})
    )
    """The device's queue in each step: rank, window, then the columns of
    `ppprof.analysis.ranks.device_queue.QUEUE`. No rows for ranks without device events."""
    links: Mapping[int, float] = field(default_factory=dict)
    """Rank -> bytes per second that its device can send to the devices of its host, if known."""
    slices: Sequence[pl.DataFrame] = ()
    """One table per rank, on the rank's own clock: rank, window, then the columns of
    `ppprof.analysis.ranks.step_breakdown.SLICES`."""
    lines: pl.DataFrame = field(
        default_factory=lambda: pl.DataFrame(schema={"rank": pl.Int64, "window": pl.Int64, **LINES})
    )
    """Times of lines of the user's code: rank, window, then the columns of
    `ppprof.analysis.profile.python_lines.LINES`. No rows for ranks without samples."""

    @cached_property
    def clocks(self) -> Mapping[int, Clock]:
        """The ranks' clocks, keyed by rank: measured, else derived from collectives.

        A rank is missing if its clock was not measured and cannot be derived.
        """
        return align_clocks(self.collectives, self.measured_clocks, self._hosts)

    @cached_property
    def steps(self) -> pl.DataFrame:
        """One row per rank and step: ``steps_per_trace``, with transfers moved out of the bubble.

        A transfer between pipeline stages becomes exposed communication: see
        `ppprof.analysis.ranks.step_table.without_transfers`.
        """
        return without_transfers(
            self.steps_per_trace, self.bubbles, self.matched_collectives, self.clocks
        )

    @cached_property
    def matched_collectives(self) -> pl.DataFrame:
        """The collectives that all members recorded, on the reference clock, one row per member."""
        return match_collectives(self.collectives, self.clocks)

    @cached_property
    def arrivals(self) -> pl.DataFrame:
        """One row per collective of the steps in ``steps``, with its verdict.

        The result of `ppprof.analysis.ranks.arrivals.arrivals`.
        """
        steps = self.steps["step"].unique()
        table = arrivals(self.matched_collectives, self.clocks)
        return table.filter(pl.col("step").is_in(steps.implode()))

    @cached_property
    def groups(self) -> pl.DataFrame:
        """One row per group of ranks: the result of `ppprof.analysis.ranks.arrivals.by_group`."""
        return by_group(self.arrivals, self._steps_of_groups)

    @cached_property
    def bandwidths(self) -> pl.DataFrame:
        """One row per axis, operation and size: `ppprof.analysis.ranks.arrivals.by_size`."""
        return by_size(self.arrivals, self._steps_of_groups, self._links_of_groups())

    @cached_property
    def slow_ranks(self) -> pl.DataFrame:
        """One row per rank: how much longer its own work takes than that of its peers.

        The result of `ppprof.analysis.ranks.stragglers.slow_ranks`. A rank's peers are the ranks of
        its pipeline stage.
        """
        own = self.steps.select("rank", "step", "step_ns", own_ns=own_time(self.steps))
        return slow_ranks(own.drop_nulls("own_ns"), self._roles)

    @cached_property
    def slow_lines(self) -> pl.DataFrame:
        """The line of each slow rank with most of its excess, in which it is longer than on its peers.

        ::

            rank   line 7   line 9      rank 1 exceeds the median of the others by 50 in line 7
            0      10       30
            1      60       30
            2      10       30

        Returns:
            rank, name (of the line) and excess_ns (float64, in an average step), for slow ranks with such
            a line: at least half of the rank's excess. No rows without samples of the rank and a peer.
        """
        num = self.steps.group_by("rank").agg(num=pl.len())
        keys = ["rank", "window", "step"]
        times = self.lines.join(self.steps.select(keys), keys, "semi").join(num, "rank")
        times = times.group_by("rank", "name").agg(
            time_ns=(pl.col("time_ns") / pl.col("num")).sum()
        )
        rows = []
        for slow in self.slow_ranks.filter("is_slow").iter_rows(named=True):
            own = times.filter(rank=slow["rank"])
            peers = self.slow_ranks.filter(pl.col("role") == slow["role"])["rank"]
            others = times.filter(
                pl.col("rank").is_in(peers.implode()), pl.col("rank") != slow["rank"]
            )
            if others.is_empty():
                continue
            every = own.select("name").join(others.select("rank").unique(), how="cross")
            median = pl.col("time_ns").fill_null(0).median()
            joined = every.join(others, ["rank", "name"], "left")
            usual = joined.group_by("name").agg(usual_ns=median)
            excess = own.join(usual, "name").select(
                "rank", "name", excess_ns=pl.col("time_ns") - pl.col("usual_ns")
            )
            most = excess.sort("excess_ns", "name", descending=[True, False]).head(1)
            rows.append(most.filter(pl.col("excess_ns") >= slow["excess_ns"] / 2))
        schema = {"rank": pl.Int64, "name": pl.String, "excess_ns": pl.Float64}
        return pl.concat([pl.DataFrame(schema=schema), *rows])

    @cached_property
    def slow_groups(self) -> pl.DataFrame:
        """One row per group of ranks: how much longer its transfers take than its siblings'.

        The result of `ppprof.analysis.ranks.stragglers.slow_groups`.
        """
        lengths = self.steps.group_by("step").agg(pl.col("step_ns").median().cast(pl.Int64))
        return slow_groups(self.arrivals, dict(lengths.iter_rows()), self._roles)

    @cached_property
    def what_if(self) -> pl.DataFrame:
        """Step times with one cause of delay removed: `ppprof.analysis.ranks.what_if.what_if`.

        The table has no rows if the topology is unknown or no step can be replayed.
        """
        if self.topology is None:
            return pl.DataFrame(schema=WHAT_IF)
        return what_if(self.selected_passes, self.topology, self.clocks)

    @property
    def selected_passes(self) -> Sequence[pl.DataFrame]:
        """``passes`` in the steps of `steps`.

        Those in which a rank pauses, as for an evaluation, are left out, unless all are: the others may
        pause for another time, and then their passes cannot be compared.
        """
        steps = set(self.steps["step"])
        paused = {
            step for table in self.passes for step in table.filter("is_paused")["step"].unique()
        }
        chosen = list(steps - paused or steps)
        return [table.filter(pl.col("step").is_in(chosen)) for table in self.passes]

    @cached_property
    def _hosts(self) -> Mapping[int, str]:
        """Rank -> host name, of the ranks whose host is known."""
        known = self.steps_per_trace.filter(pl.col("host").is_not_null())
        return dict(known.select("rank", "host").unique().iter_rows())

    @cached_property
    def _steps_of_groups(self) -> Mapping[str, int]:
        """Members of a group -> the number of steps that all of them have recorded."""
        steps = {rank: set(own["step"]) for (rank,), own in self.steps.group_by("rank")}
        return {
            members: max(
                1, len(set.intersection(*(steps.get(rank, set()) for rank in _ranks(members))))
            )
            for members in self.arrivals["members"].unique()
        }

    def _links_of_groups(self) -> Mapping[str, float]:
        """Return the slowest known link of each group whose ranks are on one host."""
        hosts = self._hosts
        links = {}
        for members in self.arrivals["members"].unique():
            ranks = _ranks(members)
            is_within_host = len({hosts.get(rank, rank) for rank in ranks}) == 1
            if is_within_host and all(rank in self.links for rank in ranks):
                links[members] = min(self.links[rank] for rank in ranks)
        return links

    @property
    def _roles(self) -> Mapping[int, str]:
        """The role of each rank, keyed by rank: ``stage 0``, or "" without a pipeline.

        The role is the pipeline stage, because ranks of one stage do equal work. In a job without
        known stages, ranks that send to each other or communicate over ``pp`` may be stages, so each
        of them has a role of its own; all others have the role "".
        """
        ranks = self.steps.select("rank", "pp").unique()
        if self.topology is not None and self.topology.degree("pp") > 1:
            return {rank: f"stage {stage or 0}" for rank, stage in ranks.iter_rows()}
        calls = pl.concat(
            [_NO_CALLS, *(table.select(*_NO_CALLS.columns) for table in self.collectives)]
        )
        meeting = calls["members"].filter(calls["members"].str.contains(r"^\d+>\d+$")).unique()
        apart = {rank for members in meeting for rank in _ranks(members)}
        apart |= set(calls.filter(pl.col("op").str.contains(_TRANSFER))["rank"])
        if "communication_pp_ns" in self.steps.columns:
            apart |= set(self.steps.filter(pl.col("communication_pp_ns") > 0)["rank"])
        return {rank: f"rank {rank}" if rank in apart else "" for rank in ranks["rank"]}


def _ranks(members: str) -> list[int]:
    """Return the ranks of a group, such as ``0,4``, or of a transfer, such as ``0>2``."""
    return [int(rank) for rank in members.replace(">", ",").split(",")]


_NO_CALLS = pl.DataFrame(schema={"rank": pl.Int64, "op": pl.String, "members": pl.String})
_TRANSFER = "(?i)(^|:)i?(send|recv)"
"""In the name of a transfer, whose other rank may not be recorded, such as torch's ``c10d::send``."""
