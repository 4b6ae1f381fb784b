"""The blocks of a section of the page, as plain rows that the template renders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import polars as pl

from ppprof.report.text.advice import FindingRow
from ppprof.units import bytes_text, format_time, ratio_text

MAX_ROWS = 300
"""Rows of a table; more rows slow the browser down and are rarely read."""

_MAX_ROWS_WITHOUT_SEARCH = 12


def milliseconds(time_ns: float) -> str:
    """Format nanoseconds as milliseconds without the unit, as in ``12.346``."""
    return f"{time_ns / 1e6:,.3f}"


def number(value: float) -> str:
    """Format a number, as in ``1,234`` or ``12.5``."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.3g}"


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "text": str,
    "number": number,
    "ms": milliseconds,
    "GB/s": lambda value: f"{value / 1e9:,.2f}",
    "time": format_time,
    "bytes": bytes_text,
    "ratio": ratio_text,
}
"""Formatter of each kind of value. ``ms`` takes nanoseconds, ``GB/s`` bytes per second; both leave
the unit to the column's header."""


def format_as(value: Any, kind: str) -> str:
    """Format a value of a kind; ``-`` for None."""
    return "-" if value is None else FORMATS[kind](value)


@dataclass(frozen=True)
class Cell:
    """One value of a table."""

    text: str
    order: float | str | None = None
    """Sort key; None sorts last."""
    mark: str = ""
    """Class in the style sheet: ``worse`` or ``better`` for a change, ``slow`` for a rank."""


def cell(value: Any, kind: str) -> Cell:
    """Return the cell of a value, with the value as sort key."""
    return Cell(format_as(value, kind), value)


def change(value: float | None, kind: str, more_is_better: bool = False) -> Cell:
    """Return the cell of a change, with sign, arrow and the mark ``worse`` or ``better``."""
    if not value:
        return cell(value, kind)
    arrow, sign = ("▲", "+") if value > 0 else ("▼", "")
    mark = "better" if (value > 0) == more_is_better else "worse"
    return Cell(f"{arrow} {sign}{FORMATS[kind](value)}", value, mark)


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    term: str
    """Key of the name and definition in the texts' ``terms``."""
    kind: str = "text"
    """One of `FORMATS`."""

    @property
    def is_number(self) -> bool:
        """Whether the column is right-aligned."""
        return self.kind != "text"

    @property
    def unit(self) -> str:
        """The unit beside the name in the header; empty if the cells have units."""
        return self.kind if self.kind in ("ms", "GB/s") else ""


@dataclass(frozen=True)
class Table:
    """A table that can be sorted and, if it is long, searched."""

    label: str
    """Caption of the table."""
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    left_out: int = 0
    """Number of rows that the table does not show."""
    block: str = "table"

    @property
    def can_search(self) -> bool:
        """Whether the table is long enough for a search field."""
        return len(self.rows) > _MAX_ROWS_WITHOUT_SEARCH


Spec = Sequence[tuple[str, str, Union[str, Callable[[Mapping[str, Any]], Cell]]]]
"""Columns: term, kind, and either the key of the values or a function from a row to its cell."""


def table_of(label: str, table: pl.DataFrame, spec: Spec) -> Table:
    """Return the first `MAX_ROWS` rows of a table, with the columns of ``spec``."""
    rows = []
    for row in table.head(MAX_ROWS).rows(named=True):
        rows.append(
            [
                cell(row[source], kind) if isinstance(source, str) else source(row)
                for _, kind, source in spec
            ]
        )
    columns = [Column(term, kind) for term, kind, _ in spec]
    return Table(label, columns, rows, max(0, table.height - MAX_ROWS))


@dataclass(frozen=True)
class Tile:
    """One key figure."""

    term: str
    text: str
    detail: str = ""


@dataclass(frozen=True)
class Tiles:
    """A row of key figures."""

    tiles: Sequence[Tile]
    block: str = "tiles"


@dataclass(frozen=True)
class Chart:
    """A chart that a script draws from the ``data`` of this name."""

    name: str
    label: str
    drawn_by: str = "chart"
    """Key of ``drawers`` in page.js."""
    height: int = 320
    block: str = "chart"


@dataclass(frozen=True)
class Note:
    """A paragraph."""

    text: str
    code: Sequence[str] = ()
    """Commands below the paragraph."""
    block: str = "note"


@dataclass(frozen=True)
class Advice:
    """A finding with its proposal."""

    row: FindingRow
    evidence: tuple[Sequence[str], Sequence[Sequence[str]]]
    """Headers and rows of cells."""
    block: str = "advice"


Block = Union[Table, Tiles, Chart, Note, Advice]


@dataclass(frozen=True)
class Section:
    """A part of the page below a heading."""

    key: str
    """Key of the title in the texts' ``sections``."""
    about: str
    blocks: Sequence[Block]
