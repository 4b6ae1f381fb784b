"""Cut a trace: to some of its steps, or to its own events and those of each remote call."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import polars as pl

from ppprof.analysis.profile.intervals import contains
from ppprof.arrays import Bool, Int32
from ppprof.choices import StepRange
from ppprof.remote_names import REMOTE, call_of
from ppprof.trace.schema import EVENTS, Trace, conform, nullable
from ppprof.trace.steps import incomplete_steps, incomplete_time_ns, is_pause
from ppprof.trace.tree_arrays import levels
from ppprof.trace.unrecorded_device import unrecorded_device


def select_steps(trace: Trace, steps: StepRange) -> Trace:
    """Return ``trace`` with only the events of ``steps``.

    An event belongs to the step in which it began, a device event to the step in which it was
    launched. Memory events belong to the step in whose time they happened. Events outside all steps
    are removed.

    ::

        ProfileStep   |1        |2        |        steps 2:3 keep step 2, b with its kernel k,
        loader           a...........              and what was allocated in the time of step 2
                           (child b) ..            a began in step 1: b is outermost now
        stream                       k..

    The columns ``parent`` and ``event`` hold row numbers of the new tables. If the event they
    pointed to was removed, they point to its nearest remaining ancestor, or are null without one.
    ``forward`` is null if the event it pointed to was removed. CPU utilizations are removed from
    ``extra_info``, since Paddle measures them over the whole window. The peaks in memory events are
    unchanged: they are the highest values since the process started, not since ``steps`` began.
    """
    keep = trace.events.select(steps.contains(pl.col("step"))).to_series().to_numpy()
    steps_kept = trace.events.filter(keep).filter(pl.col("category") == "ProfileStep")
    spans = steps_kept.with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))
    chosen = select_events(trace, keep, _is_inside(trace.memory["time_ns"], spans))
    return dataclasses.replace(
        chosen,
        extra_info={
            key: value
            for key, value in trace.extra_info.items()
            if not key.endswith("Cpu Utilization")
        },
    )


def leave_out_incomplete_steps(trace: Trace) -> Trace:
    """Return ``trace`` without the incomplete steps and all that happened in their time.

    Device events are removed with their launch. A trace without a complete step is returned whole:
    otherwise nothing would be left of it.
    """
    if not incomplete_time_ns(trace.events):
        return trace
    spans = incomplete_steps(trace.events)
    begins_inside = _begins_inside(trace.events, spans)
    return select_events(trace, ~begins_inside, ~_is_inside(trace.memory["time_ns"], spans))


def without_pauses(trace: Trace) -> Trace:
    """Return ``trace`` without what happened in the time of its pauses, which are no time of a step.

    The pauses themselves stay, and memory events, whose levels go on. Device events are removed with
    their launch::

        ProfileStep           |1                          |2
        paused: evaluation             ............              stays
        Forward                 ###      ### ### ###      ##     of the pause: removed
    """
    pauses = pauses_in(trace)
    if not pauses.any():
        return trace
    spans = trace.events.filter(pauses).with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))
    keep = ~_begins_inside(trace.events, spans) | pauses
    return trace if keep.all() else select_events(trace, keep, np.ones(trace.memory.height, bool))


def pauses_in(trace: Trace) -> Bool:
    """Return whether each event is a pause that `ProfilerSession.paused` has recorded, shape (N,)."""
    is_span = trace.categories.is_one_of("UserDefined", "PythonUserDefined")
    is_span[is_span] = trace.names.take(is_span).where(is_pause)
    return is_span


def _begins_inside(events: pl.DataFrame, spans: pl.DataFrame) -> Bool:
    """Return whether each event begins in one of ``spans``, or the launch of a device event does."""
    begins_inside = _is_inside(events["start_ns"], spans)
    is_device = events["device"].is_not_null().to_numpy()
    launch = events["parent"].fill_null(-1).to_numpy()
    begins_inside[is_device] = np.append(begins_inside, False)[launch[is_device]]
    return begins_inside


WHOLE_TRACE = "no steps#0"
"""Name of the ProfileStep around all events of a trace without steps."""


UNMARKED = "unmarked"
"""Value of `Trace.doubts`: the trace has no steps."""


def with_step(trace: Trace) -> Trace:
    """Return ``trace``; without any numbered step, with one ProfileStep around all events, step 0.

    Servers and small scripts call no ``step()``. What is computed step by step then covers their
    whole trace. The ProfileStep is on the thread with the most time in host events (0 if there are no
    host events)::

        main      WHOLE_TRACE ......................      the host events of main are below it
                    a     b(c)
        loader       d
        stream             k k k k k k k k k k k k k
    """
    events = trace.events
    if events.is_empty() or events["step"].null_count() < events.height:
        return trace
    hosts = events.filter(pl.col("depth").is_not_null())
    outer = hosts.filter(pl.col("depth") == 0)
    busiest = outer.group_by("thread").agg(pl.col("dur_ns").sum()).sort("dur_ns", "thread")
    thread, process, first = 0, 0, 0  # of a trace without host events
    if busiest.height:
        thread = busiest["thread"][-1]
        first = int(np.flatnonzero((hosts["thread"] == thread).to_numpy())[0])
        process = hosts["process"][first]
    start_ns = int(events["start_ns"].to_numpy().min())
    end_ns = int((events["start_ns"] + events["dur_ns"]).to_numpy().max())
    span = pl.DataFrame(
        {
            "name": WHOLE_TRACE,
            "category": "ProfileStep",
            "start_ns": start_ns,
            "dur_ns": min(end_ns - start_ns, 2**63 - 1),  # a damaged file may have more
            "depth": 0,
            "process": process,
            "thread": thread,
        }
    )
    is_own = (pl.col("thread") == thread) & pl.col("depth").is_not_null()
    is_launched = pl.col("device").is_null() | pl.col("parent").is_not_null()
    row = np.arange(events.height, dtype=np.int32)
    row = np.append(row + (row >= first), np.int32(-1))
    moved = events.with_columns(
        parent=pl.when(is_own & (pl.col("depth") == 0))
        .then(first)
        .otherwise(nullable(row[events["parent"].fill_null(-1).to_numpy()])),
        depth=pl.when(is_own).then(pl.col("depth") + 1).otherwise("depth"),
        forward=nullable(row[events["forward"].fill_null(-1).to_numpy()]),
        step=pl.when(is_launched).then(0),
    )
    moved, span = (conform(table, EVENTS) for table in (moved, span.with_columns(step=0)))
    return dataclasses.replace(
        trace,
        doubts=(*trace.doubts, UNMARKED),
        events=pl.concat([moved[:first], span, moved[first:]]),
        memory=_renumber_events(trace.memory, row),
        kernels=_renumber_events(trace.kernels, row),
        memsets=_renumber_events(trace.memsets, row),
    )


def select_events(trace: Trace, keep: Bool, keep_memory: pl.Series | Bool) -> Trace:
    """Return ``trace`` with only the chosen events and memory events.

    Row numbers in ``parent``, ``event`` and ``forward`` change as `select_steps` says; depth is
    counted again. Rows of the tables of kernels and memsets stay if their event stays.

    Args:
        trace: N events, M memory events.
        keep: whether to keep each event, shape (N,).
        keep_memory: whether to keep each memory event, shape (M,).
    """
    row = _new_rows(trace.events["parent"].fill_null(-1).to_numpy(), keep)
    events = trace.events.filter(keep)
    parent = row[events["parent"].fill_null(-1).to_numpy()]
    is_host = events["depth"].is_not_null().to_numpy()
    depth = np.zeros(len(parent), np.int32)
    for level, nodes in enumerate(levels(parent[is_host])):
        depth[nodes] = level
    if events["forward"].count():
        forward = events["forward"].fill_null(-1).to_numpy()
        forward = np.where(np.append(keep, False)[forward], row[forward], np.int32(-1))
        events = events.with_columns(forward=nullable(forward))
    return dataclasses.replace(
        trace,
        unrecorded_device=unrecorded_device(trace),
        events=events.with_columns(
            parent=nullable(parent),
            depth=pl.when(pl.col("depth").is_not_null()).then(pl.Series(depth)),
        ),
        memory=_renumber_events(trace.memory.filter(keep_memory), row),
        kernels=_renumber_events(
            trace.kernels.filter(keep[trace.kernels["event"].to_numpy()]), row
        ),
        memsets=_renumber_events(
            trace.memsets.filter(keep[trace.memsets["event"].to_numpy()]), row
        ),
    )


def _new_rows(parent: Int32, keep: Bool) -> Int32:
    """Return the new row of each event; for a removed event, that of its nearest kept ancestor.

    The row is -1 if no ancestor is kept. Shape (N + 1,): the last element is -1, so that the index
    -1 (no parent) gives -1.
    """
    num_events = len(parent)
    missing = num_events
    own = np.arange(num_events, dtype=np.int32)
    nearest = np.append(np.where(keep, own, parent), np.int32(missing))
    nearest[nearest < 0] = missing
    for _ in range(num_events.bit_length()):  # each turn doubles the number of levels searched
        further = nearest[nearest]
        if np.array_equal(further, nearest):
            break
        nearest = further
    new = np.cumsum(keep, dtype=np.int32) - np.int32(1)
    rows: Int32 = np.append(np.where(keep, new, np.int32(-1)), np.int32(-1))[nearest]
    return rows


def _renumber_events(table: pl.DataFrame, row: Int32) -> pl.DataFrame:
    return table.with_columns(event=nullable(row[table["event"].fill_null(-1).to_numpy()]))


def _is_inside(time_ns: pl.Series, spans: pl.DataFrame) -> Bool:
    """Return whether each time lies in one of ``spans``, start included, end excluded."""
    times = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    return contains(times, time_ns.to_numpy())


def split_calls(trace: Trace) -> tuple[Trace, Mapping[str, Trace]]:
    """Return the trace of the rank's own process, and the trace of each remote call.

    The span around a call is one of the rank's own events. Events recorded in a call lose the
    prefix that names the call.

    Returns:
        The rank's own trace, and the trace of each call, keyed by `call_of`:
        ``rpc#f(worker0 -> worker1)``. For a trace without remote calls: ``trace`` unchanged, and an
        empty mapping.
    """
    calls = {name: call_of(name) for name in trace.names.texts if name.startswith("rpc#")}
    if not any(calls.values()):
        return trace, {}
    call = trace.events["name"].cast(pl.String).replace_strict(calls, default=None)
    call_of_memory = call.gather(trace.memory["event"])

    def events_of(chosen: str | None) -> Trace:
        wanted = pl.Series([chosen], dtype=pl.String)
        keep = call.eq_missing(wanted).to_numpy().astype(np.bool_)
        return select_events(trace, keep, call_of_memory.eq_missing(wanted))

    def with_plain_names(chosen: str) -> Trace:
        part = events_of(chosen)
        name = pl.col("name").cast(pl.String).str.strip_prefix(f"{chosen}{REMOTE}")
        events = part.events.with_columns(name.cast(part.events.schema["name"]))
        return dataclasses.replace(part, events=events)

    distinct = call.unique(maintain_order=True).drop_nulls()
    return events_of(None), {chosen: with_plain_names(chosen) for chosen in distinct}
