"""Tables as GitHub's Markdown."""

from __future__ import annotations

import re

import polars as pl

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
