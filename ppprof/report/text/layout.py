"""How text is drawn: in Paddle's layout, or in the width of a terminal, with colours or without.

A table that is fitted to a terminal gets narrower in this order, until it fits:


1. columns of the device are left out if they have no values, even if the table is not too wide;
2. of ``CPU Total / Avg / Max / Min / Ratio(%)``, Max and Min are left out, then Avg;
3. names are cut in the middle;
4. its columns stand in several blocks, one below the other, each with the first column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ppprof.report.text.table import Column, Painted, Table
from ppprof.units import escape_cell, escape_control_chars

_COLOURS = {"bad": "31", "warning": "33", "good": "32", "title": "1"}
"""Parameter of the escape sequence (SGR, ECMA-48) of each meaning: red, yellow, green, bold."""
_PAINTED = re.compile(f"(\x1b\\[(?:0|{'|'.join(_COLOURS.values())})m)")


@dataclass(frozen=True)
class Layout:
    """How to draw text."""

    width: int | None = None
    """The columns to fill; None for tables as Paddle prints them, and lines of any length."""
    has_colour: bool = False

    def table(self, table: Table) -> str:
        """Return a table as text: as Paddle prints it, or in ``width`` columns."""
        if self.width is None:
            return str(table)
        return draw(table, self.width, self.paint)

    def aligned(
        self, headers: Sequence[str], rows: Sequence[Sequence[str]], indent: int = 0
    ) -> list[str]:
        """Return headers and rows as lines, with columns aligned, and without rules.

        The caller puts ``indent`` blanks before each line.
        """
        if self.width is not None:
            return draw_rows(headers, rows, self.width - indent, self.paint)
        is_ascii = all(cell.isascii() for line in (headers, *rows) for cell in line)
        measure = len if is_ascii else _width_of_text
        widths = [max(map(measure, column)) for column in zip(headers, *rows)]
        return [
            "  ".join(
                cell + " " * (width - measure(cell)) for cell, width in zip(line, widths)
            ).rstrip()
            for line in (headers, *rows)
        ]

    def paint(self, text: str, meaning: str | None = None) -> str:
        """Return text in the colour of its meaning; without ``has_colour``, as it is.

        With colours, control characters in the text are escaped: text that comes from a trace
        cannot colour the text around it.

        Args:
            text: the text.
            meaning: ``bad``, ``warning``, ``good`` or ``title``; None for no colour.
        """
        if not self.has_colour:
            return text
        text = escape_control_chars(text)
        return f"\x1b[{_COLOURS[meaning]}m{text}\x1b[0m" if meaning and text else text

    def fit(self, text: str) -> str:
        """Return text with control characters escaped, and lines broken that are too wide.

        Lines break at blanks, so paths and commands stay whole, even those that are too wide. Chinese
        text may break anywhere. What follows a break has the indentation of the line.
        """
        if self.has_colour:
            parts = _PAINTED.split(text)
            parts[::2] = map(escape_control_chars, parts[::2])
            text = "".join(parts)
        else:
            text = escape_control_chars(text)
        if self.width is None:
            return text
        return "\n".join(part for line in text.split("\n") for part in self._broken(line))

    def _broken(self, line: str) -> Sequence[str]:
        assert self.width is not None
        if len(line) <= self.width and line.isascii():
            return (line,)
        import wcwidth  # only for lines that may be too wide: it takes as long to import as argparse

        if wcwidth.width(line) <= self.width:
            return (line,)
        indent = " " * (len(line) - len(line.lstrip(" ")))
        return wcwidth.wrap(
            line,
            self.width,
            subsequent_indent=indent,
            break_long_words=not line.isascii(),
            break_on_hyphens=False,
        )


PADDLE = Layout()
"""Paddle's layout, of jobs' output, pipes and files."""


Paint = Callable[..., str]

_GAP = "  "
_LEAST_NAME = 16
"""Names are not cut to fewer columns."""
_LEAST_SENTENCE = 60
"""A shorter line of a note is not joined with the next: it is a heading, or part of a drawing."""
_EMPTY = re.compile(r"-|0|0\.0+")
_NUMBER = re.compile(r"[-+]?\d[^ ]*( .*)?|[-+]?")
_FOLDS = ((), ("Max", "Min"), ("Max", "Min", "Avg"))
"""Times of a cell with several times that are left out, the fewest first."""


@dataclass(frozen=True)
class _Column:
    """One column of the drawn table; a column with several times is drawn as several columns."""

    headers: tuple[str, ...]
    """The header in each section of the table."""
    cells: tuple[tuple[str, ...], ...]
    """For each section, a cell for each of its rows."""
    whole: str
    """The header of the table's column that holds this one."""
    stat: str = ""
    """Which of several times it is, such as ``Avg``; "" for a whole column."""

    @property
    def texts(self) -> Iterator[str]:
        """The cells of all sections."""
        return (cell for cells in self.cells for cell in cells)

    @cached_property
    def is_empty(self) -> bool:
        """Whether no cell has a value other than 0."""
        return all(_EMPTY.fullmatch(cell) for cell in self.texts)

    @cached_property
    def width(self) -> int:
        """The columns of a terminal that the widest cell takes."""
        return max(map(_width_of_text, (*self.headers, *self.texts)))

    @cached_property
    def is_number(self) -> bool:
        """Whether all cells are numbers: they are aligned on the right, and never cut."""
        return all(_NUMBER.fullmatch(cell) for cell in self.texts)


def draw(table: Table, columns: int, paint: Paint) -> str:
    """Return a table as text, in at most ``columns`` columns of a terminal; its note may be wider.

    ``paint`` is `Layout.paint`.
    """
    parts = _columns(table)
    shown, left_out = _folded(parts, columns)
    lines = [paint(table.title, "title")]
    lines += [f"Time unit: {table.unit}"] if table.unit else []
    lines += table.preamble
    for block, widths in _blocks(shown, columns):
        full = sum(widths) + len(_GAP) * (len(widths) - 1)
        for section, rows in enumerate(_sections(table)):
            cells = iter(zip(*(column.cells[section] for column in block)))
            if not rows and section:
                continue
            headers = [column.headers[section] for column in block]
            lines += ["-" * full, _row(headers, block, widths, paint), "-" * full]
            for line in rows:
                if isinstance(line, str):
                    lines.append(_centered(cut(escape_cell(line), columns), full))
                else:
                    lines.append(_row(next(cells), block, widths, paint))
        lines.append("-" * full)
    if left_out:
        lines.append(f"Not shown: {', '.join(left_out)}; --style paddle shows all")
    lines += _sentences(table.note)
    return "\n".join([*lines, "", ""])


def draw_rows(
    headers: Sequence[str], rows: Sequence[Sequence[str]], columns: int, paint: Paint
) -> list[str]:
    """Return headers and rows as lines, without rules; the arguments are those of `draw`."""
    table = Table("", [Column(header, 0) for header in headers], rows)
    lines = []
    for block, widths in _blocks(_columns(table), columns):
        for cells in ([column.headers[0] for column in block], *zip(*(c.cells[0] for c in block))):
            lines.append(_row(cells, block, widths, paint))
    return lines


def _sections(table: Table) -> list[Sequence[object]]:
    return [table.lines, *([table.second[1]] if table.second else [])]


def _columns(table: Table) -> list[_Column]:
    """Return the columns of a table; a column with several times in its cells as several columns."""
    headers = [[column.header for column in table.columns]]
    headers += [list(table.second[0])] if table.second else []
    rows = [
        [[_escaped(cell) for cell in line] for line in lines if not isinstance(line, str)]  # type: ignore[attr-defined]
        for lines in _sections(table)
    ]
    columns: list[_Column] = []
    for position, whole in enumerate(headers[0]):
        names = tuple(escape_cell(section[position]) for section in headers)
        cells = tuple(tuple(row[position] for row in section) for section in rows)
        parts = [header.split(" / ") for header in names]
        split = [[cell.split(" / ") for cell in section] for section in cells]
        num = len(parts[0])
        if num == 1 or any(len(cell) != num for section in (parts, *split) for cell in section):
            columns.append(_Column(names, cells, whole))
            continue
        for part, name in enumerate(parts[0]):
            columns.append(
                _Column(
                    tuple(header[part] for header in parts),
                    tuple(tuple(cell[part] for cell in section) for section in split),
                    whole,
                    name,
                )
            )
    return columns


def _escaped(cell: object) -> str:
    if isinstance(cell, Painted):
        return Painted(escape_cell(cell), cell.meaning)
    return escape_cell(str(cell))


def _folded(parts: Sequence[_Column], columns: int) -> tuple[Sequence[_Column], list[str]]:
    """Return the columns to show, and what is left out."""
    wholes = dict.fromkeys(column.whole for column in parts if column.whole.startswith("GPU"))
    empty = [
        whole for whole in wholes if all(part.is_empty for part in parts if part.whole == whole)
    ]
    kept = [column for column in parts if column.whole not in empty]
    left_out = [f"{whole.partition(' / ')[0]} (empty)" for whole in empty]
    for fold in _FOLDS:
        shown = [column for column in kept if column.stat not in fold]
        if _width_of(shown, _LEAST_NAME if fold == _FOLDS[-1] else None) <= columns:
            break
    folded = [name for name in fold if any(column.stat == name for column in kept)]
    return shown, [*left_out, *folded]


def _width_of(columns: Sequence[_Column], least: int | None = None) -> int:
    """Return the width of a table; with ``least``, names are cut to that many columns."""
    widths = [
        column.width if least is None or _is_whole(columns, position) else min(column.width, least)
        for position, column in enumerate(columns)
    ]
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _is_whole(columns: Sequence[_Column], position: int) -> bool:
    """Return whether the cells of a column must not be cut."""
    return position > 0 and columns[position].is_number


def _blocks(
    columns: Sequence[_Column], most: int
) -> Iterator[tuple[Sequence[_Column], Sequence[int]]]:
    """Yield the columns of each block with their widths; a single block if they fit."""
    label, *others = columns
    fits = _width_of(columns, _LEAST_NAME) <= most
    if fits or not others:
        yield columns, _cut_widths(columns, most)
        return
    least = min(label.width, max(_LEAST_NAME, most // 3))
    block: list[_Column] = []
    room = most - least
    for position, column in enumerate(others, 1):
        taken = min(column.width if _is_whole(columns, position) else _LEAST_NAME, column.width)
        if block and room < len(_GAP) + taken:
            yield [label, *block], _cut_widths([label, *block], most)
            block, room = [], most - least
        block.append(column)
        room -= len(_GAP) + taken
    yield [label, *block], _cut_widths([label, *block], most)


def _cut_widths(columns: Sequence[_Column], most: int) -> list[int]:
    """Return the width of each column; the widest names get narrower until the columns fit."""
    widths = [
        column.width if _is_whole(columns, position) else min(column.width, most)
        for position, column in enumerate(columns)
    ]
    names = [position for position in range(len(columns)) if not _is_whole(columns, position)]
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - most
    while excess > 0 and names:
        widest = max(names, key=lambda position: widths[position])
        if widths[widest] <= 1:
            break
        widths[widest] -= 1
        excess -= 1
    return widths


def _row(
    cells: Sequence[str], columns: Sequence[_Column], widths: Sequence[int], paint: Paint
) -> str:
    padded = []
    for position, (cell, size) in enumerate(zip(cells, widths)):
        text = cut(cell, size)
        blanks = " " * (size - _width_of_text(text))
        painted = paint(text, getattr(cell, "meaning", None))
        padded.append(blanks + painted if _is_whole(columns, position) else painted + blanks)
    return _GAP.join(padded).rstrip()


def _width_of_text(text: str) -> int:
    """Return the columns of a terminal that a text takes."""
    if text.isascii() and text.isprintable():
        return len(text)
    import wcwidth  # only here: it takes as long to import as argparse

    return wcwidth.width(text)


def cut(text: str, size: int) -> str:
    """Return text in at most ``size`` columns of a terminal; its middle is replaced by "..".

    >>> cut("void cutlass::Kernel<float>", 14)
    'void c..float>'
    """
    length = _width_of_text(text)
    if length <= size:
        return text
    from wcwidth import clip

    head = (size - 2 + 1) // 2
    return clip(text, 0, head) + ".." + clip(text, length - (size - 2 - head), length)


def _centered(text: str, size: int) -> str:
    dashes = max(0, size - _width_of_text(text))
    return "-" * (dashes // 2) + text + "-" * (dashes - dashes // 2)


def _sentences(note: str) -> Iterator[str]:
    """Yield the lines of a note; a line that ends within a sentence is joined with the next."""
    pending = ""
    for line in note.rstrip("\n").split("\n") if note else ():
        joined = f"{pending} {line}" if pending else line
        if line.endswith(".") or "|" in line or len(line) < _LEAST_SENTENCE:
            yield joined
            pending = ""
        else:
            pending = joined
    if pending:
        yield pending
