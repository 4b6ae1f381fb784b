"""Tables of text in Paddle's way of drawing them: left-aligned columns between dashed rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

_GAP = 2  # spaces after every column

Line = Union[str, Sequence[object]]
"""The cells of a row, or a text to centre in dashes over the whole width."""


@dataclass(frozen=True)
class Column:
    """A column: what stands above it and how wide it is."""

    header: str
    width: int
    grows: bool = False
    """Whether it widens for its cells; otherwise a long cell sticks out, as in Paddle."""


@dataclass(frozen=True)
class Table:
    """One table, ready to print."""

    title: str
    columns: Sequence[Column]
    lines: Sequence[Line]
    unit: str | None = None
    """Unit of its times, named below the title; None where it has no times."""
    preamble: Sequence[str] = ()
    """Lines between the title and the head."""
    second: tuple[Sequence[str], Sequence[Line]] | None = None
    """A second head and its lines, in the same columns."""
    closed: bool = True
    """Whether a rule ends the table (Paddle leaves it out of two)."""
    note: str = ""
    """What the numbers mean, below the table."""

    def __str__(self) -> str:
        widths = [self._width(at) for at in range(len(self.columns))]
        whole = sum(widths) + _GAP * (len(widths) - 1)
        rule = _row(["-" * width for width in widths], widths)
        printed = [_centred(self.title, whole)]
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
                _centred(line, whole) if isinstance(line, str) else _row(line, widths)
                for line in lines
            ]
        if self.closed:
            printed.append(rule)
        if self.note:
            printed += [f"Note:\n{self.note}", "-" * whole]
        return "\n".join([*printed, "", "", ""])

    def _width(self, at: int) -> int:
        column = self.columns[at]
        cells = [line[at] for line in self.lines if not isinstance(line, str)]
        grown = max((len(str(cell)) for cell in cells), default=0) if column.grows else 0
        return max(column.width, grown)


def _row(cells: Sequence[object], widths: Sequence[int]) -> str:
    return "".join(f"{cell!s:<{width}}{'':{_GAP}}" for cell, width in zip(cells, widths))


def _centred(text: str, width: int) -> str:
    """Dashes on both sides; the odd one goes to the right."""
    dashes = width - len(text)
    return "-" * (dashes // 2) + text + "-" * (dashes - dashes // 2)
