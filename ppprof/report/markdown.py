"""Tables as GitHub's Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_DECIMALS = {"ratio": 4, "utilization": 4, "ns": 1}
"""Decimals of a float column, keyed by the last word of the column's name; others have 0."""


def markdown(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    r"""Return rows, keyed by column, as a table in Markdown.

    Cells of a column ``name`` become code, nulls become blank cells.

    >>> print(markdown(["name", "gpu_ratio"], [{"name": "k<int>(a|b)", "gpu_ratio": 0.5}]))
    | name           |   gpu_ratio |
    |----------------|-------------|
    | `k<int>(a\|b)` |      0.5000 |
    """
    from tabulate import tabulate

    cells = [
        [
            code(row[column]) if column == "name" and row[column] is not None else row[column]
            for column in columns
        ]
        for row in rows
    ]
    formats = [f".{_DECIMALS.get(column.rpartition('_')[2], 0)}f" for column in columns]
    return tabulate(cells, columns, tablefmt="github", floatfmt=formats)


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
