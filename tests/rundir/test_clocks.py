"""Times on one clock, and what is read of a run's clocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.errors import InputError
from ppprof.rundir.clocks import Clock, Reading, clocks_path, line_of, read_clocks

NOW = 1_790_000_000_000_000_000
"""Nanoseconds since 1970, where float64 counts in steps of 256."""


@st.composite
def clocks(draw: st.DrawFn) -> Clock:
    """Readings of a clock that drifts by less than 1000 ppm, a microsecond to an hour apart."""
    at, offset = NOW, draw(st.integers(-(10**12), 10**12))
    readings = [Reading(at, offset, 0)]
    for passed in draw(st.lists(st.integers(1_000, 3_600_000_000_000), max_size=5)):
        at += passed
        offset += draw(st.integers(-passed // 1_001, passed // 1_001))
        readings.append(Reading(at, offset, draw(st.integers(0, 10**6))))
    return Clock(1, tuple(readings))


@given(clocks())
def test_readings_are_met_exactly(clock: Clock) -> None:
    at = np.array([reading.at_ns for reading in clock.readings])
    assert clock.to_reference(at).tolist() == [r.at_ns + r.offset_ns for r in clock.readings]


@given(clocks(), st.lists(st.integers(NOW - 10**13, NOW + 10**13), min_size=1))
def test_what_came_later_stays_later(clock: Clock, times: list[int]) -> None:
    aligned = clock.to_reference(np.array(sorted(times)))
    assert aligned.dtype == np.int64
    assert (np.diff(aligned) >= 0).all()


@given(clocks(), st.lists(st.integers(NOW - 10**13, NOW + 10**13), min_size=1))
def test_between_readings_the_offset_lies_between_theirs_and_outside_the_nearest_holds(
    clock: Clock, times: list[int]
) -> None:
    for time, aligned in zip(times, clock.to_reference(np.array(times)).tolist()):
        before = [r.offset_ns for r in clock.readings if r.at_ns <= time][-1:]
        after = [r.offset_ns for r in clock.readings if r.at_ns >= time][:1]
        assert min(before + after) <= aligned - time <= max(before + after)


def test_drift_has_an_error() -> None:
    clock = Clock(1, (Reading(0, 100, 30_000), Reading(5, 7, 9), Reading(10**9, 50_100, 20_000)))
    assert (clock.offset_ns, clock.drift_ppm, clock.drift_error_ppm) == (100, 50.0, 50.0)
    assert clock.error_ns == 30_000
    alone = Clock(1, (Reading(0, 100, 30),))
    assert (alone.drift_ppm, alone.drift_error_ppm) == (None, None)


def test_what_is_written_is_read_by_rank_and_time(tmp_path: Path) -> None:
    (tmp_path / "clocks").mkdir()
    one, two = Reading(NOW, -800_000_000, 30), Reading(NOW + 1, 5, 20)
    for rank, readings in ((3, (two, one)), (100_000, (one,))):
        (tmp_path / clocks_path(rank)).write_text("".join(map(line_of, readings)))
    assert read_clocks(tmp_path) == {3: Clock(3, (one, two)), 100_000: Clock(100_000, (one,))}


@pytest.mark.parametrize(
    "line",
    [
        line_of(Reading(1, 2, 3))[:20],
        "",
        "[1, 2, 3]",
        "7",
        "null",
        "{}",
        "\0" * 40,
        '{"at_ns": "soon", "offset_ns": 1, "error_ns": 1}',
        '{"at_ns": null, "offset_ns": 1, "error_ns": 1}',
        '{"at_ns": 1e999, "offset_ns": 1, "error_ns": 1}',
        '{"at_ns": NaN, "offset_ns": 1, "error_ns": 1}',
        '{"at_ns": 1, "offset_ns": 99999999999999999999, "error_ns": 1}',
        '{"at_ns": 1, "offset_ns": 1, "error_ns": -1}',
        "[" * 100_000,
    ],
)
def test_a_broken_line_costs_itself(tmp_path: Path, line: str) -> None:
    (tmp_path / "clocks").mkdir()
    good = Reading(NOW, 1, 2)
    (tmp_path / clocks_path(1)).write_text(f"{line}\n{line_of(good)}{line}")
    (tmp_path / clocks_path(2)).write_text(line)
    assert read_clocks(tmp_path) == {1: Clock(1, (good,))}


def test_bytes_that_are_no_text_cost_their_line(tmp_path: Path) -> None:
    (tmp_path / "clocks").mkdir()
    good = Reading(NOW, 1, 2)
    (tmp_path / clocks_path(1)).write_bytes(b"\xff\xfe\n" + line_of(good).encode())
    assert read_clocks(tmp_path) == {1: Clock(1, (good,))}


def test_a_run_without_clocks_has_none_and_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert read_clocks(tmp_path) == {}
    (tmp_path / clocks_path(7)).mkdir(parents=True)
    with pytest.raises(InputError, match=r"rank_00007\.jsonl: "):
        read_clocks(tmp_path)
