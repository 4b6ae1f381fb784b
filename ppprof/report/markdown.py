"""Tables, comparisons and findings as GitHub's Markdown, for pull requests and notes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl

from ppprof.analysis.advice.finding import Finding
from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.diff.gate import Outcome
from ppprof.report.diff_rows import RowSelection
from ppprof.report.text.advice import (
    finding_rows,
    headline,
    hidden_findings,
    read_catalogue,
)
from ppprof.report.text.diff import diff_blocks
from ppprof.report.text.summary import TableOptions
from ppprof.report.text.table import Table

_DECIMALS = {"ratio": 4, "utilization": 4, "ns": 1}
"""Decimals of a float column, keyed by the last word of the column's name; others have 0."""


def markdown(table: pl.DataFrame) -> str:
    r"""Return a table in Markdown, with the table's own column names.

    Cells of a column ``name`` become code, nulls become blank cells.

    >>> print(markdown(pl.DataFrame({"name": ["k<int>(a|b)"], "gpu_ratio": [0.5]})))
    | name           |   gpu_ratio |
    |----------------|-------------|
    | `k<int>(a\|b)` |      0.5000 |
    """
    from tabulate import tabulate

    cells = [
        [
            code(cell) if column == "name" and cell is not None else cell
            for column, cell in zip(table.columns, row)
        ]
        for row in table.rows()
    ]
    formats = [f".{_DECIMALS.get(column.rpartition('_')[2], 0)}f" for column in table.columns]
    return tabulate(cells, table.columns, tablefmt="github", floatfmt=formats)


def code(name: object) -> str:
    r"""Return a name as Markdown code on one line: ``<`` and ``*`` in kernel names are markup.

    A ``|`` is escaped, since it ends a table cell even in code. If the name contains backticks, the
    code is enclosed in a longer row of backticks.

    >>> code("k<int>(a|b)")
    '`k<int>(a\\|b)`'
    """
    text = re.sub(r"\s+", " ", str(name)).replace("|", "\\|")
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {text} {fence}" if longest else f"{fence}{text}{fence}"


def diff_markdown(
    diff: Diff, selection: RowSelection, options: TableOptions, outcomes: Sequence[Outcome] = ()
) -> str:
    """Return a comparison in Markdown: verdict, outcomes, differences of the runs, tables.

    Args:
        diff: the comparison.
        selection: which tables and rows to show.
        options: the format of the tables.
        outcomes: the results of ``--fail-if``.
    """
    lines = [f"**Step time: {diff.change}**"]
    lines += [""] if outcomes or diff.comparability.differences else []
    lines += [f"- {outcome}" for outcome in outcomes]
    lines += [f"- {difference}" for difference in diff.comparability.differences]
    for block in diff_blocks(diff, selection, options):
        lines += ["", _text_table(block) if isinstance(block, Table) else block]
    return "\n".join([*lines, ""])


def _text_table(table: Table) -> str:
    """Return a text table in Markdown.

    The table's title is the header of the first column, and the cells of that column become code.
    Lines without cells follow the table.
    """
    from tabulate import tabulate

    cells = [[code(str(line[0])), *line[1:]] for line in table.lines if not isinstance(line, str)]
    headers = [table.title, *(column.header for column in table.columns[1:])]
    text: str = tabulate(cells, headers, tablefmt="github", disable_numparse=True)
    remarks = [line for line in table.lines if isinstance(line, str)]
    return "\n".join([text, "", *remarks, f"Times in {table.unit}, per rank and step."])


def findings_markdown(
    findings: Sequence[Finding], language: str = "en", limit: int | None = None
) -> str:
    """Return findings in Markdown: a headline, then each finding with evidence and proposal.

    Args:
        findings: the findings, in the order to show.
        language: language of the texts: ``en`` or ``zh``.
        limit: most findings to show; None for all. A last line counts the findings that are not
            shown.
    """
    words = read_catalogue(language)["words"]
    blocks = [f"**{headline(findings, language)}**"]
    for number, row in enumerate(finding_rows(findings[:limit], language), 1):
        summary = words["summary"].format(**vars(row))
        blocks += [f"### {number}. {row.title}", f"`{row.rule}`: {summary}", row.what, row.do]
        headers, cells = row.evidence_cells
        if cells:
            lines = [headers, ["---"] * len(headers), *([*map(_cell, line)] for line in cells)]
            blocks.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    blocks += hidden_findings(findings, words, limit)
    return "\n\n".join(blocks) + "\n"


def _cell(text: str) -> str:
    """Return the text of a table cell; text with ``<``, ``>`` or ``*`` becomes code.

    Text with ``<br>`` stays: its line breaks are intended.
    """
    if any(mark in text for mark in "<>*") and "<br>" not in text:
        return code(text)
    return text.replace("|", "\\|").replace("\n", " ")
