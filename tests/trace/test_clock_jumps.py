"""The wall clock is set while a window is open: times in the trace go on as if it were not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import ppprof
from ppprof import rundir
from ppprof.trace import Trace, read
from ppprof.trace import write as write_trace
from tests.fixtures.timeline import (
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
