"""The data of the charts of modules: trees, the work in each module, and trends over the step.

Times are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.modules.gaps import UNKNOWN
from ppprof.analysis.modules.module_tree import SEPARATOR
from ppprof.analysis.report_data.run import ReportData
from ppprof.report.html.links import Links

_MAX_MODULES = 20_000

_MAX_DEPTH = 60

_MAX_WORK = 50_000
"""Most rows of operators and kernels by module, of each run: those that take the most time."""

_MAX_TREND = 2000
"""Most modules of a trend."""

_VALUES = ("time", "self", "cpu", "gpu")
_WORK_VALUES = ("calls", "cpu_total", "cpu_self", "gpu_total", "gpu_self")


def milliseconds_of(values: Sequence[float | None] | pl.Series) -> list[float | None]:
    """Return nanoseconds as milliseconds, rounded to picoseconds."""
    return [None if value is None else round(value / 1e6, 6) for value in values]


def module_tree(report: ReportData, links: Links) -> dict[str, Any]:
    """Return the run's module tree in pre-order, and the work in each module.

    Returns:
        stage, depth, name and href (a link to the module's longest call, "" for none), one item per
        module; ``sides``: for ``experiment`` time, self, cpu, gpu (null for unknown) and calls; and
        ``work``: see `_work`.
    """
    table = _drawn(report.costs.module_means)
    paths = table["path"].to_list()
    return {
        **_names(table, paths, report, links),
        "sides": {"experiment": _times(table, "")},
        "work": {"experiment": _work(report.module_work, table["stage"], paths)},
    }


def module_changes(report: ReportData, diff: Diff, links: Links) -> dict[str, Any]:
    """Return the common module tree of baseline and experiment, in pre-order.

    Returns:
        As `module_tree`, with both sides; and status, delta_self and is_clear, one item per module.
    """
    table = _drawn(diff.modules_with_paths)
    works = {"baseline": report.baseline_module_work, "experiment": report.module_work}
    return {
        **_names(table, table["experiment_path"].to_list(), report, links),
        "status": table["status"].to_list(),
        "delta_self": milliseconds_of(table["delta_self_ns"]),
        "is_clear": table["is_clear"].to_list(),
        "sides": {side: _times(table, f"{side}_") for side in works},
        "work": {
            side: _work(work, table["stage"], table[f"{side}_path"].to_list())
            for side, work in works.items()
            if work is not None
        },
    }


def trend(diff: Diff) -> list[dict[str, Any]]:
    """Return the accumulated own times of both runs over the step, one entry for each stage.

    Returns:
        ``stage`` (null without stages); ``names``, ``baseline_ms`` and ``experiment_ms``, one item
        for each module in the order of the step, null for a module that the run lacks.
    """
    stages = diff.modules["stage"].unique(maintain_order=True).to_list()
    entries = []
    for stage in stages:
        modules = diff.modules.filter(
            pl.col("stage").eq_missing(pl.lit(stage, pl.Int64)), pl.col("depth") > 0
        ).head(_MAX_TREND)
        entries.append(
            {
                "stage": stage,
                "names": modules["name"].replace(UNKNOWN, "?").to_list(),
                "baseline_ms": milliseconds_of(modules["baseline_until_ns"]),
                "experiment_ms": milliseconds_of(modules["experiment_until_ns"]),
            }
        )
    return entries


def _drawn(table: pl.DataFrame) -> pl.DataFrame:
    return table.filter(pl.col("depth") < _MAX_DEPTH).head(_MAX_MODULES)


def _names(
    table: pl.DataFrame, paths: Sequence[str | None], report: ReportData, links: Links
) -> dict[str, Any]:
    ranks_of: dict[int | None, list[int]] = {}
    for rank, stage in report.cluster.steps.select("rank", "pp").unique().iter_rows():
        ranks_of.setdefault(stage, []).append(rank)
    stages = table["stage"].to_list()
    return {
        "stage": stages,
        "depth": table["depth"].to_list(),
        "name": table["name"].replace(UNKNOWN, "?").to_list(),
        "href": [
            links.to("module", path, ranks_of.get(stage)) if path else ""
            for path, stage in zip(paths, stages)
        ],
    }


def _times(table: pl.DataFrame, prefix: str) -> dict[str, Any]:
    times: dict[str, Any] = {
        value: milliseconds_of(table[f"{prefix}{value}_ns"]) for value in _VALUES
    }
    return {**times, "calls": table[f"{prefix}calls"].to_list()}


def _work(work: pl.DataFrame, stages: Iterable[Any], paths: Sequence[str | None]) -> dict[str, Any]:
    """Return the operators and kernels of each module, without those of the modules below it.

    Args:
        work: the result of `ppprof.analysis.report_data.operators_of_modules.mean_module_work`.
        stages: the stage of each drawn module.
        paths: the path of each drawn module; None for a module that the run lacks.

    Returns:
        ``names``, the distinct names; and one item per row of module (an index of the drawn
        modules), kind, name (an index of ``names``), calls, and the times. An undrawn module's work
        belongs to the module above it.
    """
    rows = {
        (stage, path): row
        for row, (stage, path) in enumerate(zip(stages, paths))
        if path is not None
    }
    has_stages = any(stage is not None for stage, _ in rows)

    def module_of(stage: int | None, path: str) -> int | None:
        stage = stage if has_stages else None
        while path and (stage, path) not in rows:
            path = path.rpartition(SEPARATOR)[0]
        return rows.get((stage, path))

    largest = work.sort(pl.max_horizontal("cpu_self_ns", "gpu_total_ns"), descending=True)
    largest = largest.head(_MAX_WORK)
    modules = [module_of(*key) for key in largest.select("stage", "path").iter_rows()]
    table = largest.with_columns(module=pl.Series(modules, dtype=pl.Int64)).drop_nulls("module")
    names = table["name"].unique(maintain_order=True).to_list()
    index = {name: number for number, name in enumerate(names)}
    data: dict[str, Any] = {
        "names": names,
        "module": table["module"].to_list(),
        "kind": table["kind"].to_list(),
        "name": [index[name] for name in table["name"]],
        "calls": [round(calls, 6) for calls in table["calls"]],
    }
    for value in _WORK_VALUES[1:]:
        data[value] = milliseconds_of(table[f"{value}_ns"])
    return data
