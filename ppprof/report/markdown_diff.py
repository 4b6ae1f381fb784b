"""Comparisons as GitHub's Markdown, for pull requests."""

from __future__ import annotations

from collections.abc import Sequence

from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.diff.gate import Outcome
from ppprof.report.diff_rows import RowSelection
from ppprof.report.markdown import code
from ppprof.report.text.diff import diff_blocks
from ppprof.report.text.summary import TableOptions
from ppprof.report.text.table import Table


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
