"""docs/architecture.md follows one event: the names on its way exist, and its numbers agree.

The lines of Python on the page run in `test_sessions`.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tests.fixtures.pages import resolve

ROOT = Path(__file__).parents[2]
PAGES = ("architecture.md", "architecture.zh-CN.md")


def way(page: str) -> str:
    """The section about the event: the last one."""
    return (ROOT / "docs" / page).read_text(encoding="utf-8").rpartition("\n## ")[2]


@pytest.mark.parametrize("page", PAGES)
def test_every_name_on_the_way_exists(page: str) -> None:
    spans = set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", way(page), flags=re.S)))
    names = {span for span in spans if re.fullmatch(r"ppprof(\.\w+)+", span)}
    paths = {span for span in spans if re.fullmatch(r"ppprof/[\w/]+\.c", span)}
    assert len(names) >= 10
    assert paths
    for name in sorted(names):
        assert resolve(name) is not None
    assert [path for path in sorted(paths) if not (ROOT / path).is_file()] == []
    recorder = importlib.import_module("ppprof.capture.recording.recorder")
    reader = importlib.import_module("ppprof.trace.paddle.pb_reader")
    assert {"Recorder.start", "Recorder.take", "read_paddle_pb"} <= spans
    assert recorder.Recorder.start
    assert recorder.Recorder.take
    assert reader.read_paddle_pb


@pytest.mark.parametrize("page", PAGES)
def test_all_stations_have_the_same_event(page: str) -> None:
    """Start and end at the reader, the duration in the table, the summary and the page."""
    text = way(page)
    start_ns, end_ns = map(int, re.findall(r"^\[(\d+), (\d+), 15, 4\]$", text, re.M)[0])
    dur_ns = end_ns - start_ns
    durations = (rf"^\(({dur_ns}), 'Operator', 3\)$", rf", ({dur_ns})\)$", rf"^({dur_ns})$")
    assert all(re.search(duration, text, re.M) for duration in durations)
    assert f"{dur_ns / 1000:.3f}" in text
    first, last = map(float, re.findall(r"#t=([\d.]+)-([\d.]+)&", text)[0])
    assert last - first == pytest.approx(2 * dur_ns / 1e9)
