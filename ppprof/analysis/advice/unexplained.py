"""Host time that no event explains: where the training thread does something that has no event."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.advice.own_lines import CLEARING, beside_training, named_by_lines, noted
from ppprof.analysis.profile.grouping import intervals_of
from ppprof.analysis.profile.intervals import (
    Intervals,
    covered_within,
    maxima_by_group,
    together,
)
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.remote_flows import remote_waiting
from ppprof.analysis.ranks.device_steps import stepping_threads
from ppprof.packages import INSTALLED
from ppprof.trace import GARBAGE_COLLECTION
from ppprof.trace.event_lines import frame_of_call
from ppprof.trace.nesting import nest
from ppprof.trace.schema import RUN_OF_EXECUTOR, RUN_OF_PROGRAM

LEAST_GAP_NS = 500_000
"""Least length of a gap. Python takes some 10 us between two operators; fifty times as much is no
overhead of a call, but work, a lock or a wait."""

CONTAINERS = (
    "ProfileStep",
    "Forward",
    "Backward",
    "Optimization",
    "UserDefined",
    "PythonUserDefined",
)
"""Categories of events that only say what runs inside them. All other events are work or waits."""

_MOST_GAPS = 20_000
"""Most gaps that are named; the longest are kept."""


class HostTime(NamedTuple):
    """Time of the training thread that is no time of the training, or is not known to be."""

    gaps: pl.DataFrame
    """The result of `unexplained_gaps`."""
    beside: pl.DataFrame
    """The result of `ppprof.analysis.advice.own_lines.beside_training`."""


def host_time(profile: Profile, bubbles: pl.DataFrame) -> HostTime:
    """Return the gaps of one rank's window and the samples of its lines beside the training.

    Args:
        profile: one rank's window.
        bubbles: reads start_ns and end_ns: when the stage waits for other stages.
    """
    gaps = unexplained_gaps(profile, bubbles)
    beside = beside_training(profile, gaps, intervals_of(bubbles))
    named = gaps.with_columns(name=named_by_lines(gaps, beside))
    gaps, beside = (each.filter(pl.col("name") != CLEARING) for each in (named, beside))
    return HostTime(gaps.drop("thread"), beside)


def unexplained_gaps(profile: Profile, bubbles: pl.DataFrame) -> pl.DataFrame:
    """Return the gaps in steps of at least `LEAST_GAP_NS` that no event explains.

    A gap lies in a layer, phase, span or step of the training thread, between the events in it. Time
    is no gap if a device works, a thread computes, the training thread is in a runtime call, a remote
    call is under way, or the stage waits for other stages::

        step        ####################
        Forward     ##########               a: an operator
        events      aa    aaaa  a   aaaa
        gaps          ----          (in Forward; the gap of 2 in the step is short)

    Args:
        profile: one rank's window.
        bubbles: reads start_ns and end_ns: when the stage waits for other stages.

    Returns:
        One row per gap: thread; step; start_ns and end_ns; name, the path of the layers and spans around it,
        such as ``GPT/Block/Linear``, or ``step, after Forward, before Backward``; and time_ns, the
        gap without the explained time in it. The name ends in what the trace has of the code: the
        Python function around the gap, ``GPT/Block (train.py(31): wait)``, or the lines of the
        events beside it, ``GPT/Block (train.py:31 to train.py:40)``.
    """
    tree = profile.tree
    hosts = tree.hosts.with_columns(
        step=profile.trace.events["step"].slice(0, tree.hosts.height),
        is_container=pl.col("category").is_in(CONTAINERS),
    )
    threads = pl.Series(stepping_threads(profile))
    gaps = _gaps(hosts.filter(pl.col("thread").is_in(threads.implode())))
    start, end = gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy()
    explained = together(_explained(profile, threads), intervals_of(bubbles))
    time_ns = end - start - covered_within(explained, start, end)
    gaps = gaps.with_columns(time_ns=pl.Series(time_ns))
    gaps = gaps.filter((pl.col("time_ns") >= LEAST_GAP_NS) & pl.col("step").is_not_null())
    gaps = gaps.sort("time_ns", descending=True).head(_MOST_GAPS)
    functions = _functions_around(profile, gaps)
    lines = _lines_beside(profile, gaps)
    names = [
        _location(hosts, row, before, after) + (function or beside)
        for row, before, after, function, beside in zip(
            *gaps.select("row", "before", "after"), functions, lines
        )
    ]
    return gaps.select(
        hosts["thread"].gather(gaps["row"]),
        "step",
        "start_ns",
        "end_ns",
        name=pl.Series(names, dtype=pl.String),
        time_ns="time_ns",
    )


def _gaps(hosts: pl.DataFrame) -> pl.DataFrame:
    """Return the gaps in containers, which are steps, layers and spans: where none of the events in them runs.

    ::

        container   ____________________
        children       ####   ####            two events directly in the container
        gaps        ---    ---    ------      three rows

    Returns:
        row (the container), before and after (the children on either side of the gap; null at the
        begin and at the end of the container), start_ns, end_ns and step.
    """
    containers = hosts.filter("is_container").select(
        "row", "step", begin_ns="start_ns", until_ns="end_ns"
    )
    children = hosts.select("row", "parent", "start_ns", "end_ns")
    children = children.join(containers.select(parent="row"), on="parent", how="semi")
    children = children.sort("parent", "start_ns")
    # Expressions over so many groups would take most of a report.
    latest = maxima_by_group(children["parent"].to_numpy(), children["end_ns"].to_numpy())
    children = children.with_columns(end_ns=pl.Series(latest))
    is_next = pl.col("parent") == pl.col("parent").shift(1)
    inner = children.select(
        row="parent",
        before=pl.when(is_next).then(pl.col("row").shift(1)),
        after="row",
        start_ns=pl.when(is_next).then(pl.col("end_ns").shift(1)),
        end_ns="start_ns",
    )
    is_last = pl.col("parent").ne_missing(pl.col("parent").shift(-1))
    last = children.filter(is_last).select("parent", "row", "end_ns")
    outer = containers.join(last, left_on="row", right_on="parent", how="left", suffix="_last")
    tail = outer.select(
        "row",
        before="row_last",
        after=pl.lit(None, pl.Int64),
        start_ns=pl.coalesce("end_ns", "begin_ns"),
        end_ns="until_ns",
    )
    gaps = pl.concat([inner, tail], how="vertical_relaxed")
    return (
        gaps.join(containers, on="row")
        .with_columns(start_ns=pl.coalesce("start_ns", "begin_ns"))
        .filter(pl.col("end_ns") - pl.col("start_ns") >= LEAST_GAP_NS)
        .select("row", "before", "after", "start_ns", "end_ns", "step")
    )


def _explained(profile: Profile, threads: pl.Series) -> Intervals:
    """Return the instants in which a device works, a thread computes, or a call runs.

    The calls are those of the runtime, and remote calls. A pause, a garbage collection, the clearing of
    gradients and a program, which may run on other threads, explain themselves.
    """
    tree = profile.tree
    names = (GARBAGE_COLLECTION, RUN_OF_PROGRAM, RUN_OF_EXECUTOR)
    known = pl.col("name").cast(pl.String).is_in(names)
    calls = tree.launches.filter(pl.col("thread").is_in(threads.implode()))
    communication, stacks = profile.communication, profile.trace.stacks
    return together(
        *([] if stacks is None else [noted(stacks.clears)]),
        communication.computation,
        intervals_of(tree.devices),
        intervals_of(calls),
        remote_waiting(profile),
        intervals_of(profile.pauses),
        intervals_of(tree.hosts.filter(known)),
    )


def _functions_around(profile: Profile, gaps: pl.DataFrame) -> list[str]:
    """Return the innermost Python function of the user's around the middle of each gap, in parentheses; "" without one."""
    frames = profile.trace.frames
    if frames.is_empty():
        return [""] * gaps.height
    middle = ((gaps["start_ns"] + gaps["end_ns"]) // 2).to_numpy()
    thread = profile.tree.hosts["thread"].gather(gaps["row"]).to_numpy()
    start = np.concatenate([frames["start_ns"].to_numpy(), middle])
    end = np.concatenate([(frames["start_ns"] + frames["dur_ns"]).to_numpy(), middle])
    above = nest(
        np.concatenate([frames["thread"].to_numpy(), thread]),
        start,
        end,
        holds=np.arange(len(start)) < frames.height,
    )
    names = frames["name"].cast(pl.String).to_list()
    functions = []
    for frame in above[frames.height :].tolist():
        while frame >= 0 and not (
            _FUNCTION.match(names[frame]) and not INSTALLED.search(names[frame])
        ):
            frame = above[frame]
        functions.append(f" ({names[frame]})" if frame >= 0 else "")
    return functions


_FUNCTION = re.compile(r".*\.py\(\d+\): ")
"""Name of a frame in a file; others are built in: ``<built-in function sleep>``."""


def _lines_beside(profile: Profile, gaps: pl.DataFrame) -> list[str]:
    """Return the lines beside each gap in parentheses; empty if they are unknown.

    They are those of the last call in the event before the gap, and of the first one in the event after
    it: a layer has no call stack, but its operators have.
    """
    hosts = profile.tree.hosts.select("thread", "start_ns", "end_ns")
    hosts = hosts.with_columns(profile.trace.events["callstack"].slice(0, hosts.height))
    calls = hosts.drop_nulls("callstack").sort("start_ns")
    place = {
        text: frame.place
        for text in calls["callstack"].unique().cast(pl.String)
        if (frame := frame_of_call(text))
    }
    lines = {
        thread: (
            of_thread["start_ns"].to_numpy(),
            [place.get(text) for text in of_thread["callstack"].cast(pl.String)],
        )
        for (thread,), of_thread in calls.group_by("thread")
    }

    def line(row: int | None, *, is_last: bool) -> str | None:
        thread, start_ns, end_ns = (None, 0, 0) if row is None else hosts.row(row)[:3]
        if thread not in lines:
            return None
        starts, places = lines[thread]
        first, end = np.searchsorted(starts, (start_ns, end_ns))
        return places[end - 1 if is_last else first] if first < end else None

    texts = []
    for before, after in gaps.select("before", "after").iter_rows():
        known = filter(None, (line(before, is_last=True), line(after, is_last=False)))
        texts.append(f" ({' to '.join(dict.fromkeys(known))})")
    return ["" if text == " ()" else text for text in texts]


def _location(hosts: pl.DataFrame, row: int, before: int | None, after: int | None) -> str:
    """Return where a gap lies, from its container and its neighbours."""
    names: list[str] = []
    above: int | None = row
    while above is not None:
        event = hosts.row(above, named=True)
        if event["category"] != "ProfileStep":
            names.append(str(event["name"]))
        above = event["parent"]
    if names:
        return "/".join(reversed(names))
    beside = [
        f"{word} {hosts['name'][neighbour]}"
        for word, neighbour in (("after", before), ("before", after))
        if neighbour is not None
    ]
    return ", ".join(["step", *beside])
