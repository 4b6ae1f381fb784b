"""The summaries of several ranks as text: a row a name and rank, or a name over all ranks.

The columns of a row a name and rank are those of the table with *Node ID* in PyTorch's RFC
"Integrate autograd profiler with torch.distributed.rpc" (pytorch/pytorch issue 39675), with the
same for the GPU where there are device events; a node is a rank or the worker of a remote call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import polars as pl

from ppprof.analysis.summaries.views import VIEWS
from ppprof.report.text.summary import Row, TableOptions, kernel_name, percent
from ppprof.report.text.table import Column, Line, Table
from ppprof.trace.remote_calls import call_of

T = TypeVar("T")

_TITLES = {
    "model": "Model",
    "dist": "Distribution",
    "op": "Operator",
    "kernel": "Kernel",
    "memcpy": "Memory Manipulation",
    "udf": "UserDefined",
}

_COLUMNS = {
    "Self CPU total %": "cpu_self_ratio",
    "Self CPU total": "cpu_self_ns",
    "CPU total %": "cpu_ratio",
    "CPU total": "cpu_total_ns",
    "CPU time avg": "cpu_avg_ns",
    "GPU total %": "gpu_ratio",
    "GPU total": "gpu_total_ns",
    "GPU time avg": "gpu_avg_ns",
    "Time %": "ratio",
    "Time": "time_ns",
    "Number of Calls": "calls",
}
"""Of a row a name and rank, between Name and Node ID; a table has those that its view has."""

_STATS = {
    "Number of Calls": "calls",
    "Ranks": "num_ranks",
    "Total": "total_ns",
    "Min": "min_ns",
    "Median": "median_ns",
    "Max": "max_ns",
    "Spread": "spread_ns",
}
"""Of a row a name, between Name and Node ID of max."""

_LIMITED = ("op", "kernel", "memcpy", "udf")
"""Those that the row limit cuts: as where a rank is printed alone."""


def render_across(
    tables: Mapping[str, pl.DataFrame],
    by: str,
    coordinates: Mapping[int, str | None],
    layout: TableOptions,
) -> str:
    """Tables of `ppprof.analysis.summaries.across_ranks` as text, in Paddle's order; those without rows are nothing.

    Args:
        tables: by view.
        by: ``rank`` (what `by_rank` returned) or ``name`` (`by_name`).
        coordinates: of all ranks that were put together: rank -> ``dp0_pp0_sharding0_mp0``.
        layout: the unit, and how many names.
    """
    nodes = node_ids(coordinates)
    make = _by_rank if by == "rank" else _by_name
    return "".join(
        str(make(view, tables[view], nodes, layout))
        for view in VIEWS
        if view in tables and not tables[view].is_empty()
    )


def node_ids(coordinates: Mapping[int, str | None]) -> Mapping[int, str]:
    """Each rank with its place on the axes on which these ranks differ.

    >>> node_ids({0: "dp0_pp0_sharding0_mp0", 3: "dp0_pp1_sharding0_mp1", 4: None})
    {0: '0 (pp0 mp0)', 3: '3 (pp1 mp1)', 4: '4'}
    """
    places = {rank: (label or "").split("_") for rank, label in coordinates.items()}
    known = [set(place) for rank, place in places.items() if coordinates[rank]]
    shared = set.intersection(*known) if known else set()
    told = {
        rank: " ".join(at for at in place if at and at not in shared)
        for rank, place in places.items()
    }
    return {rank: f"{rank} ({place})" if place else f"{rank}" for rank, place in told.items()}


def _by_rank(
    view: str, table: pl.DataFrame, nodes: Mapping[int, str], layout: TableOptions
) -> Table:
    no_device = "gpu_total_ns" in table.columns and not table["gpu_total_ns"].sum()
    columns = {
        header: column
        for header, column in _COLUMNS.items()
        if column in table.columns and not (no_device and column.startswith("gpu_"))
    }
    blocks: dict[str, list[Row]] = {}
    for row in table.rows(named=True):
        blocks.setdefault(row["name"], []).append(row)
    shown, cut = _limited(view, list(blocks.values()), layout)
    lines: list[Line] = [
        (_name(view, row), *_cells(row, columns.values(), layout), _node(row, nodes))
        for of_name in shown
        for row in of_name
    ]
    headers = ("Name", *columns, "Node ID")
    note = _SELF_NOTE if "cpu_self_ns" in columns.values() else ""
    return _grid(f"{_TITLES[view]} Summary by rank", headers, [*lines, *cut], layout, note)


def _by_name(
    view: str, table: pl.DataFrame, nodes: Mapping[int, str], layout: TableOptions
) -> Table:
    columns = {
        header: column
        for header, column in _STATS.items()
        if column != "calls" or table["calls"].count()
    }
    shown, cut = _limited(view, table.rows(named=True), layout)
    lines: list[Line] = [
        (_name(view, row), *_cells(row, columns.values(), layout), nodes.get(row["max_rank"], "-"))
        for row in shown
    ]
    clock, _, stat = str(table["compared"][0]).partition("_")
    compared = f"{clock.upper()} {stat}" if stat else clock.capitalize()
    headers = ("Name", *columns, "Node ID of max")
    ranks = "1 rank" if len(nodes) == 1 else f"{len(nodes)} ranks"
    title = f"{_TITLES[view]} Summary by name: {compared} of {ranks}"
    return _grid(title, headers, [*lines, *cut], layout, _SPREAD_NOTE)


def _grid(
    title: str, headers: Sequence[str], lines: Sequence[Line], layout: TableOptions, note: str
) -> Table:
    columns = [Column(header, len(header), grows=True) for header in headers]
    return Table(title, columns, lines, layout.time_unit, note=note)


def _limited(view: str, names: Sequence[T], layout: TableOptions) -> tuple[Sequence[T], list[Line]]:
    return layout.limited(names, "names") if view in _LIMITED else (names, [])


def _name(view: str, row: Row) -> str:
    name = str(row["name"])
    return kernel_name(name) if view == "kernel" else name


def _node(row: Row, nodes: Mapping[int, str]) -> str:
    """The rank; of what ran in a remote call the worker."""
    return str(row["node"]) if call_of(str(row["name"])) else nodes[row["rank"]]


def _cells(row: Row, columns: Iterable[str], layout: TableOptions) -> list[object]:
    cells: list[object] = []
    for column in columns:
        value = row[column]
        if value is None:
            cells.append("-")
        elif column.endswith("_ns"):
            cells.append(layout.time(value))
        else:
            cells.append(percent(value) if column.endswith("ratio") else value)
    return cells


_SELF_NOTE = """\
Self CPU is the time in an operator without that in the operators it calls.
Ratios are of the rank's own operators, of a remote call's those of the call."""

_SPREAD_NOTE = """\
Spread is Max minus Min. A rank without the name counts as 0 calls and a total of 0; it has no avg, \
max or min. Ranks: how many have it.
What waits for other ranks is longest where the rank came first, not where it is slow."""
