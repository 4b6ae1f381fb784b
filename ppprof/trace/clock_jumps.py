"""Jumps of the wall clock in a raw capture: found by their markers, and undone.

Paddle takes the times of events from the wall clock, which NTP or a person may set while a window is
open. At the end of each recorded step, capture compares it with the monotonic clock, and records a
marker if it was set. Here it is set forward by 20 in step 6; ``a`` and ``b`` are operators::

    as captured   |5   a   |6   a                      b  marker|7
    as read       |5   a   |6   a  b  marker|7

What was recorded beside the events has the times of the set clock, too: a marker keeps its jump as an attribute,
by which `without_jumps` undoes it there.

The jump lies in the longest stretch of its step in which no event starts or ends. If the clock is set
back, events before and after the jump cannot be distinguished by their times, unless all times after
the jump are earlier than the first step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.arrays import Int64
from ppprof.rundir import CLOCK_MARKER
from ppprof.trace.operator_inputs import attributes_of, to_json
from ppprof.trace.schema import Trace
from ppprof.units import format_time

_MARKER = re.escape(CLOCK_MARKER) + r"(-?[0-9]{1,18}) ns"
_NEW_NAME = r"(forward|back) by .*, (not )?corrected\Z"
_NEW_START = "clock set "
_ATTRIBUTE = "clock_jump"
_NOISE_NS = 1_000_000
"""Largest error of the size that a marker gives."""


class ClockJump(NamedTuple):
    """A jump that can be undone. Times are on the clock of the raw capture."""

    first_ns: int
    """What is after the jump has times from here..."""
    last_ns: int
    """...to here."""
    shift_ns: int
    """What to add to such times."""


def find_clock_jumps(
    hosts: pl.DataFrame, names: Iterable[str]
) -> tuple[list[ClockJump], pl.DataFrame]:
    """Return the jumps that can be undone, and the host events with their markers renamed.

    The new name of a marker is ``clock set forward by 20 ms, corrected``, or ``not corrected`` for
    a jump that cannot be undone. A jump that can be is the attribute `_ATTRIBUTE` of its marker.

    Args:
        hosts: reads name, category, start_ns and end_ns; name and category are categorical.
        names: the distinct names of the host events.
    """
    markers = [name for name in names if name.startswith(CLOCK_MARKER)]
    if not markers:
        return [], hosts
    is_marker = (pl.col("category") == "UserDefined") & pl.col("name").is_in(markers)
    rows = hosts.with_row_index("row").filter(is_marker)
    sizes = {
        row: (int(match[1]), time_ns)
        for row, name, time_ns in rows.select("row", "name", "start_ns").iter_rows()
        if (match := re.fullmatch(_MARKER, name))
    }
    if not sizes:
        return [], hosts
    steps = _steps(hosts)
    boundaries = np.unique(hosts.select("start_ns", "end_ns").to_numpy())
    can_undo = len(sizes) == 1 or all(size > 0 for size, _ in sizes.values())
    jumps: list[ClockJump] = []
    new_names = hosts["name"].to_list()
    attributes: list[str | None] = [None] * len(new_names)
    for row, (size, time_ns) in sizes.items():
        find = _jump_forward if size > 0 else _jump_back
        jump = find(abs(size), time_ns, steps, boundaries) if can_undo else None
        if jump is not None:
            jumps.append(jump)
            attributes[row] = to_json({_ATTRIBUTE: jump})
        way, outcome = "back" if size < 0 else "forward", "not " * (jump is None) + "corrected"
        new_names[row] = f"clock set {way} by {format_time(abs(size))}, {outcome}"
    hosts = hosts.with_columns(
        name=pl.Series(new_names, dtype=pl.Categorical()),
        attributes=pl.Series(attributes, dtype=pl.String).cast(pl.Categorical()),
    )
    if len(jumps) < len(sizes):  # an event around a jump back may end before it starts
        hosts = hosts.with_columns(end_ns=pl.max_horizontal("start_ns", "end_ns"))
    return jumps, hosts


def undo_clock_jumps(times: pl.Series, jumps: list[ClockJump]) -> pl.Series:
    """Return int64 times without the jumps: on the clock as it was before the first of them."""
    values = times.to_numpy()
    shift = np.zeros_like(values)
    for jump in jumps:
        shift[(values >= jump.first_ns) & (values <= jump.last_ns)] += jump.shift_ns
    return pl.Series(times.name, values + shift)


def without_jumps(trace: Trace, rows: Int64, columns: Sequence[int]) -> Int64:
    """Return rows whose times are those of the set clock, on the clock of a trace's events.

    Args:
        trace: the trace.
        rows: shape (N, M).
        columns: the columns of ``rows`` that are times.
    """
    is_marker = trace.names.where(lambda name: name.startswith(_NEW_START))
    if not is_marker.any() or not len(rows):
        return rows
    texts = trace.events["attributes"].filter(pl.Series(is_marker)).cast(pl.String).drop_nulls()
    jumps = [jump for text in texts for jump in _jumps_in(text)]
    rows = rows.copy()
    for column in columns:
        times = pl.Series(rows[:, column])
        rows[:, column] = undo_clock_jumps(times, jumps).to_numpy()
    return rows


def _jumps_in(attributes: str) -> list[ClockJump]:
    """Return the jump among the attributes of a marker; [] if it is of another program."""
    jump = attributes_of(attributes).get(_ATTRIBUTE)
    if not isinstance(jump, list) or len(jump) != len(ClockJump._fields):
        return []
    are_times = all(isinstance(each, int) and abs(each) < 1 << 63 for each in jump)
    return [ClockJump(*jump)] if are_times else []


def clock_messages(trace: Trace) -> list[str]:
    """Return the new names of the markers in a trace, sorted; empty without a jump."""
    start = len(_NEW_START)
    is_marker = trace.names.where(
        lambda name: name.startswith(_NEW_START) and re.match(_NEW_NAME, name[start:]) is not None
    )
    if not is_marker.any():
        return []
    is_marker &= (trace.events["category"] == "UserDefined").to_numpy()
    return sorted(trace.names.take(is_marker).used())


def _steps(hosts: pl.DataFrame) -> pl.DataFrame:
    """Return number, start_ns and end_ns of each step, in the order of their numbers."""
    steps = hosts.filter(pl.col("category") == "ProfileStep")
    number = pl.col("name").cast(pl.String).str.extract(r"#(\d+)$").cast(pl.Int64, strict=False)
    return steps.select(number.alias("number"), "start_ns", "end_ns").drop_nulls().sort("number")


def _jump_forward(
    size: int, marker_ns: int, steps: pl.DataFrame, boundaries: Int64
) -> ClockJump | None:
    """Return the jump by ``size`` in the step that ends with a marker; None if it is not found."""
    before = steps.filter(pl.col("start_ns") <= marker_ns)["start_ns"]
    if before.is_empty():
        return None
    step_ns = int(before.to_numpy().max())
    times = boundaries[(boundaries >= step_ns) & (boundaries <= marker_ns)]
    gaps = np.diff(times)
    if not len(gaps) or gaps.max() < size - _NOISE_NS:
        return None
    longest = int(gaps.argmax())
    shift_ns = min(size, int(gaps[longest]))
    # No event is in the gap, but a call is that began ahead of its event.
    middle_ns = int(times[longest] + gaps[longest] // 2)
    return ClockJump(middle_ns, np.iinfo(np.int64).max, -shift_ns)


def _jump_back(
    size: int, marker_ns: int, steps: pl.DataFrame, boundaries: Int64
) -> ClockJump | None:
    """Return the jump if all times after it are earlier than the first step; else None."""
    if steps.is_empty() or marker_ns >= steps["start_ns"][0]:
        return None
    return ClockJump(0, int(steps["start_ns"][0]) - 1, size)
