"""A window that was cut into segments reads like the same window in one piece."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.views import summarize
from ppprof.choices import VIEWS, SummaryOptions
from ppprof.rundir.python_stacks import Frame, PythonStacks
from ppprof.trace import Trace, read, read_paddle_pb
from ppprof.trace.segments import OPENS_WINDOW, SAVES_SEGMENT, join_segments, with_stalls
from tests.fixtures.paddle_proto import NodeTrees
from tests.fixtures.random_traces import traces
from tests.fixtures.timeline import (
    CPU,
    EPOCH_NS,
    Inside,
    Launch,
    Memory,
    Span,
    Thread,
    alloc,
    span,
    to_proto,
    write,
)

OPTIONS = SummaryOptions()
STEP_NS = 1 << 40
IS_DEVICE = pl.col("device").is_not_null()


def moved(item: Inside, by: int) -> Inside:
    """The same thing, so much later."""
    if isinstance(item, Memory):
        return dataclasses.replace(item, time=item.time + by)
    times: dict[str, Any] = {"start": item.start + by, "end": item.end + by}  # type: ignore[union-attr]
    if isinstance(item, (Span, Launch)):
        times["inside"] = tuple(moved(each, by) for each in item.inside)
    return dataclasses.replace(item, **times)


@st.composite
def windows(draw: st.DrawFn) -> list[tuple[Thread, ...]]:
    """The threads of each step of a window, on one clock."""
    steps = []
    for number in range(draw(st.integers(2, 5))):
        begin = number * STEP_NS
        threads = []
        for thread in draw(traces()):
            inside = tuple(moved(item, begin) for item in thread.inside)
            if thread.id == 31:
                assert isinstance(inside[0], Span)
                name = f"ProfileStep#{number + 7}"
                inside = (dataclasses.replace(inside[0], name=name), *inside[1:])
            threads.append(dataclasses.replace(thread, inside=inside))
        steps.append(tuple(threads))
    return steps


def whole(steps: list[tuple[Thread, ...]]) -> list[Thread]:
    """The threads of all steps together."""
    threads: dict[int, Thread] = {}
    for thread in (thread for step in steps for thread in step):
        known = threads.setdefault(thread.id, dataclasses.replace(thread, inside=()))
        threads[thread.id] = known.around(*thread.inside)
    return list(threads.values())


def part(trees: NodeTrees, first: int, end: int) -> NodeTrees:
    """What a profiler would have recorded that ran in steps ``first`` to ``end - 1`` only."""
    kept = NodeTrees()
    kept.CopyFrom(trees)

    def is_in(time_ns: int) -> bool:
        return first * STEP_NS <= time_ns - EPOCH_NS < end * STEP_NS

    for tree in kept.thread_trees:
        nodes = []
        for node in tree.host_nodes:
            event = node.host_trace_event
            if node.parentid < 0:
                for items, time_of in (
                    (node.runtime_nodes, lambda item: item.runtime_trace_event.start_ns),
                    (node.mem_nodes, lambda item: item.mem_event.timestamp_ns),
                ):
                    chosen = [item for item in items if is_in(time_of(item))]
                    del items[:]
                    items.extend(chosen)
                nodes.append(node)
            elif is_in(event.start_ns):
                nodes.append(node)
        copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
        del tree.host_nodes[:]
        tree.host_nodes.extend(copies)
    return kept


def ends(num_steps: int, cuts: set[int]) -> list[tuple[int, int]]:
    bounds = [0, *sorted(cut for cut in cuts if 0 < cut < num_steps), num_steps]
    return list(zip(bounds, bounds[1:]))


def tables(trace: Trace) -> dict[str, pl.DataFrame]:
    profile = Profile(trace, OPTIONS)
    return {view: summarize(profile, view) for view in VIEWS}


def timeline(trace: Trace) -> pl.DataFrame:
    """All events in any order, with the event that each lies in or was launched by."""
    numbers = ("parent", "forward", "correlation_id")
    events = trace.events.with_columns(pl.col(pl.Categorical).cast(pl.String))
    parents = events.select("name", "start_ns", "dur_ns").with_row_index("parent")
    parents = parents.rename({name: f"parent_{name}" for name in ("name", "start_ns", "dur_ns")})
    joined = events.join(parents.cast({"parent": pl.Int32}), on="parent", how="left")
    return joined.drop(numbers).sort(pl.all())


def test_a_stall_is_a_span_that_ends_with_its_step_and_changes_no_other_event(
    tmp_path: Path,
) -> None:
    """Steps of 100 at 1000, 1100 and 1300; the last stall is longer than the time between steps."""
    operator = span("Operator", "relu dygraph", 1010, 1020, alloc(1015, 64))
    steps = [
        span("ProfileStep", f"ProfileStep#{number}", start, start + 100, *inside)
        for number, start, *inside in ((7, 1000, operator), (8, 1100), (9, 1300))
    ]
    trace = read(write(tmp_path / "a.pb", Thread(31, "main", tuple(steps))))
    changed = with_stalls(trace, {7: 30, 9: 150, 12: 5})
    (thread,) = (int(id) for id, name in changed.extra_info.items() if name == "profiler")
    added = changed.events.filter(pl.col("thread") == thread)
    assert added.select("name", pl.col("start_ns") - EPOCH_NS, "dur_ns", "depth").rows() == [
        (OPENS_WINDOW, 970, 30, 0),
        (SAVES_SEGMENT, 1200, 100, 0),
    ]
    rest = dataclasses.replace(changed, events=changed.events.filter(pl.col("thread") != thread))
    assert_frame_equal(timeline(rest), timeline(trace))
    assert changed.memory["event"].to_list() == trace.memory["event"].to_list()
    assert with_stalls(trace, {12: 5}) is trace


def test_stalls_have_one_track_in_windows_with_other_threads(tmp_path: Path) -> None:
    """A thread that begins in window 1 has the number behind the last one of window 0."""
    step = span("ProfileStep", "ProfileStep#7", 1000, 1100)
    later = Thread(32, "later", (span("UserDefined", "load", 1010, 1020),))
    windows = [
        write(tmp_path / "a.pb", Thread(31, "main", (step,))),
        write(tmp_path / "b.pb", Thread(31, "main", (step,)), later),
    ]
    tracks = []
    for window in windows:
        names = with_stalls(read(window), {7: 30}).extra_info
        tracks.append({name: id for id, name in names.items() if name in ("profiler", "later")})
    assert tracks[1] == {**tracks[0], "later": "32"}


def test_stalls_of_any_length_and_threads_of_any_number_give_spans(tmp_path: Path) -> None:
    steps = [
        span("ProfileStep", f"ProfileStep#{number}", start, start + 100)
        for number, start in ((7, 1000), (8, 1300))
    ]
    trace = read(write(tmp_path / "a.pb", Thread(31, "main", tuple(steps))))
    events = trace.events.with_columns(thread=pl.lit(2**63 - 1, pl.Int64))
    changed = with_stalls(dataclasses.replace(trace, events=events), {7: 2**63 - 1, 8: -5})
    (added,) = changed.events.filter(pl.col("thread") < 2**63 - 1).to_dicts()
    assert added["name"] == OPENS_WINDOW
    assert added["start_ns"] + added["dur_ns"] == EPOCH_NS + 1000
    assert 0 < added["start_ns"] < EPOCH_NS


@given(window=windows(), cuts=st.sets(st.integers(1, 4)))
def test_any_cut_gives_the_tables_of_the_whole(
    window: list[tuple[Thread, ...]], cuts: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    trees = to_proto(whole(window), devices=(0, 1))
    folder = tmp_path_factory.mktemp("segments")
    (folder / "whole.pb").write_bytes(trees.SerializeToString())
    expected = read_paddle_pb(folder / "whole.pb")
    segments = []
    for number, (first, end) in enumerate(ends(len(window), cuts)):
        path = folder / f"{number}.pb"
        path.write_bytes(part(trees, first, end).SerializeToString())
        segments.append(read_paddle_pb(path))
    joined = join_segments(segments)

    assert_frame_equal(timeline(joined), timeline(expected))
    launches = joined.events.filter(pl.col("correlation_id").is_not_null() & ~IS_DEVICE)
    assert launches["correlation_id"].is_unique().all()
    for view, table in tables(expected).items():
        assert_frame_equal(
            tables(joined)[view], table, categorical_as_str=True, check_row_order=False
        )


def test_a_clock_that_is_set_back_between_segments_moves_the_later_ones(tmp_path: Path) -> None:
    def segment(number: int, start: int) -> Trace:
        step = Thread(31, "main").around(
            span("ProfileStep", f"ProfileStep#{number}", start, start + 10).around(
                span("Operator", "relu dygraph", start + 2, start + 5), alloc(start + 3, 8, CPU)
            )
        )
        return read_paddle_pb(write(tmp_path / f"{number}.pb", step))

    joined = join_segments([segment(1, 100), segment(2, 40), segment(3, 60)])
    events = joined.events.filter(pl.col("category") == "Operator")
    assert (events["start_ns"] - EPOCH_NS).to_list() == [102, 112, 132]
    assert (joined.memory["time_ns"] - EPOCH_NS).to_list() == [103, 113, 133]
    assert events["step"].to_list() == [1, 2, 3]


def test_samples_of_stacks_of_all_segments_are_joined(tmp_path: Path) -> None:
    frames = [Frame("__main__", "train.py", f"f{line}", line, True) for line in range(3)]

    def stacks(*rows: tuple[int, int, int, int], first: int) -> PythonStacks:
        table = np.array([(*row, 3) for row in rows], np.int64)
        return PythonStacks(
            *(1000, frames[first:], [[0], [1, 0]], table),
            reads=table[:1],
            collections=table[1:],
            evaluations=table[1:],
            clears=table[1:],
        )

    trace = read(write(tmp_path / "a.pb", Thread(31, "main", ())))
    one, other = (
        dataclasses.replace(trace, stacks=each)
        for each in (
            stacks((31, 5, 10, 0), (32, 6, 10, 1), first=0),
            stacks((31, 7, 10, 1), (31, 8, 10, -1), first=1),
        )
    )
    joined = join_segments([one, other]).stacks
    assert joined is not None
    assert joined.frames == frames  # each once
    assert joined.samples[:, 4].tolist() == [3] * 4
    named = [
        (
            thread,
            time,
            [joined.frames[row].function for row in joined.stacks[stack]] if stack >= 0 else None,
        )
        for thread, time, _, stack, _ in joined.samples.tolist()
    ]
    assert named == [(31, 5, ["f0"]), (31, 7, ["f2", "f1"]), (31, 8, None), (32, 6, ["f1", "f0"])]
    for rows in (joined.collections, joined.evaluations, joined.clears):
        assert rows[:, 1].tolist() == [8, 6]
    assert joined.frames[joined.stacks[joined.collections[1, 3]][0]].function == "f1"
    reads = [(time, joined.stacks[stack]) for _, time, _, stack, _ in joined.reads.tolist()]
    assert [(time, joined.frames[row].function) for time, (row, *_) in reads] == [
        (5, "f0"),
        (7, "f2"),
    ]
