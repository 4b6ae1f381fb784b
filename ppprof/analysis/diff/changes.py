"""Changes by name and by module: tables of means of two runs, joined, with the noise of each change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from ppprof.analysis.diff.tree_alignment import Node, align_trees, levels
from ppprof.analysis.profile.module_tree import OCCURRENCE, SEPARATOR

SURE = 5.0
"""A change is clear if it is at least this number of standard errors, which `sure` makes more for few
steps. Stragglers have this limit, too."""

_SURE_OF_FEW = {2: 31.60, 3: 8.610, 4: 5.959, 5: 5.041}


def sure(num_steps: int) -> float:
    """Return from how many standard errors on a change is clear.

    Of a thousand changes that are chance, at most one is clear if both runs vary as much: two or
    three steps may be alike by chance.

    >>> sure(2), sure(3), sure(100)
    (31.6, 8.61, 5.0)

    Args:
        num_steps: the number of steps of the run with fewer, at least 2.

    Source: Student's t, two-sided, with ``2 * (num_steps - 1)`` degrees of freedom.
    """
    return _SURE_OF_FEW.get(num_steps, SURE)


def changes(
    baseline: pl.DataFrame,
    experiment: pl.DataFrame,
    keys: Sequence[str],
    values: Sequence[str],
    by: str,
    sure_from: float,
) -> pl.DataFrame:
    """Return the rows of two runs, joined by ``keys`` and sorted by change, the largest first.

    Args:
        baseline: ``keys``; and for each of ``values``, its mean and the variance of the mean
            (``<value>_var``, null if unknown).
        experiment: the columns of ``baseline``.
        keys: the columns that identify a row in both tables.
        values: the numeric columns to compare.
        by: one of ``values``; its absolute change sorts the result and decides is_clear.
        sure_from: the standard errors from which on a change is clear: `sure`.

    Returns:
        ``keys``, then the columns of `ppprof.analysis.diff.diff.Diff.operators` from status on. If
        a run lacks a row, its values are 0 there. The noise is null if a run has the row but not
        its variance.
    """
    one, other = (
        table.with_columns(pl.lit(value=True).alias(presence))
        for table, presence in ((baseline, "is_old"), (experiment, "is_new"))
    )
    joined = one.join(other, on=list(keys), how="full", coalesce=True, suffix="_new")
    status = (
        pl.when(pl.col("is_old").is_null())
        .then(pl.lit("new"))
        .when(pl.col("is_new").is_null())
        .then(pl.lit("gone"))
        .otherwise(pl.lit("both"))
    )
    columns = []
    for value in values:
        before, after = pl.col(value).fill_null(0.0), pl.col(f"{value}_new").fill_null(0.0)
        columns += [
            before.alias(f"baseline_{value}"),
            after.alias(f"experiment_{value}"),
            (after - before).alias(f"delta_{value}"),
            pl.when(before != 0)
            .then((after - before) / before)
            .alias(f"delta_ratio_{value.removesuffix('_ns')}"),
        ]
        # The noise is unknown if a side that has the row has no variance.
        variance = [
            pl.when(pl.col(presence).is_null()).then(0.0).otherwise(pl.col(name))
            for presence, name in (("is_old", f"{value}_var"), ("is_new", f"{value}_var_new"))
        ]
        columns.append((variance[0] + variance[1]).sqrt().alias(f"noise_{value}"))
    delta = pl.col(f"delta_{by}").abs()
    return (
        joined.select(*keys, status.alias("status"), *columns)
        .with_columns(is_clear=(delta > 0) & (delta >= sure_from * pl.col(f"noise_{by}")))
        .sort(delta, *keys, descending=[True, *[False] * len(keys)])
    )


def per_step(
    table: pl.DataFrame, keys: Sequence[str], values: Sequence[str], ranks: Mapping[int, int]
) -> pl.DataFrame:
    """Return means over ranks and steps, and the variances of the means from step to step.

    Args:
        table: ``keys``, step and ``values``, summed over ranks. A missing row counts as 0.
        keys: the columns to group by.
        values: the columns to average.
        ranks: the number of ranks that recorded each step, keyed by step. Other steps are ignored.

    Returns:
        ``keys``; for each of ``values``, its mean, float64, and ``<value>_var``, null with one
        step.
    """
    # Sums of floats depend on the order of the rows, and threads leave them in any.
    table = table.filter(pl.col("step").is_in(list(ranks))).sort("step", *values)
    # Several rows of one key, as of two equal lines of a function, vary together.
    table = table.group_by([*keys, "step"]).agg(pl.col(values).sum()).sort("step", *values)
    num_ranks = pl.col("step").replace_strict(dict(ranks), default=1, return_dtype=pl.Int64)
    rank_means = table.with_columns((pl.col(value) / num_ranks).alias(value) for value in values)
    num, means = len(ranks), []
    for value in values:
        mean = pl.col(value).sum() / num
        spread = (pl.col(value) ** 2).sum() - num * mean**2
        variance = spread.clip(0) / ((num - 1) * num) if num > 1 else pl.lit(None, pl.Float64)
        means += [mean.alias(value), variance.alias(f"{value}_var")]
    return rank_means.group_by(list(keys)).agg(means)


MODULE_VALUES = ("time_ns", "self_ns", "cpu_ns", "gpu_ns", "calls")

_MODULES_SCHEMA: dict[str, Any] = {
    "stage": pl.Int64,
    "depth": pl.Int64,
    "name": pl.String,
    "status": pl.String,
    **{
        f"{side}_{value}": pl.Float64
        for value in MODULE_VALUES
        for side in ("baseline", "experiment", "delta")
    },
    "delta_ratio": pl.Float64,
    "noise_time_ns": pl.Float64,
    "noise_self_ns": pl.Float64,
    "noise_calls": pl.Float64,
    "is_clear": pl.Boolean,
    "baseline_until_ns": pl.Float64,
    "experiment_until_ns": pl.Float64,
    "baseline_path": pl.String,
    "experiment_path": pl.String,
}


def module_changes(
    baseline: tuple[pl.DataFrame, Mapping[int, int]],
    experiment: tuple[pl.DataFrame, Mapping[int, int]],
) -> pl.DataFrame:
    """Return the module trees of two runs, aligned.

    Args:
        baseline: a table with stage, the columns of `ppprof.analysis.profile.module_tree.MODULES`
            and calls, summed over ranks, with the gaps between modules as modules of their own; and
            the number of ranks that recorded each step, keyed by step.
        experiment: a pair like ``baseline``.

    Returns:
        The table that `ppprof.analysis.diff.diff.Diff.modules` describes, and baseline_path and
        experiment_path: the module's path in each run, null for a module that the run lacks.
    """
    tables = _with_common_stages([baseline[0], experiment[0]])
    ranks = (baseline[1], experiment[1])
    sure_from = sure(min(map(len, ranks)))
    rows = [
        row
        for stage in _stages(tables)
        for row in _align_trees(
            [_tree(modules, stage, num_ranks) for modules, num_ranks in zip(tables, ranks)],
            stage,
            sure_from,
        )
    ]
    return pl.DataFrame(rows, _MODULES_SCHEMA, orient="row")


def module_means(modules: pl.DataFrame, ranks: Mapping[int, int]) -> pl.DataFrame:
    """Return one run's module tree, in pre-order, stage by stage.

    Returns:
        stage (null without a pipeline), depth, name ("step" at depth 0), path (as in
        `ppprof.analysis.profile.module_tree.modules`), and `MODULE_VALUES`, float64, per rank and
        step.
    """
    schema = {"stage": pl.Int64, "depth": pl.Int64, "name": pl.String, "path": pl.String}
    rows: list[tuple[Any, ...]] = []
    (modules,) = _with_common_stages([modules])
    for stage in _stages([modules]):
        tree = _tree(modules, stage, ranks)
        for node, depth in levels(tree.root):
            value = tree.values[node.key]
            cells = [value[name] for name in MODULE_VALUES]
            rows.append((stage, depth, node.name if depth else "step", value["path"], *cells))
    return pl.DataFrame(rows, {**schema, **dict.fromkeys(MODULE_VALUES, pl.Float64)}, orient="row")


def _with_common_stages(tables: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    """Return ``tables``; if stage is null in any row of any table, it becomes null in all rows."""
    if any(modules["stage"].null_count() for modules in tables):
        return [modules.with_columns(stage=pl.lit(None, pl.Int64)) for modules in tables]
    return list(tables)


def _stages(tables: Sequence[pl.DataFrame]) -> list[int | None]:
    """Return the distinct stages of ``tables``, ascending; None is the only one, or is missing."""
    return sorted(
        {stage for modules in tables for stage in modules["stage"].unique()},
        key=lambda stage: -1 if stage is None else stage,
    )


class _Tree(NamedTuple):
    root: Node
    values: Sequence[Mapping[str, Any]]
    """The means and variances of each node; ``Node.key`` is the index."""


def _tree(modules: pl.DataFrame, stage: int | None, ranks: Mapping[int, int]) -> _Tree:
    """Return the tree of one stage's modules, with means over its steps and ranks.

    Siblings are in the order of their mean starts.
    """
    own = modules.filter(pl.col("stage").eq_missing(pl.lit(stage, pl.Int64)))
    by_step = own.filter(path="").group_by("step").agg(num=pl.col("calls").sum())
    steps = dict(by_step.iter_rows()) or ranks  # a trace without steps counts as one step
    numbered = per_step(own, ["path"], ("start_ns", *MODULE_VALUES), steps)
    rows = numbered.with_columns(
        start_ns=pl.col("start_ns") / pl.when(pl.col("calls") > 0).then(pl.col("calls"))
    ).sort("start_ns", "path")
    values = rows.rows(named=True)
    empty = dict.fromkeys([*MODULE_VALUES, *(f"{value}_var" for value in MODULE_VALUES)], 0.0)
    nodes = {row["path"]: Node(_name(row["path"]), key=key) for key, row in enumerate(values)}
    root = nodes.pop("", None)
    if root is None:
        values.append({**empty, "path": ""})
        root = Node("", key=len(values) - 1)
    for path, node in nodes.items():  # by start, so siblings are in order
        above = nodes.get(path.rpartition(SEPARATOR)[0], root)
        above.children.append(node)
    return _Tree(root, values)


def _name(path: str) -> str:
    return path.rpartition(SEPARATOR)[2].partition(OCCURRENCE)[0]


def _align_trees(
    sides: Sequence[_Tree], stage: int | None, sure_from: float
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of `module_changes` for one stage; ``sides`` are its two trees."""
    until = [0.0, 0.0]
    for one, other, depth in align_trees(sides[0].root, sides[1].root, with_renamed=True):
        values = [
            tree.values[node.key] if node is not None else None
            for tree, node in zip(sides, (one, other))
        ]
        for side, value in enumerate(values):
            if value is not None and depth:
                until[side] += value["self_ns"]
        name = " -> ".join(dict.fromkeys(node.name for node in (one, other) if node is not None))
        yield _module_row(stage, depth, name if depth else "step", values, until, sure_from)


def _module_row(
    stage: int | None,
    depth: int,
    name: str,
    values: Sequence[Mapping[str, Any] | None],
    until: Sequence[float],
    sure_from: float,
) -> tuple[Any, ...]:
    one, other = values
    status = "both" if one is not None and other is not None else "new" if one is None else "gone"
    cells: list[Any] = []
    for value in MODULE_VALUES:
        before = one[value] if one is not None else None
        after = other[value] if other is not None else None
        is_known = before is not None or after is not None
        cells += [before, after, (after or 0.0) - (before or 0.0) if is_known else None]
    compared = "self_ns" if depth else "time_ns"
    sides = [value for value in values if value is not None]
    noises = {}
    for value in ("time_ns", "self_ns", "calls"):
        variances = [side[f"{value}_var"] for side in sides]
        noises[value] = None if None in variances else sum(variances) ** 0.5
    noise = noises[compared]
    delta = sum(sign * (v[compared] if v is not None else 0.0) for sign, v in zip((-1, 1), values))
    before = one["time_ns"] if one is not None else 0.0
    after = other["time_ns"] if other is not None else 0.0
    return (
        stage,
        depth,
        name,
        status,
        *cells,
        (after - before) / before if before else None,
        *noises.values(),
        None if noise is None else delta != 0 and abs(delta) >= sure_from * noise,
        *(time if value is not None and depth else None for time, value in zip(until, values)),
        *(value["path"] if value is not None else None for value in values),
    )
