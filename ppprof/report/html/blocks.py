"""What a section of the page consists of: plain rows, before anything is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from ppprof.report.findings import FindingRow
from ppprof.report.html.words import milliseconds, number, signed
from ppprof.units import bytes_text, ratio_text, time_text


@dataclass(frozen=True)
class Cell:
    """One value of a table."""

    text: str
    order: float | str | None = None
    """What it is sorted by; None is last."""
    mark: str = ""
    """A class of the style sheet: ``worse`` and ``better`` of a change, ``slow`` of a rank."""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    term: str
    """Key of its name and definition."""
    is_number: bool = True
    unit: str = ""


def text_columns(*terms: str) -> list[Column]:
    """Columns of names."""
    return [Column(term, is_number=False) for term in terms]


def number_columns(*terms: str, unit: str = "") -> list[Column]:
    """Columns of numbers, all in one unit, or each with its own."""
    return [Column(term, unit=unit) for term in terms]


@dataclass(frozen=True)
class Table:
    """Rows that can be sorted and, where there are many, searched."""

    label: str
    """What it is a table of, for readers of screens."""
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    left_out: int = 0
    """Rows that it does not show."""
    kind: str = "table"

    @property
    def can_search(self) -> bool:
        """Whether there are so many rows that one would."""
        return len(self.rows) > _SEEN_AT_ONCE


_SEEN_AT_ONCE = 12


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
    kind: str = "tiles"


@dataclass(frozen=True)
class Chart:
    """What the scripts draw of ``data`` of this name."""

    name: str
    label: str
    drawn_by: str = "chart"
    """``chart`` (`charts.js`) or ``lanes`` (`lanes.js`)."""
    height: int = 320
    kind: str = "chart"


@dataclass(frozen=True)
class Note:
    """A paragraph."""

    text: str
    code: Sequence[str] = ()
    """Commands behind it."""
    kind: str = "note"


@dataclass(frozen=True)
class Advice:
    """Something to change."""

    row: FindingRow
    evidence: Table | None
    """None where the finding has no rows."""
    kind: str = "advice"


Block = Union[Table, Tiles, Chart, Note, Advice]


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    key: str
    """Of its title."""
    about: str
    blocks: Sequence[Block]


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "ns": milliseconds,
    "duration": time_text,
    "bytes": bytes_text,
    "ratio": ratio_text,
    "number": number,
    "text": str,
}


def written(value: Any, unit: str) -> str:
    """A value as a unit writes it; ``-`` where it is not known."""
    return "-" if value is None else FORMATS[unit](value)


def cell(value: Any, unit: str, mark: str = "") -> Cell:
    """A value as a unit writes it; sorted by the value itself."""
    return Cell(written(value, unit), value, mark)


def change(value: float | None, unit: str, more_is_better: bool = False) -> Cell:
    """A change, with its sign, an arrow and a mark: ``worse`` or ``better``."""
    if not value:
        return cell(value, unit)
    arrow = "▲" if value > 0 else "▼"
    mark = "better" if (value > 0) == more_is_better else "worse"
    return Cell(f"{arrow} {signed(FORMATS[unit](value), value)}", value, mark)


def rows_of(
    table: Iterable[Mapping[str, Any]], columns: Sequence[tuple[str, str]]
) -> list[list[Cell]]:
    """Cells of some keys of rows, each with the unit it is written in."""
    return [[cell(row[key], unit) for key, unit in columns] for row in table]
