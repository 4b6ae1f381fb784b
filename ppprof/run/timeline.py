"""What happens around a place: the longest events of a rank in a step, and lines of source."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import polars as pl

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import python_lines
from ppprof.analysis.profile.steps import WHOLE_TRACE, with_step
from ppprof.errors import InputError, UsageError
from ppprof.run.run import Run
from ppprof.rundir.recordings import Recording
from ppprof.trace.schema import Trace
from ppprof.units import format_ranges

_log = logging.getLogger("ppprof")

_MOST_NAMED = 20
"""Most files that a message names."""


@dataclass(frozen=True)
class Around:
    """The longest events of one rank in a step or a time."""

    recording: Recording
    """The window."""
    step: int | None
    """The step; None for a time, and in a trace without steps."""
    start_ns: int
    """Where the place begins, on the clock of the rank's trace."""
    end_ns: int
    """Where it ends."""
    events: pl.DataFrame
    """start_ns (since the place begins), dur_ns, self_ns (without the host events inside), name, category,
    depth, thread, device, stream, step and line, of the events that lie in part in the place; by start."""
    num_shorter: int
    """The number of shorter events that ``events`` lacks."""

    def identity(self) -> dict[str, Any]:
        """Return the values that identify the place."""
        return {
            "rank": self.recording.rank,
            "window": self.recording.window,
            "step": self.step,
            "origin_ns": self.start_ns,
            "length_ns": self.end_ns - self.start_ns,
        }


def timeline_around(
    run: Run,
    rank: int | None = None,
    step: int | None = None,
    between: tuple[int, int] | None = None,
    name: str = "",
    most: int = 40,
) -> Around:
    """Return the longest events of a rank in a step or a time.

    ::

        step     ###############      self_ns: 4 of step, 3 of a, 8 of b
        a         ###
        b             ########

    Args:
        run: the run.
        rank: the rank; None: the first.
        step: the step, in the first window that has it; None: the rank's longest step.
        between: start and end in ns on the clock of the rank's trace, instead of a step; the
            first window that has a part of this time is read.
        name: only events whose name has this text.
        most: most events.

    Raises:
        UsageError: no such rank, step or time; the message names the existing ones.
        InputError: the rank has no readable window, or no event.
    """
    if between is None:
        recording, step, between = _longest_step(run, rank, step)
    else:
        recording, step = _window_at(run, rank, between), None
    start_ns, end_ns = between
    trace = with_step(run.reader.trace(recording)[1])
    start, end = pl.col("start_ns"), pl.col("start_ns") + pl.col("dur_ns")
    inside = _with_own_time(trace.events).filter(start < end_ns, end > start_ns)
    if name:
        inside = inside.filter(pl.col("name").str.contains(name, literal=True))
    longest = inside.sort("dur_ns", descending=True).head(most).sort("start_ns", "depth")
    num_shorter = inside.height - longest.height
    shown = longest.with_columns(start - start_ns)
    return Around(recording, step, start_ns, end_ns, shown, num_shorter)


def source_lines(run: Run, rank: int | None, file: str, line: int) -> list[dict[str, Any]]:
    """Return the recorded lines of a file of the user's code, the nearest to ``line`` first.

    Returns:
        For each line: line (its number), text, and if samples met it self_ns and total_ns, as
        `ppprof.analysis.profile.python_lines.python_lines` defines them.

    Raises:
        UsageError: no such rank, or no source of the file was recorded; the message names the files.
        InputError: the rank has no readable window.
    """
    known: set[str] = set()
    for _, trace in _windows(run, rank):
        sources = {} if trace.stacks is None else trace.stacks.source
        if file in sources:
            break
        known |= set(sources)
    else:
        named = ", ".join(sorted(known)[:_MOST_NAMED]) or "none"
        raise UsageError(f"{file}: no source of it was recorded; recorded: {named}")
    sampled = python_lines(Profile(trace)).filter(file=file)
    sums = sampled.group_by("line").agg(pl.col("self_ns", "total_ns").sum())
    times = {row.pop("line"): row for row in sums.rows(named=True)}
    near = sorted(sources[file], key=lambda number: (abs(number - line), number))
    return [
        {"line": number, "text": sources[file][number], **times.get(number, {})} for number in near
    ]


def _windows(run: Run, rank: int | None) -> Iterator[tuple[Recording, Trace]]:
    """Yield the readable windows of a rank, the first rank for None; log an error for each other window.

    Raises:
        UsageError: no such rank.
        InputError: no window can be read.
    """
    recordings = run.select(run.ranks[0] if rank is None and run.ranks else rank)
    num_unreadable = 0
    for recording in recordings:
        try:
            trace = run.reader.trace(recording)[1]
        except InputError as error:
            num_unreadable += 1
            if num_unreadable == len(recordings):
                raise
            _log.warning("%s", error)
        else:
            yield recording, with_step(trace)


def _window_at(run: Run, rank: int | None, between: tuple[int, int]) -> Recording:
    """Return the first window of a rank that has a part of a time."""
    times = []
    for recording, trace in _windows(run, rank):
        if trace.events.height:
            start_ns, end_ns = _ends(trace.events)
            if between[0] < end_ns and between[1] > start_ns:
                return recording
            times.append(f"from {start_ns} to {end_ns}")
    asked, known = f"from {between[0]} to {between[1]} ns", ", ".join(times[:_MOST_NAMED]) or "none"
    raise UsageError(f"no window {asked}; there are windows {known}")


def _longest_step(
    run: Run, rank: int | None, step: int | None
) -> tuple[Recording, int, tuple[int, int]]:
    """Return window, number, and start and end of a rank's longest step; of ``step`` if it is given.

    A window without steps counts as step 0, if no other window has steps.
    """
    windows, has_steps = [], []
    for recording, trace in _windows(run, rank):
        steps = trace.events.filter(category="ProfileStep").drop_nulls("step")
        windows.append((recording, steps))
        has_steps.append(bool((steps["name"] != WHOLE_TRACE).any()))
        if has_steps[-1] and step in steps["step"]:
            break
    known = [
        (recording, number, (start_ns, start_ns + dur_ns))
        for (recording, steps), has_step in zip(windows, has_steps)
        if has_step or not any(has_steps)
        for number, start_ns, dur_ns in steps.select("step", "start_ns", "dur_ns").iter_rows()
    ]
    if not known:
        raise InputError(f"{run}: no event in the windows of rank {windows[0][0].rank}")
    found = [place for place in known if step in (None, place[1])]
    if not found:
        numbers = sorted({number for _, number, _ in known})
        raise UsageError(f"no step {step}; there are {format_ranges('step', numbers)}")
    if step is not None:
        found = found[:1]
    return max(found, key=lambda place: place[2][1] - place[2][0])


def _ends(events: pl.DataFrame) -> tuple[int, int]:
    """Return where the first event begins and the last one ends."""
    start, end = events["start_ns"], events["start_ns"] + events["dur_ns"]
    return cast(int, start.min()), cast(int, end.max())


def _with_own_time(events: pl.DataFrame) -> pl.DataFrame:
    numbered = events.with_row_index("row").with_columns(pl.col("row").cast(pl.Int32))
    hosts = numbered.filter(pl.col("device").is_null()).drop_nulls("parent")
    inside = hosts.group_by("parent").agg(inside_ns=pl.col("dur_ns").sum())
    return numbered.join(inside, left_on="row", right_on="parent", how="left").select(
        *("start_ns", "dur_ns"),
        (pl.col("dur_ns") - pl.col("inside_ns").fill_null(0)).alias("self_ns"),
        *(pl.col(name).cast(pl.String) for name in ("name", "category")),
        *("depth", "thread", "device", "stream", "step"),
        pl.col("line").cast(pl.String),
    )
