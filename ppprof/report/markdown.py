"""The summaries as Markdown tables, for pull requests and notes."""

from __future__ import annotations

import re

import polars as pl

_DECIMALS = {"ratio": 4, "utilization": 4, "ns": 1}
"""Of a float column, by the last word of its name."""


def markdown(table: pl.DataFrame) -> str:
    r"""A table as GitHub's Markdown: the columns of `ppprof.analysis`, names as code, null blank.

    >>> print(markdown(pl.DataFrame({"name": ["k<int>(a|b)"], "gpu_ratio": [0.5]})))
    | name           |   gpu_ratio |
    |----------------|-------------|
    | `k<int>(a\|b)` |      0.5000 |
    """
    from tabulate import tabulate

    rows = [
        [code(cell) if column == "name" else cell for column, cell in zip(table.columns, row)]
        for row in table.rows()
    ]
    formats = [f".{_DECIMALS.get(column.rpartition('_')[2], 0)}f" for column in table.columns]
    return tabulate(rows, table.columns, tablefmt="github", floatfmt=formats)


def code(name: object) -> str:
    """As code, for a kernel's ``<`` and ``*`` mean something in Markdown; on one line.

    A ``|`` ends a cell even there, and a backtick needs a longer fence.
    """
    text = re.sub(r"\s+", " ", str(name)).replace("|", "\\|")
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {text} {fence}" if longest else f"{fence}{text}{fence}"
