"""Summary tables over several ranks as text: one row per name and rank, or one row per name.

The table with one row per name and rank has the columns of the table with *Node ID* in PyTorch's
RFC "Integrate autograd profiler with torch.distributed.rpc" (pytorch/pytorch issue 39675). If there
are device events, it also has the corresponding columns for the GPU. A node is a rank, or the
worker of a remote call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from ppprof.choices import VIEWS
from ppprof.remote_names import call_of
from ppprof.report.columns import percent
from ppprof.report.text.summary import Row, Rows, TableOptions, kernel_name
from ppprof.report.text.table import Column, Line, Table

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
"""Header -> column, between Name and Node ID of the table by rank, if the view has the column."""

_STATS = {
    "Number of Calls": "calls",
    "Ranks": "num_ranks",
    "Total": "total_ns",
    "Min": "min_ns",
    "Median": "median_ns",
    "Max": "max_ns",
    "Spread": "spread_ns",
}
"""Header -> column, between Name and Node ID of max of the table by name."""

_LIMITED = ("op", "kernel", "memcpy", "udf")
"""Views to which the row limit applies, as in the tables of a single rank."""


def render_across(
    tables: Mapping[str, Rows],
    by: str,
    coordinates: Mapping[int, str | None],
    options: TableOptions,
) -> str:
    """Return tables of `ppprof.analysis.summaries.across_ranks` as text, in Paddle's order.

    Views without rows print nothing.

    Args:
        tables: the rows of the tables, keyed by view.
        by: ``rank`` for tables of `by_rank`, ``name`` for tables of `by_name`.
        coordinates: the coordinate of every combined rank, such as ``dp0_pp0_sharding0_mp0``, keyed
            by rank; None for an unknown coordinate.
        options: time unit and row limit. The limit counts names, not rows.
    """
    nodes = node_ids(coordinates)
    table_of = _by_rank if by == "rank" else _by_name
    return "".join(
        options.layout.table(table_of(view, tables[view], nodes, options))
        for view in VIEWS
        if tables.get(view)
    )


def node_ids(coordinates: Mapping[int, str | None]) -> Mapping[int, str]:
    """Return each rank as text, with its positions on the axes on which the ranks differ.

    The result is keyed by rank. A rank without a known coordinate appears as its number alone.

    >>> node_ids({0: "dp0_pp0_sharding0_mp0", 3: "dp0_pp1_sharding0_mp1", 4: None})
    {0: '0 (pp0 mp0)', 3: '3 (pp1 mp1)', 4: '4'}
    """
    axes_of = {rank: (coordinate or "").split("_") for rank, coordinate in coordinates.items()}
    located = [set(axes) for rank, axes in axes_of.items() if coordinates[rank]]
    shared = set.intersection(*located) if located else set()
    labels = {
        rank: " ".join(axis for axis in axes if axis and axis not in shared)
        for rank, axes in axes_of.items()
    }
    return {rank: f"{rank} ({label})" if label else f"{rank}" for rank, label in labels.items()}


def _by_rank(view: str, rows: Rows, nodes: Mapping[int, str], options: TableOptions) -> Table:
    no_device = not any(row.get("gpu_total_ns") for row in rows)
    columns = {
        header: column
        for header, column in _COLUMNS.items()
        if column in rows[0] and not (no_device and column.startswith("gpu_"))
    }
    blocks: dict[str, list[Row]] = {}
    for row in rows:
        blocks.setdefault(row["name"], []).append(row)
    shown, cut = _limited(view, list(blocks.values()), options)
    lines: list[Line] = [
        (_name(view, row), *_cells(row, columns.values(), options), _node(row, nodes))
        for own in shown
        for row in own
    ]
    headers = ("Name", *columns, "Node ID")
    note = _SELF_NOTE if "cpu_self_ns" in columns.values() else ""
    return _table(f"{_TITLES[view]} Summary by rank", headers, [*lines, *cut], options, note)


def _by_name(view: str, rows: Rows, nodes: Mapping[int, str], options: TableOptions) -> Table:
    columns = {
        header: column
        for header, column in _STATS.items()
        if column != "calls" or any(row["calls"] is not None for row in rows)
    }
    shown, cut = _limited(view, rows, options)
    lines: list[Line] = [
        (_name(view, row), *_cells(row, columns.values(), options), nodes.get(row["max_rank"], "-"))
        for row in shown
    ]
    clock, _, stat = str(rows[0]["compared"]).partition("_")
    compared = f"{clock.upper()} {stat}" if stat else clock.capitalize()
    headers = ("Name", *columns, "Node ID of max")
    ranks = "1 rank" if len(nodes) == 1 else f"{len(nodes)} ranks"
    title = f"{_TITLES[view]} Summary by name: {compared} of {ranks}"
    return _table(title, headers, [*lines, *cut], options, _SPREAD_NOTE)


def _table(
    title: str, headers: Sequence[str], lines: Sequence[Line], options: TableOptions, note: str
) -> Table:
    columns = [Column(header, len(header), grows=True) for header in headers]
    return Table(title, columns, lines, options.time_unit, note=note)


def _limited(
    view: str, names: Sequence[T], options: TableOptions
) -> tuple[Sequence[T], list[Line]]:
    return options.limited(names, "names") if view in _LIMITED else (names, [])


def _name(view: str, row: Row) -> str:
    name = str(row["name"])
    return kernel_name(name) if view == "kernel" else name


def _node(row: Row, nodes: Mapping[int, str]) -> str:
    """Return the node of a row: the rank; for an event of a remote call, the worker."""
    return str(row["node"]) if call_of(str(row["name"])) else nodes[row["rank"]]


def _cells(row: Row, columns: Iterable[str], options: TableOptions) -> list[object]:
    cells: list[object] = []
    for column in columns:
        value = row[column]
        if value is None:
            cells.append("-")
        elif column.endswith("_ns"):
            cells.append(options.time(value))
        else:
            cells.append(percent(value) if column.endswith("ratio") else value)
    return cells


_SELF_NOTE = """\
Self CPU: time in an operator without the operators it calls.
Ratios: of the rank's own operators; for operators of a remote call, of the operators of that call."""

_SPREAD_NOTE = """\
Spread: Max minus Min. A rank without the name counts as 0 calls and a total of 0; it has no avg, max or min.
Ranks: number of ranks with the name.
An operator that waits for other ranks takes longest on the rank that arrives first, not on a slow rank."""
