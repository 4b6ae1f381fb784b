"""The flame graphs of two runs as one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import polars as pl

from ppprof.analysis.diff.changes import SURE
from ppprof.analysis.profile.flame import LEAST_RATIO

FLAME_CHANGES: dict[str, Any] = {
    "depth": pl.Int64,
    "name": pl.String,
    "status": pl.String,
    **{
        f"{side}_{value}": pl.Float64
        for side in ("baseline", "experiment")
        for value in ("time_ns", "self_ns")
    },
    "delta_self_ns": pl.Float64,
    "is_clear": pl.Boolean,
    "rank": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}
"""Columns of `flame_changes`."""
_LINE = re.compile(r":(\d+)\)?$")


@dataclass
class _Node:
    row: dict[str, Any]
    below: dict[str, list[_Node]] = field(default_factory=dict)
    """By key."""

    def with_key(self, key: str) -> list[_Node]:
        """Return the nodes below with a key, by their lines."""
        return sorted(self.below.get(key, []), key=lambda node: _line(node.row["name"]))


def _longest_first(pair: tuple[_Node | None, _Node | None]) -> float:
    return -max(float(node.row["time_ns"]) for node in pair if node)


def _line(name: str) -> int:
    found = _LINE.search(name)
    return int(found[1]) if found else 0


def flame_changes(baseline: pl.DataFrame, experiment: pl.DataFrame) -> pl.DataFrame:
    """Return the nodes of two flame graphs; those of equal keys below equal nodes are one.

    ::

        baseline      main: 10          experiment   main: 13            main        10 -> 13
                      log: 4   save: 2               log: 8   eval: 1      log        4 ->  8
                                                                           save       2 ->  0  gone
                                                                           eval       0 ->  1  new

    Args:
        baseline: columns of `ppprof.analysis.profile.flame.FLAME`.
        experiment: the same, and rank.

    Returns:
        One row per node, in pre-order, of siblings the longest first: depth; name, of the experiment
        if it has the node; status (both, new or gone); the times of both sides, null for a node that
        one lacks; delta_self_ns; is_clear, whether that is at least 5 standard errors of the number of
        samples, also if a side that lacks the node has one too short to be kept; and rank, start_ns and
        end_ns of the experiment. No rows if a run has no samples.
    """
    rows: list[tuple[Any, ...]] = []
    if baseline.is_empty() or experiment.is_empty():
        return pl.DataFrame(rows, FLAME_CHANGES, orient="row")
    roots = _tree(baseline), _tree(experiment)

    def add(one: _Node | None, other: _Node | None, depth: int) -> None:
        unkept = 0.0 if one and other else LEAST_RATIO * roots[0 if other else 1].row["time_ns"]
        rows.append(_row(one.row if one else None, other.row if other else None, depth, unkept))
        before, after = (node or _Node({}) for node in (one, other))
        pairs = [
            pair
            for key in {**after.below, **before.below}
            for pair in zip_longest(before.with_key(key), after.with_key(key))
        ]
        for node, partner in sorted(pairs, key=_longest_first):
            add(node, partner, depth + 1)

    add(*roots, 0)
    return pl.DataFrame(rows, FLAME_CHANGES, orient="row")


def _tree(table: pl.DataFrame) -> _Node:
    path: list[_Node] = []
    for row in table.iter_rows(named=True):
        node = _Node(row)
        del path[row["depth"] :]
        if path:
            path[-1].below.setdefault(row["key"], []).append(node)
        path.append(node)
    return path[0]


def _row(
    one: dict[str, Any] | None, other: dict[str, Any] | None, depth: int, unkept_ns: float
) -> tuple[Any, ...]:
    sides = [one or {}, other or {}]
    before, after = (side.get("self_ns", 0.0) for side in sides)
    # Of n samples that stand for some time each, the standard error is the square root of n.
    variance = sum(
        side["self_ns"] * side["time_ns"] / max(1, side["samples"]) for side in sides if side
    )
    status = "both" if one and other else "gone" if one else "new"
    times = [side.get(name) for side in sides for name in ("time_ns", "self_ns")]
    is_clear = abs(after - before) - unkept_ns > SURE * variance**0.5
    place = [sides[1].get(name) for name in ("rank", "start_ns", "end_ns")]
    name = (other or one or {})["name"]
    return (depth, name, status, *times, after - before, is_clear, *place)
