"""The steps of a file without ProfilerStep, from spans that occur once in each of them.

A loop that does not call ``profiler.step()`` still has marks. The first kind that a file has decides::

    ProfilerStep#N on a device     the launches of its kernels begin a step
    enumerate(DataLoader)#...      begins a step
    Optimizer.step#...             ends a step, if it is rarer: gradients of several batches add up
    other outermost annotations    begin a step, if they have one name but for numbers and brackets,
                                   and nearly all launches lie in them: step[decode bs=32]

A step lasts from one mark to the next. Of marks whose names recur in one order, such as those of two
optimizers or of layers with numbers, one name counts (`_once_a_cycle`). A user may name the spans (``--step-mark REGEX``): if they
are long, they are the steps themselves.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.arrays import Bool, Int64
from ppprof.errors import TraceError
from ppprof.trace.kineto.event_fields import ANNOTATION
from ppprof.trace.kineto.names import STEP
from ppprof.trace.labels import Labels
from ppprof.trace.schema import Note

_LEAST_STEPS = 2
_LEAST_SPANS = 3
_LEAST_SHARE = 0.9
"""Part of the launches that must lie in spans, for these to be steps."""
_MOST_NAMES = 5
_MOST_LETTERS = 80
_VARYING = re.compile(r"\s*[\[(#].*|[\s_:#]*\d[\d._]*")
"""What differs between the names of spans of one kind."""


class Device(NamedTuple):
    """What a device recorded."""

    events: pl.DataFrame
    """Reads process, thread, start_ns and correlation."""
    annotations: pl.DataFrame
    """Its copies of the host's annotations, one for each stream: name, process, thread, start_ns and
    dur_ns."""


class _Steps(NamedTuple):
    start: Int64
    end: Int64
    marks: pl.DataFrame
    """The spans that they were derived from, all of one thread."""


def with_marked_steps(
    hosts: pl.DataFrame,
    launches: pl.DataFrame,
    pattern: str | None,
    device: Device,
    recorded: pl.Series,
) -> tuple[pl.DataFrame, tuple[Note, ...]]:
    """Return host events with ProfileSteps, and what to say about them.

    The events are unchanged if they have steps, or no marks.

    Args:
        hosts: key, name, category, thread, process, start_ns, dur_ns and end_ns.
        launches: reads key, thread, process, correlation, start_ns and dur_ns.
        pattern: a regular expression that the names of the marks contain; None to choose them here.
        device: has copies of the host's annotations, if the host's own are not in the file.
        recorded: the names of ``hosts`` as in the file, for a pattern that fits no name of ours.

    Raises:
        TraceError: no span has a name with the pattern.
    """
    is_step = hosts["category"] == "ProfileStep"
    if pattern is not None:
        steps: _Steps | None = _of_pattern(hosts, pattern, recorded)
        plain = pl.lit("PythonUserDefined", pl.Categorical())
        hosts = hosts.with_columns(category=pl.when(is_step).then(plain).otherwise("category"))
    elif is_step.any():
        return hosts, ()
    else:
        steps = (
            _of_device(launches, device)
            or _of_loader_or_optimizer(hosts, launches, device)
            or _of_spans(hosts, launches)
        )
    if steps is None:
        return hosts, ()
    num_steps = len(steps.start)
    rows = pl.DataFrame(
        {
            "index": pl.repeat(-1, num_steps, dtype=pl.Int64, eager=True),
            "name": [f"ProfileStep#{number}" for number in range(num_steps)],
            "category": pl.repeat("ProfileStep", num_steps, eager=True),
            "start_ns": steps.start,
            "end_ns": steps.end,
            "dur_ns": steps.end - steps.start,
        }
    ).with_columns(
        pl.lit(steps.marks[name][0]).alias(name) for name in ("key", "thread", "process")
    )
    rows = rows.with_columns(pl.col(name).cast(hosts.schema[name]) for name in rows.columns)
    names = steps.marks["name"].cast(pl.String)
    mark = names[0] if names.n_unique() == 1 else f"{_kind(names[0])}..."
    values = {"num": num_steps, "mark": mark[:_MOST_LETTERS]}
    note: Note = ("chosen_steps" if pattern else "marked_steps", values)
    return pl.concat([rows, hosts], how="diagonal"), (note,)


def _kind(name: str) -> str:
    return _VARYING.sub("", name)


def _marks(hosts: pl.DataFrame, is_mark: Bool) -> pl.DataFrame:
    """Return the outermost marks of the thread with the most of them, by time."""
    columns = ("key", "thread", "process", "name", "start_ns", "end_ns")
    marks = hosts.select(columns).filter(pl.Series(is_mark))
    if marks.is_empty():
        return marks
    busiest = marks["key"].value_counts().sort("count", "key")["key"][-1]
    own = marks.filter(pl.col("key") == busiest).sort(
        "start_ns", "end_ns", descending=[False, True]
    )
    latest = own["end_ns"].cum_max().shift(1, fill_value=-(2**62))
    return own.filter(own["start_ns"] >= latest)


def _once_a_cycle(marks: pl.DataFrame, which: int = 0) -> pl.DataFrame:
    """Return the marks of one name, if all names recur in a fixed order; else all marks.

        names   Muon AdamW Muon AdamW Muon AdamW        which -1: those of AdamW

    Args:
        marks: by time; there must be two cycles, or the order may be chance.
        which: the name's position in a cycle.
    """
    names, length = marks["name"].to_physical().to_numpy(), marks["name"].n_unique()
    if not 0 < 2 * length <= len(names) or (names[length:] != names[:-length]).any():
        return marks
    return marks.filter(names == names[:length][which])


def _from_starts(marks: pl.DataFrame, hosts: pl.DataFrame) -> _Steps:
    """Return steps from one mark to the next; the last one ends with its mark, if marks are long."""
    start, end = (marks[name].to_numpy() for name in ("start_ns", "end_ns"))
    last = int(end[-1])
    if not _are_long(marks):
        last = int(hosts.filter(pl.col("key") == marks["key"][0])["end_ns"].to_numpy().max())
    return _Steps(start, np.append(start[1:], last), marks)


def _are_long(marks: pl.DataFrame) -> bool:
    """Return whether marks take at least half of the time from one to the next."""
    start, end = (marks[name].to_numpy() for name in ("start_ns", "end_ns"))
    return len(start) > 1 and bool(2 * np.median(end - start) >= np.median(np.diff(start)))


def _of_pattern(hosts: pl.DataFrame, pattern: str, recorded: pl.Series) -> _Steps:
    is_mark, is_recorded = (
        Labels.of(names).where(lambda name: re.search(pattern, name) is not None)
        for names in (hosts["name"], recorded)
    )
    marks = _marks(hosts, is_mark if is_mark.any() else is_recorded)
    if marks.is_empty():
        counts = hosts["name"].value_counts(sort=True).head(_MOST_NAMES)
        listed = ", ".join(f"{name} ({num})" for name, num in counts.iter_rows())
        raise TraceError(
            f"--step-mark {pattern}: no span has such a name; its most frequent names are: {listed}"
        )
    start, end = (marks[name].to_numpy() for name in ("start_ns", "end_ns"))
    return _Steps(start, end, marks) if _are_long(marks) else _from_starts(marks, hosts)


def _of_device(launches: pl.DataFrame, device: Device) -> _Steps | None:
    """Return steps from the device's copies of ProfilerStep; None without any.

    The host begins a step when it launches its first kernel::

        host                l l l   l l l
        stream 7              k   k   k k
        ProfilerStep          1----   2--
        stream 20               k   k
        ProfilerStep            1   2
        steps               1------|2-----|
    """
    stream = ["process", "thread"]
    spans = (
        device.annotations.filter(pl.col("name").cast(pl.String).str.starts_with(STEP))
        .sort("start_ns")
        .with_columns(nth=pl.int_range(pl.len()).over(*stream, "name"))
    )
    if spans.height < _LEAST_STEPS:
        return None
    kernels = device.events.select(*stream, "correlation", at="start_ns").drop_nulls()
    first = (
        kernels.sort("at")
        .join_asof(
            spans.rename({"name": "step"}),
            left_on="at",
            right_on="start_ns",
            by=stream,
            check_sortedness=False,
        )
        .filter(pl.col("at") < pl.col("start_ns") + pl.col("dur_ns"))
        .select("correlation", "step", "nth")
        .join(launches, "correlation")
        .sort("start_ns")
        .group_by("step", "nth")
        .agg(pl.col("key", "thread", "process", "start_ns").first())
        .sort("start_ns")
    )
    if first.height < _LEAST_STEPS:
        return None
    start = first["start_ns"].to_numpy()
    last = int((launches["start_ns"] + launches["dur_ns"]).to_numpy().max())
    marks = first.with_columns(name=pl.lit(f"{ANNOTATION} {STEP}N"))
    return _Steps(start, np.append(start[1:], last), marks)


def _of_loader_or_optimizer(
    hosts: pl.DataFrame, launches: pl.DataFrame, device: Device
) -> _Steps | None:
    loads, updates = (
        _once_a_cycle(_marks(hosts, (hosts["category"] == category).to_numpy()), which)
        for category, which in (("Dataloader", 0), ("Optimization", -1))
    )
    is_rarer = 0 < updates.height < loads.height - 1
    if loads.height >= _LEAST_STEPS and not is_rarer:
        # The call that finds no more batches begins no step.
        if (
            loads["start_ns"][-1] >= updates["end_ns"][-1]
            if updates.height
            else _is_idle_after(loads, hosts, launches, device)
        ):
            start = loads["start_ns"].to_numpy()
            return _Steps(start[:-1], start[1:], loads)
        return _from_starts(loads, hosts)
    if updates.height < _LEAST_STEPS:
        return None
    own = hosts.filter(pl.col("key") == updates["key"][0])
    end = updates["end_ns"].to_numpy()
    return _Steps(np.append(own["start_ns"].to_numpy().min(), end[:-1]), end, updates)


def _is_idle_after(
    marks: pl.DataFrame, hosts: pl.DataFrame, launches: pl.DataFrame, device: Device
) -> bool:
    """Return whether there is work, but no operator and no launch after the last mark."""
    launched = launches.join(device.events, "correlation", "semi")
    operators = hosts.filter(pl.col("category") == "Operator")
    work = pl.concat([operators["start_ns"], launched["start_ns"]])
    return len(work) > 0 and bool(work.max() < marks["end_ns"][-1])


def _of_spans(hosts: pl.DataFrame, launches: pl.DataFrame) -> _Steps | None:
    """Return steps of the annotations of one kind that hold nearly all launches; None without any.

    Of several kinds, that with the longest spans counts: it is around the others.
    """
    spans = hosts.filter(pl.col("category") == "PythonUserDefined")
    names = Labels.of(spans["name"])
    numbers: dict[str, int] = {}  # of each kind
    of_text = [numbers.setdefault(_kind(name), len(numbers)) for name in names.texts]
    kinds = np.array([*of_text, len(numbers)])[names.number]  # the last one: without a name
    counts = np.bincount(kinds, minlength=len(numbers) + 1)
    times = launches["start_ns"].to_numpy()
    best, longest = None, 0.0
    for kind in sorted(numbers):
        if counts[numbers[kind]] < _LEAST_SPANS:
            continue
        marks = _marks(spans, kinds == numbers[kind])
        if marks.height < _LEAST_SPANS or not len(times):
            continue
        start, end = (marks[name].to_numpy() for name in ("start_ns", "end_ns"))
        within = np.searchsorted(start, times, side="right") - 1
        share = ((within >= 0) & (times < end[within])).mean()
        length = float(np.median(end - start))
        if share >= _LEAST_SHARE and length > longest:
            best, longest = marks, length
    return None if best is None else _from_starts(_once_a_cycle(best), hosts)
