"""Events of one track nest or follow each other, or a viewer drops them.

Perfetto drops a slice that begins inside another and ends after it. Paddle writes the start in
whole microseconds and the length exactly, which moves children past the end of their parents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ppprof.trace import read, write_paddle_json

pytestmark = pytest.mark.paddle


def num_crossing(events: Iterable[dict[str, Any]]) -> int:
    """How many complete events end after the one around them does."""
    tracks: dict[tuple[Any, Any], list[tuple[Decimal, Decimal]]] = {}
    for event in events:
        if event.get("ph") == "X":
            start, dur = Decimal(event["ts"]), Decimal(event["dur"])
            tracks.setdefault((event["pid"], event["tid"]), []).append((start, start + dur))
    crossing = 0
    for spans in tracks.values():
        open_until: list[Decimal] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            crossing += bool(open_until) and end > open_until[-1]
            open_until.append(end)
    return crossing


def _events(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text(), parse_float=Decimal)["traceEvents"]
    return events


@pytest.mark.jobs
def test_no_event_crosses_the_end_of_another(cpu_capture: Path, tmp_path: Path) -> None:
    write_paddle_json(read(cpu_capture / "capture.pb"), tmp_path / "ours.json")
    ours = _events(tmp_path / "ours.json")
    assert num_crossing(ours) == 0
    truncated = [{**event, "ts": int(event["ts"])} for event in ours if "ts" in event]
    assert num_crossing(truncated) > 0
