"""Join the segments of a window into one trace.

A long window is recorded in segments, since stopping Paddle's profiler takes a time that grows with
the square of what it holds. Each segment begins and ends between two steps, and has a file of its own::

    window            |5     |6     |7     |8     |9     |
    segments          |5     |6     |  |7     |8     |  |9     |
                                    saved            saved

Nothing is recorded while a segment is saved, and no step contains that time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, count

import numpy as np
import polars as pl

from ppprof.rundir.python_stacks import NOTED, joined_stacks
from ppprof.trace.schema import (
    EVENTS,
    KERNELS,
    MEMORY,
    MEMSETS,
    Trace,
    conform,
    empty,
    nullable,
)
from ppprof.trace.steps import step_spans, steps_of

OPENS_WINDOW, SAVES_SEGMENT = "profiler opens a window", "profiler saves a segment"
"""Names of the spans of `with_stalls`."""
FIRST_FREE_ID = 2**22
"""The first id of a track above those of Linux' threads. Perfetto drops ids from 2**32 on."""
_LONGEST_STALL_NS = 86_400 * 10**9
"""A damaged log of steps can hold any time."""
_UTILIZATIONS = ("Process Cpu Utilization", "System Cpu Utilization")


def join_segments(segments: Sequence[Trace]) -> Trace:
    """Return the segments of a window as one trace, in the order of recording.

    The tables are those of the same window without segments, without the events that lasted while a
    segment was saved. CPU utilisations are the means of the segments. If the clock was set back
    between two segments, the later ones move behind the earlier ones, so that no two steps overlap.

    Args:
        segments: the traces of the segments, at least one.
    """
    if len(segments) == 1:
        return segments[0]
    segments = _with_unique_correlations(_in_order(segments))
    first = segments[0]
    joined = concatenated(segments)
    stacks = [trace.stacks for trace in segments if trace.stacks is not None]
    devices = {str(sorted(each.items())): each for trace in segments for each in trace.devices}
    return replace(
        joined,
        frames=pl.concat([trace.frames for trace in segments]),
        stacks=joined_stacks(stacks) if stacks else None,
        extra_info={
            **{key: text for trace in segments for key, text in trace.extra_info.items()},
            **_mean_utilizations(segments),
        },
        devices=tuple(devices.values()) or first.devices,
        skipped=_sum([trace.skipped for trace in segments]),
        ignored=_sum([trace.ignored for trace in segments]),
        communicates=first.communicates,
    )


def _sum(counts: Sequence[object]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)  # type: ignore[call-overload]
    return dict(total)


def _mean_utilizations(segments: Sequence[Trace]) -> dict[str, str]:
    means = {}
    for key in _UTILIZATIONS:
        try:
            values = [float(trace.extra_info[key]) for trace in segments]
        except (KeyError, ValueError):
            continue
        means[key] = f"{sum(values) / len(values):.6f}"
    return means


def _in_order(segments: Sequence[Trace]) -> list[Trace]:
    """Return the segments with times at which no step of one begins before those of another end."""
    moved = []
    end_ns, shift_ns = None, 0
    for trace in segments:
        steps = step_spans(trace.events)
        if not steps.is_empty():
            start_ns, last_ns = int(steps["start_ns"][0]), int(steps["end_ns"].to_numpy().max())
            if end_ns is not None:
                shift_ns = max(shift_ns, end_ns - start_ns)
            end_ns = last_ns + shift_ns
        moved.append(_shifted(trace, shift_ns) if shift_ns else trace)
    return moved


def _shifted(trace: Trace, shift_ns: int) -> Trace:
    return replace(
        trace,
        events=trace.events.with_columns(pl.col("start_ns") + shift_ns),
        memory=trace.memory.with_columns(pl.col("time_ns") + shift_ns),
        stacks=trace.stacks
        and replace(
            trace.stacks,
            **{
                name: getattr(trace.stacks, name) + np.array([0, shift_ns, 0, 0, 0])
                for name in ("samples", *NOTED)
            },
        ),
        frames=trace.frames.with_columns(pl.col("start_ns") + shift_ns),
    )


def _with_unique_correlations(segments: Sequence[Trace]) -> list[Trace]:
    """Return the segments with ids of which no two share one; unchanged if that is so already."""
    unique, next_id = [], 0
    for trace in segments:
        ids = trace.events["correlation_id"]
        least, most = ids.min(), ids.max()
        if isinstance(least, int) and isinstance(most, int):
            shift = next_id - least if least < next_id else 0
            if shift:
                events = trace.events.with_columns(pl.col("correlation_id") + shift)
                trace = replace(trace, events=events)
            next_id = most + shift + 1
        unique.append(trace)
    return unique


def with_stalls(trace: Trace, stalls: Mapping[int, int]) -> Trace:
    """Return the trace with a span for each time in which the profiler held the training up.

    ::

        steps           |5     |6     |    |7     |8     |
        profiler    ####               ####                     a track of its own

    Args:
        trace: a window of one rank.
        stalls: step -> the time of the stall ahead of it, in ns.
    """
    steps = step_spans(trace.events)
    stall_ns = pl.col("step").replace_strict(dict(stalls), default=0, return_dtype=pl.Int64)
    stall_ns = stall_ns.clip(0, _LONGEST_STALL_NS)
    start_ns = pl.max_horizontal(pl.col("start_ns") - stall_ns, pl.col("end_ns").shift(1))
    is_first = pl.int_range(pl.len()) == 0
    threads, process = set(trace.events["thread"].drop_nulls()), trace.events["process"].min()
    thread = free_id(FIRST_FREE_ID, threads)
    spans = steps.select(
        name=pl.when(is_first).then(pl.lit(OPENS_WINDOW)).otherwise(pl.lit(SAVES_SEGMENT)),
        category=pl.lit("PythonUserDefined"),
        start_ns=start_ns,
        dur_ns=pl.col("start_ns") - start_ns,
        depth=0,
        process=pl.lit(process),
        thread=pl.lit(thread),
    ).filter(pl.col("dur_ns") > 0)
    if spans.is_empty():
        return trace
    added = Trace(conform(spans, EVENTS), empty(MEMORY), empty(KERNELS), empty(MEMSETS))
    tracks = {**trace.extra_info, str(thread): "profiler"}
    return replace(concatenated([trace, added]), extra_info=tracks)


def concatenated(parts: Sequence[Trace]) -> Trace:
    """Return the first trace with the events of all traces, in the order of `EVENTS`.

    Row numbers are adapted, and steps are found again. The tables of memory, kernels and memsets
    and the devices of all traces are joined, too.
    """
    first = list(accumulate((part.events.height for part in parts), initial=0))
    events = pl.concat(
        part.events.with_columns(pl.col("parent", "forward") + offset)
        for part, offset in zip(parts, first)
    )
    is_device = pl.col("device").is_not_null()
    kind = pl.when(pl.col("depth").is_not_null()).then(0).when(is_device).then(2).otherwise(1)
    order = events.select(
        kind=kind,
        thread=pl.when(pl.col("depth").is_not_null()).then("thread"),
        row=pl.int_range(pl.len()),
    ).sort("kind", "thread", "row")["row"]
    row = np.full(events.height + 1, -1, np.int32)  # the last entry maps -1 to -1
    row[order.to_numpy()] = np.arange(events.height)

    def renumbered(table: pl.DataFrame, column: str) -> pl.DataFrame:
        return table.with_columns(
            nullable(row[table[column].fill_null(-1).to_numpy()]).alias(column)
        )

    def side(name: str) -> pl.DataFrame:
        tables = (
            getattr(part, name).with_columns(pl.col("event") + offset)
            for part, offset in zip(parts, first)
        )
        return renumbered(pl.concat(tables), "event")

    events = renumbered(renumbered(events[order], "parent"), "forward")
    return replace(
        parts[0],
        events=events.with_columns(step=steps_of(events)),
        memory=side("memory").sort("thread", "process", "time_ns", maintain_order=True),
        kernels=side("kernels"),
        memsets=side("memsets"),
        devices=tuple(device for part in parts for device in part.devices),
    )


def free_id(first: int, used: set[int]) -> int:
    """Return the first id of a track or device from ``first`` on that is not among ``used``, and add it."""
    id = next(number for number in count(first) if number not in used)
    used.add(id)
    return id
