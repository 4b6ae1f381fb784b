"""Summary tables over several ranks as text: one row per name and rank, or one row per name.

The table with one row per name and rank has the columns of the table with *Node ID* in PyTorch's
RFC "Integrate autograd profiler with torch.distributed.rpc" (pytorch/pytorch issue 39675). If there
are device events, it also has the corresponding columns for the GPU. A node is a rank, or the
worker of a remote call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from ppprof.choices import VIEWS
from ppprof.remote_names import call_of
from ppprof.report.columns import Column, Row, Source
from ppprof.report.text.summary import Rows, TableOptions, kernel_name
from ppprof.report.text.table import Table

_TITLES = {
    "model": "Model",
    "dist": "Distribution",
    "op": "Operator",
    "kernel": "Kernel",
    "memcpy": "Memory Manipulation",
    "udf": "UserDefined",
}


def _column(header: str, source: Source, kind: str = "text") -> Column:
    return Column(source, kind, header=header, width=len(header), grows=True)


_BY_RANK = (
    _column("Self CPU total %", "cpu_self_ratio", "ratio"),
    _column("Self CPU total", "cpu_self_ns", "ms"),
    _column("CPU total %", "cpu_ratio", "ratio"),
    _column("CPU total", "cpu_total_ns", "ms"),
    _column("CPU time avg", "cpu_avg_ns", "ms"),
    _column("GPU total %", "gpu_ratio", "ratio"),
    _column("GPU total", "gpu_total_ns", "ms"),
    _column("GPU time avg", "gpu_avg_ns", "ms"),
    _column("Time %", "ratio", "ratio"),
    _column("Time", "time_ns", "ms"),
    _column("Number of Calls", "calls"),
)
"""Columns between Name and Node ID of the table by rank, if the view has them."""

_BY_NAME = (
    _column("Number of Calls", "calls"),
    _column("Ranks", "num_ranks"),
    _column("Total", "total_ns", "ms"),
    _column("Min", "min_ns", "ms"),
    _column("Median", "median_ns", "ms"),
    _column("Max", "max_ns", "ms"),
    _column("Spread", "spread_ns", "ms"),
)
"""Columns between Name and Node ID of max of the table by name."""

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
    stats = [
        column
        for column in _BY_RANK
        if column.source in rows[0] and not (no_device and str(column.source).startswith("gpu_"))
    ]
    columns = [_name(view), *stats, _column("Node ID", lambda row: _node(row, nodes))]
    blocks: dict[str, list[Row]] = {}
    for row in rows:
        blocks.setdefault(row["name"], []).append(row)
    title = f"{_TITLES[view]} Summary by rank"
    note = _SELF_NOTE if "cpu_self_ns" in rows[0] else ""
    return _table(view, title, columns, list(blocks.values()), options, note)


def _by_name(view: str, rows: Rows, nodes: Mapping[int, str], options: TableOptions) -> Table:
    has_calls = any(row["calls"] is not None for row in rows)
    stats = _BY_NAME if has_calls else _BY_NAME[1:]
    node = _column("Node ID of max", lambda row: nodes.get(row["max_rank"]))
    clock, _, stat = str(rows[0]["compared"]).partition("_")
    compared = f"{clock.upper()} {stat}" if stat else clock.capitalize()
    ranks = "1 rank" if len(nodes) == 1 else f"{len(nodes)} ranks"
    title = f"{_TITLES[view]} Summary by name: {compared} of {ranks}"
    columns, blocks = [_name(view), *stats, node], [[row] for row in rows]
    return _table(view, title, columns, blocks, options, _SPREAD_NOTE)


def _table(
    view: str,
    title: str,
    columns: Sequence[Column],
    blocks: Sequence[Rows],
    options: TableOptions,
    note: str,
) -> Table:
    """Return a table of the rows of each name."""
    shown, cut = options.limited(blocks, "names") if view in _LIMITED else (blocks, [])
    return options.table(title, columns, chain(*shown), cut, note=note)


def _name(view: str) -> Column:
    is_kernel = view == "kernel"
    return _column("Name", lambda row: kernel_name(row["name"]) if is_kernel else row["name"])


def _node(row: Row, nodes: Mapping[int, str]) -> str:
    """Return the node of a row: the rank; for an event of a remote call, the worker."""
    return str(row["node"]) if call_of(str(row["name"])) else nodes[row["rank"]]


_SELF_NOTE = """\
Self CPU: time in an operator without the operators it calls.
Ratios: of the rank's own operators; for operators of a remote call, of the operators of that call."""

_SPREAD_NOTE = """\
Spread: Max minus Min. A rank without the name counts as 0 calls and a total of 0; it has no avg, max or min.
Ranks: number of ranks with the name.
An operator that waits for other ranks takes longest on the rank that arrives first, not on a slow rank."""
