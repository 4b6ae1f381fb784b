"""Memory over time: the level of each place, its peak and its allocators."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.profile.profile import PHASES, Profile
from ppprof.trace.schema import nullable

LEVELS = {
    "place": pl.String,
    "time_ns": pl.Int64,
    "allocated_bytes": pl.Int64,
    "reserved_bytes": pl.Int64,
}

ALLOCATORS = {
    "place": pl.String,
    "name": pl.String,
    "allocations": pl.Int64,
    "allocated_bytes": pl.Int64,
    "largest_bytes": pl.Int64,
}


class Peak(NamedTuple):
    """The moment at which a place held the most memory."""

    place: str
    time_ns: int
    """On the rank's own clock."""
    allocated_bytes: int
    step: int | None
    """None outside steps."""
    phase: str | None
    """Forward, Backward...; None outside phases."""
    event: str | None
    """The innermost host event around the allocation; None outside all events."""


class Memory(NamedTuple):
    """The memory of one rank's window."""

    levels: pl.DataFrame
    """Columns of `LEVELS`, sorted by place and time: the maximum in each piece of time. time_ns is
    the time of the maximum of allocated_bytes."""
    peaks: list[Peak]
    """One peak per place, sorted by allocated_bytes, the largest first."""
    allocators: pl.DataFrame
    """Columns of `ALLOCATORS`, sorted by allocated_bytes, the largest first. Each allocation counts
    once: for the innermost operator around it, else for the host event around it, else for ``-``."""


def memory_levels(profile: Profile, budget: int) -> Memory:
    """Return the allocated and reserved memory over time, its peaks and its allocators.

    ::

        events   1 5 2 | 3 3 | 1 7 4      of one place, ``budget`` 3
        levels     5       3       7      the highest in each third of the window

    Returns:
        Tables without rows and no peaks, if the window has no memory events with a level.
    """
    memory = profile.trace.memory.filter(pl.col("current_allocated").is_not_null()).with_columns(
        pl.col("place").cast(pl.String)
    )
    levels, peaks = [pl.DataFrame(schema=LEVELS)], []
    for (place,), table in sorted(memory.group_by("place"), key=lambda group: str(group[0])):
        levels.append(_levels(str(place), table.sort("time_ns", maintain_order=True), budget))
        highest = table.sort("current_allocated", descending=True, maintain_order=True).row(
            0, named=True
        )
        peaks.append(_peak(profile, str(place), highest))
    peaks.sort(key=lambda peak: -peak.allocated_bytes)
    return Memory(pl.concat(levels), peaks, _allocators(profile, memory))


def _allocators(profile: Profile, memory: pl.DataFrame) -> pl.DataFrame:
    tree = profile.tree
    is_operator = (tree.hosts["category"] == "Operator").to_numpy()
    operator = tree.innermost(np.flatnonzero(is_operator))
    names = tree.hosts["name"].cast(pl.String)
    allocations = memory.filter(pl.col("kind").cast(pl.String) == "Allocate")
    event = allocations["event"].fill_null(-1).to_numpy()
    around = np.where(event >= 0, np.append(operator, -1)[event], -1)
    allocator = nullable(np.where(around >= 0, around, event))
    return (
        allocations.with_columns(name=names.gather(allocator).fill_null("-"))
        .group_by("place", "name")
        .agg(
            allocations=pl.len().cast(pl.Int64),
            allocated_bytes=pl.col("bytes").sum(),
            largest_bytes=pl.col("bytes").max(),
        )
        .select(*ALLOCATORS)
        .sort("allocated_bytes", "name", descending=[True, False])
    )


def _levels(place: str, table: pl.DataFrame, budget: int) -> pl.DataFrame:
    first, last = table["time_ns"][0], table["time_ns"][-1]
    piece = (pl.col("time_ns") - first) * budget // max(last - first + 1, 1)
    return (
        table.group_by(piece.alias("piece"), maintain_order=True)
        .agg(
            pl.col("time_ns").get(pl.col("current_allocated").arg_max()),
            allocated_bytes=pl.col("current_allocated").max(),
            reserved_bytes=pl.col("current_reserved").max(),
        )
        .select(pl.lit(place).alias("place"), *list(LEVELS)[1:])
    )


def _peak(profile: Profile, place: str, highest: dict[str, object]) -> Peak:
    time_ns, row = highest["time_ns"], highest["event"]
    assert isinstance(time_ns, int)
    hosts = profile.whole_tree.hosts
    name = hosts["name"].cast(pl.String)[row] if isinstance(row, int) else None
    around = hosts.filter((pl.col("start_ns") <= time_ns) & (pl.col("end_ns") > time_ns))
    category = around["category"].cast(pl.String)
    phases = around.filter(category.is_in(PHASES)).sort("start_ns")["category"].cast(pl.String)
    steps = around.filter(category == "ProfileStep")["name"].cast(pl.String)
    number = steps.str.extract(r"#(\d+)$").cast(pl.Int64, strict=False).drop_nulls()
    allocated = highest["current_allocated"]
    assert isinstance(allocated, (int, np.integer))
    return Peak(
        place,
        time_ns,
        int(allocated),
        int(number[0]) if len(number) else None,
        phases[0] if len(phases) else None,
        name,
    )
