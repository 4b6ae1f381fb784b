"""Links to events in the timeline: ``#t=12.1-12.9&rank=3&find=matmul``.

``t`` is a range in seconds since the start of the drawn timelines, ``rank`` a rank, and ``find`` the
name of the events to highlight; a link to a step has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote

import polars as pl

from ppprof.analysis.advice.finding import Finding
from ppprof.analysis.ranks.collectives import to_reference_clock
from ppprof.analysis.report_data.report import ReportData
from ppprof.report.columns import Row, Source
from ppprof.report.html.blocks import Cell
from ppprof.units import escape_control_chars, short_name

_MARGIN = 0.5
"""Time to show on either side of an event, as a share of its duration."""

_LEAST_MARGIN_NS = 1_000
"""Least time to show on either side of an event."""


def link(origin_ns: int, start_ns: int, end_ns: int, rank: int, event: str = "") -> str:
    """Return the link that shows an event in the timeline, with some time on either side.

    ``origin_ns`` is `ReportData.origin_ns`, ``event`` the name of the events to highlight.

    >>> link(0, 2_000_000_000, 4_000_000_000, 3, "a b")
    '#t=1-5&rank=3&find=a%20b'
    """
    margin_ns = max(_LEAST_MARGIN_NS, int((end_ns - start_ns) * _MARGIN))
    first = _seconds(max(0, start_ns - margin_ns - origin_ns))
    last = _seconds(max(1, end_ns + margin_ns - origin_ns))
    find = f"&find={quote(escape_control_chars(event), safe='')}" if event else ""
    return f"#t={first}-{last}&rank={rank}{find}"


def _seconds(time_ns: int) -> str:
    """Return nanoseconds as decimal seconds.

    >>> _seconds(12_500_000_000), _seconds(1)
    ('12.5', '0.000000001')
    """
    return f"{time_ns // 1_000_000_000}.{time_ns % 1_000_000_000:09d}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Links:
    """Finds where the timelines of a report show a name."""

    report: ReportData

    def to(self, kind: str, name: str, ranks: Iterable[int] | None = None) -> str:
        """Return a link to the longest event of a kind and name; "" if no timeline shows one.

        ``kind`` and ``name`` are those of
        `ppprof.analysis.report_data.link_targets.TARGETS`. Ranks whose timelines are not
        drawn do not count; None, or no drawn rank: all.
        """
        targets = self._targets.get((kind, name), [])
        chosen = set(ranks or ())
        own = [target for target in targets if target["rank"] in chosen] or targets
        if not own:
            return ""
        target = max(own, key=lambda row: (row["end_ns"] - row["start_ns"], -row["rank"]))
        return self._link(target)

    def to_times(self, rank: int, start_ns: int, end_ns: int, event: str = "") -> str:
        """Return a link to times on the reference clock; "" if the rank's timeline is not drawn."""
        if rank not in self.report.details:
            return ""
        return link(self.report.origin_ns, start_ns, end_ns, rank, event)

    def to_members(self, members: str) -> str:
        """Return a link to the longest collective of a group, such as ``0,1``; "" if none."""
        return self._link_of_collectives(pl.col("members") == members)

    def to_axis(self, axis: str) -> str:
        """Return a link to the longest collective over an axis of the topology; "" if none."""
        return self._link_of_collectives(pl.col("axis").cast(pl.String) == axis)

    def to_step(self, rank: int | None = None, step: int | None = None) -> str:
        """Return a link to a step; "" if no timeline shows it.

        Of ``rank`` if its timeline is drawn, else of the slowest drawn rank; without a
        ``step``, the longest step.
        """
        targets = self._steps if step is None else self._targets.get(("step", str(step)), [])
        own = [target for target in targets if target["rank"] == rank] or targets
        longest = max(own, key=lambda row: row["end_ns"] - row["start_ns"], default=None)
        return "" if longest is None else self._link(longest)

    def maximum(self, kind: str, name: str, clock: str) -> int | None:
        """Return the longest time of an event of a kind and name on any rank; None if unknown.

        ``clock`` is ``cpu`` for its duration on the host, ``gpu`` for its device time.
        """
        return self._maxima.get((kind, name), {}).get(f"{clock}_ns")

    def _link(self, target: dict[str, Any]) -> str:
        times = target["start_ns"], target["end_ns"]
        event = "" if target["kind"] == "step" else target["event"]  # all in a step matters
        return link(self.report.origin_ns, *times, target["rank"], event)

    @cached_property
    def _targets(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """The rows of `ReportData.targets` with a timeline, keyed by kind and name."""
        drawn = pl.col("rank").is_in(list(self.report.details))
        targets: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in self.report.targets.filter(drawn).rows(named=True):
            targets.setdefault((row["kind"], row["name"]), []).append(row)
        return targets

    @cached_property
    def _steps(self) -> list[dict[str, Any]]:
        rows = (rows for (kind, _), rows in self._targets.items() if kind == "step")
        return [target for targets in rows for target in targets]

    @cached_property
    def _maxima(self) -> dict[tuple[str, str], dict[str, Any]]:
        table = self.report.targets.group_by("kind", "name").agg(pl.col("cpu_ns", "gpu_ns").max())
        return {(row["kind"], row["name"]): row for row in table.rows(named=True)}

    @cached_property
    def _collectives(self) -> pl.DataFrame:
        """The collectives of all drawn ranks, on the reference clock."""
        cluster = self.report.cluster
        tables = [
            to_reference_clock(table, cluster.clocks)
            for table in cluster.collectives
            if table.height and table["rank"][0] in self.report.details
        ]
        return pl.concat(tables) if tables else pl.DataFrame()

    def _link_of_collectives(self, wanted: pl.Expr) -> str:
        if self._collectives.is_empty():
            return ""
        steps = list(self.report.steps)
        table = self._collectives.filter(wanted, pl.col("step").is_in(steps))
        table = table.sort(pl.col("end_ns") - pl.col("start_ns"), descending=True)
        if table.is_empty():
            return ""
        row = table.row(0, named=True)
        return self.to_times(row["rank"], row["start_ns"], row["end_ns"], row["op"])


def linked_name(kind: str, links: Links, key: Callable[[Row], str] | None = None) -> Source:
    """Return the source of a column of names, each a link to its longest event.

    A long name is shortened; the whole one shows on hover, and is what is copied, saved and searched.

    ``key`` returns the name by which ``links`` finds a row's event; None: the row's name.
    """

    def cell_of(row: Row) -> Cell:
        target = links.to(kind, key(row) if key else row["name"])
        return Cell(short_name(row["name"]), row["name"], href=target)

    return cell_of


_PHASE_OF_RULE = {
    "input-bound": "Dataloader",
    "optimizer-unfused": "Optimization",
    "gradient-accumulation": "Backward",
    "recompute": "Backward",
}
"""The phase in which a rule's finding happens, keyed by rule."""

_WITHOUT_TARGET = ("no-device-events", "short-window", "profiler-overhead", "unlike-steps")


def link_of_finding(finding: Finding, links: Links) -> str:
    """Return a link to the times that show a finding best; "" if no times do.

    That is the event, phase or gap that the finding names; else the longest step of its rank.
    """
    if finding.rule in _WITHOUT_TARGET:
        return ""
    facts = finding.facts
    rank = facts.get("rank")
    ranks = [rank] if isinstance(rank, int) else None
    step = facts["step"] if finding.rule == "warm-up" else None
    return _link_of_event(finding, links, ranks) or links.to_step(
        ranks[0] if ranks else None, step if isinstance(step, int) else None
    )


def _link_of_event(finding: Finding, links: Links, ranks: list[int] | None) -> str:
    facts, rule = finding.facts, finding.rule
    if rule in _PHASE_OF_RULE:
        return links.to("phase", _PHASE_OF_RULE[rule], ranks)
    if rule in ("exposed-communication", "slow-link"):
        members = facts.get("members")
        return links.to_members(str(members)) if members else links.to_axis(str(facts["axis"]))
    if rule in ("memory-limit", "memory-fragmented"):
        place = finding.evidence["place"][0] if "place" in finding.evidence.columns else None
        return links.to("peak", str(place), ranks)
    if rule == "slow-product":
        shapes = f"{facts['name']} {facts['shapes']}"
        return links.to("shape", shapes) or links.to("operator", str(facts["name"]))
    kinds = {
        "beside-training": ("gap", "line"),
        "without-gradients": ("gap", "line"),
        "unexplained": ("gap", "gap"),
        "host-bound": ("gap", "gap"),
        "remote-wait": ("remote", "call"),
        "blocking-copies": ("operator", "caller"),
        "wide-vocabulary": ("operator", "name"),
        "unused-rows": ("operator", "name"),
        "discarded-rows": ("operator", "name"),
        "padded-batches": ("operator", "name"),
        "penalty-in-loss": ("operator", "name"),
    }
    kind, fact = kinds.get(rule, ("", ""))
    return links.to(kind, str(facts[fact])) if kind and facts.get(fact) else ""
