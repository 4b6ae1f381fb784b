"""The wall clock is set while a window is open: times in the trace go on as if it were not."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import ppprof
from ppprof import rundir
from ppprof.rundir import TraceName
from ppprof.rundir.operator_calls import OperatorCalls, Signature, write_operator_calls
from ppprof.rundir.python_stacks import Frame, PythonStacks, write_python_stacks
from ppprof.rundir.run_file import RunFile
from ppprof.trace import Trace, read
from ppprof.trace import write as write_trace
from ppprof.trace.clock_jumps import without_jumps
from tests.fixtures.timeline import (
    EPOCH_NS,
    Device,
    Launch,
    Memory,
    Span,
    Thread,
    alloc,
    kernel,
    launch,
    span,
    write,
)

MS = 1_000_000
DAY = 86_400_000 * MS
MARKER = rundir.CLOCK_MARKER


def step(number: int, marker: str = "") -> Span:
    """10 ms: a layer around two operators, which launch a kernel each; then the marker."""
    start = 10 * MS * number
    end = start + 10 * MS

    def operator(at: int) -> Span:
        return span("Operator", "matmul", at, at + MS).around(
            launch(at + 100, at + 200, kernel("gemm", at + 300, at + 900)), alloc(at + 50, 8)
        )

    return span("ProfileStep", f"ProfileStep#{number}", start, end).around(
        span("Forward", "Net", start + MS, start + 8 * MS).around(
            operator(start + 2 * MS), operator(start + 6 * MS)
        ),
        span("UserDefined", marker or "end", end - 100, end - 50),
    )


def moved(item: Span | Launch | Device | Memory, after: int, by: int) -> object:
    """The item as Paddle records it where the clock is set ``by`` nanoseconds at time ``after``."""
    if isinstance(item, Memory):
        return replace(item, time=item.time + by * (item.time >= after))
    start, end = item.start + by * (item.start >= after), item.end + by * (item.end >= after)
    if isinstance(item, Device):
        return replace(item, start=start, end=end)
    inside = tuple(moved(part, after, by) for part in item.inside)
    return replace(item, start=start, end=end, inside=inside)


def recorded(folder: Path, name: str, marker: str, after: int = 0, by: int = 0) -> Trace:
    """A trace of steps 3 to 6; the clock is set in step 5, at time ``after``."""
    steps = (step(number, marker if number == 5 else "") for number in range(3, 7))
    main = Thread(1, "main", tuple(moved(one, after, by) for one in steps))  # type: ignore[arg-type]
    return read(write(folder / f"{name}.pb", main))


def without_marker(trace: Trace) -> pl.DataFrame:
    return trace.events.filter(pl.col("category") != "UserDefined").drop("parent", "correlation_id")


IN_STEP_5 = 54 * MS
"""Between the two operators, below the layer: the layer, the step and what follows are moved."""


@pytest.mark.parametrize("by", [20 * MS, DAY])
def test_a_clock_set_forward_is_undone(tmp_path: Path, by: int) -> None:
    expected = recorded(tmp_path, "expected", f"clock set forward by {by}, corrected")
    raw = tmp_path / "set.pb"
    trace = recorded(tmp_path, "set", f"{MARKER}{by} ns", IN_STEP_5, by)
    assert_frame_equal(without_marker(trace), without_marker(expected))
    assert_frame_equal(trace.memory, expected.memory)
    again = tmp_path / "again.pb"
    write_trace(trace, again)  # what was corrected is not corrected again
    assert_frame_equal(without_marker(read(again)), without_marker(trace))
    steps = ppprof.open(raw).breakdown()
    assert steps["step_ns"].to_list() == [10 * MS] * 4


@pytest.mark.parametrize("kind", ["pb", "json"])
def test_what_is_recorded_beside_the_events_has_their_clock(kind: str, tmp_path: Path) -> None:
    """Calls of operators, ahead of the jump and behind it, and samples of stacks, one in each step."""
    by = 20 * MS
    name = TraceName(0, "dp0", datetime(2026, 11, 20, 20, 15, 30), 0).stem
    calls, samples = [], []
    for number in range(3, 7):
        for begin in (10 * MS * number + 2 * MS, 10 * MS * number + 6 * MS):
            start = EPOCH_NS + begin + by * (begin >= IN_STEP_5)
            calls.append([1, start - 10, start + MS + 10, 0, -1])
            samples.append([1, start + MS // 2, MS, 0, 0])
    line = 'File "train.py", line 3, in step'
    signature = Signature("matmul", {"X0": [[4, 4]]}, {"X0": ["float32"]}, {}, line)
    write_operator_calls(
        RunFile(tmp_path, f"raw/{name}.ops"), OperatorCalls([signature], [], np.array(calls))
    )
    frames = [Frame("__main__", "train.py", "step", 3, is_own=True)]
    stacks = PythonStacks(MS, frames, [[0]], np.array(samples))
    write_python_stacks(RunFile(tmp_path, f"stacks/{name}.stacks"), stacks)
    steps = (step(number, f"{MARKER}{by} ns" if number == 5 else "") for number in range(3, 7))
    steps = (moved(renamed(one), IN_STEP_5, by) for one in steps)
    trace = read(write(tmp_path / f"raw/{name}.pb", Thread(1, "main", tuple(steps))))  # type: ignore[arg-type]
    if kind == "json":
        path = tmp_path / f"{name}.paddle_trace.json"
        write_trace(trace, path)
        trace = read(path)
    operators = trace.events.filter(category="Operator")
    assert operators["callstack"].cast(pl.String).to_list() == [line] * len(calls)
    assert trace.stacks is not None
    middle = (operators["start_ns"] + operators["dur_ns"] // 2).to_list()
    assert trace.stacks.samples[:, 1].tolist() == middle


def renamed(item: Span) -> Span:
    """Return a span whose operators are named as those that Python calls."""
    inside = tuple(renamed(each) if isinstance(each, Span) else each for each in item.inside)
    name = f"{item.name} dygraph" if item.category == "Operator" else item.name
    return replace(item, name=name, inside=inside)


@pytest.mark.parametrize(
    "jump", ["1", [], [1, 2], [1, 2, "3"], [1, 2, 1 << 70], [None] * 3], ids=str
)
def test_jumps_of_another_program_move_nothing(jump: object, tmp_path: Path) -> None:
    trace = recorded(tmp_path, "set", f"{MARKER}{20 * MS} ns", IN_STEP_5, 20 * MS)
    rows = np.array([[1, EPOCH_NS + 80 * MS]])
    assert without_jumps(trace, rows, [1]).tolist() == [[1, EPOCH_NS + 60 * MS]]
    text = json.dumps({"clock_jump": jump})
    other = replace(
        trace, events=trace.events.with_columns(attributes=pl.lit(text, pl.Categorical()))
    )
    assert without_jumps(other, rows, [1]).tolist() == rows.tolist()


def test_a_clock_set_back_by_more_than_the_window_is_undone(tmp_path: Path) -> None:
    """Paddle then nests the events wrongly; their times are right."""
    expected = recorded(tmp_path, "expected", "none")
    trace = recorded(tmp_path, "set", f"{MARKER}{-DAY} ns", IN_STEP_5, -DAY)
    times = ["name", "category", "start_ns", "dur_ns", "step"]
    assert_frame_equal(
        without_marker(trace).select(times).sort(times),
        without_marker(expected).select(times).sort(times),
    )


def test_a_clock_set_back_a_little_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trace = recorded(tmp_path, "set", f"{MARKER}{-15 * MS} ns", IN_STEP_5, -15 * MS)
    assert trace.events["dur_ns"].to_numpy().min() >= 0
    ppprof.open(tmp_path / "set.pb").summary("model")
    assert caplog.messages == [f"{tmp_path / 'set.pb'}: clock set back by 15 ms, not corrected"]


def test_two_jumps_forward_are_both_undone(tmp_path: Path) -> None:
    steps = [step(3), step(4, f"{MARKER}{20 * MS} ns"), step(5, f"{MARKER}{30 * MS} ns"), step(6)]
    for after, by in ((44 * MS, 20 * MS), (IN_STEP_5 + 20 * MS, 30 * MS)):
        steps = [moved(one, after, by) for one in steps]  # type: ignore[assignment, misc]
    trace = read(write(tmp_path / "set.pb", Thread(1, "main", tuple(steps))))
    expected = recorded(tmp_path, "expected", "none")
    assert_frame_equal(without_marker(trace), without_marker(expected))


@pytest.mark.parametrize(
    "marker",
    [f"{MARKER}{5 * MS} ns", f"{MARKER}{DAY} ns", f"{MARKER}soon", f"{MARKER}{'9' * 30} ns"],
    ids=["shorter than a pause", "longer than any", "no number", "beyond int64"],
)
def test_a_marker_in_a_foreign_trace_moves_little_or_nothing(tmp_path: Path, marker: str) -> None:
    """Where the step has no such gap nothing is moved, and no event ever ends before it starts."""
    trace = recorded(tmp_path, "set", marker)
    assert trace.events["dur_ns"].to_numpy().min() >= 0
    starts = trace.events.filter(category="ProfileStep")["start_ns"]
    assert starts.is_sorted()


def test_the_jump_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorded(tmp_path, "set", f"{MARKER}{DAY} ns", IN_STEP_5, DAY)
    run = ppprof.open(tmp_path / "set.pb")
    run.summary("model")
    run.breakdown()
    assert caplog.messages == [f"{tmp_path / 'set.pb'}: clock set forward by 86,400 s, corrected"]
