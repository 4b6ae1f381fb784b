"""Text tables drawn as Paddle draws them: left-aligned columns between dashed rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Union

_GAP = 2  # spaces after every column

Line = Union[str, Sequence[object]]
"""The cells of a row, or a text to center in dashes over the full width."""


class Painted(str):
    """The text of a cell, and its meaning, which a terminal shows as a colour."""

    meaning: str

    def __new__(cls, text: str, meaning: str) -> Painted:
        """Return ``text`` with a meaning of `ppprof.report.text.layout.Layout.paint`."""
        painted = super().__new__(cls, text)
        painted.meaning = meaning
        return painted


class Column(NamedTuple):
    """A column of a text table; ``width`` is in characters."""

    header: str
    width: int
    grows: bool = False
    """Whether the column widens for long cells. If not, a long cell moves the cells after it to the
    right, as in Paddle."""


@dataclass(frozen=True)
class Table:
    """One table; ``str(table)`` is its text."""

    title: str
    columns: Sequence[Column]
    lines: Sequence[Line]
    unit: str | None = None
    """Unit of the times, printed below the title; None for a table without times."""
    preamble: Sequence[str] = ()
    """Lines to print between the title and the headers."""
    second: tuple[Sequence[str], Sequence[Line]] | None = None
    """A second row of headers with its lines, in the same columns; None for a single row."""
    closed: bool = True
    """Whether a rule ends the table (Paddle ends two tables without a rule)."""
    note: str = ""
    """Definitions of the numbers, printed below the table."""

    def __str__(self) -> str:
        widths = [self._width(position) for position in range(len(self.columns))]
        full_width = sum(widths) + _GAP * (len(widths) - 1)
        rule = _row(["-" * width for width in widths], widths)
        printed = [_centered(self.title, full_width)]
        if self.unit:
            printed.append(f"Time unit: {self.unit}")
        printed += self.preamble
        headers: Sequence[str] = [column.header for column in self.columns]
        sections = [(headers, self.lines)]
        if self.second:
            sections.append(self.second)
        for headers, lines in sections:
            printed += [rule, _row(headers, widths), rule]
            printed += [
                _centered(line, full_width) if isinstance(line, str) else _row(line, widths)
                for line in lines
            ]
        if self.closed:
            printed.append(rule)
        if self.note:
            printed += [f"Note:\n{self.note}", "-" * full_width]
        return "\n".join([*printed, "", "", ""])

    @property
    def plain(self) -> tuple[list[str], list[list[object]], list[str]]:
        """Headers, rows of cells and remarks, for a table without rules; the title is the first header."""
        headers = [self.title, *(column.header for column in self.columns[1:])]
        rows = [list(line) for line in self.lines if not isinstance(line, str)]
        remarks = [line for line in self.lines if isinstance(line, str)]
        return headers, rows, [*remarks, f"Times in {self.unit}, per rank and step."]

    def _width(self, position: int) -> int:
        column = self.columns[position]
        cells = [line[position] for line in self.lines if not isinstance(line, str)]
        longest = max((len(str(cell)) for cell in cells), default=0) if column.grows else 0
        return max(column.width, longest)


def columns_for(headers: Sequence[str], min_width: int = 6) -> list[Column]:
    """Return a column for each header, as wide as its header or ``min_width``; all columns grow."""
    return [Column(header, max(min_width, len(header)), grows=True) for header in headers]


def _row(cells: Sequence[object], widths: Sequence[int]) -> str:
    return "".join(f"{cell!s:<{width}}{'':{_GAP}}" for cell, width in zip(cells, widths))


def _centered(text: str, width: int) -> str:
    """Return ``text`` in dashes, centered in ``width``; an odd dash goes to the right."""
    dashes = width - len(text)
    return "-" * (dashes // 2) + text + "-" * (dashes - dashes // 2)
