"""The copies and memsets of the device: between which memories, how many bytes, how fast."""

from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl

from ppprof.analysis.profile.grouping import intervals_of
from ppprof.analysis.profile.intervals import covered, intersection, union
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.ranks.device_steps import steps_of_rank
from ppprof.trace.operator_inputs import SOURCE, TARGET, memory_of_copy
from ppprof.trace.schema import COPIES

DEVICE_COPIES: dict[str, pl.DataType] = {
    "direction": pl.String(),
    "memory": pl.String(),
    "calls": pl.Int64(),
    "bytes": pl.Int64(),
    "gpu_total_ns": pl.Int64(),
    "gpu_avg_ns": pl.Float64(),
    "gpu_max_ns": pl.Int64(),
    "gpu_min_ns": pl.Int64(),
    "step_ratio": pl.Float64(),
    "bytes_per_s": pl.Float64(),
}

_DIRECTION = re.compile(r"[HDPAU]to[HDPAU]\b")
_MEMORIES = re.compile(r"\(([\w ]+) -> ([\w ]+)\)")
_HOST = ("pinned", "pageable")
_DEVICE = ("device", "array", "device static")


def device_copies(profile: Profile) -> pl.DataFrame:
    """Return the device's copies and memsets, one row per direction and memory, the longest first.

        name                                direction   memory
        Memcpy HtoD (Pageable -> Device)    HtoD        pageable
        MEMCPY_DtoH                         DtoH        null
        Memset (Device)                     memset      device

    Returns:
        direction: ``HtoD`` (host to device), ``DtoH``, ``DtoD``, ``HtoH``, ``PtoP`` (between devices),
        ``memset``, or the event's own name. memory: ``pinned`` or ``pageable`` if one side is the
        host's, ``device`` if both are the device's; null if it is not recorded. calls; bytes, the sum
        of those recorded, null if none are; gpu_ total_ns, avg_ns, max_ns and min_ns; step_ratio, the share of the
        steps' time in which at least one of them runs, null if steps have no length; bytes_per_s, bytes by the
        time of the copies that record them, null without.
    """
    events = profile.trace.events.filter(pl.col("category").is_in(COPIES))
    kinds = {str(name): _kind(str(name)) for name in events["name"].unique()}
    pairs = zip(*(memory_of_copy(events["attributes"], side) for side in (SOURCE, TARGET)))
    recorded = pl.Series(
        [_memory([side and side.lower() for side in pair]) for pair in pairs], dtype=pl.String
    )
    direction, memory = ({name: kind[side] for name, kind in kinds.items()} for side in (0, 1))
    name = pl.col("name").cast(pl.String)
    has_bytes = pl.col("bytes").is_not_null()
    known_ns = pl.col("dur_ns").filter(has_bytes).sum()
    steps = union(*intervals_of(steps_of_rank(profile)))
    steps_ns = covered(*steps)

    def share(copies: pl.Series) -> float | None:
        own = union(*intervals_of(copies.struct.unnest()))
        return covered(*intersection(own, steps)) / steps_ns if steps_ns else None

    table = (
        events.select(
            "bytes",
            "dur_ns",
            "start_ns",
            end_ns=pl.col("start_ns") + pl.col("dur_ns"),
            direction=name.replace_strict(direction, return_dtype=pl.String, default=None),
            memory=pl.coalesce(
                name.replace_strict(memory, return_dtype=pl.String, default=None),
                recorded,
            ),
        )
        .group_by("direction", "memory", maintain_order=True)
        .agg(
            calls=pl.len(),
            bytes=pl.when(has_bytes.any()).then(pl.col("bytes").sum()),
            gpu_total_ns=pl.col("dur_ns").sum(),
            gpu_avg_ns=pl.col("dur_ns").mean(),
            gpu_max_ns=pl.col("dur_ns").max(),
            gpu_min_ns=pl.col("dur_ns").min(),
            bytes_per_s=pl.when(known_ns > 0).then(pl.col("bytes").sum() * 1e9 / known_ns),
            times=pl.struct("start_ns", "end_ns"),
        )
    )
    shares = pl.Series("step_ratio", [share(times) for times in table["times"]], pl.Float64)
    table = table.with_columns(shares)
    ordered = table.sort("gpu_total_ns", "direction", descending=[True, False])
    return ordered.select(pl.col(column).cast(dtype) for column, dtype in DEVICE_COPIES.items())


def _kind(name: str) -> tuple[str, str | None]:
    """Return direction and memory of a copy from its name.

    >>> _kind("Memcpy DtoH (Device -> Pinned)"), _kind("MEMCPY_DtoD")
    (('DtoH', 'pinned'), ('DtoD', None))
    """
    if "memset" in name.lower():
        return "memset", "device" if "(Device)" in name else None
    direction, memories = _DIRECTION.search(name), _MEMORIES.search(name)
    sides = [side.lower() for side in memories.groups()] if memories else []
    return direction[0] if direction else name, _memory(sides)


def _memory(sides: Sequence[str | None]) -> str | None:
    """Return the kind of a copy's memory on the host, or ``device``; None if it is unknown."""
    known = [side for side in sides if side]
    # ROCm writes Host for both kinds; memory that is managed may be anywhere.
    is_device = bool(known) and all(side in _DEVICE for side in known)
    return next((side for side in _HOST if side in known), "device" if is_device else None)
