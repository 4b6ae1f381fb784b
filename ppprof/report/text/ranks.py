"""What ranks spend their steps on, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from ppprof.analysis.ranks.cluster import Cluster
from ppprof.analysis.ranks.step_table import PLACES
from ppprof.report.text.summary import TableOptions
from ppprof.report.text.table import Column, Line, Table
from ppprof.rundir.clocks import Clock

_ALWAYS = ("step_ns", "computation_ns", "rest_ns")
"""What is shown even where it is 0 everywhere; and so is not ``communication_...``, which is
exposed, bubble and hidden."""

_NOTE = """\
Means over steps: time, and % of the step. Computation, Exposed (by axis), Data Loading, Bubble,
Host Bound and Rest add up to the step. Exposed: communication that no computation hides; Bubble:
waiting for other pipeline stages (and transfers of which the other side is not here); Hidden:
communication under computation.
Host Launch: runtime calls, beside the devices' time. *: the most of its column."""


def render_ranks(table: pl.DataFrame, by: Sequence[str], layout: TableOptions) -> str:
    """The table of `ppprof.analysis.ranks.group_steps`; below several rows what they spread over.

    Columns that are 0 in all rows are left out, and of places those that do not tell rows apart.
    """
    times = [
        name
        for name in table.columns
        if name.endswith("_ns")
        and not name.startswith(("communication_", "slowest_", "median_"))
        and (name in _ALWAYS or table[name].sum() > 0)
    ]
    places = [name for name in PLACES if name in table.columns and name not in by]
    told = [*by, *(name for name in places if table[name].n_unique() > 1)]
    most = {
        name: table[name].max()
        for name in times
        if table.height > 1 and table[name].max() != table[name].min()
    }
    lines: list[Line] = []
    for row in table.iter_rows(named=True):
        cells = ["-" if row[name] is None else str(row[name]) for name in told]
        for name in times:
            mark = " *" if name in most and row[name] == most[name] else ""
            cells.append(_cell(row[name], row["step_ns"], layout) + mark)
        if "slowest_rank" in table.columns:
            ratio = row["slowest_own_ns"] / row["median_own_ns"] if row["median_own_ns"] else 1.0
            cells.append(f"{row['slowest_rank']} ({ratio:.2f} x)")
        lines.append(cells)
    if table.height > 1:
        lines.append("of the rows above")
        lines += [
            _spread(name, table, len(told), times, layout) for name in ("min", "median", "max")
        ]
    headers = [*told, *(_header(name) for name in times)]
    if "slowest_rank" in table.columns:
        headers.append("Slowest Rank (own time / median)")
        lines = [
            line if isinstance(line, str) else [*line, *[""] * (len(headers) - len(line))]
            for line in lines
        ]
    columns = [Column(header, max(6, len(header)), grows=True) for header in headers]
    unit = f"{layout.time_unit} / % of the step"
    return str(Table("Step Breakdown", columns, lines, unit, note=_NOTE))


def _spread(
    name: str, table: pl.DataFrame, num_told: int, times: Sequence[str], layout: TableOptions
) -> Sequence[object]:
    """The cells of one line below the rows: the least, the median or the most of each column."""
    values = [getattr(table[column].drop_nulls(), name)() for column in times]
    cells = ["-" if value is None else layout.time(value) for value in values]
    return [name, *[""] * (num_told - 1), *cells]


def _cell(time_ns: float | None, step_ns: float, layout: TableOptions) -> str:
    if time_ns is None:
        return "-"
    percent = f" / {100 * time_ns / step_ns:.1f}" if step_ns else ""
    return layout.time(time_ns) + (percent if time_ns != step_ns else "")


def _header(column: str) -> str:
    """``exposed_mp_ns`` to ``Exposed mp``.

    >>> _header("data_loading_ns"), _header("hidden_pp+mp_ns")
    ('Data Loading', 'Hidden pp+mp')
    """
    if column == "step_ns":
        return "Step Time"
    words = column.removesuffix("_ns").split("_")
    if words[0] in ("exposed", "hidden"):
        return " ".join([words[0].capitalize(), *words[1:]])
    return " ".join(word.capitalize() for word in words)


_GROUPS_NOTE = """\
Times are means of a step, summed over its collectives. Wait: until the last rank has come, mean over
the ranks. Cost: last arrival minus median arrival. Transfer: from the last arrival to the end; Bus:
bytes over that time, as nccl-tests counts them. Verdict: where the time of a collective goes, to the
link (transfer), to somebody late (skew), to both (mixed), or not to be told apart by these clocks.
Last: the rank that comes last most often."""

_MEMBERS = 6
"""Ranks of a group that a cell names; of a larger one the first and the last."""


def render_groups(cluster: Cluster, layout: TableOptions, limit: int | None = 20) -> str:
    """The table of `ppprof.analysis.ranks.arrivals.by_group`; the groups that wait longest."""
    lines: list[Line] = []
    shown = cluster.groups if limit is None else cluster.groups.head(limit)
    for row in shown.iter_rows(named=True):
        verdicts = [f"{row[name] / row['calls']:.0%}" for name in _VERDICTS]
        bus = row["bus_bytes_per_s"]
        times = [layout.time(row[name]) for name in ("wait_ns", "cost_ns", "transfer_ns")]
        last = f"{row['last_rank']} ({row['last_ratio']:.0%})"
        rate = "-" if bus is None else f"{bus / 1e9:.3g}"
        group = _named(row["members"])
        lines.append([group, row["axis"] or "-", row["calls"], *times, rate, *verdicts, last])
    if num_hidden := cluster.groups.height - shown.height:
        lines.append(f"{num_hidden} more groups")
    headers = [
        "Ranks",
        "Axis",
        "Calls",
        "Wait",
        "Cost",
        "Transfer",
        "Bus (GB/s)",
        *(name.capitalize() for name in _VERDICTS),
        "Last",
    ]
    columns = [Column(header, max(6, len(header)), grows=True) for header in headers]
    return str(Table("Collectives", columns, lines, layout.time_unit, note=_GROUPS_NOTE))


_VERDICTS = ("transfer", "skew", "mixed", "inconclusive")


def _named(members: str) -> str:
    """``0,8,...,120 (16)`` of a group too large for a cell."""
    ranks = members.split(",")
    few = len(ranks) <= _MEMBERS
    return members if few else f"{ranks[0]},{ranks[1]},...,{ranks[-1]} ({len(ranks)})"


def render_findings(cluster: Cluster, layout: TableOptions) -> str:
    """Who is slower than its peers step after step, and how well the clocks are known."""
    unit = layout.time_unit
    lines = []
    for row in cluster.slow_ranks.filter("is_slow").iter_rows(named=True):
        place = _place(cluster, row["rank"])
        lines.append(
            f"Slow computation: rank {row['rank']}{place}: {layout.time(row['excess_ns'])} {unit} a "
            f"step (+- {layout.time(row['noise_ns'])}) more of its own than the other "
            f"{row['peers']} of {row['role']}"
        )
    for row in cluster.slow_groups.filter("is_slow").iter_rows(named=True):
        lines.append(
            f"Slow link: ranks {_named(row['members'])} ({row['axis'] or '?'}): "
            f"{layout.time(row['excess_ns'])} {unit} a step (+- {layout.time(row['noise_ns'])}) more "
            f"in transfers than the {row['siblings']} beside it"
        )
    if not lines and cluster.steps["rank"].n_unique() > 1:
        lines.append("Nobody is slower than its peers step after step.")
    clocks = _clocks(cluster.clocks, layout)
    return "".join(f"{line}\n" for line in [*lines, *clocks])


def _place(cluster: Cluster, rank: int) -> str:
    (row,) = cluster.steps.filter(pl.col("rank") == rank).head(1).iter_rows(named=True)
    told = [
        f"{axis}{row[axis]}"
        for axis in ("dp", "pp", "sharding", "sep", "mp")
        if row[axis] is not None and cluster.steps[axis].n_unique() > 1
    ]
    return f" ({' '.join(told)})" if told else ""


def _clocks(clocks: Mapping[int, Clock], layout: TableOptions) -> list[str]:
    """A line for each way in which clocks are known."""
    lines = []
    for method, how in (("exchange", "measured"), ("collectives", "bounded by collectives")):
        errors = [clock.error_ns for clock in clocks.values() if clock.method == method]
        if any(errors):
            error = f"{layout.time(max(errors))} {layout.time_unit}"
            lines.append(f"Clocks of {len(errors)} ranks {how}: known to {error}.")
    return lines
