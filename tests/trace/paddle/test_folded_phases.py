"""Spans of one phase that follow each other: one in the file for VisualDL, as recorded for us."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

from ppprof.trace import Trace, read, write_paddle_json
from tests.fixtures.timeline import Span, Thread, span, write

MS = 1_000_000


def step(number: int, *phases: tuple[str, float, float]) -> Span:
    """A step of 100 ms with these (phase, start, end) in milliseconds; Forward has a layer inside."""
    at = 100 * MS * number

    def phase(category: str, start: float, end: float) -> Span:
        first, last = at + int(start * MS), at + int(end * MS)
        made = span(category, f"{category} of {start}", first, last)
        return (
            made.around(span("Forward", "Linear", first, last)) if category == "Forward" else made
        )

    name = f"ProfileStep#{number}"
    return span("ProfileStep", name, at, at + 100 * MS, *(phase(*each) for each in phases))


def written(folder: Path, *steps: Span) -> tuple[Trace, list[dict[str, object]], Path]:
    """The trace, the folded spans in its JSON, and that file."""
    trace = read(write(folder / "a.pb", Thread(1, "main", steps)))
    path = folder / "a.json"
    write_paddle_json(trace, path)
    events = json.loads(path.read_text())["traceEvents"]
    return trace, [event for event in events if "folded" in event.get("args", {})], path


def test_spans_that_follow_each_other_are_folded(tmp_path: Path) -> None:
    """A loss that is a Layer of its own, and three micro-batches before their backward passes."""
    trace, folded, path = written(
        tmp_path,
        step(0, ("Forward", 0, 46), ("Forward", 46, 47), ("Backward", 47, 90)),
        step(1, ("Forward", 0, 9), ("Forward", 9, 20), ("Forward", 20, 29), ("Backward", 30, 90)),
    )
    assert [
        (event["cat"], event["dur"], event["args"]["folded"])  # type: ignore[index]
        for event in folded
    ] == [("Forward", 47_000, 2), ("Forward", 29_000, 3)]
    again = read(path)
    assert_frame_equal(again.events, trace.events, categorical_as_str=True)
    assert again.ignored["folded phases"] == 2


@pytest.mark.parametrize(
    "phases",
    [
        [("Forward", 0, 20), ("Backward", 20, 40), ("Forward", 40, 60), ("Backward", 60, 80)],
        [("Forward", 0, 20), ("Forward", 50, 60), ("Backward", 60, 80)],
    ],
    ids=["as in 1F1B", "far apart"],
)
def test_other_spans_stay_as_recorded(
    tmp_path: Path, phases: list[tuple[str, float, float]]
) -> None:
    _, folded, _ = written(tmp_path, step(0, *phases))
    assert folded == []


def test_spans_outside_of_steps_and_below_phases_are_not_folded(tmp_path: Path) -> None:
    outside = [span("Forward", "Net", start, start + 5) for start in (-20, -15)]
    inner = [span("Forward", "Linear", start, start + 5) for start in (0, 5)]
    _, folded, _ = written(
        tmp_path, *outside, step(0).around(span("Forward", "Net", 0, 10, *inner))
    )
    assert folded == []
