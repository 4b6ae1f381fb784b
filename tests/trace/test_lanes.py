"""No two events of a lane cross, checked pair by pair."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ppprof
from ppprof.cli import main
from ppprof.trace.lanes import lanes
from tests.fixtures.torch_traces import TorchTrace, spans, write_events

EVENTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 9)), max_size=14)


def cross(one: tuple[int, int], other: tuple[int, int]) -> bool:
    first, second = sorted([one, other], key=lambda event: (event[0], -event[1]))
    return first[0] < second[0] < first[1] < second[1]


@given(EVENTS, st.sampled_from([1, 2**55]))
def test_events_of_one_lane_do_not_cross(events, unit):
    track, start, dur = np.array(events, np.int64).reshape(-1, 3).T
    start, end = start * unit, (start + dur) * unit
    lane = lanes(track, start, end)
    rows = list(zip(track.tolist(), start.tolist(), end.tolist(), lane.tolist()))
    for one, other in combinations(rows, 2):
        if one[0] == other[0] and one[3] == other[3]:
            assert not cross(one[1:3], other[1:3])
    for number in range(3):
        own = [row for row in rows if row[0] == number]
        is_crossed = any(cross(one[1:3], other[1:3]) for one, other in combinations(own, 2))
        assert is_crossed == any(row[3] > 0 for row in own)  # no lane without need


def test_a_kernel_that_starts_early_gets_the_second_lane():
    """The picture of the module."""
    start, end = np.array([0, 16, 4]), np.array([10, 24, 20])
    assert lanes(np.zeros(3, np.int64), start, end).tolist() == [0, 0, 1]


def early_kernels(num_steps: int, overlap_us: float) -> TorchTrace:
    """Pairs of kernels of one stream, the second of which starts before the first ends."""
    trace = TorchTrace()
    for step in range(num_steps):
        begin = step * 10_000.0
        trace.step(step, begin, 10_000.0)
        for number in range(8):
            at = begin + 50 + number * 1200
            trace.op("aten::mm", at, 100)
            trace.launch(at + 20, "kernelA", at + 40, 1000.0)
            trace.launch(at + 60, "kernelB", at + 1040 - overlap_us, 150.0)
    return trace


def num_crossings(path: Path) -> int:
    tracks = defaultdict(list)
    for event in spans(path):
        tracks[event["pid"], event["tid"]].append((event["begin"], event["end"]))
    pairs = (pair for own in tracks.values() for pair in combinations(own, 2))
    return sum(cross(*pair) for pair in pairs)


def written(source: Path, folder: Path) -> list[Path]:
    """What merge and convert write."""
    merged, paddle, kineto = (folder / f"{name}.json" for name in ("merged", "paddle", "kineto"))
    ppprof.open(source).merge(merged)
    assert main(["convert", str(source), str(paddle), "--force"]) == 0
    assert main(["convert", str(source), str(kineto), "--to", "kineto", "--force"]) == 0
    return [merged, paddle, kineto]


@pytest.mark.parametrize("overlap_us", [4.0, 0.5])
def test_no_two_events_cross_on_one_track_of_what_we_write(tmp_path, overlap_us):
    source = write_events(tmp_path / "a.json", early_kernels(5, overlap_us).events)
    assert num_crossings(source) == 40
    for path in written(source, tmp_path):
        assert num_crossings(path) == 0, path
        kernels = [event for event in spans(path) if event["cat"].lower() == "kernel"]
        assert len(kernels) == 80


KERNELS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 30), st.integers(7, 8)), min_size=1, max_size=12
)


@given(KERNELS)
@settings(max_examples=25)
def test_any_kernels_keep_their_times_and_streams(tmp_path_factory, kernels):
    folder = tmp_path_factory.mktemp("kernels")
    trace = TorchTrace()
    trace.step(0, 0, 2000)
    for number, (start, dur, stream) in enumerate(kernels):
        trace.op("aten::mm", number * 100, 50)
        trace.launch(number * 100 + 5, "k", number * 100 + 10 * start, 10 * dur, stream=stream)
    source = write_events(folder / "a.json", trace.events)

    def table(path: Path) -> list[tuple]:
        events = ppprof.open(path).events().filter(category="Kernel")
        return sorted(events.select("dur_ns", "stream", "correlation_id").iter_rows())

    for path in written(source, folder):
        assert num_crossings(path) == 0
        assert table(path) == table(source)
