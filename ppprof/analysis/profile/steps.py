"""A trace cut down to some of its steps."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from ppprof.analysis.profile.intervals import union
from ppprof.arrays import Int64
from ppprof.errors import UsageError
from ppprof.trace.schema import Trace
from ppprof.trace.tree_arrays import levels

_STEPS = re.compile(r"(?P<one>\d+)|(?P<start>\d*):(?P<stop>\d*)")


@dataclass(frozen=True)
class StepRange:
    """Steps ``start`` to ``stop - 1``, as ``Profiler.scheduler: [start, stop]`` counts them.

    >>> print(StepRange.parse("2:5"), StepRange.parse("7"), StepRange.parse("3:"))
    2:5 7:8 3:
    """

    start: int = 0
    stop: int | None = None
    """None: to the last."""

    @classmethod
    def parse(cls, text: str | int) -> StepRange:
        """From ``"A:B"``, ``"A:"``, ``":B"`` or a single step.

        Raises:
            UsageError: none of these, or no step in it.
        """
        match = _STEPS.fullmatch(str(text).strip())
        if match is None or match[0] == ":":
            raise UsageError(
                f"steps {text!r}: expected A:B (steps A to B-1), A:, :B or one number, from 0"
            )
        if match["one"]:
            return cls(int(match["one"]), int(match["one"]) + 1)
        start = int(match["start"] or 0)
        stop = int(match["stop"]) if match["stop"] else None
        if stop is not None and stop <= start:
            raise UsageError(f"steps {text!r}: {stop} is not after {start}; no step is in it")
        return cls(start, stop)

    @classmethod
    def of(cls, steps: StepRange | str | int | None) -> StepRange | None:
        """Return the steps that a caller asked for, as a value or as text; None: all.

        Raises:
            UsageError: the text is no range of steps; see `parse`.
        """
        return steps if steps is None or isinstance(steps, cls) else cls.parse(steps)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.start}:{'' if self.stop is None else self.stop}"

    def contains(self, step: pl.Expr) -> pl.Expr:
        """Whether a step number is one of these; False for null."""
        inside = step >= self.start
        if self.stop is not None:
            inside &= step < self.stop
        return inside.fill_null(value=False)


def select_steps(trace: Trace, steps: StepRange) -> Trace:
    """The events that began (device events: were launched) in ``steps``, and nothing else.

    ::

        ProfileStep   |1        |2        |        steps 2:3 keep step 2, b with its kernel k,
        loader           a...........              and what was allocated in the time of step 2
                           (child b) ..            a began in step 1: b is outermost now
        stream                       k..

    Row numbers in ``parent`` and ``event`` are those of the new tables; where what they pointed at
    is gone, its nearest ancestor that is left, else null; in ``forward``, null. The CPU utilisations, which Paddle
    measures over the whole window, are unknown for a part of it and left out. Peaks of memory stay
    the process's own, "so far".
    """
    keep = trace.events.select(steps.contains(pl.col("step"))).to_series().to_numpy()
    spans = trace.events.filter(keep).filter(pl.col("category") == "ProfileStep")
    chosen = select_events(trace, keep, _inside(trace.memory["time_ns"], spans))
    return dataclasses.replace(
        chosen,
        extra_info={
            key: value
            for key, value in trace.extra_info.items()
            if not key.endswith("Cpu Utilization")
        },
    )


def select_events(
    trace: Trace, keep: npt.NDArray[np.bool_], keep_memory: pl.Series | npt.NDArray[np.bool_]
) -> Trace:
    """Some of the events and memory events, with row numbers as `select_steps` has them.

    Args:
        trace: N events, M memory events.
        keep: which events, shape (N,).
        keep_memory: which memory events, shape (M,).
    """
    row = _new_rows(trace.events["parent"].fill_null(-1).to_numpy(), keep)
    events = trace.events.filter(keep)
    parent = row[events["parent"].fill_null(-1).to_numpy()]
    is_host = events["depth"].is_not_null().to_numpy()
    depth = np.zeros(len(parent), np.int32)
    for level, nodes in enumerate(levels(parent[is_host])):
        depth[nodes] = level
    return dataclasses.replace(
        trace,
        events=events.with_columns(
            parent=_nullable(parent),
            depth=pl.when(pl.col("depth").is_not_null()).then(pl.Series(depth)),
            **_forwards(events["forward"], row, keep),
        ),
        memory=_renumbered(trace.memory.filter(keep_memory), row),
        kernels=_renumbered(trace.kernels.filter(keep[trace.kernels["event"].to_numpy()]), row),
        memsets=_renumbered(trace.memsets.filter(keep[trace.memsets["event"].to_numpy()]), row),
    )


def _new_rows(parent: Int64, keep: npt.NDArray[np.bool_]) -> Int64:
    """Row after the cut of each event or of its nearest ancestor that is left; -1 for none.

    Shape (N + 1,): the last is for whoever has no parent, which is -1.
    """
    num_events = len(parent)
    nobody = num_events
    nearest = np.append(np.where(keep, np.arange(num_events), parent), nobody)
    nearest[nearest < 0] = nobody
    for _ in range(num_events.bit_length()):  # each turn doubles how far up it has looked
        further = nearest[nearest]
        if np.array_equal(further, nearest):
            break
        nearest = further
    rows: Int64 = np.append(np.where(keep, np.cumsum(keep) - 1, -1), -1)[nearest]
    return rows


def _forwards(
    forward: pl.Series, row: Int64, keep: npt.NDArray[np.bool_]
) -> Mapping[str, pl.Series]:
    """The column ``forward`` of the events that are kept, where any tells one."""
    if forward.null_count() == len(forward):
        return {}
    at = forward.fill_null(-1).to_numpy()
    return {"forward": _nullable(np.where(np.append(keep, False)[at], row[at], -1))}


def _renumbered(table: pl.DataFrame, row: Int64) -> pl.DataFrame:
    return table.with_columns(event=_nullable(row[table["event"].fill_null(-1).to_numpy()]))


def _inside(time_ns: pl.Series, spans: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Which times lie in one of the spans, their ends excluded."""
    first = spans["start_ns"].to_numpy()
    start, end = union(first, first + spans["dur_ns"].to_numpy())
    times = time_ns.to_numpy()
    at = np.searchsorted(start, times, side="right") - 1
    inside: npt.NDArray[np.bool_] = (at >= 0) & (times < np.append(end, 0)[at])
    return inside


def _nullable(rows: Int64) -> pl.Series:
    """-1 becomes null."""
    found = pl.Series(rows, dtype=pl.Int64)
    return found.set(found < 0, None)
