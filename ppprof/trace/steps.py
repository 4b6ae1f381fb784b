"""The steps of a trace: the one that each event belongs to, and those that were recorded in part.

The training ended, or failed, before ``step()`` ended such a step. Paddle writes an event when it
ends, under the name that it got when it began. So capture ends the span of such a step with a marker
inside, and the reader renames the span::

    as captured   ProfileStep#20 ........................ | marker
    as read       incomplete step (PythonUserDefined) ... | marker

Neither VisualDL nor any of our tables then takes it for a step.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection

import numpy as np
import polars as pl

from ppprof.arrays import Int64
from ppprof.errors import TraceError
from ppprof.rundir import ALLOCATIONS_MARKER, INCOMPLETE_MARKER, PAUSE_SPAN
from ppprof.trace.schema import Note, Trace, nullable
from ppprof.trace.tree_arrays import enclosing

_CHUNK = 1 << 14  # events at a time: few temporaries
ROUNDING_NS = 1000
"""Most length by which a step may run into the next one: writers round starts and lengths."""
INCOMPLETE_STEP = "incomplete step"
"""Name of the span of a step that ``step()`` did not end."""


def steps_of(events: pl.DataFrame) -> pl.Series:
    """Return the N of the ProfileStep#N in which each event began.

    A device event has the step of its launch.

    Args:
        events: host events, then launches, then device events; reads name, category, start_ns,
            dur_ns, device and parent.

    Returns:
        int64, as long as ``events``; null outside of steps and for a device event without a launch.
    """
    first_device = events.height - events["device"].count()
    begun = events.slice(0, first_device)
    step = np.full(events.height + 1, -1)
    step[:first_device] = steps_at(step_spans(begun), begun["start_ns"].to_numpy())
    launch = events["parent"].slice(first_device).fill_null(events.height).to_numpy()
    step[first_device:-1] = step[launch]  # the last item is for no launch
    return nullable(step[:-1])


def step_spans(events: pl.DataFrame) -> pl.DataFrame:
    """Return start_ns, end_ns and step, all int64, of each ProfileStep#N, sorted by start_ns.

    Args:
        events: reads name, category, start_ns and dur_ns.
    """
    rows = (events["category"] == "ProfileStep").arg_true()
    numbers = [step_number(name) for name in events["name"].gather(rows).to_list()]
    start, length = (events[name].gather(rows).to_numpy() for name in ("start_ns", "dur_ns"))
    chosen = np.flatnonzero([number is not None for number in numbers])
    chosen = chosen[np.argsort(start[chosen], kind="stable")]
    return pl.DataFrame(
        {
            "start_ns": start[chosen],
            "end_ns": (start + length)[chosen],
            "step": np.array([numbers[row] for row in chosen], np.int64),
        }
    )


def step_number(name: str) -> int | None:
    """Return the N of a name that ends with ``#N``; None for other names, and beyond an int64.

    >>> step_number("ProfileStep#12"), step_number("ProfileStep#")
    (12, None)
    """
    digits = _NUMBER.search(name)
    number = int(digits[1]) if digits else None
    return number if number is not None and number <= _MOST else None


_NUMBER = re.compile(r"#([0-9]{1,19})\Z")
_MOST = 2**63 - 1


def steps_at(spans: pl.DataFrame, start: Int64) -> Int64:
    """Return the step in which each event began, shape (N,); -1 outside.

    Args:
        spans: see `step_spans`.
        start: the time at which each event began, shape (N,).
    """
    if spans.is_empty():
        return np.full(len(start), -1)
    first, end, step = (spans[column].to_numpy() for column in ("start_ns", "end_ns", "step"))
    # The last item is for events before the first step: index -1.
    end, step = np.append(end, np.iinfo(np.int64).min), np.append(step, -1)
    steps: Int64 = np.empty(len(start), np.int64)
    for row in range(0, len(start), _CHUNK):
        times = start[row : row + _CHUNK]
        last = np.searchsorted(first, times, side="right") - 1
        steps[row : row + _CHUNK] = np.where(times < end[last], step[last], -1)
    return steps


def last_step_with_allocations(events: pl.DataFrame) -> int | None:
    """Return the step in which capture has ended the recording of allocations; None if it has not."""
    is_marker = (events["category"] == "UserDefined") & (events["name"] == ALLOCATIONS_MARKER)
    step = events["step"].gather(is_marker.arg_true()).min()
    return step if isinstance(step, int) else None


def rename_incomplete_steps(hosts: pl.DataFrame, names: Collection[str]) -> pl.DataFrame:
    """Return host events with the ProfileSteps that hold a marker renamed.

    Args:
        hosts: reads name, category, start_ns and end_ns; name and category are categorical.
        names: all names of ``hosts``.
    """
    if INCOMPLETE_MARKER not in names:  # the query takes longer
        return hosts
    is_marker = (pl.col("name") == INCOMPLETE_MARKER) & (pl.col("category") == "UserDefined")
    marked_ns = hosts.filter(is_marker)["start_ns"].to_list()
    if not marked_ns:
        return hosts
    holds_marker = pl.any_horizontal(
        pl.lit(time_ns).is_between("start_ns", "end_ns") for time_ns in marked_ns
    )
    is_incomplete = (pl.col("category") == "ProfileStep") & holds_marker
    changes = {"name": INCOMPLETE_STEP, "category": "PythonUserDefined"}
    return hosts.with_columns(
        pl.when(is_incomplete)
        .then(pl.lit(value))
        .otherwise(pl.col(column).cast(pl.String))
        .cast(pl.Categorical())
        .alias(column)
        for column, value in changes.items()
    )


def is_pause(name: str) -> bool:
    """Return whether a span of this name is a pause of the training; see `PAUSE_SPAN`."""
    return name == PAUSE_SPAN or name.startswith(f"{PAUSE_SPAN}: ")


def reason_of_pause(name: str) -> str:
    """Return what a pause is for; "" if its span does not say it.

    >>> reason_of_pause("paused: evaluation"), reason_of_pause("paused")
    ('evaluation', '')
    """
    return name.partition(": ")[2]


def single_steps(hosts: pl.DataFrame) -> tuple[pl.DataFrame, tuple[Note, ...]]:
    """Return host events in which steps follow one another, each with a number of its own.

    A step that lies in an earlier one by half or more is a user's span; one that ends in the next one
    is cut there. If numbers repeat, steps are numbered by time, from 0::

        as recorded   |4        |5        |4        |        as read   |0        |1        |2        |
                        |4   |

    Args:
        hosts: reads name, category, start_ns, dur_ns and end_ns; name and category are categorical.

    Returns:
        The events, and what to say about them.
    """
    rows = (hosts["category"] == "ProfileStep").arg_true()
    steps = hosts[rows].select(
        "start_ns",
        pl.col("name").cast(pl.String),
        "end_ns",
        row=pl.Series(rows),
    )
    steps = steps.sort("start_ns", "end_ns", descending=[False, True])
    latest, inner = -(2**62), []
    for row, start, end in steps.select("row", "start_ns", "end_ns").iter_rows():
        if start < latest and 2 * (min(end, latest) - start) >= end - start:
            inner.append(row)
        else:
            latest = max(latest, end)
    outer = steps.filter(~pl.col("row").is_in(inner))
    is_repeated = outer["name"].n_unique() < outer.height
    is_cut = (outer["end_ns"] - ROUNDING_NS > outer["start_ns"].shift(-1)).fill_null(False)
    if is_cut.any():
        cut = outer.with_columns(end_ns=pl.col("start_ns").shift(-1)).filter(is_cut)
        hosts = hosts.with_columns(
            end_ns=hosts["end_ns"].scatter(cut["row"], cut["end_ns"]),
            dur_ns=hosts["dur_ns"].scatter(cut["row"], cut["end_ns"] - cut["start_ns"]),
        )
    if not inner and not is_repeated:
        return hosts, ()
    renamed = hosts.with_columns(pl.col("name", "category").cast(pl.String))
    if inner:
        changed = renamed["category"].scatter(sorted(inner), "PythonUserDefined")
        renamed = renamed.with_columns(category=changed)
    notes: list[Note] = [("inner_steps", {"num": len(inner)})] if inner else []
    if is_repeated:
        names = [f"ProfileStep#{number}" for number in range(outer.height)]
        numbered = outer.select("row", name=pl.Series(names)).sort("row")
        renamed = renamed.with_columns(
            name=renamed["name"].scatter(numbered["row"], numbered["name"])
        )
        notes.append(("repeated_steps", {"num": outer.height}))
    return renamed.with_columns(pl.col("name", "category").cast(pl.Categorical())), tuple(notes)


def with_step_mark(trace: Trace, pattern: str | None) -> Trace:
    """Return a trace whose steps are the spans with names that match; unchanged for None.

    Spans inside others of them are no steps.

    Args:
        trace: a trace of Paddle's.
        pattern: a regular expression that the names of the spans contain.

    Raises:
        TraceError: no span has such a name.
    """
    if pattern is None:
        return trace
    events = trace.events
    is_mark = trace.names.where(lambda name: re.search(pattern, name) is not None)
    is_mark &= events["depth"].is_not_null().to_numpy()
    rows = np.flatnonzero(is_mark)
    if not len(rows):
        raise TraceError(f"--step-mark {pattern}: no span has such a name")
    around = enclosing(events["parent"].fill_null(-1).to_numpy(), is_mark)
    rows = rows[around[rows] < 0]
    rows = rows[np.argsort(events["start_ns"].to_numpy()[rows], kind="stable")]
    was_step = (events["category"] == "ProfileStep").arg_true()
    category = events["category"].cast(pl.String).scatter(was_step, "PythonUserDefined")
    order = np.argsort(rows)
    names = [f"ProfileStep#{number}" for number in order]
    events = events.with_columns(
        name=events["name"].cast(pl.String).scatter(rows[order], names).cast(pl.Categorical()),
        category=category.scatter(rows[order], "ProfileStep").cast(pl.Categorical()),
    )
    mark = trace.events["name"][int(rows[0])]
    note: Note = ("chosen_steps", {"num": len(rows), "mark": mark})
    events = events.with_columns(step=steps_of(events))
    return dataclasses.replace(trace, events=events, notes=(*trace.notes, note))


def incomplete_steps(events: pl.DataFrame) -> pl.DataFrame:
    """Return start_ns and end_ns of each incomplete step, sorted; no rows without one.

    Args:
        events: columns of `ppprof.trace.schema.EVENTS`.
    """
    rows = (events["name"] == INCOMPLETE_STEP).arg_true()
    if not len(rows):
        return pl.DataFrame(schema={"start_ns": pl.Int64, "end_ns": pl.Int64})
    is_incomplete = (pl.col("category") == "PythonUserDefined") & pl.col("step").is_null()
    return (
        events[["category", "step", "start_ns", "dur_ns"]][rows]
        .filter(is_incomplete)
        .select("start_ns", end_ns=pl.col("start_ns") + pl.col("dur_ns"))
        .sort("start_ns")
    )


def incomplete_time_ns(events: pl.DataFrame) -> int:
    """Return the time in incomplete steps; 0 if no step of the trace is complete.

    Args:
        events: columns of `ppprof.trace.schema.EVENTS`.
    """
    if events["step"].null_count() == events.height:
        return 0
    spans = incomplete_steps(events)
    return int(spans["end_ns"].sum()) - int(spans["start_ns"].sum())
