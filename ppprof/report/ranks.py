"""What ranks spend their steps on, as text."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from ppprof.analysis.ranks import PLACES
from ppprof.report.grid import Column, Grid, Line
from ppprof.report.text import Layout

_ALWAYS = ("step_ns", "computation_ns", "rest_ns")
"""What is shown even where it is 0 everywhere; and so is not ``communication_...``, which is
exposed, bubble and hidden."""

_NOTE = """\
Means over steps: time, and % of the step. Computation, Exposed (by axis), Data Loading, Bubble,
Host Bound and Rest add up to the step. Exposed: communication that no computation hides; Bubble:
waiting for other pipeline stages, with its transfers; Hidden: communication under computation.
Host Launch: runtime calls, beside the devices' time. *: the most of its column."""


def draw_ranks(table: pl.DataFrame, by: Sequence[str], layout: Layout) -> str:
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
    return str(Grid("Step Breakdown", columns, lines, unit, note=_NOTE))


def _spread(
    name: str, table: pl.DataFrame, num_told: int, times: Sequence[str], layout: Layout
) -> Sequence[object]:
    """The cells of one line below the rows: the least, the median or the most of each column."""
    values = [getattr(table[column].drop_nulls(), name)() for column in times]
    cells = ["-" if value is None else layout.time(value) for value in values]
    return [name, *[""] * (num_told - 1), *cells]


def _cell(time_ns: float | None, step_ns: float, layout: Layout) -> str:
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
