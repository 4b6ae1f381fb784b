"""Columns of tables, each described once: where its values come from, its names, and how it prints.

Text, Markdown and notebooks print a column under its header, the page under its term. A table that
text and page both show is described here; a table of only one of them, where it is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from ppprof.report.text import table as drawn
from ppprof.units import format_bytes, format_ratio, format_time

Row = Mapping[str, Any]
"""A row of a table, keyed by column."""

Source = Union[str, Callable[[Row], Any]]
"""Where the values of a column come from: a column of the rows, or a function of a row."""

Time = Callable[[float], str]
"""Formats nanoseconds in the unit of a text table."""


@dataclass(frozen=True)
class Column:
    """One column of a table, in text or on the page or in both."""

    source: Source
    kind: str = "text"
    """Kind of the values: a key of `PAGE` and, unless ``text`` differs, of `TEXT`."""
    header: str = ""
    """The column's name in text."""
    text: str = ""
    """How text prints the values, a key of `TEXT`; "" for ``kind``."""
    width: int | None = None
    """The column's width in text, in characters; None: as wide as its header and its cells."""
    grows: bool = False
    """Whether a column with a width gets wider for long cells."""
    term: str = ""
    """Key of the column's name and definition, in the group ``terms`` of the page's texts
    (`ppprof.report.html.blocks.Words`)."""
    metric: str = ""
    """The choice of the table's metric that shows this column: total, self, mean, max, share or
    calls, in a comparison also with the clock: cpu_total. "" for a column that is always shown."""
    clock: str = ""
    """The choice of the table's clock that shows this column: ``cpu`` or ``gpu``; "" for both."""
    of: str = ""
    """Term of the number that a column of a comparison is about, shown below its name; "" for
    none."""

    def value(self, row: Row) -> Any:
        """Return the column's value in a row."""
        return row[self.source] if isinstance(self.source, str) else self.source(row)

    @property
    def is_number(self) -> bool:
        """Whether the column holds numbers, not text. The page aligns numbers on the right."""
        return self.kind != "text"

    @property
    def unit(self) -> str:
        """The unit to show beside the column's name; empty if the cells themselves have units."""
        return self.kind if self.kind in ("ms", "GB/s", "TFLOP/s") else ""

    @property
    def raw_unit(self) -> str:
        """The unit of the values themselves, which a CSV file holds; empty without a unit."""
        units = {"ms": "ns", "time": "ns", "bytes": "B", "GB/s": "B/s", "TFLOP/s": "FLOP/s"}
        return units.get(self.kind, "")


def number(value: float) -> str:
    """Format a number: three significant digits, but no decimals from 1,000 on.

    Whole numbers below 1,000 have no decimals either.

    >>> number(1234.5), number(3.0), number(12.51), number(999.7), number(0.00001234)
    ('1,234', '3', '12.5', '1,000', '0.0000123')
    """
    if abs(value) >= 999.5 or value == int(value):
        return f"{value:,.0f}"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") if digits > 0 else f"{value:.0f}"


def percent(ratio: float | None) -> str:
    """Format a ratio in percent, with two decimals and without the percent sign; ``-`` for None.

    >>> percent(0.1234), percent(None)
    ('12.34', '-')
    """
    return "-" if ratio is None else f"{ratio * 100:.2f}"


def cut(text: str, width: int) -> str:
    """Return text in at most ``width`` characters; a longer text ends in "..."."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def cut_start(text: str, width: int) -> str:
    """Return text in at most ``width`` characters; a longer text begins with "..."."""
    return text if len(text) <= width else f"...{text[len(text) - width + 3 :]}"


def painted(text: str, change: float, more_is_better: bool = False) -> str:
    """Return the text of a change, to be shown as good or bad; a change of 0 is neither."""
    if not change:
        return text
    return drawn.Painted(text, "good" if (change > 0) == more_is_better else "bad")


def _stats(values: Sequence[float | None], time: Time) -> str:
    """Return times and a ratio as ``total / avg / max / min / ratio``; ``-`` for None."""
    *times_ns, ratio = values
    times = ("-" if time_ns is None else time(time_ns) for time_ns in times_ns)
    return " / ".join([*times, percent(ratio)])


PAGE: Mapping[str, Callable[[Any], str]] = {
    "text": str,
    "number": number,
    "ms": lambda value: f"{value / 1e6:,.3f}",
    "GB/s": lambda value: f"{value / 1e9:,.2f}",
    "TFLOP/s": lambda value: number(value / 1e12),
    "time": format_time,
    "bytes": format_bytes,
    "ratio": format_ratio,
}
"""How the page prints each kind of value: times in ns, sizes in bytes, rates per second. ``ms``,
``GB/s`` and ``TFLOP/s`` print no unit: the column's name shows it."""

TEXT: Mapping[str, Callable[[Any, Time], str]] = {
    "text": lambda value, _: str(value),
    "word": lambda value, _: value or "-",
    "inputs": lambda value, _: cut(value, 48),
    "number": lambda value, _: f"{value:.3g}",
    "tenths": lambda value, _: f"{value:.1f}",
    "thousandths": lambda value, _: f"{value:.3f}",
    "mean": lambda value, _: f"{value:g}",
    "ms": lambda value, time: time(value),
    "change": lambda value, time: painted(f"{'-' if value < 0 else '+'}{time(abs(value))}", value),
    "change in %": lambda value, _: painted(f"{100 * value:+.2f}", value),
    "change of mean": lambda value, _: painted(f"{value:+g}", value),
    "whole ns": lambda value, time: time(round(value)),
    "GB/s": lambda value, _: f"{value / 1e9:.3g}",
    "GFLOP": lambda value, _: f"{value / 1e9:.3g}",
    "TFLOP/s": lambda value, _: f"{value / 1e12:.3g}",
    "bytes": lambda value, _: format_bytes(value),
    "ratio": lambda value, _: percent(value),
    "stats": _stats,
    "flops": lambda value, _: f"{value:.3e}" if value >= 10**10 else str(value),
    "percent": lambda value, _: f"{value:.0%}",
    "per mille": lambda value, _: f"{value:.1%}",
}
"""How text prints each kind of value; ``ms`` in the unit of the table."""


def format_as(value: Any, kind: str) -> str:
    """Format a value as the page prints its kind; ``-`` for None."""
    return "-" if value is None else PAGE[kind](value)


def text_columns(columns: Iterable[Column]) -> list[drawn.Column]:
    """Return the columns of a text table; without a width, a column has at least 6 characters."""
    return [
        drawn.Column(column.header, max(6, len(column.header)), grows=True)
        if column.width is None
        else drawn.Column(column.header, column.width, column.grows)
        for column in columns
    ]


def text_cells(columns: Sequence[Column], row: Row, time: Time) -> list[str]:
    """Return the cells of a row of a text table; ``-`` for None."""
    values = [column.value(row) for column in columns]
    return [
        "-" if value is None else TEXT[column.text or column.kind](value, time)
        for column, value in zip(columns, values)
    ]


EFFICIENCY = (
    Column("name", header="Operator", width=20, grows=True, term="name"),
    Column("shapes", header="Inputs", text="inputs", width=24, grows=True, term="shapes"),
    Column("dtype", header="Dtype", text="word", width=8, grows=True, term="dtype"),
    Column("calls", "number", header="Calls", text="text", width=6, term="calls"),
    Column("time_ns", "ms", header="Time", width=10, term="operator_time"),
    Column("flops_per_s", "TFLOP/s", header="TFLOP/s", width=8, term="flops_per_s"),
    Column("bytes_per_s", "GB/s", header="GB/s", width=8, term="bytes_per_s"),
    Column("flops_per_byte", "number", header="FLOP/B", width=8, term="flops_per_byte"),
    Column("peak_dtype", header="Peak", text="word", width=8, term="peak_dtype"),
    Column("roof_ratio", "ratio", header="Roof(%)", width=8, term="roof_ratio"),
    Column("bound", header="Bound", text="word", width=8, term="bound"),
    Column(
        "above_roof_ns", "ms", header="Above roof", text="whole ns", width=10, term="above_roof"
    ),
)
"""The operators by shape: rows of `ppprof.analysis.efficiency.efficiency.efficiency`."""

QUEUE = (
    Column("rank", header="rank", term="rank"),
    Column("nothing_queued_ns", "ms", header="Nothing Queued", term="nothing_queued"),
    Column("launch_latency_ns", "ms", header="Latency", term="launch_latency"),
    Column("blocking_call_ns", "ms", header="Blocking Call", term="blocking_call"),
    Column("other_work_ns", "ms", header="Other Work", term="other_work"),
    Column("unknown_ns", "ms", header="Unknown", term="unknown"),
    Column("queue_length", "number", header="Queue Length", text="tenths", term="queue_length"),
    Column("launch_delay_ns", "ms", header="Launch Delay", term="launch_delay"),
)
"""The queues of devices: means of `ppprof.analysis.ranks.cluster.Cluster.queue`, a row per rank."""


def _share(name: str) -> Callable[[Row], float]:
    return lambda row: row[name] / row["calls"]


GROUPS = {
    "group": Column("members", header="Ranks", term="group"),
    "axis": Column("axis", header="Axis", text="word", term="axis"),
    "calls": Column("calls", "number", header="Calls", text="text", term="group_calls"),
    "wait": Column("wait_ns", "ms", header="Wait", term="wait"),
    "cost": Column("cost_ns", "ms", header="Cost"),
    "transfer": Column("transfer_ns", "ms", header="Transfer", term="transfer"),
    "bus": Column("bus_bytes_per_s", "GB/s", header="Bus (GB/s)", term="bandwidth"),
    "transfer-bound": Column(_share("transfer"), header="Transfer-bound", text="percent"),
    "skew": Column(_share("skew"), header="Skew", text="percent"),
    "mixed": Column(_share("mixed"), header="Mixed", text="percent"),
    "inconclusive": Column(_share("inconclusive"), header="Inconclusive", text="percent"),
    "last": Column(
        lambda row: f"{row['last_rank']} ({row['last_ratio']:.0%})", header="Last", term="last_rank"
    ),
}
"""The groups of collectives: rows of `ppprof.analysis.ranks.arrivals.by_group`."""
