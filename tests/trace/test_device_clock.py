"""A device whose clock is another one than the host's: corrected to within what its window bounds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ppprof
from ppprof.rundir import DEVICE_CLOCK_MARKER
from ppprof.trace import Trace, read
from ppprof.trace import write as write_trace
from ppprof.trace.device_clock import UNSTEADY, device_clock_notes
from tests.fixtures.timeline import Thread, kernel, launch, span, write

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000
RAW = "rank_00000_dp0_time_20261125T120000_000.pb"
LATENCY_NS, WAIT_NS = 8 * US, 6 * US
"""From a launch to its kernel, and from the last kernel to the end of the wait, of an idle device."""


def window(
    path: Path,
    kernels: Sequence[tuple[int, int]],
    ahead_ns: int = 0,
    drift: float = 0,
    marker: str = "",
) -> list[int]:
    """Write a window, and return the true starts of its kernels.

    Args:
        path: the file.
        kernels: pause of the host ahead of the launch, and length of the kernel, in ns.
        ahead_ns: how far the device's clock is ahead at the start.
        drift: what it gains in a nanosecond.
        marker: name of an event.
    """
    now, free, calls, true = 10 * MS, 0, [], []
    for pause, length in kernels:
        now += pause
        start = max(now + LATENCY_NS, free)
        free = start + length
        true.append(start)
        ahead = ahead_ns + round(drift * start)
        calls.append(launch(now, now + US, kernel("gemm", start + ahead, free + ahead)))
        now += 2 * US
    end = max(now, free) + WAIT_NS
    calls.append(launch(now, end, name="cudaDeviceSynchronize"))
    step = span("ProfileStep", "ProfileStep#3", 9 * MS, end + MS).around(*calls)
    marked = [span("UserDefined", marker, 8 * MS, 8 * MS + 100)] if marker else []
    write(path, Thread(1, "main").around(*marked, step))
    return true


def starts(trace: Trace) -> list[int]:
    """Starts of the kernels; the step starts at 9 ms."""
    step_ns = trace.events.filter(category="ProfileStep")["start_ns"][0] - 9 * MS
    return (trace.events.filter(category="Kernel")["start_ns"] - step_ns).to_list()


def errors(trace: Trace, true: list[int]) -> set[int]:
    """By how much the kernels start later than they truly do."""
    read_ns = starts(trace)
    assert len(read_ns) == len(true)
    return {mine - real for mine, real in zip(read_ns, true)}


KERNELS = st.lists(
    st.tuples(st.integers(0, 300 * US), st.integers(US, 200 * US)), min_size=1, max_size=30
)


@settings(
    max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(kernels=KERNELS, ahead_ns=st.integers(-2 * SECOND, 2 * SECOND))
def test_the_error_that_is_left_is_within_the_bounds(
    tmp_path: Path, kernels: list[tuple[int, int]], ahead_ns: int
) -> None:
    true = window(tmp_path / RAW, kernels, ahead_ns)
    trace = read(tmp_path / RAW)
    (error,) = errors(trace, true)
    assert abs(error) <= max(LATENCY_NS, WAIT_NS) + 10 * US
    notes, doubts = device_clock_notes(trace)
    assert not doubts
    if error == ahead_ns:
        assert not notes
    else:
        ((key, _),) = notes
        assert key == ("clock_ahead" if ahead_ns > 0 else "clock_behind")


def test_a_correction_is_done_once_and_said_in_every_format(tmp_path: Path) -> None:
    true = window(tmp_path / RAW, [(100 * US, 50 * US)] * 5, SECOND)
    trace = read(tmp_path / RAW)
    for suffix in ("pb", "json"):
        saved = tmp_path / f"rank_00001_dp0_time_20261125T120000_000.{suffix}"
        write_trace(trace, saved)
        again = read(saved)
        assert max(map(abs, errors(again, true))) <= 2 * US
        assert device_clock_notes(again) == device_clock_notes(trace)


def test_the_probes_bounds_decide_where_the_window_says_little(tmp_path: Path) -> None:
    """The host runs ahead by 20 ms, so that in this window alone 300 us may be 0."""
    kernels = [(0, 10 * US), *[(0, MS)] * 20, (30 * MS, 10 * US)]
    marker = f"{DEVICE_CLOCK_MARKER}{290 * US} to {312 * US} ns"
    true = window(tmp_path / RAW, kernels[:-1], 300 * US, marker=marker)
    (error,) = errors(read(tmp_path / RAW), true)
    assert abs(error) <= 11 * US


def test_a_clock_that_moves_is_not_corrected_and_its_findings_are_withheld(
    tmp_path: Path, messages: list[str]
) -> None:
    true = window(tmp_path / RAW, [(100 * US, 50 * US)] * 400, SECOND, 0.1)
    trace = read(tmp_path / RAW)
    assert starts(trace)[0] - true[0] > SECOND
    assert device_clock_notes(trace)[1] == (UNSTEADY,)
    ppprof.advise(ppprof.open(tmp_path / RAW))
    (moved,) = re.findall(r"the device's clock moved by ([\d.]+) ms", "".join(messages))
    assert 0.9 < float(moved) * MS / (0.1 * (true[-1] - true[0])) <= 1.01


@pytest.mark.parametrize("ahead_ns", [-5 * US, 0, 5 * US])
def test_clocks_that_agree_are_left_alone(tmp_path: Path, ahead_ns: int) -> None:
    true = window(tmp_path / RAW, [(100 * US, 50 * US)] * 5, ahead_ns)
    trace = read(tmp_path / RAW)
    assert starts(trace) == [start + ahead_ns for start in true]
    assert device_clock_notes(trace) == ((), ())


def gemms(path: Path, *kernels: tuple[int, int]) -> Trace:
    """Read a window with a launch each 50 us; of each kernel the device, and how far it is off."""
    calls = []
    for number, (device, off) in enumerate(kernels):
        now = 10 * MS + number * 50 * US
        start = now + LATENCY_NS + off
        calls.append(launch(now, now + US, kernel("gemm", start, start + 20 * US, device=device)))
    end = 10 * MS + len(kernels) * 50 * US
    calls.append(launch(end, end + WAIT_NS, name="cudaDeviceSynchronize"))
    step = span("ProfileStep", "ProfileStep#3", 9 * MS, end + MS).around(*calls)
    write(path / RAW, Thread(1, "main").around(step))
    return read(path / RAW)


@pytest.mark.parametrize("off_ns", [-MS, 30 * MS])
def test_one_wrong_time_of_a_hundred_moves_no_other_kernel(tmp_path: Path, off_ns: int) -> None:
    kernels = [(0, 0)] * 100
    kernels[50] = (0, off_ns)
    trace = gemms(tmp_path, *kernels)
    assert device_clock_notes(trace) == ((), ())
    assert starts(trace)[0] == 10 * MS + LATENCY_NS


def test_the_clock_of_one_device_moves_no_kernel_of_another(tmp_path: Path) -> None:
    trace = gemms(tmp_path, *[(0, 0), (1, -MS)] * 50)
    assert device_clock_notes(trace) == ((), ())
    assert 10 * MS + LATENCY_NS in starts(trace)


def test_what_holds_for_every_device_is_corrected(tmp_path: Path) -> None:
    trace = gemms(tmp_path, *[(0, -2 * MS), (1, -3 * MS)] * 50)
    (key, times), *_ = device_clock_notes(trace)[0]
    assert (key, times["time"]) == ("clock_behind", "1.99 ms")
