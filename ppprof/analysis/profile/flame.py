"""The flame graph of a window: the user's Python and the operators that it calls, by samples."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import ELSEWHERE, sampled_steps, source_of
from ppprof.trace import Frame, PythonStacks

FLAME = {
    "depth": pl.Int64,
    "name": pl.String,
    "key": pl.String,
    "samples": pl.Int64,
    "time_ns": pl.Float64,
    "self_ns": pl.Float64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}
"""Columns of `flame`."""
LEAST_RATIO = 0.002
"""Share of a step. A page draws no narrower boxes."""


@dataclass
class _Node:
    samples: int = 0
    weight_ns: int = 0
    own_ns: int = 0
    longest: tuple[int, int] = (0, 0)
    """Weight and instant of the sample that stands for most time."""
    inside: dict[str, _Node] = field(default_factory=dict)


def flame(profile: Profile) -> pl.DataFrame:
    """Return the tree of the user's frames, and of the operators in the innermost ones.

    ::

        step
        main (train.py:52)
        log (train.py:41)    loss (train.py:9)
                             matmul dygraph

    Of threads that end steps. The time of packages belongs to the line that calls them.

    Returns:
        One row per node, in pre-order, the root first: depth; name; key (the name with the line's text in
        place of its number, if that was kept: it stays where the code moves); samples; time_ns and self_ns in
        an average step; start_ns and end_ns, the time for which one sample stands: the longest one.
        Nodes below 0.2% of a step are left out. No rows without samples.
    """
    sampled = sampled_steps(profile)
    if sampled is None:
        return pl.DataFrame(schema=FLAME)
    samples = sampled.samples.filter("is_step")
    own = [_path(frames) or [ELSEWHERE] for frames in sampled.own]
    keys = {_name(frame): _key(sampled.stacks, frame) for frame in sampled.stacks.frames}
    columns = samples.select("stack", "time_ns", "weight_ns", num=sampled.instants)
    root = _Node()
    for stack, time_ns, weight_ns, num, operator in zip(*columns, _operators(profile, samples)):
        path = own[stack] if operator is None else [*own[stack], operator]
        node = root
        for name in (None, *path):
            node = node if name is None else node.inside.setdefault(name, _Node())
            node.samples += num
            node.weight_ns += weight_ns
            node.longest = max(node.longest, (weight_ns, time_ns))
        node.own_ns += weight_ns
    scale = sampled.step_ns / max(1, root.weight_ns)
    least = LEAST_RATIO * root.weight_ns
    rows: list[tuple[int, str, str, int, float, float, int, int]] = []

    def add(name: str, node: _Node, depth: int) -> None:
        weight_ns, end_ns = node.longest
        times = node.weight_ns * scale, node.own_ns * scale
        key = keys.get(name, name)
        rows.append((depth, name, key, node.samples, *times, end_ns - weight_ns, end_ns))
        for inner, child in sorted(node.inside.items(), key=lambda item: -item[1].weight_ns):
            if child.weight_ns >= least:
                add(inner, child, depth + 1)

    add("", root, 0)
    return pl.DataFrame(rows, FLAME, orient="row")


def _path(frames: Sequence[Frame]) -> list[str]:
    """Return the names of frames, the outermost first; one for a line and a comprehension in it."""
    return [name for name, _ in itertools.groupby(map(_name, reversed(frames)))]


def _name(frame: Frame) -> str:
    return f"{frame.function} ({frame.place})"


def _key(stacks: PythonStacks, frame: Frame) -> str:
    source = source_of(stacks, frame)
    return _name(frame) if source is None else f"{frame.function} ({frame.file}: {source})"


def _operators(profile: Profile, samples: pl.DataFrame) -> pl.Series:
    """Return the name of the outermost operator of a thread at each sample; null outside operators."""
    tree = profile.tree
    name = pl.col("name").cast(pl.String).str.strip_suffix(" dygraph")
    outer = tree.hosts.filter(tree.is_outermost_operator).select(
        "thread", "start_ns", "end_ns", operator=name
    )
    within = samples.select("thread", "time_ns").with_row_index().sort("time_ns")
    within = within.join_asof(
        outer.sort("start_ns"),
        left_on="time_ns",
        right_on="start_ns",
        by="thread",
        check_sortedness=False,
    )
    is_inside = pl.col("time_ns") < pl.col("end_ns")
    return within.sort("index").select(pl.when(is_inside).then("operator")).to_series()
