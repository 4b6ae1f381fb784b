"""A conversion of torch's trace loses no event, counted in the files, or says how many."""

from __future__ import annotations

import json
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppprof.trace import read
from tests.fixtures.torch_traces import BASE_US, Event, TorchTrace, training, write_events

KINETO = Path(__file__).parents[2] / "fixtures/kineto"
CATEGORIES = (
    "python_function",
    "cuda_sync",
    "overhead",
    "gpu_user_annotation",
    "Trace",
    "glow",
    "",
)


def events_of(path: Path) -> list[Event]:
    import gzip

    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(text, parse_float=Decimal)
    return list(document["traceEvents"])


def categories(events: list[Event]) -> Counter[Any]:
    return Counter((event.get("ph"), event.get("cat"), event.get("name")) for event in events)


def with_frames() -> TorchTrace:
    """Case 21: 100 frames of Python beside a training."""
    trace = training()
    for number in range(100):
        ids = {"Python id": number + 1, "Python parent id": 0}
        trace.span(
            "python_function", f"train.py({number}): f{number}", number * 400.0, 300.0, **ids
        )
    return trace


@st.composite
def odd_events(draw: st.DrawFn) -> list[Event]:
    trace = training(num_steps=2, num_kernels=3)
    for number in range(draw(st.integers(1, 12))):
        ph = draw(st.sampled_from("XXXXiCbensR"))
        event = trace.span(draw(st.sampled_from(CATEGORIES)), f"e{number}", number * 900.0, 50.0)
        event["ph"], event["args"] = ph, {"any": [{"of": number}], "text": 'a"b'}
        if ph != "X":
            del event["dur"]
    if draw(st.booleans()):  # calls of one operator in another, as layers of the dispatcher
        trace.op("aten::add", 100, 80)
        trace.op("aten::add", 110, 60)
    order = draw(st.permutations(range(len(trace.events))))
    return [trace.events[index] for index in order]


@given(odd_events())
@settings(max_examples=25)
def test_what_goes_in_comes_out(tmp_path_factory, cli, events):
    folder = tmp_path_factory.mktemp("file")
    source = write_events(folder / "a.json", events, traceName="a", with_stack=1)
    for name in ("b.json", "b.json.gz"):
        cli("convert", source, folder / name, "--to", "kineto")
        assert events_of(folder / name) == events_of(source)
    document = json.loads((folder / "b.json").read_text())
    assert (document["traceName"], document["with_stack"]) == ("a", 1)


@pytest.mark.parametrize("name", ["cpu_ddp_rank1.json.gz", "gpu_ddp.json", "cpu_small_net.json.gz"])
def test_what_torch_wrote_comes_out_whole(tmp_path, cli, name):
    target = tmp_path / "out.json"
    cli("convert", KINETO / name, target, "--to", "kineto")
    assert events_of(target) == events_of(KINETO / name)


def test_other_formats_say_what_they_cannot_hold(tmp_path, cli):
    source = write_events(tmp_path / "a.json", with_frames().events)
    for name in ("b.json", "b.pb"):
        err = cli("convert", source, tmp_path / name).err
        assert f"{name}: the format cannot hold 100 python_function events\n" in err
    assert cli("convert", source, tmp_path / "c.json", "--to", "kineto").err.count("\n") == 1
    assert categories(events_of(tmp_path / "c.json")) == categories(events_of(source))
    steps = ["--to", "kineto", "--steps", "1:3"]
    err = cli("convert", source, tmp_path / "d.json", *steps).err
    assert "100 python_function events" in err


@given(odd_events())
@settings(max_examples=15)
def test_each_event_is_written_or_reported(tmp_path_factory, events):
    """In Paddle's JSON: the spans of the tables are written, and the others are counted."""
    folder = tmp_path_factory.mktemp("file")
    trace = read(write_events(folder / "a.json", events))
    reported = sum(trace.unheld().values()) + sum(trace.skipped.values())
    held = trace.events.height + trace.memory.height
    others = sum(event.get("ph") in ("M", "s", "t", "f") for event in events)
    assert held + reported + others == len(events)


def test_a_broken_file_is_mended(tmp_path, cli):
    source = write_events(tmp_path / "a.json", with_frames().events)
    text = source.read_text()
    source.write_text(text[: text.rindex("{")])
    err = cli("convert", source, tmp_path / "b.json", "--to", "kineto").err
    assert "the file is truncated" in err
    assert len(events_of(tmp_path / "b.json")) == len(with_frames().events) - 1


def test_kernels_that_cross_get_a_track_and_keep_their_arrows(tmp_path, cli):
    trace = training(num_steps=1, num_kernels=4, kernel_us=3000)  # begins every 2450 us
    for kernel in trace.kernels():
        arrow = {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": kernel["args"]["correlation"]}
        trace.events.append({**arrow, **{key: kernel[key] for key in ("pid", "tid", "ts")}})
    source = write_events(tmp_path / "a.json", trace.events)
    cli("convert", source, tmp_path / "b.json", "--to", "kineto")
    events = events_of(tmp_path / "b.json")
    kernels = [event for event in events if event.get("cat") == "kernel"]
    tracks = [kernel["tid"] for kernel in kernels]
    assert tracks[::2] == [7, 7]
    assert tracks[1] == tracks[3] != 7
    assert [event["tid"] for event in events if event["ph"] == "f"] == tracks
    assert [e["args"]["name"] for e in events if e["name"] == "thread_name"] == ["stream 7 (2)"]
    assert {event["ts"] for event in kernels} == {BASE_US + 90 + n * 2450 for n in range(4)}
    assert read(tmp_path / "b.json").skipped == {}


def test_other_writers_become_torchs(tmp_path, cli):
    """A file of begin and end events is written as spans, which HTA reads."""
    spans = [event for event in training().events if event["ph"] == "X"]
    pairs = []
    for event in spans:
        pairs += [{**event, "ph": "B"}, {**event, "ph": "E", "ts": event["ts"] + event["dur"]}]
    source = write_events(tmp_path / "a.json", pairs)
    cli("convert", source, tmp_path / "b.json", "--to", "kineto")
    found = Counter(event["cat"] for event in events_of(tmp_path / "b.json") if event["ph"] == "X")
    expected = Counter(event["cat"] for event in spans)
    assert all(found[cat] >= num for cat, num in expected.items())
    assert not re.search('"ph": ?"[BE]"', (tmp_path / "b.json").read_text())
