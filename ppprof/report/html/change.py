"""The section of the page on changes from the baseline."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.diff.significance import Change
from ppprof.analysis.report_data.run import ReportData
from ppprof.report.diff_rows import KINDS, MORE_IS_BETTER, RowSelection, select_rows
from ppprof.report.html.blocks import (
    MAX_ROWS,
    Block,
    Cell,
    Chart,
    Column,
    Note,
    Table,
    Tile,
    Tiles,
    cell,
    change,
    table_of,
)
from ppprof.report.html.words import Words
from ppprof.units import format_ratio

_MAX_DIFFERENCES = 12
"""Most differences in config and versions to list."""

OVERVIEW_KINDS = {"ns": "time", "per_s": "number", "bytes": "bytes", "ratio": "ratio"}
"""Kind of a number in the overview (a key of `FORMATS`), keyed by the number's unit."""


def change_section(report: ReportData, words: Words) -> tuple[str, Sequence[Block]] | None:
    """Return the introduction and the blocks of the section on changes from the baseline.

    The introduction is plain text. None if the report has no baseline.
    """
    diff = report.diff
    if diff is None:
        return None
    tables = select_rows(diff, RowSelection(limit=MAX_ROWS))
    basis = words(f"basis.{diff.step_times[1][1].replace(' ', '_')}")
    steps_label = words("about.change_steps", basis=basis)
    by_name = [
        block for view, kind in KINDS.items() for block in _by_name(diff, kind, tables[view], words)
    ]
    blocks: list[Block] = [
        Tiles(
            [
                Tile("verdict", _verdict(diff.change, words)),
                Tile("alike", format_ratio(diff.comparability.score)),
            ]
        ),
        *map(Note, diff.comparability.differences[:_MAX_DIFFERENCES]),
        _overview(tables["overview"], words),
        Chart("change_steps", steps_label, height=300),
        *by_name,
    ]
    if diff.modules.height > 1:
        blocks += [
            Chart("change_modules", words("about.change_modules"), "tree"),
            Chart("trend", words("about.trend"), height=300),
        ]
    return words("about.change", baseline=diff.baseline.what), blocks


def _verdict(change: Change, words: Words) -> str:
    verdict = words(f"verdicts.{change.verdict}")
    if change.ratio is None:
        return f"{verdict}: {change.reason}"
    if change.low is None or change.high is None:
        return f"{verdict}: {change.ratio:+.1%}; {change.reason}"
    text = words(
        "verdicts.interval",
        verdict=verdict,
        ratio=f"{change.ratio:+.1%}",
        low=f"{change.low:+.1%}",
        high=f"{change.high:+.1%}",
    )
    return f"{text}; {change.advice}" if change.advice else text


def _overview(table: pl.DataFrame, words: Words) -> Table:
    rows = []
    for row in table.rows(named=True):
        name = words.term(row["metric"])
        if row["unit"] == "text":
            texts = [name, row["baseline_text"] or "-", row["experiment_text"] or "-", "", ""]
            rows.append(list(map(Cell, texts)))
            continue
        kind, better = OVERVIEW_KINDS[row["unit"]], row["metric"] in MORE_IS_BETTER
        rows.append(
            [
                Cell(name, name),
                cell(row["baseline"], kind),
                cell(row["experiment"], kind),
                change(row["delta"], kind, better),
                change(row["delta_ratio"], "ratio", better),
            ]
        )
    terms = ("baseline", "experiment", "delta", "delta_ratio")
    columns = [Column("name"), *(Column(term, "number") for term in terms)]
    return Table(words("sections.change"), columns, rows)


def _by_name(diff: Diff, kind: str, table: pl.DataFrame, words: Words) -> list[Block]:
    title = words(f"sections.{kind}")
    if table.is_empty():
        if getattr(diff, kind).is_empty():
            return []
        nothing = words("page.nothing", reason=words("reasons.nothing_changed"))
        return [Note(f"{title}: {nothing}")]
    value = diff.sort_value(kind).removesuffix("_ns")
    return [
        table_of(
            title,
            table,
            [
                ("name", "text", "name"),
                ("status", "text", lambda row: Cell(_STATUS[row["status"]], row["status"])),
                ("baseline", "ms", f"baseline_{value}_ns"),
                ("experiment", "ms", f"experiment_{value}_ns"),
                ("delta", "ms", lambda row: change(row[f"delta_{value}_ns"], "ms")),
                ("delta_ratio", "ratio", lambda row: change(row[f"delta_ratio_{value}"], "ratio")),
                ("delta_noise", "ms", f"noise_{value}_ns"),
                ("delta_calls", "number", lambda row: change(row["delta_calls"], "number")),
            ],
        )
    ]


_STATUS = {"both": "", "new": "new", "gone": "gone"}
