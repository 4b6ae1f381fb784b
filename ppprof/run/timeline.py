"""What happens around a place: the longest events of a rank in a step, and lines of source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import polars as pl

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import python_lines
from ppprof.analysis.profile.steps import with_step
from ppprof.errors import InputError, UsageError
from ppprof.run.run import Run
from ppprof.rundir.recordings import Recording
from ppprof.trace.schema import Trace
from ppprof.units import format_ranges

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
        step: the step; None: the rank's longest step.
        between: start and end in ns on the clock of the rank's trace, instead of a step.
        name: only events whose name has this text.
        most: most events.

    Raises:
        UsageError: no such rank or step; the message names the existing ones.
        InputError: the run has no readable window, or no event in it.
    """
    recording, trace = _window(run, rank, step)
    if trace.events.is_empty():
        raise InputError(f"{run}: no event in window {recording.window} of rank {recording.rank}")
    events = _with_own_time(trace.events)
    start_ns, end_ns = between or (0, 0)
    if between is None:
        step, start_ns, end_ns = _extent(events, step)
    start, end = pl.col("start_ns"), pl.col("start_ns") + pl.col("dur_ns")
    inside = events.filter(start < end_ns, end > start_ns)
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
        InputError: the run has no readable window.
    """
    _, trace = _window(run, rank, None)
    sources: Mapping[str, Mapping[int, str]] = {} if trace.stacks is None else trace.stacks.source
    if file not in sources:
        known = ", ".join(sorted(sources)[:_MOST_NAMED]) or "none"
        raise UsageError(f"{file}: no source of it was recorded; recorded: {known}")
    sampled = python_lines(Profile(trace)).filter(file=file)
    sums = sampled.group_by("line").agg(pl.col("self_ns", "total_ns").sum())
    times = {row.pop("line"): row for row in sums.rows(named=True)}
    near = sorted(sources[file], key=lambda number: (abs(number - line), number))
    return [
        {"line": number, "text": sources[file][number], **times.get(number, {})} for number in near
    ]


def _window(run: Run, rank: int | None, step: int | None) -> tuple[Recording, Trace]:
    """Return the first window of a rank, of those with the step if it is given."""
    known: set[int] = set()
    first = run.ranks[0] if rank is None and run.ranks else rank
    for recording in run.select(first):
        trace = with_step(run.reader.trace(recording)[1])
        steps = set(trace.events["step"].drop_nulls())
        if step is None or step in steps:
            return recording, trace
        known |= steps
    raise UsageError(f"no step {step}; there are {format_ranges('step', sorted(known))}")


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


def _extent(events: pl.DataFrame, step: int | None) -> tuple[int | None, int, int]:
    """Return number, start and end of a step, the longest one for None; of all events without steps."""
    steps = events.filter(category="ProfileStep").sort("dur_ns", descending=True)
    if step is not None:
        steps = steps.filter(step=step)
    if steps.is_empty():
        ends = events["start_ns"] + events["dur_ns"]
        return step, cast(int, events["start_ns"].min()), cast(int, ends.max())
    longest = steps.row(0, named=True)
    return longest["step"], longest["start_ns"], longest["start_ns"] + longest["dur_ns"]
