"""Several processes in one file are several ranks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ppprof
from ppprof.errors import TraceError
from ppprof.trace import read
from ppprof.trace.formats import read_ranks
from tests.fixtures.torch_traces import Event, TorchTrace, spans, training, write_events

KERNELS_US = [900, 1000, 1100, 1200]


def moved(trace: TorchTrace, by: int) -> list[Event]:
    """The events with larger process ids, as a script that joins files makes them."""
    return [{**event, "pid": event["pid"] + by} for event in trace.events]


def four_ranks(kernels_us: list[int] = KERNELS_US) -> list[list[Event]]:
    return [
        moved(training(num_steps=3, num_kernels=4, kernel_us=kernel_us), 100_000 * rank)
        for rank, kernel_us in enumerate(kernels_us)
    ]


def joined(files: Iterable[list[Event]]) -> list[Event]:
    return list(chain.from_iterable(files))


def by_time(events: list[Event]) -> list[Event]:
    return sorted(events, key=lambda event: event["ts"])


def labelled(rank: int, events: list[Event]) -> list[Event]:
    """As SGLang's merger writes them."""
    return [{**event, "pid": f"[TP{rank:02d}] {event['pid']}"} for event in events]


def computation_ms(path: Path) -> list[tuple[int, float, float]]:
    table = ppprof.open(path).breakdown("rank")
    rows = table.select("rank", "step_ns", "computation_ns").iter_rows()
    return [(rank, round(step / 1e6, 3), round(busy / 1e6, 3)) for rank, step, busy in rows]


@pytest.mark.parametrize(
    "events",
    [
        joined(four_ranks()),
        by_time(joined(four_ranks())),
        joined(
            labelled(rank, training(num_steps=3, num_kernels=4, kernel_us=us).events)
            for rank, us in enumerate(KERNELS_US)
        ),
    ],
    ids=["end to end", "by time", "with labels"],
)
def test_four_ranks_in_one_file(tmp_path, events):
    path = write_events(tmp_path / "a.json", events)
    assert computation_ms(path) == [(0, 10, 3.6), (1, 10, 4.0), (2, 10, 4.4), (3, 10, 4.8)]


def test_devices_that_share_a_number_belong_to_the_part_of_the_file_they_lie_in(tmp_path):
    """Files of four nodes, joined as they are: each has a device 0."""
    traces = [
        training(num_steps=3, num_kernels=4, kernel_us=us, process=100 + rank)
        for rank, us in enumerate(KERNELS_US)
    ]
    path = write_events(tmp_path / "a.json", joined(trace.events for trace in traces))
    assert [busy for _, _, busy in computation_ms(path)] == [3.6, 4.0, 4.4, 4.8]


def test_a_device_that_no_rank_owns_for_certain_is_refused(tmp_path):
    traces = [training(process=100 + rank) for rank in range(2)]
    events = by_time(joined(trace.events for trace in traces))
    path = write_events(tmp_path / "a.json", events)
    with pytest.raises(TraceError, match=r"2 processes with launches.*100 \(python\), 101"):
        read_ranks(path)


def test_the_names_of_processes_hold_their_ranks(tmp_path):
    events = joined(four_ranks())
    for event in events:
        if event["name"] == "process_name":
            event["args"] = {"name": f"rank {7 - event['pid'] // 100_000}"}
    path = write_events(tmp_path / "a.json", events)
    assert computation_ms(path)[0] == (4, 10, 4.8)


def test_each_converted_file_has_its_own_rank(tmp_path):
    """The merged file has the distributedInfo of rank 0."""
    information = {"backend": "nccl", "rank": 0, "world_size": 4}
    path = write_events(tmp_path / "a.json", joined(four_ranks()), distributedInfo=information)
    written = ppprof.write_kineto(ppprof.open(path), tmp_path / "kineto").paths
    assert [
        json.loads(file.read_bytes())["distributedInfo"]["rank"] for file in sorted(written)
    ] == [0, 1, 2, 3]


def test_one_trace_of_several_ranks_is_an_error(tmp_path):
    path = write_events(tmp_path / "a.json", joined(four_ranks()))
    with pytest.raises(TraceError, match="ranks 0-3 in one file"):
        read(path)


@pytest.mark.parametrize("form", ["end to end", "by time", "with labels"])
def test_annotations_of_devices_and_overheads_belong_to_their_ranks(tmp_path, form, each_core):
    """Their processes are no hosts: the devices and -1. Only the devices have the steps' marks."""
    ranks = []
    for rank in range(2):
        trace = training(num_steps=3, num_kernels=4)
        for event in trace.events:
            if event["name"].startswith("ProfilerStep"):
                event.update(cat="gpu_user_annotation", pid=0, tid=7)
        for number in range(rank + 1):
            trace.span("overhead", "Buffer Flush", number * 10, 5, pid=-1, tid=0)
        trace.events.sort(key=lambda event: event.get("cat") == "gpu_user_annotation")
        ranks.append(
            labelled(rank, trace.events) if form == "with labels" else moved(trace, 1000 * rank)
        )
    events = joined(ranks)
    events = by_time(events) if form == "by time" else events
    read = read_ranks(write_events(tmp_path / "a.json", events))
    assert [trace.overheads.height for trace in read.values()] == [1, 2]
    assert [dict(trace.skipped) for trace in read.values()] == [{}, {}]
    for trace in read.values():
        kernels = trace.events.filter(category="Kernel")
        assert kernels["step"].to_list() == [step for step in range(3) for _ in range(4)]


@st.composite
def files(draw: st.DrawFn) -> list[list[Event]]:
    """The events of each rank."""
    ranks = []
    for rank in range(draw(st.integers(1, 4))):
        trace = TorchTrace(process=100)
        for step in range(draw(st.integers(1, 3))):
            trace.step(step, step * 1000, 900)
            for number in range(draw(st.integers(1, 4))):
                at = step * 1000 + number * 100
                trace.op("aten::mm", at, 50)
                trace.launch(at + 5, f"kernel{draw(st.integers(0, 3))}", at + 20, 70)
        ranks.append(moved(trace, 1000 * rank))
    return ranks


@given(files(), st.booleans())
@settings(max_examples=25)
def test_every_kernel_counts_once_and_for_its_own_rank(tmp_path_factory, ranks, is_by_time):
    """Counted in the JSON by process id, in ours and in what we merge and convert."""
    folder = tmp_path_factory.mktemp("file")
    events = joined(ranks)
    path = write_events(folder / "a.json", by_time(events) if is_by_time else events)

    def counts(path: Path) -> dict[int, Counter[Any]]:
        return {
            rank: Counter(
                trace.events.filter(category="Kernel")
                .select("name", "step", "dur_ns")
                .cast({"name": str})
                .iter_rows()
            )
            for rank, trace in read_ranks(path).items()
        }

    expected = {}
    for rank, own in enumerate(ranks):
        expected[rank] = Counter(
            (event["name"], int(event["ts"] - own[0]["ts"]) // 1000, int(event["dur"] * 1000))
            for event in own
            if event.get("cat") == "kernel"
        )
    assert counts(path) == expected
    ppprof.open(path).merge(folder / "merged.json")
    assert counts(folder / "merged.json") == expected
    names = {event["name"] for event in spans(folder / "merged.json")}
    assert {event["name"] for event in events if event.get("cat") == "kernel"} <= names


def test_a_merged_timeline_is_read_as_its_ranks(tmp_path):
    path = write_events(tmp_path / "a.json", joined(four_ranks()))
    ppprof.open(path).merge(tmp_path / "merged.json.gz")
    assert computation_ms(tmp_path / "merged.json.gz") == computation_ms(path)
