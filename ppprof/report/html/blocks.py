"""What a section of the page consists of: plain rows, before anything is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import polars as pl

from ppprof.report.text.advice import FindingRow
from ppprof.units import bytes_text, format_time, ratio_text

MAX_ROWS = 300
"""Of a table: behind these nobody looks, and each costs the browser."""

_SEEN_AT_ONCE = 12
"""Rows of a table that needs no search."""


def milliseconds(time_ns: float) -> str:
    """``12.346``, of nanoseconds: a column's, whose heading has the unit."""
    return f"{time_ns / 1e6:,.3f}"


def number(value: float) -> str:
    """``1,234`` or ``12.5``."""
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
"""How values of a kind are written. ms and GB/s: of nanoseconds and of bytes a second, without the
unit, which the heading has."""


def written(value: Any, kind: str) -> str:
    """A value as its kind is written; ``-`` where it is not known."""
    return "-" if value is None else FORMATS[kind](value)


@dataclass(frozen=True)
class Cell:
    """One value of a table."""

    text: str
    order: float | str | None = None
    """What it is sorted by; None is last."""
    mark: str = ""
    """A class of the style sheet: ``worse`` and ``better`` of a change, ``slow`` of a rank."""


def cell(value: Any, kind: str) -> Cell:
    """A value; sorted by itself."""
    return Cell(written(value, kind), value)


def change(value: float | None, kind: str, more_is_better: bool = False) -> Cell:
    """A change, with its sign, an arrow and a mark: ``worse`` or ``better``."""
    if not value:
        return cell(value, kind)
    arrow, sign = ("▲", "+") if value > 0 else ("▼", "")
    mark = "better" if (value > 0) == more_is_better else "worse"
    return Cell(f"{arrow} {sign}{FORMATS[kind](value)}", value, mark)


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    term: str
    """Key of its name and definition."""
    kind: str = "text"
    """One of `FORMATS`."""

    @property
    def is_number(self) -> bool:
        """Whether it stands to the right."""
        return self.kind != "text"

    @property
    def unit(self) -> str:
        """What its heading says beside the name."""
        return self.kind if self.kind in ("ms", "GB/s") else ""


@dataclass(frozen=True)
class Table:
    """Rows that can be sorted and, where there are many, searched."""

    label: str
    """What it is a table of."""
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    left_out: int = 0
    """Rows that it does not show."""
    block: str = "table"

    @property
    def can_search(self) -> bool:
        """Whether there are so many rows that one would."""
        return len(self.rows) > _SEEN_AT_ONCE


Spec = Sequence[tuple[str, str, Union[str, Callable[[Mapping[str, Any]], Cell]]]]
"""Of each column its term, its kind, and the key of its values or what makes a cell of a row."""


def table_of(label: str, table: pl.DataFrame, spec: Spec) -> Table:
    """The first `MAX_ROWS` rows of a table, some of its columns."""
    rows = []
    for row in table.head(MAX_ROWS).rows(named=True):
        rows.append(
            [cell(row[at], kind) if isinstance(at, str) else at(row) for _, kind, at in spec]
        )
    columns = [Column(term, kind) for term, kind, _ in spec]
    return Table(label, columns, rows, max(0, table.height - MAX_ROWS))


@dataclass(frozen=True)
class Tile:
    """One number that matters."""

    term: str
    text: str
    detail: str = ""


@dataclass(frozen=True)
class Tiles:
    """A row of them."""

    tiles: Sequence[Tile]
    block: str = "tiles"


@dataclass(frozen=True)
class Chart:
    """What a script draws of ``data`` of this name."""

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
    """Commands behind it."""
    block: str = "note"


@dataclass(frozen=True)
class Advice:
    """Something to change."""

    row: FindingRow
    evidence: tuple[Sequence[str], Sequence[Sequence[str]]]
    """Headers and cells."""
    block: str = "advice"


Block = Union[Table, Tiles, Chart, Note, Advice]


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    key: str
    """Of its title."""
    about: str
    blocks: Sequence[Block]
