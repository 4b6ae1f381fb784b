"""The critical path of a run's steps, and replays with changes, as text."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from ppprof.analysis.path.graph import Graph
from ppprof.report.columns import Column, Row
from ppprof.report.text.summary import TableOptions
from ppprof.report.text.table import Line

_UNKNOWN = {"rank": "between ranks", "link": "none", "axis": "none"}

_PATH_NOTE = """\
Mean over steps. The path leads back from the end of a step: each thread, stream and rank to what it last
waited for. All rows together are the step; what is not on the path is hidden behind it."""

_WHAT_IF_NOTE = """\
On Path: time on the critical path of what changes. Step Time: of the replay; from, to: 95% interval of that
mean, from the spread of the recorded steps. Saved: less than On Path where something else then becomes critical.
A factor multiplies the time: 0.5x is twice as fast. Without a change the replay is the recording, to the
nanosecond."""


def shown_groups(graph: Graph) -> list[tuple[str, ...]]:
    """Return the groups of which a run without ``--by`` shows a table: those with several members."""
    labels = graph.labels
    several = [name for name in ("rank", "link") if labels[name].drop_nulls().n_unique() > 1]
    others = [name for name in ("module", "operator", "line") if labels[name].count()]
    return [(group,) for group in ("kind", *several, *others)]


def render_path(
    graph: Graph, groups: Sequence[str], options: TableOptions, *, is_last: bool = True
) -> str:
    """Return the result of `Graph.on_path` as text, with a note if it is the last such table.

    A last line sums up the groups beyond the row limit.
    """
    columns = [
        *map(_column, groups),
        Column("time_ns", "ms", header="Time"),
        Column("ratio", header="Share", text="per mille"),
    ]
    table = graph.on_path(groups)
    shown = table if options.row_limit is None else table.head(options.row_limit)
    rest_lines: list[Line] = []
    if num_hidden := table.height - shown.height:
        rest = table.tail(num_hidden)
        time_ns, ratio = (float(rest[name].sum()) for name in ("time_ns", "ratio"))
        rest_lines.append(f"{num_hidden} more: {options.time(time_ns)} / {ratio:.1%}")
    title = f"Critical Path by {' and '.join(map(str.title, groups))}"
    note = _PATH_NOTE if is_last else ""
    return options.layout.table(
        options.table(title, columns, shown.rows(named=True), rest_lines, note=note)
    )


def _column(group: str) -> Column:
    def name(row: Row) -> object:
        return _UNKNOWN.get(group) if row[group] is None else row[group]

    return Column(name, header=group.title())


_WHAT_IF = (
    Column("change", header="Change", width=24, grows=True),
    Column("on_path_ns", "ms", header="On Path", width=12),
    Column("step_ns", "ms", header="Step Time", width=12),
    Column("low_ns", "ms", header="from", width=12),
    Column("high_ns", "ms", header="to", width=12),
    Column("saved_ns", "ms", header="Saved", width=12),
    Column("saved_ratio", header="Share", text="per mille", width=8),
)


def render_changes(table: pl.DataFrame, options: TableOptions) -> str:
    """Return the result of `ppprof.analysis.path.change_replay.what_if` as text; no row limit."""
    rows = table.rows(named=True)
    return options.layout.table(options.table("What If", _WHAT_IF, rows, note=_WHAT_IF_NOTE))
