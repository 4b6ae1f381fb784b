"""A run whose window has segments: every command sees one window."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

import ppprof
from ppprof.choices import VIEWS
from ppprof.run import report, traces
from ppprof.rundir import TraceName, raw_files
from ppprof.rundir.recordings import scan
from ppprof.trace import read
from ppprof.trace.steps import step_spans
from tests.fixtures import gpu_traces
from tests.fixtures.run_directories import make_run, trace_name
from tests.fixtures.timeline import write

NUM_SEGMENTS = 4


def segment(number: int, rank: int = 0) -> TraceName:
    return dataclasses.replace(trace_name(rank), segment=number)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A killed run of one window, in segments of different steps."""
    made = make_run(tmp_path / "log", {0: 1})
    for number in range(1, NUM_SEGMENTS):
        threads = gpu_traces.training(first_step=10 * number, skew=number)
        write(made / segment(number).raw, *threads, span_index=number)
    return made


def test_names_keep_the_order_of_segments(run: Path) -> None:
    assert [name.segment for name, _ in raw_files(run)] == [0, 1, 2, 3]
    (recording,) = scan([run])
    assert [TraceName.parse(files[0]) for files in recording.segments] == [
        segment(number) for number in range(NUM_SEGMENTS)
    ]
    assert len(list(recording.every_file)) == NUM_SEGMENTS


def test_a_finished_window_has_a_trace_for_each_segment_and_tables_of_all(run: Path, cli) -> None:
    raw = {view: ppprof.open(run).summary(view, 0) for view in VIEWS}
    steps = ppprof.open(run).summary("model", 0)
    out = cli("finish", run).out
    assert not list(run.glob("raw/*"))
    names = sorted(path.name for path in run.glob("*.paddle_trace.json"))
    assert names == [segment(number).trace("json") for number in range(NUM_SEGMENTS)]
    assert [path.name for path in run.glob("summary/*")] == ["rank_00000_w0.json"]
    assert out.count("rank 0") == 1
    assert steps.height
    again = ppprof.open(run)
    assert again.windows(0) == [0]
    for view, table in raw.items():
        assert_frame_equal(again.summary(view, 0), table, categorical_as_str=True, abs_tol=1)


def test_steps_of_all_segments_count_once(run: Path, cli) -> None:
    alone = [cli("summary", run / segment(number).raw).out for number in range(NUM_SEGMENTS)]
    assert len(set(alone)) == NUM_SEGMENTS
    (recording,) = scan([run])
    steps = traces.read_first_readable(recording)[1].events["step"].drop_nulls().unique().to_list()
    expected = [
        step
        for files in recording.segments
        for step in read(files[0]).events["step"].drop_nulls().unique().to_list()
    ]
    assert sorted(steps) == sorted(expected)
    merged = cli("merge", run, "-o", run.parent / "merged.json")
    assert "rank 0" in merged.err + merged.out or (run.parent / "merged.json").exists()


def test_stalls_of_the_profiler_are_spans_of_the_timeline(run: Path, cli) -> None:
    events = ppprof.open(run).trace(0).events
    steps = step_spans(events)
    gap_ns = (steps["start_ns"] - steps["end_ns"].shift(1)).max()
    row = (steps["start_ns"] - steps["end_ns"].shift(1)).arg_max()
    first = steps["step"][0]
    stalls = {first: 3000, steps["step"][row]: gap_ns}
    lines = [
        {"step": step, "batch_cost_ns": 9000, "stall_ns": stalls.get(step, 0), "window": 0}
        for step in range(first, first + 5)
    ]
    (run / "steps").mkdir(exist_ok=True)
    (run / "steps/rank_00000.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    cli("merge", run, "-o", run.parent / "merged.json")
    merged = json.loads((run.parent / "merged.json").read_text())
    spans = [
        (each["name"], each["dur"])
        for each in merged["traceEvents"]
        if each["ph"] == "X" and each["name"].startswith("profiler")
    ]
    assert gap_ns > 0
    assert spans == [
        ("profiler opens a window", 3),
        ("profiler saves a segment", gap_ns / 1000),
    ]
    tracks = report.collect_report_data(ppprof.open(run)).details[0].timeline.tracks
    assert any(track.name == "profiler" for track in tracks)
    assert ppprof.open(run).trace(0).events.height == events.height


def test_what_does_not_fit_into_memory_is_sampled_and_said(
    run: Path, cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [(run / segment(number).raw).stat().st_size for number in range(NUM_SEGMENTS)]
    monkeypatch.setattr(traces, "MOST_BYTES", sum(sizes) / 2)
    (recording,) = scan([run])
    chosen, (message,) = traces.sample_of_segments(recording)
    assert [TraceName.parse(files[0]) for files in chosen] == [segment(0), segment(2)]
    assert "has 4 segments, more than are read at once: 2 of them are read" in message
    assert "2 of them are read" in cli("finish", run).err
    assert len(list(run.glob("*.paddle_trace.json"))) == NUM_SEGMENTS


def test_a_page_reads_fewer_segments_than_tables_do_and_says_so(
    run: Path, cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [(run / segment(number).raw).stat().st_size for number in range(NUM_SEGMENTS)]
    monkeypatch.setattr(report, "PAGE_BYTES", sum(sizes) / 2)
    shown = report.collect_report_data(ppprof.open(run))
    every = ppprof.open(run).trace(0).events["step"].drop_nulls().unique().to_list()
    expected = [step for step in every if step < 10 or 20 <= step < 30]
    assert list(shown.steps) == sorted(expected)
    assert len(expected) < len(every)
    (message,) = [text for text in shown.unread if "segments" in text]
    assert "has 4 segments, more than are read at once: 2 of them are read" in message
    assert "segments" not in cli("summary", run).err


def test_a_broken_segment_is_named_and_the_others_count(run: Path, cli) -> None:
    broken = run / segment(1).raw
    broken.write_bytes(broken.read_bytes()[:100])
    assert str(broken) in cli("summary", run, "--view", "model").err
    assert str(broken) in cli("finish", run).err
    assert [path.name for path in run.glob("raw/*.pb")] == [broken.name]
    assert len(list(run.glob("*.paddle_trace.json"))) == NUM_SEGMENTS - 1
    # A finish that was interrupted makes the tables of the whole window again.
    whole = make_run(run.parent / "whole", {0: 1})
    assert whole.exists()


def test_what_a_killed_process_was_writing_is_removed(run: Path, cli) -> None:
    """It wrote a segment's stacks and shapes, and a helper the trace of another one."""
    last, other = segment(3), trace_name(rank=0, window=1)
    names = [last.stacks, last.operator_calls, segment(1).trace("json"), other.stacks]
    paths = [(run / name).with_name(f".writing_{Path(name).name}.0123") for name in names]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    cli("finish", run)
    assert [path.exists() for path in paths] == [False, False, False, True]


def test_a_finish_that_ended_midway_still_makes_the_tables_of_the_whole(run: Path, cli) -> None:
    raws = {number: (run / segment(number).raw).read_bytes() for number in range(2)}
    cli("finish", run)
    expected = (run / segment(0).summary).read_bytes()
    for number, content in raws.items():  # raw captures are removed from the last to the first
        (run / segment(number).raw).write_bytes(content)
    (run / segment(0).summary).unlink()
    cli("finish", run)
    assert not list(run.glob("raw/*"))
    assert len((run / segment(0).summary).read_bytes()) == pytest.approx(len(expected), rel=0.01)


def test_segments_that_are_given_as_files_are_one_window(run: Path, cli) -> None:
    files = [run / segment(number).raw for number in range(NUM_SEGMENTS)]
    assert ppprof.open(*files).windows(0) == [0]
