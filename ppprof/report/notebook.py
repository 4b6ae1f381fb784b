"""Runs, comparisons and findings in notebooks: HTML formatters of IPython, and the page in a cell.

``import ppprof`` calls `register` in a notebook. The formatters are registered by the names of the
classes, so the modules of these classes are imported when the first of their objects is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

    from ppprof.analysis.advice.finding import Finding
    from ppprof.analysis.diff.diff import Diff
    from ppprof.run.run import Run
    from ppprof.run.summary import AcrossRanks, WindowTables

MOST_ROWS = 20
"""Most rows of a table in a cell; a line below the table counts the others."""

_PAGE_HEIGHT_PX = 900


class Page:
    """The page of a run, shown by a notebook as the output of a cell.

    Attributes:
        html: the page, the text of a whole HTML file.
    """

    def __init__(self, html: str) -> None:
        self.html = html

    def __repr__(self) -> str:
        return f"<page of {len(self.html):,} characters: shown in a notebook>"

    def _repr_html_(self) -> str:
        # Sandboxed: the page cannot read the notebook, whatever names a trace has.
        return (
            f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts allow-downloads" '
            f'style="width: 100%; height: {_PAGE_HEIGHT_PX}px; border: 0"></iframe>'
        )


def register(formatters: Mapping[Any, Any]) -> None:
    """Register the HTML formatters of this module.

    They are those of ``get_ipython().display_formatter.formatters``.
    """
    for (module, name), formatter in _FORMATTERS.items():
        formatters["text/html"].for_type_by_name(module, name, formatter)


def run_html(run: Run) -> str:
    """Return a run as a table: where it is, its ranks, windows, steps and step time.

    A run without windows has the ranks that wrote step times.
    """
    import polars as pl

    from ppprof.units import format_value

    times = run.step_times
    ranks = run.ranks or sorted(times["rank"].unique())
    windows = {recording.window for recording in run.recordings}
    facts = {"run": run, "ranks": run.name_ranks(ranks), "windows": len(windows)}
    if run.topology is not None:
        degrees = {axis: run.topology.degree(axis) for axis in run.topology.order}
        parts = [f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1]
        facts["topology"] = " x ".join(parts) or "one rank"
    if times.height:
        facts["steps"] = times["step"].n_unique()
        median = times.select(pl.col("batch_cost_ns").median()).item()
        facts["median step"] = format_value("step_ns", median)
    hint = "ppprof.advise(run), ppprof.write_report(run)"
    hint += ", run.summary('op')" if windows else ""
    return _table([], [[name, str(value)] for name, value in facts.items()]) + _code(hint)


def finding_html(finding: Finding) -> str:
    """Return a finding: what is slow, with its cost, what to do, and the evidence."""
    from ppprof.report.text.advice import finding_rows, read_catalogue

    (row,) = finding_rows([finding])
    summary = read_catalogue("en")["words"]["summary"].format(**vars(row))
    headers, cells = row.evidence_cells
    parts = [f"<b>{escape(row.title)}</b>", _code(f"{row.rule}: {summary}")]
    parts += [f"<p>{escape(text)}</p>" for text in (row.what, row.do)]
    return "".join([*parts, _table(headers, cells) if cells else ""])


def findings_html(findings: Sequence[Finding]) -> str:
    """Return findings: a headline, then each finding."""
    from ppprof.report.text.advice import headline, withheld

    parts = "".join(f"<li>{finding_html(finding)}</li>" for finding in findings)
    shown = f"<p><b>{escape(headline(findings))}</b></p><ol>{parts}</ol>"
    return shown + (f"<p>{escape(text)}</p>" if (text := withheld(findings)) else "")


def diff_html(diff: Diff) -> str:
    """Return a comparison: the verdict, differences of the runs, and tables of what changed."""
    from ppprof.report.diff_rows import RowSelection
    from ppprof.report.text.diff import diff_blocks
    from ppprof.report.text.summary import TableOptions

    parts = [f"<p><b>{escape(f'Step time: {diff.change}')}</b></p>"]
    differences = "".join(
        f"<li>{escape(str(difference))}</li>" for difference in diff.comparability.differences
    )
    parts.append(f"<ul>{differences}</ul>" if differences else "")
    for block in diff_blocks(diff, RowSelection(limit=MOST_ROWS), TableOptions()):
        if isinstance(block, str):
            parts.append(f"<p>{escape(block)}</p>")
            continue
        headers, rows, remarks = block.plain
        cells = [list(map(str, row)) for row in rows]
        parts += [_table(headers, cells), *(f"<p>{escape(remark)}</p>" for remark in remarks)]
    return "".join(parts)


def tables_html(tables: WindowTables | AcrossRanks) -> str:
    """Return the tables of a window, each below the name of its view; empty tables are left out."""
    return "".join(
        f"<p><b>{escape(view)}</b></p>{_polars_table(table)}"
        for view, table in tables.tables.items()
        if table.height
    )


def _polars_table(table: pl.DataFrame) -> str:
    from ppprof.units import format_more, format_value

    columns = [name for name in table.columns if not _is_blank(table[name])]
    cells = [
        [format_value(name, value) for name, value in zip(columns, row)]
        for row in table.select(columns).head(MOST_ROWS).iter_rows()
    ]
    rest = table.height - len(cells)
    more = f"<p>{format_more(rest, 'rows')}</p>" if rest else ""
    return _table([name.removesuffix("_ns").replace("_", " ") for name in columns], cells) + more


def _is_blank(column: pl.Series) -> bool:
    """Return whether a column has nothing to show: nulls only, or as numbers of a GPU zeros only."""
    values = column.drop_nulls()
    return not len(values) or (column.name.startswith("gpu_") and not (values != 0).any())


def _table(headers: Iterable[str], cells: Sequence[Sequence[str]]) -> str:
    """Return an HTML table; all texts are escaped."""
    from tabulate import tabulate

    numbers = ["left", *["right"] * (len(cells[0]) - 1)] if headers and cells else None
    text: str = tabulate(
        cells, list(headers), tablefmt="html", disable_numparse=True, colalign=numbers
    )
    return text


def _code(text: str) -> str:
    return f"<p><code>{escape(text)}</code></p>"


_FORMATTERS: Mapping[tuple[str, str], Callable[[Any], str]] = {
    ("ppprof.run.run", "Run"): run_html,
    ("ppprof.run.summary", "WindowTables"): tables_html,
    ("ppprof.run.summary", "AcrossRanks"): tables_html,
    ("ppprof.analysis.diff.diff", "Diff"): diff_html,
    ("ppprof.analysis.advice.finding", "Finding"): finding_html,
    ("ppprof.analysis.advice.finding", "Findings"): findings_html,
}
