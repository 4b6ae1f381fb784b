"""Add the samples of Python stacks that a run directory has beside a trace, and the lines of events.

The columns line and line_is_sampled of the events::

    call       train.py:8 ..................    the line that called an operator: exact
    Operator     matmul
    inner          compute                      has the line of its operator
    Forward  ###################                samples 8 8 8 9: half or more are in line 8
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import polars as pl

from ppprof.arrays import Int64
from ppprof.packages import INSTALLED
from ppprof.paths import PathLike
from ppprof.rundir.python_stacks import (
    NOTED,
    Frame,
    PythonStacks,
    read_python_stacks,
    stacks_of_trace,
)
from ppprof.trace.clock_jumps import without_jumps
from ppprof.trace.labels import map_texts
from ppprof.trace.schema import Trace

_TIMED = ("samples", *NOTED)
"""Fields of `PythonStacks` with a time in their column 1."""
_LEAST_SAMPLES = 3
"""Fewest samples in an event that give it a line."""
_MOSTLY = 0.5
"""Least share of the samples in an event that its line has."""
_MOST_EVENTS = 50_000
"""Most events whose samples are looked at; the longest are."""
_FRAME = re.compile(r"""File ["']([^"']+)["'], line (\d+)(?:, in ([^\s,]+))?""")
"""A line of a call stack; Paddle's JSON has single quotation marks."""


def with_stacks(trace: Trace, path: PathLike) -> Trace:
    """Return the trace with the stacks of its window; the same trace without such a file.

    Args:
        trace: the trace.
        path: the file that it was read from. ``skipped`` counts a file of stacks that is unreadable.
    """
    file = stacks_of_trace(path)
    if file is None:
        return trace
    try:
        stacks = read_python_stacks(file)
        timed: dict[str, Any] = {
            name: without_jumps(trace, getattr(stacks, name), [1]) for name in _TIMED
        }
        return dataclasses.replace(trace, stacks=dataclasses.replace(stacks, **timed))
    except FileNotFoundError:
        return trace
    except (OSError, ValueError, TypeError):
        return dataclasses.replace(trace, skipped={**trace.skipped, "files of Python stacks": 1})


def frame_of_call(stack: str | None) -> Frame | None:
    """Return the innermost frame of a call stack that is not in an installed package.

    Without one, the innermost frame; None for text without frames.

    >>> frame_of_call('File "a.py", line 3, in f, File "/site-packages/x.py", line 9, in g').place
    'a.py:3'
    """
    frames = _FRAME.findall(stack or "")
    own = [frame for frame in frames if not INSTALLED.search(frame[0])] or frames
    if not own:
        return None
    file, line, function = own[-1]
    return Frame("", file, function or "<module>", int(line), is_own=True)


def with_lines(trace: Trace) -> Trace:
    """Return the trace with the line of each event for which call stacks or samples know it.

    Reads the column callstack, and ``trace.stacks``.
    """
    events = trace.events
    if trace.stacks is None and events["callstack"].null_count() == events.height:
        return trace
    line = _called(events)
    sampled = _sampled(events, line, trace.stacks) if trace.stacks is not None else {}
    is_sampled = pl.Series(np.zeros(events.height, bool)).set(line.is_null(), None)
    if sampled:
        rows = sorted(sampled)  # the polars of Python 3.9 refuses another order
        line = line.scatter(rows, [sampled[row] for row in rows])
        is_sampled = is_sampled.scatter(rows, True)
    columns = {"line": line.cast(pl.Categorical), "line_is_sampled": is_sampled}
    return dataclasses.replace(trace, events=events.with_columns(**columns))


def _called(events: pl.DataFrame) -> pl.Series:
    """Return the lines that call stacks know, of operators and the events in them."""
    line = map_texts(
        events["callstack"], lambda text: frame.place if (frame := frame_of_call(text)) else None
    )
    for _ in range(2):  # the operator's own work, and its launch
        line = line.fill_null(line.gather(events["parent"]))
    return line


def _sampled(events: pl.DataFrame, known: pl.Series, stacks: PythonStacks) -> dict[int, str]:
    """Return the line of each host event without one that has most of the samples in it, by row."""
    own = [
        next((stacks.frames[row].place for row in stack if stacks.frames[row].is_own), None)
        for stack in stacks.stacks
    ]
    places = sorted({place for place in own if place is not None})
    number = {place: row for row, place in enumerate(places)}
    of_stack: Int64 = np.array([number.get(place or "", -1) for place in (*own, None)], np.int64)
    hosts = events.select("thread", "start_ns", "dur_ns", "device").with_row_index("row")
    hosts = hosts.filter(known.is_null() & pl.col("device").is_null())
    found: dict[int, str] = {}
    for thread in np.unique(stacks.samples[:, 0]).tolist():
        samples = stacks.samples[stacks.samples[:, 0] == thread]
        time, weight, line = samples[:, 1], samples[:, 2], of_stack[samples[:, 3]]
        inside = hosts.filter(pl.col("thread") == thread)
        start = inside["start_ns"].to_numpy()
        first = np.searchsorted(time, start, "left")
        last = np.searchsorted(time, start + inside["dur_ns"].to_numpy(), "right")
        candidates = np.flatnonzero(last - first >= _LEAST_SAMPLES)
        if len(candidates) > _MOST_EVENTS:
            order = np.argsort(first[candidates] - last[candidates], kind="stable")
            candidates = candidates[order[:_MOST_EVENTS]]
        rows = inside["row"].to_numpy()
        for each in candidates.tolist():
            part = slice(int(first[each]), int(last[each]))
            times = np.bincount(line[part] + 1, weight[part])
            best = int(times[1:].argmax()) if len(times) > 1 else -1
            if best >= 0 and times[best + 1] >= max(1, _MOSTLY * times.sum()):
                found[int(rows[each])] = places[best]
    return found
