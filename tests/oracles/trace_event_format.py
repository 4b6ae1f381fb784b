"""What the Trace Event Format asks of a file, checked without any of our code.

After "Trace Event Format" (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU)
and the importers of Perfetto and of trace-viewer: both read events by ``ts``, those of one time in
the order of the file, keep a stack of slices for each thread, drop what crosses, and bind an end of
an arrow to the innermost slice, which for an arrow's end asks for ``"bp": "e"``.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

_ID = re.compile("[0-9a-f]{1,16}")  # Perfetto reads hexadecimal


class Arrow(list):
    """Ends in the order of time: (phase, slice)."""


def load(path: Path) -> dict:
    """Strict JSON, numbers as they are written."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    def only_once(pairs: list) -> dict:
        assert len({key for key, _ in pairs}) == len(pairs), pairs
        return dict(pairs)

    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "strict")
    return json.loads(text, parse_constant=refuse, parse_float=Decimal, object_pairs_hook=only_once)


def check(document: dict) -> dict[str, Arrow]:
    """Asserts all of it; returns the arrows by category and id."""
    events = document["traceEvents"]
    timed = [event for event in events if event["ph"] != "M"]
    for event in timed:
        assert event["ph"] in "Xstf", event
        for number in (event["pid"], event["tid"]):
            assert type(number) is int, event
            assert 0 < number < 2**32, event
        for text in (event["name"], event["cat"]):
            assert isinstance(text, str), event
            assert text, event
        for time in (event["ts"], event.get("dur", 0)):
            assert 0 <= time * 1000 < 2**53, event
            assert time * 1000 % 1 == 0, event
        if event["ph"] == "X":
            assert "dur" in event, event
        else:
            assert _ID.fullmatch(event["id"]), event
            assert (event.get("bp") == "e") == (event["ph"] == "f"), event
    _check_names(events)
    return _check_slices(timed)


def _check_names(events: list[dict]) -> None:
    """Each process and thread that has events is named once for each time it is."""
    named = defaultdict(set)
    for event in events:
        if event["ph"] == "M":
            (value,) = event["args"].values()
            key = event["pid"] if event["name"].startswith("process") else event["tid"]
            named[event["name"], key].add(value)
    assert all(len(values) == 1 for values in named.values()), named
    process_of = {}
    for event in events:
        if event["ph"] == "X":
            assert process_of.setdefault(event["tid"], event["pid"]) == event["pid"]
            for kind in ("process_name", "process_sort_index"):
                assert (kind, event["pid"]) in named, (kind, event)
            for kind in ("thread_name", "thread_sort_index"):
                assert (kind, event["tid"]) in named, (kind, event)


def _check_slices(timed: list[dict]) -> dict[str, Arrow]:
    stacks: dict[tuple, list[dict]] = defaultdict(list)
    arrows: dict[str, Arrow] = defaultdict(Arrow)
    for event in sorted(timed, key=lambda event: event["ts"]):
        stack = stacks[event["pid"], event["tid"]]
        while stack and _end(stack[-1]) <= event["ts"] and event["ph"] == "X":
            stack.pop()
        if event["ph"] == "X":
            assert not stack or _end(event) <= _end(stack[-1]), (event, stack[-1])
            stack.append(event)
            continue
        assert stack, event
        around = [parent for parent in stack if event["ts"] <= _end(parent)]
        assert around, event
        arrows[f"{event['cat']} {event['id']}"].append((event["ph"], around[-1]))
    for arrow in arrows.values():
        phases = [phase for phase, _ in arrow]
        assert phases.count("s") <= 1, arrow
    return dict(arrows)


def _end(event: dict) -> Decimal:
    return event["ts"] + event["dur"]
