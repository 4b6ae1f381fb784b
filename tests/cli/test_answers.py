"""What ``ppprof mcp`` answers, without the protocol."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as some

from ppprof.cli.answers import MOST_CHARACTERS, Answers, bounded, definitions
from ppprof.cli.schema import schema_text
from ppprof.errors import InputError, UsageError
from tests.fixtures.findings import TRIGGERS, evaluating, op, thread
from tests.fixtures.json_schemas import validate
from tests.fixtures.run_directories import run
from tests.fixtures.timeline import Thread, span, write

RUNS = Path(__file__).parents[1] / "fixtures/runs"


def asked(tool: Any, **arguments: Any) -> dict[str, Any]:
    return json.loads(tool(**arguments))


@pytest.fixture
def slow_steps(tmp_path: Path) -> Answers:
    """12 steps of 1 ms, of which steps 3, 6 and 9 take 5 ms, all of it in an operator but 10 us."""
    return Answers([str(run(tmp_path / "log", [evaluating(every=3)]))])


def test_answers_are_the_documents_of_the_commands() -> None:
    answers = Answers([str(RUNS / "nothing"), str(RUNS / "slow_layer")])
    for command, answer in (
        ("ranks", asked(answers.ranks, what_if=True)),
        ("path", asked(answers.path, what_if=["matmul: 0.5x"])),
        ("summary", [asked(answers.tables, view="op,layer")]),
        ("summary", [asked(answers.tables, view="op", by="name")]),
        ("advise", asked(answers.findings)),
        ("diff", asked(answers.diff, baseline=answers.runs[0], experiment=answers.runs[1])),
    ):
        for document in answer if isinstance(answer, list) else [answer]:
            for added in ("left_off", "messages", "runs", "recorded"):
                document.pop(added, None)
        validate(answer, json.loads(schema_text(command)))


@hypothesis.given(
    some.lists(some.lists(some.text(max_size=300), max_size=400), max_size=60),
    some.integers(1, 200),
)
def test_shown_and_left_off_add_up(rows: list[list[str]], most: int) -> None:
    text = bounded({"rows": rows}, most)
    assert len(text) <= MOST_CHARACTERS
    answer = json.loads(text)
    shown = answer["rows"]
    left_off = answer["left_off"].get("rows", 0)
    cut = len(rows) - len(shown) + sum(len(row) for row in rows[: len(shown)])
    assert cut - sum(map(len, shown)) == left_off
    assert all(len(each) <= most for each in [shown, *shown])


def test_long_texts_and_many_keys_are_cut() -> None:
    answer = json.loads(bounded({"text": "x" * 5000, "clocks": dict.fromkeys(range(1000), 1)}, 5))
    assert answer["text"].endswith("xxx... (4,000 more characters)")
    assert len(answer["clocks"]) == 200
    assert answer["left_off"] == {"clocks": 800}
    with pytest.raises(UsageError, match="too long"):
        bounded({str(number): "x" * 900 for number in range(200)}, 5)


def test_whole_numbers_stay_exact() -> None:
    time = 1_795_309_982_125_231_374
    assert bounded({"ns": time, "ratio": 1 / 3}, 1) == (
        f'{{"ns":{time},"ratio":0.333333,"left_off":{{}}}}'
    )


def test_a_timeline_shows_the_longest_events_in_order(slow_steps: Answers) -> None:
    place = asked(slow_steps.findings)["findings"][0]["where"]["time"]
    answer = asked(slow_steps.timeline, rank=place["rank"], step=place["step"])
    assert (answer["origin_ns"], answer["length_ns"]) == (place["start_ns"], 5_000_000)
    shown = [(e["name"], e["start_ns"], e["dur_ns"], e["self_ns"]) for e in answer["events"]]
    assert shown == [
        (f"ProfileStep#{place['step']}", 0, 5_000_000, 10_000),
        ("matmul dygraph", 0, 4_990_000, 4_990_000),
    ]
    event = answer["events"][1]
    assert (event["depth"], event["step"]) == (1, place["step"])
    assert "stream" not in event  # of the device only
    by_time = asked(slow_steps.timeline, start_ns=place["start_ns"], end_ns=place["end_ns"])
    assert by_time["events"] == answer["events"]
    one = asked(slow_steps.timeline, step=place["step"], name="matmul", rows=1)
    assert [event["name"] for event in one["events"]] == ["matmul dygraph"]
    short = asked(slow_steps.timeline, step=place["step"], rows=1)
    assert short["num_shorter_events"] == 1
    assert asked(slow_steps.timeline)["step"] in (3, 6, 9)


def add_window(path: Path, window: int, start: int, lengths: dict[int, int]) -> None:
    """Add a window of steps to a run, number -> length in us, ``start`` us behind window 0's begin."""
    steps, at = [], start * 1_000
    for step, length in lengths.items():
        steps.append(
            span("ProfileStep", f"ProfileStep#{step}", at, at + length * 1_000).around(
                span("Operator", f"of_window_{window}", at, at + length * 500)
            )
        )
        at += length * 1_000
    first = next((path / "raw").glob("rank_00000*_000.pb"))
    write(first.with_name(first.name.replace("_000.pb", f"_{window:03}.pb")), Thread(1, "", steps))


@pytest.fixture
def three_windows(tmp_path: Path) -> Path:
    """Window 0: steps 0 and 1 of 1 ms; 1: 20 and 21 of 2 and 3 ms, 100 ms later; 2: 40 of 1 ms, 200 ms later."""
    path = run(tmp_path / "log", [thread(lambda at: (), num=2)])
    add_window(path, 1, 100_000, {20: 2_000, 21: 3_000})
    add_window(path, 2, 200_000, {40: 1_000})
    return path


def test_a_time_is_looked_for_in_every_window(three_windows: Path) -> None:
    answers = Answers([str(three_windows)])
    begin = asked(answers.timeline, step=0)["origin_ns"]
    assert asked(answers.timeline)["step"] == 21  # the longest of all windows
    time = {"start_ns": begin + 102_000_000, "end_ns": begin + 103_000_000}
    answer = asked(answers.timeline, **time)
    assert (answer["window"], answer["origin_ns"]) == (1, time["start_ns"])
    shown = [(event["name"], event["start_ns"]) for event in answer["events"]]
    assert shown == [("ProfileStep#21", 0), ("of_window_1", 0)]
    with pytest.raises(UsageError) as error:
        answers.timeline(start_ns=begin + 3_000_000, end_ns=begin + 4_000_000)
    assert str(error.value) == (
        f"no window from {begin + 3_000_000} to {begin + 4_000_000} ns; there are windows "
        f"from {begin} to {begin + 2_000_000}, from {begin + 100_000_000} to {begin + 105_000_000}, "
        f"from {begin + 200_000_000} to {begin + 201_000_000}"
    )


def test_a_window_without_steps_is_no_step_beside_others(three_windows: Path) -> None:
    """It was cut within its first step; that of 900 ms would be the longest."""
    first = next((three_windows / "raw").glob("rank_00000*_000.pb"))
    cut = span("Operator", "matmul", 300_000_000, 1_200_000_000)
    write(first.with_name(first.name.replace("_000.pb", "_003.pb")), Thread(1, "", [cut]))
    write(first.with_name(first.name.replace("_000.pb", "_004.pb")), Thread(1, "", []))
    answers = Answers([str(three_windows)])
    assert asked(answers.timeline)["step"] == 21
    assert asked(answers.timeline, step=0)["window"] == 0


@pytest.mark.parametrize("by", ["name", "rank"])
def test_tables_across_ranks_are_of_the_first_window(three_windows: Path, by: str) -> None:
    tables = Answers([str(three_windows)]).tables
    for window, first in (({}, 0), ({"window": 1}, 1)):
        answer = asked(tables, by=by, view="op", **window)
        assert answer["window"] == first
    assert [row["name"] for row in answer["tables"]["op"]] == ["of_window_1"]


def test_an_unreadable_window_hides_no_other_one(three_windows: Path) -> None:
    answers = Answers([str(three_windows)])
    begin = asked(answers.timeline, step=0)["origin_ns"]
    raws = sorted((three_windows / "raw").glob("rank_00000*.pb"))
    raws[0].write_bytes(b"")
    times = {"start_ns": begin + 100_000_000, "end_ns": begin + 102_000_000}
    for place, step in (({"step": 20}, 20), (times, None), ({}, 21)):
        answer = asked(answers.timeline, **place)
        assert (answer["window"], answer["step"]) == (1, step)
        assert any(str(raws[0]) in message for message in answer["messages"])
    for raw in raws[1:]:
        raw.write_bytes(b"")
    with pytest.raises(InputError):
        answers.timeline(step=20)


def test_the_shortest_events_are_left_off_a_long_timeline(tmp_path: Path) -> None:
    """A step of 199 operators with long names, 1 to 199 us: of both ends, only the long ones fit."""
    lengths = range(1, 200)
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    operators = [
        op(0, start, start + length, f"{'x' * 400}{length}")
        for start, length in zip(starts, lengths)
    ]
    path = run(tmp_path / "log", [thread(lambda at: operators, lengths=[sum(lengths)])])
    answer = asked(Answers([str(path)]).timeline, rows=200)
    shown = [int(event["name"].lstrip("x")) for event in answer["events"][1:]]
    num_shown = 200 - answer["left_off"]["events"]
    assert 1 < num_shown < 200
    assert answer["events"][0]["name"] == "ProfileStep#0"
    assert shown == list(range(200 - (num_shown - 1), 200))


def test_the_farthest_lines_are_left_off_a_long_source(tmp_path: Path) -> None:
    recorded = TRIGGERS["beside-training"][0]
    (stacks,) = recorded["stacks"]
    source = {"train.py": dict.fromkeys(range(1, 201), "x" * 900)}
    path = run(tmp_path / "log", **{**recorded, "stacks": [replace(stacks, source=source)]})
    answer = asked(Answers([str(path)]).source, file="train.py", line=180, rows=200)
    shown = [line["line"] for line in answer["lines"]]
    assert answer["left_off"]["lines"] == 200 - len(shown) > 0
    assert shown == sorted(shown)
    farthest = max(abs(number - 180) for number in shown)
    assert {number for number in range(1, 201) if abs(number - 180) < farthest} <= set(shown)


def test_source_of_a_later_window_is_found(tmp_path: Path) -> None:
    path = run(tmp_path / "log", **TRIGGERS["beside-training"][0])
    for file in path.rglob("rank_00000*_000.*"):
        file.rename(file.with_name(file.name.replace("_000.", "_001.")))
    (later,) = (path / "raw").glob("rank_00000*.pb")
    write(later.with_name(later.name.replace("_001.", "_000.")), thread(lambda at: (), num=2))
    answer = asked(Answers([str(path)]).source, file="train.py", line=7, rows=1)
    assert [line["text"].strip() for line in answer["lines"]] == ["file.write(json.dumps(weights))"]


def test_source_lines_have_their_sampled_times(tmp_path: Path) -> None:
    path = run(tmp_path / "log", **TRIGGERS["beside-training"][0])
    answers = Answers([str(path)])
    where = asked(answers.findings)["findings"][0]["where"]
    assert (where["file"], where["line"]) == ("train.py", 7)
    lines = asked(answers.source, file=where["file"], line=where["line"])["lines"]
    (line,) = (each for each in lines if each["line"] == 7)
    assert line["text"].strip() == "file.write(json.dumps(weights))"
    assert line["total_ns"] > 0
    with pytest.raises(
        UsageError, match=r"other.py: no source of it was recorded; recorded: .*train.py"
    ):
        answers.source(file="other.py", line=1)


def test_other_runs_ranks_and_steps_are_refused(slow_steps: Answers, tmp_path: Path) -> None:
    other = str(run(tmp_path / "other", [evaluating(every=2)]))
    for tool, arguments, message in (
        (slow_steps.findings, {"run": other}, "expected one of"),
        (slow_steps.diff, {"baseline": slow_steps.runs[0], "experiment": other}, "expected one of"),
        (slow_steps.timeline, {"step": 99}, "no step 99; there are steps 0-11"),
        (slow_steps.timeline, {"rank": 7}, "no rank 7"),
        (slow_steps.timeline, {"start_ns": 1}, "a time needs both start_ns and end_ns"),
        (slow_steps.timeline, {"end_ns": 1, "step": 3}, "a time needs both start_ns and end_ns"),
        (slow_steps.tables, {"view": "ops"}, "'ops': expected some of device, overview"),
        (slow_steps.tables, {"by": "rank,name"}, "'rank,name': expected rank or name"),
        (slow_steps.ranks, {"by": "colour!"}, "'colour!': expected some of rank, step"),
        (slow_steps.ranks, {"rows": 0}, "rows 0: expected 1 to 200"),
    ):
        with pytest.raises(UsageError, match=message):
            tool(**arguments)
    with pytest.raises((InputError, FileNotFoundError)):
        Answers([str(tmp_path / "missing")]).findings()


def test_messages_about_unreadable_parts_are_in_the_answer(tmp_path: Path) -> None:
    path = run(tmp_path / "log", [evaluating(every=3), evaluating(every=3)])
    trace = next((path / "raw").glob("rank_00001*.pb"))
    trace.write_bytes(trace.read_bytes()[:100])
    (message, *_) = asked(Answers([str(path)]).ranks)["messages"]
    assert str(trace) in message


def test_definitions_name_rules_and_terms() -> None:
    text = definitions()
    assert "- **Exposed**: Communication over this axis that no computation hides." in text
    assert all(f"- **{rule}** (" in text for rule in TRIGGERS)
    assert "{" not in text
    assert len(text) < MOST_CHARACTERS
