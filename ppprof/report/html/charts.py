"""The data of the page's charts, as plain numbers from `ReportData`: of steps, ranks and modules.

Times are in milliseconds, except for spans, whose times are in nanoseconds. Sizes are in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.diff.run_costs import metric_of
from ppprof.analysis.efficiency.operator_work import FAMILIES, family_of
from ppprof.analysis.profile.module_tree import OCCURRENCE, SEPARATOR, UNKNOWN
from ppprof.analysis.ranks.collectives import to_reference_clock
from ppprof.analysis.ranks.step_table import own_time
from ppprof.analysis.report_data.report import ReportData
from ppprof.report.html.blocks import Words
from ppprof.report.html.links import Links
from ppprof.report.html.sections import HEAT_TERMS, SHARE_TERMS, has_pipeline, label, typical_step

_MAX_STEPS = 2000
"""Most steps of a chart of steps; the last steps are kept."""

_MAX_CELLS = 60_000
"""Most cells of each heat map; the last steps are kept."""

_MAX_POINTS = 1000
"""Most operators of the roofline: those with the most time above it."""


def chart_data(report: ReportData, words: Words, links: Links) -> dict[str, Any]:
    """Return the input of each chart's script, keyed by chart name.

    None for a chart without data. The charts of the comparison are missing without a baseline, those
    of traces for a run with step times only.
    """
    data: dict[str, Any] = {"times": _times(report), "heat": _heat(report, links)}
    if report.has_traces:
        data.update(
            steps=_steps(report, links),
            phases=_phases(report),
            communication=_communication(report, links),
            pipeline=_pipeline(report, words) if has_pipeline(report) else None,
            roofline=_roofline(report, links),
            modules=module_tree(report, links),
            flame=_flame(report, links),
            memory=_memory(report),
        )
    if report.diff is not None:
        data["change_modules"] = module_changes(report, report.diff, links)
        data["change_flame"] = _flame_changes(report, links)
        data["trend"] = trend(report.diff)
        data["change_steps"] = _change_steps(report)
    return data


def _parts(report: ReportData) -> list[tuple[str, str, str]]:
    """Return (column, term, axis) of each part of a step that is not 0, in the columns' order.

    The axis is "" for parts other than exposed communication.
    """
    parts = []
    for column in report.cluster.steps.columns:
        if column.startswith("exposed_"):
            axis = column[len("exposed_") : -len("_ns")]
            parts.append((column, "exposed", axis))
        elif metric_of(column) in SHARE_TERMS and report.cluster.steps[column].sum():
            parts.append((column, metric_of(column), ""))
    return parts


def _steps(report: ReportData, links: Links) -> dict[str, Any] | None:
    parts = _parts(report)
    if not parts:
        return None
    # A rank without device events lacks some parts; 0 there keeps the sum of all parts.
    means = (
        report.cluster.steps.filter(pl.col("rest_ns").is_not_null())
        .group_by("step")
        .agg(
            pl.col("step_ns").mean(),
            *(pl.col(column).fill_null(0).mean() for column, _, _ in parts),
        )
        .sort("step")
        .tail(_MAX_STEPS)
    )
    return {
        "steps": means["step"].to_list(),
        "step_ms": milliseconds_of(means["step_ns"]),
        "hrefs": [links.to_step(step=step) for step in means["step"]],
        "parts": [
            {"term": term, "axis": axis, "ms": milliseconds_of(means[column])}
            for column, term, axis in parts
        ],
    }


def _times(report: ReportData) -> dict[str, Any] | None:
    if report.step_times.is_empty():
        return None
    table = report.step_times.filter(rank=report.step_times["rank"][0]).tail(_MAX_STEPS)
    return {
        "steps": table["step"].to_list(),
        "step_ms": milliseconds_of(table["batch_cost_ns"]),
        "reader_ms": milliseconds_of(table["reader_cost_ns"]),
        "recorded": table["window"].is_not_null().to_list(),
        "lines": table.select(pl.coalesce("slow_line", "slow_inner_line")).to_series().to_list(),
    }


def _phases(report: ReportData) -> dict[str, Any] | None:
    if report.phases.is_empty():
        return None
    means = report.phases.group_by("name", maintain_order=True).agg(
        pl.col("cpu_ns", "gpu_ns").mean()
    )
    return {
        "names": means["name"].to_list(),
        "cpu_ms": milliseconds_of(means["cpu_ns"]),
        "gpu_ms": milliseconds_of(means["gpu_ns"]) if means["gpu_ns"].sum() else None,
    }


def _heat(report: ReportData, links: Links) -> dict[str, Any] | None:
    steps = _heat_steps(report)
    numbers = list(report.steps)[-max(1, _MAX_CELLS // max(len(report.ranks), 1)) :]
    columns = {term: "step_ns" if term == "one_step" else f"{term}_ns" for term in HEAT_TERMS}
    cells = steps.select("rank").unique().join(pl.DataFrame({"step": numbers}), how="cross")
    filled = cells.join(steps, on=["rank", "step"], how="left").sort("rank", "step")
    metrics = {
        term: [
            milliseconds_of(part)
            for part in filled[column].reshape((len(report.ranks), -1)).to_list()
        ]
        for term, column in columns.items()
        if column in filled.columns and filled[column].sum()
    }
    if not metrics:
        return None
    slow = set()
    if report.has_traces:
        slow = set(report.typical_cluster.slow_ranks.filter("is_slow")["rank"])
    topology = report.cluster.topology
    axes = (
        [axis for axis in topology.order if topology.degree(axis) > 1]
        if topology is not None
        else []
    )
    return {
        "ranks": [
            {
                "label": ("▲ " if rank in slow else "") + label(report, rank),
                "at": dict(topology.coordinate(rank))
                if topology is not None and rank < topology.world_size
                else {},
                "hrefs": [links.to_step(rank, step) for step in numbers]
                if rank in report.details
                else [],
            }
            for rank in report.ranks
        ],
        "axes": axes,
        "steps": numbers,
        "metrics": metrics,
    }


def _heat_steps(report: ReportData) -> pl.DataFrame:
    """Return rank, step, and a column for each number of the heat map that is known."""
    if not report.has_traces:
        return report.step_times.select(
            "rank", "step", "reader_cost_ns", step_ns=pl.col("batch_cost_ns")
        )
    return report.cluster.steps.with_columns(
        own_ns=own_time(report.cluster.steps),
        exposed_communication_ns=pl.when(pl.col("rest_ns").is_not_null()).then(
            pl.sum_horizontal(pl.lit(0, pl.Int64), "^exposed_.*_ns$")
        ),
    )


def _communication(report: ReportData, links: Links) -> dict[str, Any] | None:
    steps = report.typical_cluster.steps
    axes = [
        name[len("communication_") : -3]
        for name in steps.columns
        if name.startswith("communication_")
    ]
    if not axes:
        return None

    def means(part: str) -> list[float | None]:
        return milliseconds_of([_mean(steps[f"{part}_{axis}_ns"]) for axis in axes])

    return {
        "axes": axes,
        "hrefs": [links.to_axis(axis) for axis in axes],
        "exposed_ms": means("exposed"),
        "hidden_ms": means("hidden"),
    }


def _mean(values: pl.Series) -> float | None:
    mean = values.mean()
    return float(mean) if isinstance(mean, (int, float)) else None


def _spans(table: pl.DataFrame, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the input of ``lanes.js``: the rows, and one list for each property of the spans.

    ``table`` has row (an index of ``rows``), start_ns, end_ns, name and category of each span.

    Returns:
        ``rows`` unchanged; ``row``, ``start`` and ``dur``, each with one item per span, times in
        ns, starting at 0; ``names`` and ``categorys``, the distinct texts; ``name`` and
        ``category``, an index of these texts per span.
    """
    origin = int(table["start_ns"].to_numpy().min()) if table.height else 0
    table = table.sort("row", "start_ns")
    data: dict[str, Any] = {"rows": rows, "row": table["row"].to_list()}
    for name in ("name", "category"):
        texts = table[name].unique(maintain_order=True)
        codes = pl.DataFrame({name: texts}).with_row_index("code")
        data[f"{name}s"] = texts.to_list()
        data[name] = table.join(codes, on=name, how="left", maintain_order="left")["code"].to_list()
    data["start"] = (table["start_ns"] - origin).to_list()
    data["dur"] = (table["end_ns"] - table["start_ns"]).to_list()
    return data


def _pipeline(report: ReportData, words: Words) -> dict[str, Any]:
    """Return the passes and bubbles of the typical step as spans for ``lanes.js``: a row a rank, by stage, then rank."""
    step = typical_step(report)
    rows: list[dict[str, str]] = []
    parts = []
    stages = dict(report.cluster.steps.select("rank", "pp").iter_rows())
    passes = {part["rank"][0]: part for part in report.cluster.passes if part.height}
    bubbles_of = {part["rank"][0]: part for part in report.cluster.bubbles if part.height}
    drawn = sorted(
        set(report.details) & set(passes) & set(bubbles_of),
        key=lambda rank: (stages.get(rank) or 0, rank),
    )
    for rank in drawn:
        step_passes = passes[rank].filter(
            (pl.col("step") == step) & pl.col("kind").is_in(["forward", "backward"])
        )
        bubbles = bubbles_of[rank].filter(pl.col("step") == step)
        parts.append(
            to_reference_clock(bubbles, report.cluster.clocks).select(
                pl.lit(len(rows), pl.Int64).alias("row"),
                "start_ns",
                "end_ns",
                name=pl.lit(words.term("bubble")),
                category=pl.lit("Bubble"),
            )
        )
        parts.append(
            to_reference_clock(step_passes, report.cluster.clocks).select(
                pl.lit(len(rows), pl.Int64).alias("row"),
                "start_ns",
                "end_ns",
                name=pl.col("kind").replace({"forward": "F", "backward": "B"})
                + pl.col("micro_batch").cast(pl.String)
                + pl.when(pl.col("chunk") > 0)
                .then(pl.lit(".") + pl.col("chunk").cast(pl.String))
                .otherwise(pl.lit("")),
                category=pl.col("kind").str.to_titlecase(),
            )
        )
        rows.append({"label": label(report, rank), "group": ""})
    return _spans(pl.concat(parts), rows)


def _roofline(report: ReportData, links: Links) -> dict[str, Any] | None:
    """Return the operators that compute, as points by family, and the roof of each dtype, in FLOP/s and bytes/s."""
    table = report.efficiency.filter((pl.col("flops") > 0) & (pl.col("bytes") > 0))
    table = table.head(_MAX_POINTS)
    if table.is_empty():
        return None
    families: dict[str, list[list[Any]]] = {}
    for row in table.rows(named=True):
        point = [
            *(row["flops_per_byte"], row["flops_per_s"], row["time_ns"] / 1e6),
            f"{row['name']} {row['shapes']} {row['dtype'] or ''}",
            links.to("shape", f"{row['name']} {row['shapes']}"),
        ]
        families.setdefault(family_of(row["name"]), []).append(point)
    return {
        "families": [
            {"term": f"family_{family}", "points": families[family]}
            for family in FAMILIES
            if family in families
        ],
        "bytes_per_s": report.roof.bytes_per_s,
        "peaks": report.roof.lines(table["dtype"].drop_nulls()),
    }


def _change_steps(report: ReportData) -> dict[str, Any]:
    assert report.diff is not None
    sides = {}
    for side, (times, _) in zip(("baseline", "experiment"), report.diff.samples):
        means = times.group_by("step").agg(pl.col("step_ns").mean()).sort("step").tail(_MAX_STEPS)
        sides[side] = {"steps": means["step"].to_list(), "ms": milliseconds_of(means["step_ns"])}
    return sides


def _memory(report: ReportData) -> list[dict[str, Any]]:
    entries = []
    for rank, details in report.details.items():
        levels = details.memory.levels
        peaks = {peak.place: peak for peak in details.memory.peaks}
        for (place,), table in sorted(levels.group_by("place"), key=lambda group: str(group[0])):
            origin = int(table["time_ns"][0])
            peak = peaks[str(place)]
            entries.append(
                {
                    "label": f"{label(report, rank)} · {place}",
                    "ms": milliseconds_of(table["time_ns"] - origin),
                    "allocated": table["allocated_bytes"].to_list(),
                    "reserved": table["reserved_bytes"].to_list(),
                    "peak": [(peak.time_ns - origin) / 1e6, peak.allocated_bytes],
                }
            )
    return sorted(entries, key=lambda entry: -entry["peak"][1])


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
        stage, depth, name, href (a link to the module's longest call, "" for none) and passes (the
        other rows of the module: its gradients, or its forward), one item per module; ``sides``: for ``experiment`` time, self, cpu, gpu (null for unknown) and calls; and
        ``work``: see `_work`.
    """
    table = _drawn(report.costs.module_means)
    paths = table["path"].to_list()
    return {
        **_names(table, paths, report, links),
        "sides": {"experiment": _module_times(table, "")},
        "work": {"experiment": _work(report.module_work, table["stage"], paths)},
    }


def _flame(report: ReportData, links: Links) -> dict[str, Any] | None:
    """Return the flame graph in pre-order, in the form of `module_tree`, and the samples of each node."""
    table = report.flame
    if table.is_empty():
        return None
    return {
        **_flame_nodes(table, links),
        "samples": table["samples"].to_list(),
        "sides": {"experiment": _flame_times(table, "")},
    }


def _flame_changes(report: ReportData, links: Links) -> dict[str, Any] | None:
    """Return the flame graphs of both runs as one, in the form of `module_changes`."""
    table = report.flame_changes
    if table.is_empty():
        return None
    return {
        **_flame_nodes(table, links),
        "status": table["status"].to_list(),
        "delta_self": milliseconds_of(table["delta_self_ns"]),
        "is_clear": table["is_clear"].to_list(),
        "sides": {side: _flame_times(table, f"{side}_") for side in ("baseline", "experiment")},
    }


def _flame_nodes(table: pl.DataFrame, links: Links) -> dict[str, Any]:
    spans = table.select("rank", "start_ns", "end_ns").rows()
    return {
        "stage": [None] * table.height,
        "depth": table["depth"].to_list(),
        "name": table["name"].to_list(),
        "href": ["" if span[0] is None else links.to_times(*span) for span in spans],
        "passes": [[]] * table.height,
    }


def _flame_times(table: pl.DataFrame, prefix: str) -> dict[str, Any]:
    times = {name: milliseconds_of(table[f"{prefix}{name}_ns"]) for name in ("time", "self")}
    return times | dict.fromkeys(("cpu", "gpu", "calls"), [None] * table.height)


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
        "sides": {side: _module_times(table, f"{side}_") for side in works},
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
        "passes": _passes(stages, paths),
    }


def _passes(stages: Sequence[int | None], paths: Sequence[str | None]) -> list[list[int]]:
    r"""Return the other rows of each row's module: of a module its gradients, and the other way round.

    >>> _passes([None] * 3, ["Net\x1e0", "Backward\x1e0\x1fNet\x1e0", "Backward\x1e0"])
    [[1], [0], []]
    """
    rows: dict[Any, list[int]] = {}
    keys: list[Any] = []
    for row, (stage, path) in enumerate(zip(stages, paths)):
        nodes = (path or "").split(SEPARATOR)
        own = [node for node in nodes if node.partition(OCCURRENCE)[0] != "Backward"]
        keys.append((stage, *own) if path and own and "Backward" not in nodes[-1] else row)
        rows.setdefault(keys[-1], []).append(row)
    return [[other for other in rows[key] if other != row] for row, key in enumerate(keys)]


def _module_times(table: pl.DataFrame, prefix: str) -> dict[str, Any]:
    times: dict[str, Any] = {
        value: milliseconds_of(table[f"{prefix}{value}_ns"]) for value in _VALUES
    }
    return {**times, "calls": table[f"{prefix}calls"].to_list()}


def _work(work: pl.DataFrame, stages: Iterable[Any], paths: Sequence[str | None]) -> dict[str, Any]:
    """Return the operators and kernels of each module, without those of the modules below it.

    ``stages`` and ``paths`` are those of the drawn modules, with None as the path of a module that the
    run lacks.

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
