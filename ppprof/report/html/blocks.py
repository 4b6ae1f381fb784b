"""The blocks of a section of the page, as plain values that the template renders, and the page's texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from typing import Any, Union

import polars as pl
import yaml

from ppprof.messages import Counted
from ppprof.report.columns import PAGE, Column, format_as
from ppprof.report.text.advice import FindingRow
from ppprof.units import format_ranges


@dataclass(frozen=True)
class Words:
    """The second document of ``texts/en.yaml`` or ``texts/zh.yaml``; an unknown key raises KeyError."""

    language: str
    """``en`` or ``zh``."""
    texts: Mapping[str, Mapping[str, Any]]
    """The texts, keyed by group, then name. A term (group ``terms``) is a pair: the name and the
    definition of a number or column of the page."""
    ranks_are_traces: bool = False
    """Whether ranks only number traces: nothing says that they are of one job."""
    used: set[str] = field(default_factory=set, compare=False)
    """The terms that the page has shown so far: those that `term` was called with."""

    @classmethod
    def in_language(cls, language: str, *, ranks_are_traces: bool = False) -> Words:
        """Return the texts of one of `ppprof.messages.LANGUAGES`."""
        source = files("ppprof.report").joinpath("texts").joinpath(f"{language}.yaml")
        _, texts = yaml.safe_load_all(source.read_text("utf-8"))
        return cls(language, texts, ranks_are_traces)

    def __call__(self, key: str, **values: object) -> str:
        """Return the text of a key, with its ``{placeholders}`` replaced by ``values``.

        A key is ``group.name``, such as ``page.window``.
        """
        group, _, name = key.partition(".")
        text: str = self.texts[group][name]
        if not values:
            return text
        return text.format(**{name: Counted(value) for name, value in values.items()})

    def term(self, key: str) -> str:
        """Return the name that the page shows for a number or column; ``key`` is its term."""
        name: str = self.texts["terms"][key][0]
        self.used.add(key)
        return name

    def steps(self, numbers: Iterable[int]) -> str:
        """Return step numbers as text: ``steps 3-5``."""
        return self._ranges("step", numbers)

    def ranks(self, numbers: Iterable[int]) -> str:
        """Return ranks as text: ``ranks 0-7``, or ``traces 0-7``."""
        return self._ranges("trace" if self.ranks_are_traces else "rank", numbers)

    def _ranges(self, what: str, numbers: Iterable[int]) -> str:
        text = format_ranges(what, numbers)
        if self.language == "en":
            return text
        return self(f"page.{what}s", numbers=text.partition(" ")[2])

    @cached_property
    def for_scripts(self) -> Mapping[str, Any]:
        """The texts that the page's scripts need: ``language``, ``page``, ``metrics`` and ``terms``."""
        return {
            "language": self.language,
            "page": self.texts["page"],
            "metrics": self.texts["metrics"],
            "terms": self.texts["terms"],
        }


MAX_ROWS = 300
"""Most rows of a table. More rows slow the browser down and are rarely read."""


@dataclass(frozen=True)
class Cell:
    """One value of a table."""

    text: str
    order: float | str | None = None
    """Sort key of the cell in its column; if None, the cell is sorted by ``text``. Cells with the
    text "-" or "" come last."""
    mark: str = ""
    """Class in the style sheet: ``worse``, ``better`` or ``same`` for a change, ``slow`` for a slow
    rank, "" for any other cell."""
    href: str = ""
    """A link to the place in the timeline that the cell is about
    (`ppprof.report.html.links`); "" for none."""
    is_text: bool = False
    """Whether a number is copied and saved as ``text``: ``order`` only sorts it, or lacks its unit."""


def cell(value: Any, kind: str) -> Cell:
    """Return a cell with ``value`` as the page prints its kind; a `Cell` stays as it is."""
    return value if isinstance(value, Cell) else Cell(format_as(value, kind), value)


def change(
    value: float | None, kind: str, more_is_better: bool = False, *, is_clear: bool | None = True
) -> Cell:
    """Return a cell with a change: its sign, and an arrow and a colour if it is significant.

    A change of 0 or None has no sign, no arrow and the mark ``same``.

    Args:
        value: experiment minus baseline, or that difference as a ratio.
        kind: a key of `ppprof.report.columns.PAGE`.
        more_is_better: whether an increase is marked ``better``.
        is_clear: whether the change is significant; None if unknown. Other changes have a sign, but
            no arrow, and the mark ``same``.
    """
    if not value:
        return Cell(format_as(value, kind), value, "same")
    sign = "+" if value > 0 else ""
    text = f"{sign}{PAGE[kind](value)}"
    if not is_clear:
        return Cell(text, value, "same")
    mark = "better" if (value > 0) == more_is_better else "worse"
    return Cell(f"{'▲' if value > 0 else '▼'} {text}", value, mark)


@dataclass(frozen=True)
class Table:
    """A table that can be sorted, copied, saved and, if it is long, searched."""

    label: str
    """Caption of the table."""
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    left_out: int = 0
    """Number of rows that the table does not show."""
    key: str = ""
    """Name of the table in the scripts and in the name of its CSV file."""
    sorted_by: int | None = None
    """Index of the column by which the rows are sorted, numbers falling; None if they are not
    sorted by a column."""
    shown_metric: str = ""
    """The metric whose columns are shown first; "" for all columns."""
    block: str = "table"

    @property
    def num_rows(self) -> int:
        """Number of all rows, also of those that the table does not show."""
        return len(self.rows) + self.left_out

    @property
    def metrics(self) -> Sequence[str]:
        """The metrics to choose from, in the order of the columns."""
        return list(dict.fromkeys(column.metric for column in self.columns if column.metric))

    @property
    def clocks(self) -> Sequence[str]:
        """The clocks to choose from; empty if all columns have the same."""
        clocks = list(dict.fromkeys(column.clock for column in self.columns if column.clock))
        return clocks if len(clocks) > 1 else []


def table_of(
    label: str,
    table: pl.DataFrame,
    columns: Sequence[Column],
    *,
    chosen_by: Sequence[pl.Expr] = (),
    **more: Any,
) -> Table:
    """Return a table of the page with at most `MAX_ROWS` rows of ``table``, in their order.

    A function as the source of a column may return a `Cell`. ``chosen_by``: of more rows, those with
    the largest values are shown; empty: the first rows. ``more``: further fields of `Table`.
    """
    shown = table.head(MAX_ROWS)
    if chosen_by and table.height > MAX_ROWS:
        options = {"descending": True, "nulls_last": True, "maintain_order": True}
        falling = table.with_row_index("place").sort(*chosen_by, **options)
        shown = falling.head(MAX_ROWS).sort("place")
    rows = [
        [cell(column.value(row), column.kind) for column in columns]
        for row in shown.rows(named=True)
    ]
    return Table(label, columns, rows, max(0, table.height - MAX_ROWS), **more)


@dataclass(frozen=True)
class Tile:
    """One key figure of the run."""

    term: str
    """Key of the figure's name, in the group ``terms`` of the page's texts."""
    text: str
    """The value with its unit."""
    detail: str = ""
    """Smaller text below the value, such as whether its steps were recorded; "" for no text."""


@dataclass(frozen=True)
class Tiles:
    """A row of key figures."""

    tiles: Sequence[Tile]
    block: str = "tiles"


@dataclass(frozen=True)
class Share:
    """A share of a step, drawn as a piece of a bar."""

    term: str
    """Key of its name, in the group ``terms`` of the page's texts."""
    text: str
    """Its time."""
    ratio: float
    """Its time as a ratio of the step, in [0, 1]."""


@dataclass(frozen=True)
class Lane:
    """One rank's step, drawn as a bar of pieces along the time."""

    label: str
    href: str
    pieces: Sequence[tuple[str, int]]
    """Part and length of each piece, one after the other; part "" before and after the step."""


@dataclass(frozen=True)
class Shares:
    """The shares of a step as one bar, and below it one step of some ranks along the time."""

    label: str
    """What the bar shows."""
    shares: Sequence[Share]
    about_lanes: str = ""
    lanes: Sequence[Lane] = ()
    block: str = "shares"


@dataclass(frozen=True)
class Gain:
    """What a finding costs, drawn as a piece of a bar."""

    title: str
    severity: str
    """One of `ppprof.analysis.advice.finding.SEVERITIES`; "" for what no finding names."""
    text: str
    """Its time; "" for what no finding names."""
    ratio: float
    """Its time as a ratio of the step, in [0, 1]."""
    href: str = ""


@dataclass(frozen=True)
class Gains:
    """What the findings cost of a step, as one bar; their ratios add up to 1 with the rest."""

    label: str
    gains: Sequence[Gain]
    block: str = "gains"


@dataclass(frozen=True)
class PlacedChange:
    """A change from the baseline, and its place in an average step of both runs."""

    title: str
    cell: Cell
    """How much it is; a link to where the timeline shows it, if it does."""
    lanes: Sequence[Lane]
    """Baseline and experiment; part "" is what comes before and behind the place."""


@dataclass(frozen=True)
class PlacedChanges:
    """The biggest changes from the baseline."""

    label: str
    changes: Sequence[PlacedChange]
    block: str = "changes"


@dataclass(frozen=True)
class Chart:
    """A chart that a script draws from ``data[name]`` of the page."""

    name: str
    label: str
    """Caption of the chart."""
    drawn_by: str = "chart"
    """Key of ``drawers`` in page.js."""
    height: int = 320
    terms: Sequence[str] = ()
    """Terms whose names the script shows if they are in the data."""
    block: str = "chart"


@dataclass(frozen=True)
class Note:
    """A paragraph."""

    text: str
    code: Sequence[str] = ()
    """Commands to show below the paragraph."""
    block: str = "note"


@dataclass(frozen=True)
class Advice:
    """A finding with its proposal."""

    row: FindingRow
    evidence: tuple[Sequence[str], Sequence[Sequence[str]]]
    """The headers, and the rows as lists of cells."""
    number: int
    """Counted from 1."""
    href: str = ""
    """A link to the place in the timeline; "" for none."""
    block: str = "advice"


Block = Union[Table, Tiles, Shares, Gains, PlacedChanges, Chart, Note, Advice]


@dataclass(frozen=True)
class Section:
    """A heading of the page and the content below it."""

    key: str
    """Key of the heading, in the group ``sections`` of the page's texts."""
    about: str
    """The introduction below the heading."""
    blocks: Sequence[Block]
