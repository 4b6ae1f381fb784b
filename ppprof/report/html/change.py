"""The section of the page on changes from the baseline."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.diff.run_costs import VALUES
from ppprof.analysis.diff.significance import BETWEEN_RUNS
from ppprof.analysis.profile.module_tree import OCCURRENCE, SEPARATOR, UNKNOWN
from ppprof.analysis.profile.step_basis import LEAST_STEPS, RECORDED
from ppprof.analysis.report_data.report import ReportData
from ppprof.report.columns import Column, Row, Source
from ppprof.report.diff_rows import (
    KINDS,
    MORE_IS_BETTER,
    RowSelection,
    is_clear_in_overview,
    num_left_out,
    select_rows,
)
from ppprof.report.html.blocks import (
    MAX_ROWS,
    Block,
    Cell,
    Chart,
    Lane,
    Note,
    PlacedChange,
    PlacedChanges,
    Table,
    Tile,
    Tiles,
    Words,
    cell,
    change,
    table_of,
)
from ppprof.report.html.links import Links, linked_name
from ppprof.units import format_ratio, format_time

_SIDES = ("baseline", "experiment")

_SELECTION = RowSelection(limit=MAX_ROWS)
"""The rows of the tables with one row per name."""

_MOST_CHANGES = 3
_LEAST_CHANGE = 0.01
"""Share of a step. Smaller changes are not among the biggest."""

_MAX_DIFFERENCES = 12
"""Most differences in config and versions to list."""

MODULE_TERMS = ("module_passes", "module_time", "module_self", "module_cpu", "module_gpu", "calls")
"""The terms of the numbers of a module."""

OVERVIEW_KINDS = {"ns": "time", "per_s": "number", "bytes": "bytes", "ratio": "ratio"}
"""Kind of a number in the overview (a key of `ppprof.report.columns.PAGE`), keyed by the number's unit."""


def change_section(
    report: ReportData, words: Words, links: Links
) -> tuple[str, Sequence[Block]] | None:
    """Return the introduction and the blocks of the section on changes from the baseline.

    The introduction is plain text. None if the report has no baseline.
    """
    diff = report.diff
    if diff is None:
        return None
    tables = select_rows(diff, _SELECTION)
    bases = dict.fromkeys(sample.basis for sample in diff.samples)
    basis = ", ".join(words(f"basis.{each.replace(' ', '_')}") for each in bases)
    steps_label = words("about.change_steps", basis=basis)
    differences = [*diff.comparability.differences[:_MAX_DIFFERENCES]]
    num_left_out = len(diff.comparability.differences) - len(differences)
    if num_left_out:
        differences.append(words("about.more_differences", num=num_left_out))
    by_name = [
        block for view in KINDS for block in _by_name(diff, view, tables[view], words, links)
    ]
    unrecorded = [
        words(f"about.unrecorded_{side}") for side in _SIDES if side == diff.unrecorded_side
    ]
    blocks: list[Block] = [
        Tiles(
            [
                Tile("verdict", verdict_text(diff, words)),
                Tile("alike", format_ratio(diff.comparability.score)),
            ]
        ),
        *map(Note, [*unrecorded, *differences]),
        _overview(diff, words),
        Chart("change_steps", steps_label, height=300, terms=_SIDES),
    ]
    if diff.modules.height > 1:
        tree = Chart("change_modules", words("about.change_modules"), "tree", 0, MODULE_TERMS)
        trend = Chart("trend", words("about.trend"), "trend", 300, (*_SIDES, "delta"))
        blocks += [tree, trend]
    if report.flame_changes.height:
        terms = (*MODULE_TERMS, *_SIDES, "delta", "delta_ratio")
        blocks.append(Chart("change_flame", words("about.change_flame"), "flame", 0, terms))
    return words("about.change", baseline=diff.baseline.what), [*blocks, *by_name]


def biggest_changes(report: ReportData, words: Words, links: Links) -> Iterator[PlacedChanges]:
    """Yield the clear changes of modules' own times that are largest, with their places in a step.

    The places are those of an average step: modules stand in the order in which they begin, each with
    its own time, as in the columns Until of ``ppprof diff --views module``. Changes of less than
    `_LEAST_CHANGE` are left out. Nothing without a baseline.
    """
    if report.diff is None:
        return
    modules = report.diff.modules_with_paths
    whole = _whole_steps(modules)
    least_ns = _LEAST_CHANGE * max(whole.values(), default=0)
    is_large = pl.col("is_clear") & (pl.col("delta_self_ns").abs() >= least_ns)
    clear = modules.filter(is_large & (pl.col("depth") > 0))
    largest = clear.sort(pl.col("delta_self_ns").abs(), descending=True, maintain_order=True)
    changes = [
        PlacedChange(
            _title(row, words),
            dataclasses.replace(
                change(row["delta_self_ns"], "time"),
                href=links.to("module", row["experiment_path"]) if row["experiment_path"] else "",
            ),
            [_lane(row, side, whole[row["stage"]], words) for side in _SIDES],
        )
        for row in largest.head(_MOST_CHANGES).rows(named=True)
    ]
    if changes:
        yield PlacedChanges(words("about.biggest"), changes)


def _whole_steps(modules: pl.DataFrame) -> Mapping[int | None, int]:
    """Return the length of the longer of both runs' steps, keyed by stage."""
    ends = pl.max_horizontal(
        pl.col(f"{side}_{value}") for side in _SIDES for value in ("time_ns", "until_ns")
    )
    return dict(modules.group_by("stage").agg(ends.max().ceil().cast(pl.Int64)).iter_rows())


def _lane(row: Row, side: str, whole: int, words: Words) -> Lane:
    end, own = row[f"{side}_until_ns"], row[f"{side}_self_ns"]
    pieces = [("", whole)]
    if end is not None:
        before, length = round(end - own), max(1, round(own))
        pieces = [("", before), (side, length), ("", max(0, whole - before - length))]
    return Lane(words.term(side), "", pieces)


def _title(row: Row, words: Words) -> str:
    """Return a module's name with those of the modules around it: ``GPT > Block 2``."""
    names = []
    for node in (row["experiment_path"] or row["baseline_path"]).split(SEPARATOR):
        name, _, number = node.partition(OCCURRENCE)
        again = f" {int(number) + 1}" if number.isdigit() and int(number) else ""
        names.append(words("about.between") if name == UNKNOWN else f"{name}{again}")
    stage = "" if row["stage"] is None else words("page.stage", stage=row["stage"]) + ": "
    return stage + " > ".join(names)


def verdict_text(diff: Diff, words: Words) -> str:
    """Return whether the step time changed, with the interval of the change."""
    change = diff.change
    verdict = words(f"verdicts.{change.verdict}")
    if change.ratio is None:
        return words("verdicts.unknown", verdict=verdict, reason=_reason(diff, words))
    ratio = f"{change.ratio:+.1%}"
    if change.low is None or change.high is None:
        reason = _reason(diff, words)
        return words("verdicts.no_interval", verdict=verdict, ratio=ratio, reason=reason)
    low, high = f"{change.low:+.1%}", f"{change.high:+.1%}"
    text = words("verdicts.interval", verdict=verdict, ratio=ratio, low=low, high=high)
    for side, time_ns in zip(_SIDES, change.growth_ns):
        if time_ns is not None:
            time = f"{'+' if time_ns > 0 else ''}{format_time(time_ns)}"
            text = words("verdicts.growth", text=text, side=words.term(side).lower(), time=time)
    if not change.advice:
        return text
    key = "more_steps" if change.needed_steps is not None else "quieter"
    noise = f"{change.noise:.1%}"
    if change.is_within_runs:
        key, noise = "within_runs", f"{BETWEEN_RUNS:.0%}"
    advice = words(f"verdicts.{key}", num=change.needed_steps, noise=noise)
    return words("verdicts.and_advice", text=text, advice=advice)


def _reason(diff: Diff, words: Words) -> str:
    """Return why there is no interval: `Change.reason` in the page's language."""
    change = diff.change
    num = min(change.baseline_steps, change.experiment_steps)
    bases = [basis for _, basis in diff.samples]
    if num == 0:
        return words("verdicts.no_steps")
    if change.ratio is None:
        return words("verdicts.no_time")
    if change.ratio == -1:
        return words("verdicts.no_time_experiment")
    if num < LEAST_STEPS:
        return words("verdicts.few_steps", num=num, least=LEAST_STEPS)
    if bases.count(RECORDED) == 1:
        one, other = (words(f"basis.{basis.replace(' ', '_')}") for basis in bases)
        return words("verdicts.other_basis", baseline=one, experiment=other)
    loaded = [load is not None and load.is_disturbed for load in diff.loads]
    if diff.change.reason == diff.disturbance and any(loaded):
        key = "loaded" if all(loaded) else f"loaded_{('baseline', 'experiment')[loaded[1]]}"
        shares = (format_ratio(load.others_ratio) if load else "" for load in diff.loads)
        return words(f"verdicts.{key}", **dict(zip(("baseline", "experiment"), shares)))
    return words("verdicts.unlike", score=format_ratio(diff.comparability.score))


def _overview(diff: Diff, words: Words) -> Table:
    rows = []
    # What both runs have comes first, then what only one has; ratios last.
    in_order = sorted(
        diff.overview.rows(named=True),
        key=lambda row: (row["unit"] == "ratio", row["delta"] is None),
    )
    for row in in_order:
        name = words.term(row["metric"])
        if row["unit"] == "text":
            texts = [name, row["baseline_text"] or "-", row["experiment_text"] or "-", "", ""]
            rows.append(list(map(Cell, texts)))
            continue
        if not row["baseline"] and not row["experiment"]:
            continue
        kind, better = OVERVIEW_KINDS[row["unit"]], row["metric"] in MORE_IS_BETTER
        is_clear = is_clear_in_overview(diff, row["metric"], row["delta"])
        numbers = [
            cell(row["baseline"], kind),
            cell(row["experiment"], kind),
            change(row["delta"], kind, better, is_clear=is_clear),
            change(row["delta_ratio"], "ratio", better, is_clear=is_clear),
        ]
        with_units = (dataclasses.replace(number, is_text=True) for number in numbers)
        rows.append([Cell(name, name), *with_units])
    terms = ("baseline", "experiment", "delta", "delta_ratio")
    columns = [Column("", term="name"), *(Column("", "number", term=term) for term in terms)]
    return Table(words("sections.change"), columns, rows, key="change")


def _by_name(diff: Diff, view: str, table: pl.DataFrame, words: Words, links: Links) -> list[Block]:
    kind = KINDS[view]
    title = words(f"sections.{kind}")
    if table.is_empty():
        if getattr(diff, kind).is_empty():
            return []
        nothing = words("page.nothing", reason=words("reasons.nothing_changed"))
        return [Note(f"{title}: {nothing}")]
    columns = [
        Column(linked_name(_TARGETS[view], links), term="name"),
        Column(lambda row: _status(row, words), term="status"),
    ]
    by = diff.sort_value(kind)
    for value in VALUES[kind]:
        if value == by or _is_used(table, value):
            columns += _sub_columns(value, diff.sure_from)
    shown = by.removesuffix("_ns")
    sort_column = next(
        index
        for index, column in enumerate(columns)
        if (column.metric, column.term) == (shown, "delta")
    )
    whole = table_of(
        *(title, table, columns),
        key=f"change_{kind}",
        shown_metric=shown,
        sorted_by=sort_column,
    )
    blocks: list[Block] = [whole]
    num = num_left_out(diff, view, table, _SELECTION)
    return [*blocks, Note(words("about.unchanged", num=num))] if num else blocks


def _status(row: Row, words: Words) -> str:
    """Return whether only one run has a row: ``new`` or ``gone`` in the page's language, else ""."""
    return "" if row["status"] == "both" else words(f"page.status_{row['status']}")


def _is_used(table: pl.DataFrame, value: str) -> bool:
    return any(table[f"{side}_{value}"].sum() for side in ("baseline", "experiment"))


def _sub_columns(value: str, sure_from: float) -> list[Column]:
    """Return the columns of one value of both runs: baseline, experiment, delta, ratio and noise."""
    metric = value.removesuffix("_ns")
    kind = "ms" if value.endswith("_ns") else "number"
    of = {"time": "operator_time", "total": "collective_total"}.get(metric, metric)

    def changed(name: str, kind: str) -> Source:
        def cell_of(row: Row) -> Cell:
            delta, noise = row[f"delta_{value}"], row[f"noise_{value}"]
            is_clear = noise is not None and abs(delta) >= sure_from * noise
            return change(row[name], kind, is_clear=is_clear)

        return cell_of

    sources: dict[str, tuple[Source, str]] = {
        "baseline": (f"baseline_{value}", kind),
        "experiment": (f"experiment_{value}", kind),
        "delta": (changed(f"delta_{value}", kind), kind),
        "delta_ratio": (changed(f"delta_ratio_{metric}", "ratio"), "ratio"),
        "delta_noise": (f"noise_{value}", kind),
    }
    return [
        Column(source, kind, term=term, metric=metric, of=of)
        for term, (source, kind) in sources.items()
    ]


_TARGETS = {
    "line": "",
    "op": "operator",
    "kernel": "kernel",
    "dist": "collective",
    "runtime": "",
    "shape": "shape",
}
"""The kind of target (`ppprof.analysis.report_data.link_targets.TARGETS`) of a table's names, keyed by view."""
