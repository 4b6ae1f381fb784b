"""The steps and passes of one rank, which `ppprof.analysis.ranks.what_if` replays."""

from __future__ import annotations

import numpy as np
import polars as pl

from ppprof.analysis.profile.event_arrays import filled
from ppprof.analysis.profile.intervals import Intervals, covered_within, difference, union
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.ranks.collectives import kernel_times
from ppprof.analysis.ranks.device_steps import steps_of_rank
from ppprof.analysis.ranks.rank_communication import UNKNOWN_AXIS, communication_of
from ppprof.arrays import Int64
from ppprof.trace.labels import Labels
from ppprof.trace.schema import nullable

PASSES: dict[str, pl.DataType] = {
    "rank": pl.Int64(),
    "step": pl.Int64(),
    "kind": pl.String(),
    "chunk": pl.Int64(),
    "micro_batch": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
}
"""Columns of `passes`. The values of ``kind``:

- ``step``: the step itself;
- ``forward``, ``backward``: the pass of one micro-batch through one chunk (chunk is 0 if the stage
  has one chunk);
- ``own``, only in steps without passes: begins with the step and lasts as long as the step without
  the wait for other replicas.

chunk and micro_batch are null for step and own."""

_KINDS = {"Forward": "forward", "Backward": "backward"}
_BETWEEN_REPLICAS = frozenset(("dp", "sharding"))


def passes(profile: Profile, rank: int = -1) -> pl.DataFrame:
    """Return one rank's steps and passes.

    In a trace with device events, a pass lasts from the start of its first kernel to the end of its
    last; without any kernel it is no pass.

    Args:
        profile: the rank's window.
        rank: the value of the column rank; -1 if unknown.

    Returns:
        Columns of `PASSES`, sorted by start. No rows if the window has no steps, or lacks the
        events of its device.
    """
    if profile.unrecorded_device:
        return pl.DataFrame(schema=PASSES)
    steps = steps_of_rank(profile)
    step, start, end = (steps[name].to_numpy() for name in ("step", "start_ns", "end_ns"))
    in_pass, chunk, micro_batch, kind, (first, last) = _passes(profile)
    is_own = ~np.isin(step, in_pass)
    exposed = _between_replicas(profile) if is_own.any() else (start[:0], end[:0])
    own_end = end[is_own] - covered_within(union(*exposed), start[is_own], end[is_own])
    num_own, unknown = len(own_end), np.full(len(step) + len(own_end), -1)
    starts = np.concatenate((start, first, start[is_own]))
    order = np.argsort(starts, kind="stable")
    columns = {
        "rank": np.full(len(starts), rank),
        "step": np.concatenate((step, in_pass, step[is_own])),
        "kind": pl.Series(["step"] * len(step) + kind + ["own"] * num_own, dtype=pl.String),
        "chunk": nullable(np.insert(unknown, len(step), chunk)),
        "micro_batch": nullable(np.insert(unknown, len(step), micro_batch)),
        "start_ns": starts,
        "end_ns": np.concatenate((end, last, own_end)),
    }
    return pl.DataFrame(columns, PASSES)[order]


def _passes(profile: Profile) -> tuple[Int64, Int64, Int64, list[str], Intervals]:
    """Return step, chunk, micro-batch, kind and interval of each pass of a micro-batch in a step."""
    events = profile.tree.events
    rows = events.host_rows(*_KINDS)
    rows = rows[events.step[rows] >= 0]
    chunk, micro_batch = (
        filled(events.events[name].gather(rows)) for name in ("chunk", "micro_batch")
    )
    (start, end), is_timed = kernel_times(events, rows[micro_batch >= 0])
    chosen = np.flatnonzero(micro_batch >= 0)[is_timed]
    kinds = [_KINDS[name] for name in events.events["category"].gather(rows[chosen]).to_list()]
    times = start[is_timed], end[is_timed]
    step = events.step[rows[chosen]]
    return step, np.maximum(chunk[chosen], 0), micro_batch[chosen], kinds, times


def _between_replicas(profile: Profile) -> Intervals:
    """Return the exposed communication between replicas.

    In a trace without device events, all communication between replicas counts as exposed. With
    device events, it is the kernels that count, also those that no span launched.
    Communication over an unknown axis counts as between replicas.

    ::

        computation      ######___###____
        dp all_reduce    ____#######_____     3 of 7 exposed
        own              #############___     16 - 3
    """
    events = profile.tree.events
    if not events.has_devices:
        spans = events.host_rows("Communication")
        axis = Labels.of(events.events["axis"].gather(spans))
        return events.intervals(spans[axis.where(_is_between_replicas) | (axis.number < 0)])
    communication = communication_of(profile)
    return difference(
        communication.times(communication.axis.where(_is_between_replicas)),
        profile.communication.computation,
    )


def _is_between_replicas(axis: str) -> bool:
    return axis == UNKNOWN_AXIS or not _BETWEEN_REPLICAS.isdisjoint(axis.split("+"))
