"""How text is drawn: in Paddle's layout, or in the width of a terminal, with colours or without."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ppprof.report.text.table import Table
from ppprof.units import escape_control_chars

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
        from ppprof.report.text.fitted import draw  # only here: it imports wcwidth

        return draw(table, self.width, self.paint)

    def aligned(
        self, headers: Sequence[str], rows: Sequence[Sequence[str]], indent: int = 0
    ) -> list[str]:
        """Return headers and rows as lines, with columns aligned, and without rules.

        Args:
            headers: the header of each column.
            rows: the cells of each row.
            indent: blanks that the caller puts before each line.
        """
        if self.width is not None:
            from ppprof.report.text.fitted import draw_rows  # only here: it imports wcwidth

            return draw_rows(headers, rows, self.width - indent, self.paint)
        measure: Callable[[str], int] = len
        if not all(cell.isascii() for line in (headers, *rows) for cell in line):
            from wcwidth import width as measure  # only for Chinese: it takes long to import
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
