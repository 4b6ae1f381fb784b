"""The sections of the page with one row per name: operators, efficiency, kernels and modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from ppprof.analysis.modules.gaps import UNKNOWN
from ppprof.analysis.report_data.run import ReportData
from ppprof.report.html.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Source,
    Spec,
    cell,
    table_of,
)
from ppprof.report.html.links import Links
from ppprof.report.html.words import Words

Content = tuple[str, Sequence[Block]]
"""The introduction below a heading, and the blocks of the section."""

Row = Mapping[str, Any]


def nothing_to_show(words: Words, reason: str) -> Content:
    """Return the content of a section without data; ``reason`` is a key of the texts' ``reasons``."""
    return words("page.nothing", reason=words(f"reasons.{reason}")), []


def linked_name(kind: str, links: Links, key: Callable[[Row], str] | None = None) -> Source:
    """Return the source of a column of names, each a link to its longest event.

    Args:
        kind: a kind of `ppprof.analysis.report_data.places.PLACES`.
        links: finds the events.
        key: returns the name by which ``links`` finds a row's event; None: the row's name.
    """

    def cell_of(row: Row) -> Cell:
        return Cell(row["name"], row["name"], href=links.to(kind, key(row) if key else row["name"]))

    return cell_of


def operators(report: ReportData, words: Words, links: Links) -> Content:
    """Return the table of operators: calls and times on the host and on the device."""
    clock = report.costs.clock
    table = report.costs.means("operators")
    if table.is_empty():
        return nothing_to_show(words, "no_operators")
    clocks = ["cpu", "gpu"] if clock == "gpu" else ["cpu"]
    for name in clocks:
        table = _with_shares(table, f"{name}_self_ns", f"{name}_share")
    table = table.sort(f"{clock}_self_ns", descending=True, maintain_order=True)
    spec: list[Any] = [
        ("name", "text", linked_name("operator", links)),
        (Column("calls", "number", "calls"), "number", "calls"),
    ]
    for name in clocks:
        spec += [
            _timed(f"{name}_total", "total", name),
            _timed(f"{name}_self", "self", name),
            (Column("mean_call", "ms", "mean", name), "ms", _mean(f"{name}_total_ns")),
            (Column("max_call", "ms", "max", name), "ms", _maximum("operator", links, name)),
            (Column(f"{name}_ratio", "ratio", "share", name), "ratio", f"{name}_share"),
        ]
    by = next(index for index, part in enumerate(spec) if part[2] == f"{clock}_self_ns")
    shown = table_of(words("sections.operators"), table, spec, key="operators", sorted_by=by)
    return words("about.operators"), [shown]


def kernels(report: ReportData, words: Words, links: Links) -> Content:
    """Return the table of kernels."""
    total = "gpu_total_ns"
    table = report.costs.means("kernels")
    if table.is_empty():
        return nothing_to_show(words, "no_kernels")
    table = _with_shares(table, total, "share").sort(total, descending=True, maintain_order=True)
    spec: Spec = [
        ("name", "text", linked_name("kernel", links)),
        (Column("calls", "number", "calls"), "number", "calls"),
        (Column("gpu_total", "ms", "total"), "ms", total),
        (Column("mean_dur", "ms", "mean"), "ms", _mean(total)),
        (Column("max_call", "ms", "max"), "ms", _maximum("kernel", links, "gpu")),
        (Column("gpu_ratio", "ratio", "share"), "ratio", "share"),
    ]
    shown = table_of(words("sections.kernels"), table, spec, key="kernels", sorted_by=2)
    return words("about.kernels"), [shown]


def _timed(value: str, metric: str, clock: str) -> tuple[Column, str, str]:
    return Column(value, "ms", metric, clock), "ms", f"{value}_ns"


def _mean(total: str) -> Callable[[Row], Cell]:
    return lambda row: cell(row[total] / row["calls"] if row["calls"] else None, "ms")


def _maximum(kind: str, links: Links, clock: str) -> Callable[[Row], Cell]:
    return lambda row: cell(links.maximum(kind, row["name"], clock), "ms")


def _with_shares(table: pl.DataFrame, column: str, name: str) -> pl.DataFrame:
    """Return ``table`` with each row's share of the sum of a column: float64, in [0, 1]."""
    return table.with_columns((pl.col(column) / (table[column].sum() or 1)).alias(name))


def efficiency(report: ReportData, words: Words, links: Links) -> Content:
    """Return the roofline and the table of operators by shape."""
    table = report.efficiency
    if table.is_empty():
        return nothing_to_show(words, "no_shapes")
    spec: Spec = [
        ("name", "text", linked_name("shape", links, lambda row: f"{row['name']} {row['shapes']}")),
        ("shapes", "text", "shapes"),
        ("dtype", "text", "dtype"),
        ("calls", "number", "calls"),
        ("operator_time", "ms", "time_ns"),
        ("flops_per_s", "TFLOP/s", "flops_per_s"),
        ("bytes_per_s", "GB/s", "bytes_per_s"),
        ("flops_per_byte", "number", "flops_per_byte"),
        ("roof_ratio", "ratio", "roof_ratio"),
        ("bound", "text", "bound"),
        ("above_roof", "ms", "above_roof_ns"),
    ]
    shown = [part for part in spec if not isinstance(part[2], str) or table[part[2]].count()]
    families = [key for key in words.texts["terms"] if key.startswith("family_")]
    chart = Chart("roofline", words("about.roofline"), height=420, terms=families)
    rows = table_of(words("sections.efficiency"), table, shown, key="efficiency")
    return words("about.efficiency"), [chart, rows]


def modules(report: ReportData, words: Words, links: Links) -> Content:
    """Return the tree of modules."""
    table = report.costs.module_means
    if table.filter((pl.col("depth") > 0) & (pl.col("name") != UNKNOWN)).is_empty():
        return nothing_to_show(words, "no_modules")
    return words("about.modules"), [
        Chart("modules", words("sections.modules"), "tree", 0, terms=MODULE_TERMS)
    ]


MODULE_TERMS = ("module_time", "module_self", "module_cpu", "module_gpu", "calls")
"""The terms of the numbers of a module."""
