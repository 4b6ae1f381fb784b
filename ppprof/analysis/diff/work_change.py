"""How the work of two runs differs: its amount, and the rate at which it is done."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

import polars as pl

from ppprof.analysis.diff.diff import Diff

LEAST_CHANGE = 0.001
"""Smaller changes of the FLOPs are those of single small operators."""

_LEAST_SHARE_OF_STEP = 0.01
_DIM = re.compile(r"\d{1,18}")
_MOST_NAMES = 200
"""Most operators of either run to compare: those with the most time."""


class WorkChange(NamedTuple):
    """What changed in the work of the operators."""

    flops_ratio: float | None
    """Change of the FLOPs per step, over those of the baseline; None if unknown of a run, or if the
    runs cannot be compared: frameworks differ, or gradients are known of one only."""
    dims: tuple[int, int, int] | None
    """The size that became another one in most operators: baseline, experiment, and in how many
    operators; None if no size did in two operators."""
    slower: tuple[str, float] | None
    """The operator of equal work in both runs with the largest clear change of its time, at least 1%
    of a step: its name, and the change over the baseline's time; None without one."""


def work_change(diff: Diff) -> WorkChange:
    """Return how the work of the operators changed.

    ::

        baseline    matmul [1024,64] [64,256]  gelu [1024,256]
        experiment  matmul [1152,64] [64,256]  gelu [1152,256]     1024 became 1152, in 2 operators
    """
    table = diff.operator_shapes
    before, after = (float(table[f"{run}_flops"].sum()) for run in ("baseline", "experiment"))
    one, other = diff.baseline, diff.experiment
    # Otherwise formulas or gradients are known of one run only.
    is_comparable = (one.frameworks, one.has_forward_links) == (
        other.frameworks,
        other.has_forward_links,
    )
    ratio = after / before - 1 if before and after and is_comparable else None
    return WorkChange(ratio, _dims(table), _slower(diff, table))


def _dims(table: pl.DataFrame) -> tuple[int, int, int] | None:
    """Return the size that became another one in most of the operators that only one run has."""
    gone, new = (
        [_pattern(name) for name in sorted(table.filter(status=status)["name"].head(_MOST_NAMES))]
        for status in ("gone", "new")
    )
    found: Counter[tuple[int, int]] = Counter()
    for pattern, sizes in gone:
        changes = [
            sorted({(a, b) for a, b in zip(sizes, others) if a != b})
            for other, others in new
            if other == pattern
        ]
        if changes:  # the operator that differs in the fewest sizes
            found.update(min((len(change), change) for change in changes)[1])
    if not found:
        return None
    (old, now), num = min(found.items(), key=lambda item: (-item[1], item[0]))
    return (old, now, num) if num > 1 else None


def _pattern(name: str) -> tuple[str, list[int]]:
    """Return a name without the sizes in its shapes, and these.

    >>> _pattern("conv2d [4,8] [3]")
    ('conv2d [_,_] [_]', [4, 8, 3])
    """
    operator, bracket, shapes = name.partition(" [")
    pattern = f"{operator}{bracket}{_DIM.sub('_', shapes)}"
    return pattern, [int(size) for size in _DIM.findall(shapes)]


def _slower(diff: Diff, table: pl.DataFrame) -> tuple[str, float] | None:
    step_ns = diff.baseline.steps["step_ns"].cast(pl.Float64).mean()
    if not isinstance(step_ns, float):
        return None
    same_work = (pl.col("status") == "both") & (pl.col("delta_calls") == 0) & pl.col("is_clear")
    is_large = pl.col("delta_time_ns").abs() >= _LEAST_SHARE_OF_STEP * step_ns
    rows = table.filter(same_work & is_large & pl.col("delta_ratio_time").is_not_null())
    if rows.is_empty():
        return None
    row = rows.row(0, named=True)
    return row["name"], row["delta_ratio_time"]
