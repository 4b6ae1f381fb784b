"""A comparison as data: the selected rows of each table, and the JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from ppprof.analysis.diff.diff import Diff, work_change
from ppprof.analysis.diff.gate import Outcome, rate_changes
from ppprof.analysis.diff.run_costs import VALUES
from ppprof.choices import DIFF_VIEWS

KINDS = {
    "line": "lines",
    "op": "operators",
    "kernel": "kernels",
    "dist": "collectives",
    "runtime": "runtime_calls",
    "shape": "operator_shapes",
}
"""The tables with one row per name: properties of `ppprof.analysis.diff.diff.Diff`, keyed by
view."""

MORE_IS_BETTER = ("ips", "tokens_per_s", "gpu_utilization")
"""Metrics of the overview of which an increase is an improvement."""

_OF_STEP_TIME = ("step_time", "step_time_median", "ips", "tokens_per_s")
"""The metrics of the overview that change as the step time does, but for rates of other batches."""

SCHEMA_VERSION = 2
"""Version of `diff_document`. It increases when older readers would misread the document."""

_MIN_SHARE_OF_STEP = 0.001


@dataclass(frozen=True)
class RowSelection:
    """Which tables and rows of a comparison to show.

    The filters apply to the tables of `KINDS` and to ``module``; ``overview`` and ``rank`` are
    always whole.
    """

    views: Sequence[str] = DIFF_VIEWS
    """The tables to show, from `DIFF_VIEWS`."""
    include_noise: bool = False
    """Whether to show changes within the noise as well."""
    limit: int | None = 20
    """Most rows of a printed table; None for all rows. `select_rows` ignores it."""
    min_delta_ns: float | None = None
    """Hide changes smaller than this per step. None means 0.1% of the baseline's mean step, and no
    lower limit with ``include_noise``. Names that only one run has are shown whatever their size,
    and all names with ``sort="calls"``."""
    pattern: str | None = None
    """A regular expression that must match somewhere in a name; None for all names."""
    sort: str | None = None
    """The value to sort the tables of `KINDS` by, such as ``cpu_total``. None sorts each as
    `ppprof.analysis.diff.diff.Diff.sort_value` says. So does a value that the table does not
    have."""


def select_rows(diff: Diff, selection: RowSelection) -> dict[str, pl.DataFrame]:
    """Return the selected tables of a comparison, keyed by view, in the order of `DIFF_VIEWS`.

    Rows are filtered by the selection; ``selection.limit`` is not applied.
    """
    if selection.min_delta_ns is None:
        step_ns = diff.baseline.steps["step_ns"].cast(pl.Float64).mean()
        if selection.include_noise or not isinstance(step_ns, float):
            min_delta_ns = 0.0
        else:
            min_delta_ns = _MIN_SHARE_OF_STEP * step_ns
        selection = replace(selection, min_delta_ns=min_delta_ns)
    tables: dict[str, pl.DataFrame] = {}
    if "overview" in selection.views:
        tables["overview"] = diff.overview
    if "rank" in selection.views:
        tables["rank"] = diff.ranks
    for view, kind in KINDS.items():
        if view in selection.views:
            key = sort_key(diff, view, selection)
            rows = diff.by_name(kind, key)
            tables[view] = _changed_rows(rows, key, selection, diff.sure_from)
    if "module" in selection.views:
        tables["module"] = _changed_branches(diff.modules, selection, diff.sure_from)
    return tables


def is_clear_in_overview(diff: Diff, metric: str, delta: float | None) -> bool:
    """Return whether the change of a metric in the overview is significant; False if unknown."""
    for rate in rate_changes(diff):
        if rate.metric == metric:
            return rate.verdict in ("higher", "lower")
    if metric in _OF_STEP_TIME:
        return diff.change.verdict in ("faster", "slower")
    noise = diff.noise_of(metric)
    return noise is not None and delta is not None and abs(delta) >= diff.sure_from * noise


def num_left_out(diff: Diff, view: str, shown: pl.DataFrame, selection: RowSelection) -> int:
    """Return the number of names that match the pattern, have changed, and are not shown.

    What counts is the change of the value that sorts the table, for modules that of the own
    time. ``shown`` is the result of `select_rows` for the view.
    """
    if view == "module":
        table, key = diff.modules, "self_ns"
    else:
        table, key = getattr(diff, KINDS[view]), sort_key(diff, view, selection)
    has_changed = pl.col(f"delta_{key}") != 0
    before, after = (_changed(rows, selection).filter(has_changed) for rows in (table, shown))
    return before.height - after.height


def sort_key(diff: Diff, view: str, selection: RowSelection) -> str:
    """Return the column to sort a table by, such as ``cpu_self_ns``.

    ``selection.sort`` counts if the table has such a column, else the default of the table.
    """
    for value in VALUES[KINDS[view]]:
        if selection.sort is not None and value.removesuffix("_ns") == selection.sort:
            return value
    return diff.sort_value(KINDS[view])


def _changed(table: pl.DataFrame, selection: RowSelection) -> pl.DataFrame:
    """Return the rows that changed at all (modules: whose own time did) and whose name matches the pattern."""
    if "depth" in table.columns:
        changed = table.filter((pl.col("depth") > 0) & (pl.col("delta_self_ns") != 0))
    else:
        deltas = [
            name for name in table.columns if name.startswith("delta_") and "_ratio_" not in name
        ]
        changed = table.filter(pl.any_horizontal(pl.col(deltas) != 0))
    if selection.pattern:
        changed = changed.filter(pl.col("name").str.contains(selection.pattern))
    return changed


def _has_other_calls(sure_from: float) -> pl.Expr:
    """Return whether one run has no call, or the numbers differ by more than where windows cut a period of calls."""
    delta = pl.col("delta_calls").abs()
    is_clear = (delta >= sure_from * pl.col("noise_calls")).fill_null(value=True)
    return (delta > 0) & (is_clear | (pl.col("status") != "both"))


def _changed_rows(
    table: pl.DataFrame, key: str, selection: RowSelection, sure_from: float
) -> pl.DataFrame:
    delta = pl.col(f"delta_{key}").abs()
    changed = _changed(table, selection)
    if not selection.include_noise:
        # A changed number of calls is shown whatever the noise of the time; so is a change of unknown noise, but of
        # samples: in one step, they are chance.
        is_sampled = "delta_calls" not in table.columns
        shown = pl.col("is_clear").fill_null(not is_sampled)
        changed = changed.filter(shown if is_sampled else shown | _has_other_calls(sure_from))
    if selection.min_delta_ns and key != "calls":
        changed = changed.filter((delta >= selection.min_delta_ns) | (pl.col("status") != "both"))
    return changed


def _changed_branches(
    modules: pl.DataFrame, selection: RowSelection, sure_from: float
) -> pl.DataFrame:
    """Return the selected modules whose own time changed, and the modules that contain them, in pre-order."""
    delta = pl.col("delta_self_ns").abs()
    is_chosen = (delta > 0) & (delta >= (selection.min_delta_ns or 0.0))
    if not selection.include_noise:
        is_chosen &= pl.col("is_clear").fill_null(True) | (pl.col("status") != "both")
    if selection.pattern:
        is_chosen &= pl.col("name").str.contains(selection.pattern)
    chosen = modules.select(is_chosen.fill_null(False)).to_series().to_list()
    depths = modules["depth"].to_list()
    keep, wanted_depth = [False] * len(depths), -1
    for row in range(len(depths) - 1, -1, -1):  # rows are in pre-order: children follow parents
        if chosen[row] or depths[row] < wanted_depth:
            keep[row], wanted_depth = True, depths[row]
    return modules.filter(pl.Series(keep, dtype=pl.Boolean))


def _work(diff: Diff) -> dict[str, Any]:
    change = work_change(diff)
    return {
        "flops_ratio": change.flops_ratio,
        "dims": None
        if change.dims is None
        else dict(zip(("from", "to", "operators"), change.dims)),
        "slower": None
        if change.slower is None
        else dict(zip(("name", "delta_ratio"), change.slower)),
        "dtypes": None if change.dtypes is None else dict(zip(("from", "to"), change.dtypes)),
    }


def diff_document(
    diff: Diff, selection: RowSelection, outcomes: Sequence[Outcome] = ()
) -> dict[str, Any]:
    """Return a comparison as JSON-compatible values: times in ns, ratios as fractions.

    ``selection.limit`` is not applied.
    """
    change, comparability = diff.change, diff.comparability
    return {
        "schema_version": SCHEMA_VERSION,
        "baseline": diff.baseline.what,
        "experiment": diff.experiment.what,
        "step_time": {
            "verdict": change.verdict,
            "ratio": change.ratio,
            "low": change.low,
            "high": change.high,
            "baseline_steps": change.baseline_steps,
            "experiment_steps": change.experiment_steps,
            "is_separated": change.is_separated,
            "needed_steps": change.deciding_steps,
            "growth_ns": list(change.growth_ns),
            "steps_are": [words for _, words in diff.samples],
        },
        "rates": [rate._asdict() for rate in rate_changes(diff)],
        "comparability": {
            "score": comparability.score,
            "shares": dict(comparability.shares),
            "differences": list(comparability.differences),
        },
        "work": _work(diff),
        "rules": [outcome._asdict() for outcome in outcomes],
        "tables": {
            view: table.rows(named=True) for view, table in select_rows(diff, selection).items()
        },
    }
