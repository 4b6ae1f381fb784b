"""Tables, comparisons and findings as GitHub's Markdown, for pull requests and notes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ppprof.units import short_names

if TYPE_CHECKING:
    from ppprof.analysis.advice.finding import Finding
    from ppprof.analysis.diff.diff import Diff
    from ppprof.analysis.diff.gate import Outcome
    from ppprof.report.diff_rows import RowSelection
    from ppprof.report.text.summary import TableOptions
    from ppprof.report.text.table import Table

_DECIMALS = {"ns": 1, "flops": 0, "bytes": 0, "s": 0}
"""Decimals of a float column, keyed by the last word of the column's name; others have 4."""


def markdown(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    r"""Return rows, keyed by column, as a table in Markdown.

    Cells of a column ``name`` become code and are shortened, other texts with markup become code, nulls
    become blank cells.

    >>> print(markdown(["name", "gpu_ratio"], [{"name": "k<int>(a|b)", "gpu_ratio": 0.5}]))
    | name           |   gpu_ratio |
    |----------------|-------------|
    | `k<int>(a\|b)` |      0.5000 |
    """
    from tabulate import tabulate

    names = short_names(str(row["name"]) for row in rows if row.get("name") is not None)

    def cell(column: str, value: object) -> str:
        if isinstance(value, float):
            return f"{value:.{_DECIMALS.get(column.rpartition('_')[2], 4)}f}"
        if not isinstance(value, str):
            return "" if value is None else str(value)
        return _code(names[value]) if column == "name" else _cell(value)

    cells = [[cell(column, row[column]) for column in columns] for row in rows]
    numeric = {column for row in rows for column in row if isinstance(row[column], (int, float))}
    sides = ["right" if column in numeric else "left" for column in columns]
    align = sides if cells else None  # tabulate 0.9 aligns no column without a row
    text: str = tabulate(cells, columns, tablefmt="github", disable_numparse=True, colalign=align)
    return text


def diff_markdown(
    diff: Diff, selection: RowSelection, options: TableOptions, outcomes: Sequence[Outcome] = ()
) -> str:
    """Return a comparison in Markdown: verdict, outcomes, other sentences, differences of the runs, tables."""
    from ppprof.report.text.diff import diff_blocks, sentences

    verdict, *others = sentences(diff)
    lines = [f"**{verdict}**"]
    lines += [""] if outcomes or others or diff.comparability.differences else []
    lines += [f"- {outcome}" for outcome in outcomes]
    lines += [f"- {_cell(sentence)}" for sentence in others]
    lines += [f"- {difference}" for difference in diff.comparability.differences]
    for block in diff_blocks(diff, selection, options):
        lines += ["", block if isinstance(block, str) else _text_table(block)]
    return "\n".join([*lines, ""])


def _text_table(table: Table) -> str:
    """Return a table of a comparison: the cells of its first column become code."""
    from tabulate import tabulate

    headers, rows, remarks = table.plain
    cells = [[_code(row[0]), *row[1:]] for row in rows]
    text: str = tabulate(cells, headers, tablefmt="github", disable_numparse=True)
    return "\n".join([text, "", *remarks])


def findings_markdown(
    findings: Sequence[Finding], language: str = "en", limit: int | None = None
) -> str:
    """Return findings in Markdown: a headline, then each finding with evidence and proposal.

    A last line counts the findings beyond ``limit``.
    """
    from ppprof.report.text.advice import finding_rows, headline, read_catalogue, remarks

    words = read_catalogue(language)["words"]
    blocks = [f"**{headline(findings, language)}**"]
    for number, row in enumerate(finding_rows(findings[:limit], language), 1):
        summary = words["summary"].format(**vars(row))
        blocks += [f"### {number}. {row.title}", f"`{row.rule}`: {summary}", row.what, row.do]
        headers, cells = row.evidence_cells
        if cells:
            lines = [headers, ["---"] * len(headers), *([*map(_cell, line)] for line in cells)]
            blocks.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    blocks += remarks(findings, language, limit)
    return "\n\n".join(blocks) + "\n"


def _cell(text: str) -> str:
    """Return the text of a table cell; text with markup becomes code, but for line breaks."""
    if any(mark in text for mark in "<>*") and "<br>" not in text:
        return _code(text)
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def _code(name: object) -> str:
    r"""Return a name as Markdown code on one line: ``<`` and ``*`` in kernel names are markup.

    A ``|`` is escaped, since it ends a table cell even in code. If the name contains backticks, the
    code is enclosed in a longer row of backticks.

    >>> _code("k<int>(a|b)")
    '`k<int>(a\\|b)`'
    """
    text = re.sub(r"\s+", " ", str(name)).replace("|", "\\|")
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {text} {fence}" if longest else f"{fence}{text}{fence}"
