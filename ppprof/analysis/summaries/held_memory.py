"""Who holds the memory when a window's peak is reached."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.profile.module_tree import OCCURRENCE, PHASES, SEPARATOR, module_nodes
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import call_lines
from ppprof.trace.schema import nullable

HELD = {
    "phase": pl.String,
    "module": pl.String,
    "operator": pl.String,
    "line": pl.String,
    "num": pl.Int64,
    "bytes": pl.Int64,
}


class HeldMemory(NamedTuple):
    """The memory of a place at the peak of a window."""

    place: str
    """Such as Place(gpu:0)."""
    step: int | None
    """The step of the peak; None outside steps."""
    allocated_bytes: int
    """By the allocator."""
    before_bytes: int
    """The part that is not in ``table``: allocated ahead of the window, as most parameters are."""
    table: pl.DataFrame
    """Columns of `HELD`, the most bytes first: allocations of the window that are not freed at the peak,
    by the phase, the module (``Net/Block[1]``), the outermost operator and the line that made them; null
    where that is not known."""

    @property
    def lines(self) -> pl.DataFrame:
        """Return the sums of ``table`` by line, the most bytes first: line, num and bytes; without what has no line."""
        known = self.table.drop_nulls("line").group_by("line").agg(pl.col("num", "bytes").sum())
        return known.sort("bytes", "line", descending=[True, False])


def held_at_peak(profile: Profile) -> HeldMemory | None:
    """Return what is alive at the peak of the place that holds the most; None without allocations.

    ::

        allocated   2 2 5 5 9 6      9 at the peak: 4 of the window in c and 3 in b; 2 from before it
        a           . . . .          an allocation of before the window
        b             ######
        c                 ##

    ``table`` and ``before_bytes`` add up to ``allocated_bytes``.
    """
    memory = profile.trace.memory.filter(pl.col("current_allocated").is_not_null())
    changes = memory.filter(pl.col("kind").is_in(["Allocate", "Free"])).sort(
        "time_ns", maintain_order=True
    )
    if changes.is_empty():
        return None
    number = int(changes["current_allocated"].arg_max() or 0)
    peak = changes.row(number, named=True)
    of_place = changes.head(number + 1).filter(pl.col("place") == peak["place"])
    last = of_place.group_by("addr", maintain_order=True).last()
    alive = last.filter((pl.col("kind") == "Allocate") & (pl.col("bytes") > 0))
    tree, events = profile.tree, profile.trace.events
    event = alive["event"].fill_null(-1).cast(pl.Int64).to_numpy()
    category, names = tree.hosts["category"], tree.hosts["name"].cast(pl.String)

    def around(rows: np.ndarray) -> np.ndarray:
        return np.where(event >= 0, np.append(tree.innermost(rows), -1)[event], -1)

    operator = around(np.flatnonzero(tree.is_outermost_operator))
    nodes = module_nodes(profile, attribute_backward=False).filter(~pl.col("is_step"))
    paths = dict(zip(nodes["row"].to_list(), nodes["path"].to_list()))
    phase = around(np.flatnonzero(category.is_in(PHASES).to_numpy()))
    forward = around(np.flatnonzero((category == "Forward").to_numpy()))
    step = events["step"][peak["event"]] if peak["event"] is not None else None
    stacks = events["callstack"].gather(nullable(operator)).cast(pl.String)
    lines = call_lines(profile, stacks)
    table = pl.DataFrame(
        {
            "phase": [
                str(category[row]) if row >= 0 else ("Forward" if inside >= 0 else None)
                for row, inside in zip(phase.tolist(), forward.tolist())
            ],
            "module": [_module(paths.get(row)) for row in around(nodes["row"].to_numpy()).tolist()],
            "operator": [
                names[row].removesuffix(" dygraph") if row >= 0 else None
                for row in operator.tolist()
            ],
            "line": [lines.get(stack) for stack in stacks],
            "num": 1,
            "bytes": alive["bytes"],
        },
        HELD,
    )
    table = (
        table.group_by("phase", "module", "operator", "line")
        .agg(pl.col("num", "bytes").sum())
        .sort("bytes", *list(HELD)[:4], descending=[True, *[False] * 4])
    )
    allocated = int(peak["current_allocated"])
    before = allocated - int(table["bytes"].sum())
    return HeldMemory(str(peak["place"]), step, allocated, before, table)


def _module(path: str | None) -> str | None:
    """Return the modules of a path, ``Net/Block[1]``; the number of the first of a name is left out."""
    if not path:
        return None
    parts = [part.partition(OCCURRENCE)[::2] for part in path.split(SEPARATOR)]
    inner = [f"{name}[{number}]" if number != "0" else name for name, number in parts]
    return "/".join(part for part in inner if part not in PHASES)
