"""`Evidence`: the data that rules read, and values that several rules need."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import polars as pl

from ppprof.analysis.advice.collective_lines import COLLECTIVE_LINES, reductions_of_lines
from ppprof.analysis.advice.finding import (
    LEAST_COST_NS,
    LEAST_RATIO,
    MOST_ROWS,
    Fact,
    Finding,
    StepPart,
    StepTime,
    severity_of,
)
from ppprof.analysis.advice.indicators import NAMES, STEPS, Indicators
from ppprof.analysis.diff.significance import Change, step_change
from ppprof.analysis.path.change_replay import Replays
from ppprof.analysis.path.graph import Graph
from ppprof.analysis.profile.machine_load import MachineLoad, machine_load
from ppprof.analysis.profile.step_basis import (
    NO_WINDOW,
    RECORDED,
    SLOW,
    num_before,
    unrecorded_steps,
)
from ppprof.analysis.profile.steps import UNMARKED
from ppprof.analysis.ranks.cluster import Cluster
from ppprof.analysis.ranks.collectives import COLLECTIVES, KEYS
from ppprof.analysis.ranks.unrecorded import roles_of_ranks
from ppprof.topology import Topology

_MOST_OUTSIDE = 200
"""Steps outside windows that are compared with those inside."""

SKIPPED_STEPS = 10
"""Number of first steps of a run that are skipped, as in Paddle's Perf Summary: they are not
typical."""

_CALLS: dict[str, Any] = {
    **{name: COLLECTIVES[name] for name in ("members", "axis", "op", "step", "index", "bytes")},
    **dict.fromkeys(("wait_ns", "transfer_ns", "last_rank"), pl.Int64),
    **{"line": pl.String, "inside": pl.String, "is_named": pl.Boolean},
    **{"is_on_device": pl.Boolean, "exposed_ratio": pl.Float64},
}
"""Columns of `Evidence.collective_calls`."""

MOST_ERROR = 0.1
"""The graph's steps may differ from the recorded ones by this share. Beyond it, no replay counts."""
SOURCE_LINES = 2
"""Lines of source before and behind a place that are shown with it."""


@dataclass(frozen=True)
class Evidence:
    """The data of one run that the rules of ``ppprof advise`` read.

    All times are means over the *typical* steps, those that are not `SLOW`: costs, shares and the step
    itself. So the parts of the typical step add up to it, and a single long step changes none of them.

    ::

        steps        10  10  10  210  10      median 10: the step of 210 is slow
        typical      10  10  10   --  10      step_ns is 10
    """

    cluster: Cluster | None
    """The analysis of all ranks' traces; None if the run has only step times."""
    step_times: pl.DataFrame
    """Columns of `ppprof.rundir.step_times.STEP_TIMES`; no rows if the run has no step times."""
    indicators: Mapping[int, Indicators] = field(default_factory=dict)
    """The indicators of each rank, keyed by rank, for all steps of ``cluster``."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The job's config, with ``_base_`` files and overrides applied; empty if unknown."""
    topology: Topology | None = None
    """The ranks' coordinates; None if unknown."""
    paddle_version: str | None = None
    """The version of Paddle that trained, such as ``3.3.1``; None if unknown."""
    graph: Graph | None = None
    """The work of all ranks of the job; None if a rank lacks a window, or the job is too large."""
    has_failed: bool = False
    """Whether a rank ended by an exception or a signal."""

    def setting(self, key: str) -> Any:
        """Return the value of a dotted key in the config; None if the key is missing.

        >>> Evidence(None, pl.DataFrame(), config={"Global": {"seed": 2}}).setting("Global.seed")
        2
        """
        value: Any = self.config
        for name in key.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def number(self, key: str) -> int | None:
        """Return the integer of a dotted key in the config; None if missing or not an integer.

        A boolean is not an integer here.
        """
        value = self.setting(key)
        return value if type(value) is int else None

    def text(self, key: str) -> str | None:
        """Return the value of a dotted key in the config as text; None if the key is missing."""
        value = self.setting(key)
        return None if value is None else str(value)

    def remedy(self, *blocks: str) -> str:
        """Return what a finding proposes to change: ``config`` if that has the blocks, else ``code``.

        >>> Evidence(None, pl.DataFrame(), config={"Profiler": {}}).remedy("Data")
        'code'
        """
        return (
            "config"
            if all(isinstance(self.config.get(name), Mapping) for name in blocks)
            else "code"
        )

    def degree(self, axis: str) -> int:
        """Return the degree of an axis; 1 if the topology is unknown."""
        return 1 if self.topology is None else self.topology.degree(axis)

    @property
    def all_steps(self) -> pl.DataFrame:
        """The times of each rank's steps, slow steps included. Without traces: no rows, no columns.

        One row per rank and step; `ppprof.analysis.ranks.step_table.join_ranks` has the columns.
        """
        return pl.DataFrame() if self.cluster is None else self.cluster.steps_per_trace

    @cached_property
    def typical(self) -> Cluster | None:
        """``cluster`` with the typical steps only; None without traces."""
        if self.cluster is None or self.typical_lengths.height == self.step_lengths.height:
            return self.cluster
        steps = self.all_steps.join(self.typical_lengths, ["window", "step"], "semi")
        return dataclasses.replace(self.cluster, steps_per_trace=steps)

    @cached_property
    def steps(self) -> pl.DataFrame:
        """The times of each rank's typical steps (`Cluster.steps`). Without traces: as `all_steps`."""
        return pl.DataFrame() if self.typical is None else self.typical.steps

    @cached_property
    def typical_indicators(self) -> Mapping[int, Indicators]:
        """The indicators of each rank, keyed by rank, for the typical steps."""
        steps = self.typical_lengths["step"].to_list()
        return {rank: own.select_steps(steps) for rank, own in sorted(self.indicators.items())}

    @cached_property
    def num_steps(self) -> int:
        """The number of typical steps of all ranks, 1 or more: to divide sums over all of them by."""
        return max(1, sum(own.steps.height for own in self.typical_indicators.values()))

    @cached_property
    def sound_times(self) -> pl.DataFrame:
        """The rows of ``step_times`` that are not excluded, without the first `SKIPPED_STEPS` steps.

        Steps in which the profiler stalls the job are excluded.
        """
        times = self.step_times.filter(pl.col("excluded").eq_missing(True).not_())
        return times.filter(num_before(times) >= SKIPPED_STEPS)

    @cached_property
    def unrecorded(self) -> pl.DataFrame:
        """The steps that were not recorded: see `unrecorded_steps`."""
        return unrecorded_steps(self.step_times)

    @cached_property
    def load(self) -> MachineLoad | None:
        """The load of the ranks' machines in recorded steps, without these in others; None if unknown."""
        recorded = self.step_times.drop_nulls("window")
        return machine_load(recorded if recorded.height else self.sound_times)

    @cached_property
    def processor_waits(self) -> pl.DataFrame:
        """How long the thread of a step waits for a processor: rank, step and wait_ns, null if unknown.

        Or in the next step, if that is longer: where a step ends in a trace, its times are not yet taken.
        """
        waits = self.step_times.group_by("rank", "step").agg(pl.col("processor_wait_ns").max())
        following = waits.select("rank", pl.col("step") - 1, next_ns="processor_wait_ns")
        waits = waits.join(following, ["rank", "step"], "left")
        return waits.select(
            "rank", "step", wait_ns=pl.max_horizontal("processor_wait_ns", "next_ns")
        )

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes disturb the job, so that times are those of this load, too."""
        return self.load is not None and self.load.is_disturbed

    def unrecorded_kind(self, rank: int) -> str:
        """Return the type of the device whose events a rank's trace lacks: ``npu`` for ``npu:0``.

        "" if the trace lacks none. The type of a device that only its maker's name describes, such
        as "Tesla V100", is that name.
        """
        device = self.indicators[rank].unrecorded_device if rank in self.indicators else ""
        return device.partition(",")[0].partition(":")[0]

    @property
    def is_unfinished(self) -> bool:
        """Whether the training failed in the first step that was recorded, so that no time of a step is known."""
        return self.has_failed and UNMARKED in self.doubts and self.step_lengths.height == 1

    @property
    def doubts(self) -> frozenset[str]:
        """What is wrong with the device events of any rank: `ppprof.trace.schema.Trace.doubts`."""
        return frozenset().union(*(own.doubts for own in self.indicators.values()))

    @property
    def framework(self) -> str:
        """``torch`` or ``paddle``, whose trace it is; "" without traces."""
        return next((own.framework for own in self.indicators.values() if own.framework), "")

    @property
    def is_on_device(self) -> bool:
        """Whether the run's step times are of a device; False if they do not say it."""
        return bool(self.step_times["device_timed"].count())

    @property
    def basis(self) -> str:
        """`RECORDED`, or `NO_WINDOW` without traces: the steps that `step_ns` is of."""
        return NO_WINDOW if self.all_steps.is_empty() else RECORDED

    @cached_property
    def step_lengths(self) -> pl.DataFrame:
        """One row per window and step, ascending: window, step, step_ns (the longest of all ranks).

        step_ns is null if it is unknown for all ranks.

        Without traces: the steps of `sound_times`, with window 0.
        """
        if self.all_steps.is_empty():
            times = self.sound_times.group_by("step").agg(step_ns=pl.col("batch_cost_ns").max())
            return times.select(pl.lit(0).alias("window"), "step", "step_ns").sort("step")
        longest = self.all_steps.group_by("window", "step").agg(pl.col("step_ns").max())
        return longest.sort("window", "step")

    @cached_property
    def typical_lengths(self) -> pl.DataFrame:
        """The rows of `step_lengths` that are not `SLOW`, and those without a known time."""
        return without_slow(self.step_lengths)

    @cached_property
    def step_ns(self) -> float:
        """The run's typical step time: the mean over ranks and typical steps; 0 if none is known."""
        if not self.all_steps.is_empty():
            return mean_of(self.steps, "step_ns")
        return mean_of(self.sound_times.join(self.typical_lengths, "step", "semi"), "batch_cost_ns")

    @cached_property
    def replays(self) -> Replays | None:
        """Replays of ``graph``; None without, or if its times cannot be trusted.

        Its typical steps may differ from the recorded ones by `MOST_ERROR`, and clocks may be wrong by
        less than the least cost that is reported.
        """
        return self._replays_of(self.typical_lengths, self.step_ns)

    @cached_property
    def replays_of_all_steps(self) -> Replays | None:
        """Replays of ``graph`` as of ``replays``, for all recorded steps, slow ones, too."""
        if self.all_steps.is_empty():
            return None
        return self._replays_of(self.step_lengths, mean_of(self.all_steps, "step_ns"))

    def _replays_of(self, steps: pl.DataFrame, step_ns: float) -> Replays | None:
        """Return the replays of some steps, which take ``step_ns`` on average; None if not trusted."""
        if self.graph is None or self.cluster is None:
            return None
        errors_ns = [clock.error_ns for clock in self.cluster.clocks.values()]
        if max(errors_ns, default=0) > LEAST_RATIO * step_ns:
            return None
        ranks = self.graph.labels["rank"].drop_nulls().unique()
        roles = roles_of_ranks(self.topology, ranks)
        replays = Replays(self.graph, roles, steps.select("window", "step"))
        is_close = abs(replays.step_ns - step_ns) <= MOST_ERROR * step_ns
        return replays if is_close else None

    @cached_property
    def collective_calls(self) -> pl.DataFrame:
        """The collectives of all recorded steps with the lines that call them.

        One row per collective that all of its ranks recorded: members, axis, op, step, index, bytes (int64,
        null if unknown), wait_ns, transfer_ns and last_rank of `ppprof.analysis.ranks.arrivals.arrivals`;
        line (null if unknown), inside and is_named of `COLLECTIVE_LINES`; is_on_device; and exposed_ratio
        (float64), the share of its time that no computation hides.
        """
        if self.cluster is None:
            return pl.DataFrame(schema=_CALLS)
        of_ranks = [
            own.collectives.with_columns(rank=pl.lit(rank, pl.Int64))
            for rank, own in self.indicators.items()
        ]
        lines = pl.concat([pl.DataFrame(schema={**COLLECTIVE_LINES, "rank": pl.Int64}), *of_ranks])
        calls = pl.concat([pl.DataFrame(schema=COLLECTIVES), *self.cluster.collectives])
        same = ["rank", "op", "step", "index", "start_ns"]
        length_ns = pl.col("end_ns") - pl.col("start_ns")
        known = (
            calls.join(lines.unique(same, keep="first"), same)
            .sort(*KEYS, "rank")
            .group_by(KEYS, maintain_order=True)
            .agg(
                # Of several ranks, the surest one knows it.
                pl.col("line")
                .filter(pl.col("guess") == pl.col("guess").min())
                .mode()
                .sort()
                .first(),
                pl.col("inside", "is_named", "is_on_device").first(),
                exposed_ratio=pl.col("exposed_ns").sum() / pl.max_horizontal(length_ns.sum(), 1),
            )
        )
        joined = self.cluster.arrivals.join(known, KEYS, maintain_order="left")
        return joined.select(pl.col(name).cast(dtype) for name, dtype in _CALLS.items())

    @cached_property
    def num_reductions(self) -> Mapping[str, int]:
        """Line -> how many of its Backwards reduce the same gradients for each update: see `reductions_of_lines`."""
        return reductions_of_lines(own.collectives for own in self.indicators.values())

    @cached_property
    def rank_means(self) -> pl.DataFrame:
        """One row per rank, ascending: the mean over its typical steps of each time column of `steps`.

        Without traces: no rows, and only the column rank.
        """
        if self.steps.is_empty():
            return pl.DataFrame(schema={"rank": pl.Int64})
        return self.steps.group_by("rank").agg(pl.col("^.*_ns$").mean()).sort("rank")

    @cached_property
    def indicator_means(self) -> pl.DataFrame:
        """One row per rank, ascending: the mean over typical steps of each column of `STEPS` but step.

        `STEPS` is in `ppprof.analysis.advice.indicators`. Ranks without steps have no row.
        """
        parts = [
            own.steps.select(pl.lit(rank, pl.Int64).alias("rank"), pl.col(list(STEPS)[1:]).mean())
            for rank, own in self.typical_indicators.items()
            if own.steps.height
        ]
        schema = {"rank": pl.Int64, **dict.fromkeys(list(STEPS)[1:], pl.Float64)}
        return pl.concat([pl.DataFrame(schema=schema), *(part.cast(schema) for part in parts)])  # type: ignore[arg-type]

    def usual(self, column: str) -> float:
        """Return the median over ranks of a column of `indicator_means`; 0 if all are missing."""
        return float(self.indicator_means[column].median() or 0.0)  # type: ignore[arg-type]

    def names(self, kind: str, by: str = "time_ns", subject: str | None = None) -> pl.DataFrame:
        """Return the names of one kind with their calls and times, the largest first; of one subject if given.

        Returns:
            name, calls and time_ns (float64, per typical step of an average rank), sorted by ``by``,
            the largest first. Places of unexplained time (kind ``gap``) count if they are in at least
            half of the steps: elsewhere such time is chance.
        """
        named = self.named(self.typical_indicators, kind)
        if subject is not None:
            named = named.filter(subject=subject)
        num = self.num_steps
        sums = (
            named.group_by("name")
            .agg(pl.col("calls", "time_ns").sum() / num, is_usual=pl.len() >= num / 2)
            .filter(pl.col("is_usual") | (kind != "gap"))
            .drop("is_usual")
        )
        return sums.sort(by, "name", descending=[True, False])

    def named(self, indicators: Mapping[int, Indicators], kind: str) -> pl.DataFrame:
        """Return the names of one kind in each step: `NAMES`.

        Unexplained time (kind ``gap``) is without the time in which the thread of the step waits for a
        processor: that may lie in any place.

        Args:
            indicators: those of each rank, keyed by rank.
            kind: the kind.
        """
        parts = [
            own.names.filter(what=kind).with_columns(rank=pl.lit(rank, pl.Int64))
            for rank, own in indicators.items()
        ]
        named = pl.concat([pl.DataFrame(schema={**NAMES, "rank": pl.Int64}), *parts])
        if kind == "gap":
            named = named.join(
                self.processor_waits, ["rank", "step"], "left", maintain_order="left"
            )
            time_ns = pl.col("time_ns") - pl.col("wait_ns").fill_null(0)
            named = named.with_columns(time_ns=time_ns).filter(pl.col("time_ns") > 0)
        return named.select(*NAMES)

    def with_time(self, finding: Finding) -> Finding:
        """Return a finding with the longest step that shows it; unchanged without a trace."""
        steps = self._times_of_steps
        for name, value in (("rank", finding.rank), ("step", finding.step)):
            if value is not None:
                steps = steps.filter(pl.col(name) == value)
        if steps.is_empty():
            return finding
        longest = steps.row(int((steps["end_ns"] - steps["start_ns"]).arg_max() or 0), named=True)
        return dataclasses.replace(finding, time=StepTime(**longest))

    @cached_property
    def _times_of_steps(self) -> pl.DataFrame:
        """The columns of `StepTime`, one row per rank and step; no rows without traces."""
        columns = ("rank", "step", "start_ns", "end_ns")
        nothing = pl.DataFrame(schema=dict.fromkeys(columns, pl.Int64))
        if self.cluster is None or self.all_steps.is_empty():
            return nothing
        steps = [each.filter(kind="step").select(columns) for each in self.cluster.passes]
        return pl.concat([nothing, *steps]).join(self.all_steps, ["rank", "step"], "semi")

    def with_source(self, finding: Finding) -> Finding:
        """Return a finding with the lines of source around the place that it names, if they were kept."""
        if finding.place is None:
            return finding
        file, number = finding.place
        known: dict[int, str] = {}
        for own in self.indicators.values():
            known.update(own.source.get(file, {}))
        around = range(number - SOURCE_LINES, number + SOURCE_LINES + 1)
        source = tuple((n, known[n]) for n in around if n in known)
        return dataclasses.replace(finding, source=source if number in known else ())

    def first_name(self, kind: str, subject: str | None = None) -> str | None:
        """Return the name of a kind, and of a subject if given, with the largest time; None without one."""
        names = self.names(kind, subject=subject)
        return None if names.is_empty() else str(names["name"][0])

    @cached_property
    def recording(self) -> tuple[Change, pl.DataFrame] | None:
        """How much longer steps take while they are recorded; None without steps in or outside windows.

        The change has its 95% interval. The table has two rows: steps (``outside``, ``inside``), num_steps
        and mean_step_ns. Of the steps outside, the latest 200 count.
        """
        times = self.sound_times.select("rank", "step", "window", step_ns="batch_cost_ns")
        outside = times.filter(pl.col("window").is_null())
        inside = times.filter(pl.col("window").is_not_null())
        if outside.is_empty() or inside.is_empty() or self.steps.is_empty():
            return None
        latest = outside["step"].unique().sort().tail(_MOST_OUTSIDE)
        outside = outside.filter(pl.col("step").is_in(latest.implode()))
        rows = [
            (name, table["step"].n_unique(), float(table["step_ns"].to_numpy().mean()))
            for name, table in (("outside", outside), ("inside", inside))
        ]
        names = ["steps", "num_steps", "mean_step_ns"]
        return step_change(outside, inside), pl.DataFrame(rows, names, orient="row")

    @cached_property
    def largest(self) -> list[StepPart]:
        """The phase, operator, module and line with the most time; empty without traces."""
        parts = []
        for kind in ("phase", "operator", "module", "line"):
            names = self.names("calling" if kind == "line" else kind)
            if names.height and self.step_ns:
                share = min(1.0, float(names["time_ns"][0]) / self.step_ns)
                parts.append(StepPart(kind, names["name"][0], share))
        return parts

    def time_finding(
        self,
        rule: str,
        cost_ns: float,
        confidence: str,
        facts: Mapping[str, Fact],
        rows: pl.DataFrame,
        step: tuple[float, str] | None = None,
        changes: Sequence[str] = (),
        at_most: str = "major",
    ) -> list[Finding]:
        """Return one finding that costs time, or an empty list if its cost is too small.

        The list is empty if the cost is below `LEAST_RATIO` of the typical step or `LEAST_COST_NS`, or
        if there are no steps. A cost above the typical step time is lowered to it. Where other
        processes disturb the job, no finding is ``sure``.

        Args:
            rule: the rule's name.
            cost_ns: the possible gain per step, in ns.
            confidence: one of `ppprof.analysis.advice.finding.CONFIDENCES`.
            facts: numbers and names for the rule's texts. step_ns, basis, saved_ns (``cost_ns``) and the
                remedy ``code`` are added; a value of ``facts`` has precedence.
            rows: the evidence; the first `MOST_ROWS` rows are kept.
            step: the step time in ns that ``cost_ns`` is a part of, and whether its steps were
                recorded (`RECORDED` or another); None: `step_ns` and `basis`.
            changes: what a replay changes to find the cost, if there is one that has all of it
                (`ppprof.analysis.advice.disjoint`).
            at_most: the worst severity that the finding may have.
        """
        step_ns, basis = step or (self.step_ns, self.basis)
        cost_ns = min(cost_ns, step_ns)
        if not step_ns or cost_ns < max(LEAST_RATIO * step_ns, LEAST_COST_NS):
            return []
        share = cost_ns / step_ns
        all_facts: dict[str, Fact] = {"step_ns": step_ns, "basis": basis, "saved_ns": cost_ns}
        all_facts.update(self._words)
        all_facts.update(facts)
        shown = rows.head(MOST_ROWS)
        if confidence == "sure" and self.is_disturbed:
            confidence = "likely"
        can_replay = self.replays is not None and self.replays.can_replay(changes)
        replayed = tuple(changes) if can_replay else ()
        severity = severity_of(share, at_most)
        values = (rule, severity, cost_ns, share, confidence, all_facts, shown, replayed)
        return [Finding(*values, at_most=at_most)]

    @property
    def _words(self) -> dict[str, Fact]:
        """The remedy ``code``, and the framework if it is not Paddle."""
        return {"remedy": "code", **({"framework": "torch"} if self.framework == "torch" else {})}

    def warning(
        self,
        rule: str,
        severity: str,
        facts: Mapping[str, Fact],
        rows: pl.DataFrame,
        confidence: str = "sure",
    ) -> list[Finding]:
        """Return one finding that costs no time.

        Args:
            rule: the rule's name.
            severity: one of `ppprof.analysis.advice.finding.SEVERITIES`.
            facts: numbers and names for the rule's texts. The remedy ``code`` is added; a value of
                ``facts`` has precedence.
            rows: the evidence; the first `MOST_ROWS` rows are kept.
            confidence: one of `ppprof.analysis.advice.finding.CONFIDENCES`: ``sure`` if it was measured directly.
        """
        all_facts = {**self._words, **facts}
        return [Finding(rule, severity, None, None, confidence, all_facts, rows.head(MOST_ROWS))]


def without_slow(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the rows whose step_ns is not `SLOW`, in their order; a null is not."""
    is_slow = pl.col("step_ns") > SLOW * pl.col("step_ns").median()
    return steps.filter(is_slow.fill_null(value=False).not_())


def mean_of(table: pl.DataFrame, column: str) -> float:
    """Return the mean of a column without its nulls; 0 if nothing is left."""
    values = table[column].drop_nulls().to_numpy()
    return float(values.mean()) if len(values) else 0.0
