"""Why a device is idle: against drawings, and against a count of each instant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ppprof
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.runtime_calls import kind_of_call
from ppprof.analysis.ranks.device_queue import (
    CAUSES,
    LATENCY_NS,
    QUEUE,
    queue_of_steps,
)
from ppprof.trace import read
from tests.fixtures.timeline import Launch, Span, Thread, kernel, launch, span, write

US = 1000


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("launch", "cudaLaunchKernel cudaLaunchKernelExC_v11060 hipLaunchKernel cuLaunchKernelEx"),
        ("launch", "cudaGraphLaunch hipModuleLaunchKernel cudaLaunchCooperativeKernel"),
        ("wait", "cudaDeviceSynchronize hipStreamSynchronize cuEventSynchronize cnrtQueueSync"),
        ("wait", "aclrtSynchronizeStream cudaThreadSynchronize xpu_wait cuCtxSynchronize"),
        ("copy", "cudaMemcpyAsync hipMemcpyDtoHAsync cuMemcpyHtoDAsync_v2 cudaMemsetAsync"),
        ("blocking", "cudaMemcpy cuMemcpyDtoH_v2 cudaMalloc hipFree cudaHostAlloc cuMemAlloc_v2"),
        ("begin capture", "cudaStreamBeginCapture_ptsz_v10000 hipStreamBeginCapture"),
        ("end capture", "cudaStreamEndCapture hipStreamEndCapture cuStreamEndCapture"),
        ("other", "cudaStreamIsCapturing cudaStreamGetCaptureInfo_v2"),
        ("other", "cudaStreamWaitEvent cudaEventRecord cudaLaunchHostFunc cudaGetDevice"),
    ],
)
def test_a_name_says_what_a_call_does(kind: str, names: str) -> None:
    assert {name: kind_of_call(name) for name in names.split()} == dict.fromkeys(
        names.split(), kind
    )


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (137, "wait"), (126, "wait"), (121, "wait"), (430, "launch"), (311, "launch"),
        (307, "launch"), (44, "copy"), (32, "blocking"), (9999, "other"),
        (315, "begin capture"), (539, "begin capture"), (319, "end capture"),
    ],
)  # fmt: skip
def test_calls_that_paddle_does_not_name(number: int, kind: str) -> None:
    assert kind_of_call(f"Runtime API {number}") == kind


def traced(folder: Path, *inside: Span | Launch, end: int = 1000) -> Profile:
    """A step of ``end`` microseconds with these launches; all times in microseconds."""
    step = span("ProfileStep", "ProfileStep#0", 0, end * US, *inside)
    return Profile(read(write(folder / "a.pb", Thread(1, "main").around(step))))


def launched(at: int, start: int, end: int, stream: int = 7) -> Launch:
    return launch(at * US, at * US, kernel("k", start * US, end * US, stream=stream))


def causes(profile: Profile) -> dict[str, int]:
    """Microseconds by cause, without those that are 0."""
    (row,) = queue_of_steps(profile).iter_rows(named=True)
    return {cause: row[f"{cause}_ns"] // US for cause in CAUSES if row[f"{cause}_ns"]}


def test_a_host_that_launches_too_late(tmp_path: Path) -> None:
    profile = traced(tmp_path, launched(0, 0, 300), launched(500, 500, 1000))
    assert causes(profile) == {"nothing_queued": 200}


def test_a_launch_takes_a_while_to_arrive(tmp_path: Path) -> None:
    profile = traced(tmp_path, launched(0, 0, 300), launched(500, 515, 1000))
    assert causes(profile) == {"nothing_queued": 200, "launch_latency": 15}


def test_work_waits_for_other_work(tmp_path: Path) -> None:
    """As in a CUDA graph: all is launched at once, and a gap of 200 lies inside."""
    graph = launch(0, 0, name="cudaGraphLaunch").around(
        kernel("a", 0, 300 * US), kernel("b", 500 * US, 1000 * US)
    )
    profile = traced(tmp_path, graph)
    assert causes(profile) == {"other_work": 200}


def test_work_waits_while_the_host_allocates(tmp_path: Path) -> None:
    profile = traced(
        tmp_path,
        launched(0, 0, 300),
        launched(100, 500, 1000),
        launch(310 * US, 460 * US, name="cudaMalloc"),
    )
    assert causes(profile) == {"blocking_call": 150, "other_work": 50}


def test_an_event_without_a_launch(tmp_path: Path) -> None:
    trace = traced(tmp_path, launched(0, 0, 300), launched(400, 500, 1000)).trace
    events = trace.events.with_columns(
        parent=pl.when(
            pl.col("device").is_null() | (pl.col("start_ns") == pl.col("start_ns").min())
        ).then("parent")
    )
    assert causes(Profile(replace(trace, events=events))) == {"unknown": 200}


def test_breakdown_and_advice_count_what_is_not_queued(tmp_path: Path) -> None:
    """Of 600 idle microseconds a step, 100 have nothing queued; the advice is about these."""
    steps = []
    for number in range(6):
        at = number * 1000
        first = launch(at * US, at * US, name="cudaGraphLaunch").around(
            kernel("a", at * US, (at + 100) * US),
            kernel("b", (at + 600) * US, (at + 800) * US),
        )
        second = launched(at + 900, at + 900, at + 1000)
        name = f"ProfileStep#{number}"
        steps.append(span("ProfileStep", name, at * US, (at + 1000) * US, first, second))
    run = ppprof.open(write(tmp_path / "a.pb", Thread(1, "main", tuple(steps))))
    table = run.breakdown()
    assert table["host_bound_ns"].to_list() == [100 * US] * 6
    assert table["queued_ns"].to_list() == [500 * US] * 6
    (finding,) = (advice for advice in ppprof.advise(run) if advice.rule == "host-bound")
    assert finding.cost_ns == 100 * US
    queue = run.cluster().queue
    assert queue["queue_length"].to_list() == [0.6] * 6
    assert queue["launch_delay_ns"].to_list() == [0] * 6


@st.composite
def launches(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """(launched, started, ended) of events of one device, in ticks."""
    events = []
    for _ in range(draw(st.integers(1, 8))):
        at = draw(st.integers(0, 40))
        start = at + draw(st.integers(0, 30))
        events.append((at, start, start + draw(st.integers(1, 15))))
    return events


@given(
    events=launches(),
    mallocs=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=2),
)
def test_each_instant_has_one_cause(
    events: list[tuple[int, int, int]],
    mallocs: list[tuple[int, int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Counted microsecond by microsecond; a tick is 10 us, so that latency is at most two."""
    tick = LATENCY_NS // 2
    end = 90
    inside = [
        launch(since * tick, since * tick, kernel("k", start * tick, stop * tick))
        for since, start, stop in events
    ]
    calls = [launch(a * tick, (a + n) * tick, name="cudaMalloc") for a, n in mallocs]
    step = span("ProfileStep", "ProfileStep#0", 0, end * tick, *inside, *calls)
    folder = tmp_path_factory.mktemp("queue")
    trace = read(write(folder / "a.pb", Thread(1, "main").around(step)))
    profile = Profile(trace)
    (row,) = queue_of_steps(profile).iter_rows(named=True)
    runs, waits = [False] * end, [0] * end
    for since, start, stop in events:
        for instant in range(start, stop):
            runs[instant] = True
        for instant in range(since, start):
            waits[instant] += 1
    blocked = [any(a <= instant < a + n for a, n in mallocs) for instant in range(end)]
    expected = dict.fromkeys(CAUSES, 0)
    instant = 0
    while instant < end:
        if runs[instant]:
            instant += 1
            continue
        if not waits[instant]:
            expected["nothing_queued"] += 1
            instant += 1
            continue
        last = instant
        while last < end and not runs[last] and waits[last]:
            last += 1
        for each in range(instant, last):
            if last - instant <= 2:
                expected["launch_latency"] += 1
            else:
                expected["blocking_call" if blocked[each] else "other_work"] += 1
        instant = last
    assert {cause: row[f"{cause}_ns"] / tick for cause in CAUSES} == expected
    assert row["queue_length"] == pytest.approx(sum(waits) / end)
    delays = sorted(start - since for since, start, _ in events)
    middle = len(delays) // 2
    median = delays[middle] if len(delays) % 2 else (delays[middle - 1] + delays[middle]) / 2
    assert row["launch_delay_ns"] == median * tick
    assert list(row) == [*QUEUE]
