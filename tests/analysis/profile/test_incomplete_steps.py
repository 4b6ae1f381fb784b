"""A step that no step() ended: it stays in the trace, and no table counts it."""

from __future__ import annotations

import logging
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import ppprof
from ppprof import rundir
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.views import summarize
from ppprof.choices import VIEWS
from ppprof.trace import read
from ppprof.trace import write as write_trace
from tests.fixtures.timeline import (
    Inside,
    Span,
    Thread,
    alloc,
    kernel,
    launch,
    memcpy,
    span,
    write,
)

MS = 1_000_000


def step(number: int, start: int, length: int, *inside: Inside) -> Span:
    """A step with a layer, an operator that launches a kernel, a copy, a span and an allocation."""
    return span("ProfileStep", f"ProfileStep#{number}", start, start + length).around(
        span("Forward", "Linear", start + 10, start + 60).around(
            span("Operator", "matmul dygraph", start + 20, start + 50).around(
                launch(start + 21, start + 22, kernel("gemm", start + 30, start + 90)),
                launch(start + 23, start + 24, memcpy(start + 90, start + 95, 64)),
                alloc(start + 25, 8),
            )
        ),
        span("PythonUserDefined", "mine", start + 70, start + 80),
        *inside,
    )


def threads(*steps: Span) -> tuple[Thread, Thread]:
    """The steps, and a second thread that works during the time of steps 0, 1 and 2."""
    last = max(step.end for step in steps)
    works = (span("Operator", "decode", start, start + 5) for start in (50, 1050, 2050))
    loader = Thread(2, "loader", tuple(work for work in works if work.start < last))
    return Thread(1, "main", steps), loader


def incomplete(number: int, start: int, length: int) -> Span:
    end = start + length
    return step(
        number, start, length, span("UserDefined", rundir.INCOMPLETE_MARKER, end - 2, end - 1)
    )


WHOLE = (step(0, 0, 1000), step(1, 1000, 1000))


@pytest.mark.parametrize("suffix", ["pb", "json"])
def test_every_table_is_as_if_the_training_had_ended_with_its_last_step(
    tmp_path: Path, suffix: str
) -> None:
    complete = read(write(tmp_path / "complete.pb", *threads(*WHOLE)))
    cut = read(write(tmp_path / "cut.pb", *threads(*WHOLE, incomplete(2, 2000, 900 * MS))))
    if suffix == "json":  # what VisualDL opens, and what `ppprof convert` writes
        write_trace(cut, tmp_path / "cut.json")
        cut = read(tmp_path / "cut.json")
    tail = cut.events.filter(pl.col("start_ns") >= cut.events["start_ns"].min() + 2000)
    assert tail["step"].null_count() == tail.height == 10
    assert cut.events.height == complete.events.height + tail.height  # nothing is lost
    names = tail.filter(category="PythonUserDefined")["name"].to_list()
    assert sorted(names) == ["incomplete step", "mine"]
    expected, profile = Profile(complete), Profile(cut)
    assert profile.steps == expected.steps == [0, 1]
    for view in VIEWS:
        assert_frame_equal(summarize(profile, view), summarize(expected, view))


def test_a_step_is_incomplete_wherever_it_was_ended(tmp_path: Path) -> None:
    """SIGTERM ends it in another thread: the marker and the span are there."""
    main, loader = threads(*WHOLE)
    work = span("Operator", "matmul dygraph", 2100, 2200)
    saver = Thread(3, "sigterm").around(
        span("ProfileStep", "ProfileStep#2", 2000, 2900).around(
            span("UserDefined", rundir.INCOMPLETE_MARKER, 2890, 2891)
        )
    )
    cut = Profile(read(write(tmp_path / "cut.pb", main.around(work), loader, saver)))
    whole = Profile(read(write(tmp_path / "whole.pb", main, loader)))
    for view in VIEWS:
        assert_frame_equal(summarize(cut, view), summarize(whole, view))


def test_a_trace_that_has_only_an_incomplete_step_keeps_its_events(tmp_path: Path) -> None:
    trace = read(write(tmp_path / "cut.pb", *threads(incomplete(0, 0, 1000))))
    profile = Profile(trace)
    assert profile.steps == []
    assert "matmul dygraph" in summarize(profile, "op")["name"].to_list()


def run_of(folder: Path, *steps: Span) -> Path:
    run = rundir.claim(folder)
    rundir.write_manifest(run, {})
    name = rundir.TraceName(0, "dp0_pp0_sharding0_mp0", datetime(2026, 11, 20), 0)
    write(run / name.raw, *threads(*steps))
    return run


def test_a_training_that_ends_in_its_first_step_is_said_to(tmp_path: Path) -> None:
    """90 of 100 ms pass without an event, as the training fails: that is no finding."""
    folder = run_of(tmp_path / "cut", incomplete(0, 0, 100 * MS))
    unmarked = {each.rule: each for each in ppprof.advise(folder)}  # step() was never called
    assert unmarked["short-window"].facts["wording"] == "unmarked"
    assert len(unmarked) > 1
    (folder / "failed").mkdir()
    (folder / "failed/00000.txt").write_text("RuntimeError: boom", encoding="utf-8")
    findings = ppprof.advise(folder)
    assert [(each.rule, each.facts["wording"]) for each in findings] == [
        ("short-window", "unfinished")
    ]


def test_whole_windows_beside_one_that_failed_keep_their_findings(tmp_path: Path) -> None:
    whole = run_of(tmp_path / "whole", *WHOLE)
    rules = {each.rule for each in ppprof.advise(whole)}
    name = rundir.TraceName(0, "dp0_pp0_sharding0_mp0", datetime(2026, 11, 20, 1), 1)
    write(whole / name.raw, *threads(incomplete(9, 0, 100 * MS)))
    (whole / "failed").mkdir()
    (whole / "failed/00000.txt").write_text("RuntimeError: boom", encoding="utf-8")
    findings = ppprof.advise(whole)
    assert rules == {each.rule for each in findings}
    (window,) = (each for each in findings if each.rule == "short-window")
    assert window.facts.get("wording") is None


def test_steps_of_ranks_leave_it_out_and_say_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cut = run_of(tmp_path / "cut", *WHOLE, incomplete(2, 2000, 900 * MS))
    whole = run_of(tmp_path / "whole", *WHOLE)
    with caplog.at_level(logging.INFO, "ppprof"):
        run = ppprof.open(cut)
        steps = run.breakdown()
        run.summary("model")
        run.summary("op")
    assert_frame_equal(steps, ppprof.open(whole).breakdown())
    assert steps["step"].to_list() == [0, 1]
    said = [message for message in caplog.messages if "not ended by step()" in message]
    assert said == [
        f"{run.recordings[0].files[0]}: the last 900 ms were not ended by step(): "
        "no table and no average counts them"
    ]


def test_nothing_is_said_of_the_last_microseconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "ppprof"):
        ppprof.open(run_of(tmp_path / "cut", *WHOLE, incomplete(2, 2000, 900))).summary("op")
    assert "not ended" not in caplog.text
