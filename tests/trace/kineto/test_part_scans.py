"""Threads that scan the parts of a Kineto file: any number of them reads the same events."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.errors import TraceError
from ppprof.trace import Trace, read, source
from ppprof.trace.fastpath import core, ranges
from ppprof.trace.fastpath.native.event_reader import EventReader
from ppprof.trace.kineto import compiled_reader, reader
from ppprof.trace.source import TraceStream
from tests.fixtures.hostile_bytes import mutated
from tests.fixtures.kineto_files import (
    FILES,
    FIXTURES,
    assert_same,
    assert_same_text,
    file_of,
    text_of,
)

pytestmark = pytest.mark.skipif(
    core.load(core.FOLDER)[0] is None,
    reason="needs the compiled core: run `python tools/build_core.py`",
)
DEVICE = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "dur": 1, "args": {"stream": 7}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("traces")


def divide(patch: pytest.MonkeyPatch, part_bytes: int, block_bytes: int, num_threads: int) -> None:
    patch.setattr(ranges, "RANGE_BYTES", part_bytes)
    patch.setattr(compiled_reader, "_TAIL_BYTES", part_bytes // 3)
    for module in (source, compiled_reader):
        patch.setattr(module, "BLOCK_BYTES", block_bytes)
    patch.setattr(reader, "num_processors", lambda: num_threads)


def taken(patch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the scan of each part is used, filled while a file is read."""
    parts: list[bool] = []
    part = reader._Scans.part

    def noted(scans, number):
        result = part(scans, number)
        parts.append(result is not None)
        return result

    patch.setattr(reader._Scans, "part", noted)
    return parts


def numbered(names: list[str]) -> list[str]:
    return [json.dumps({"name": name, **DEVICE, "ts": number}) for number, name in enumerate(names)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@pytest.mark.parametrize("num_threads", [1, 2, 3, 8])
def test_recorded_traces(path, num_threads, folder, monkeypatch):
    whole = read(path)
    divide(monkeypatch, 6000, 2500, num_threads)
    parts = taken(monkeypatch)
    trace = assert_same_text(text_of(path), folder)
    assert isinstance(trace, Trace)
    assert trace.events.height == whole.events.height
    assert not trace.skipped
    assert len(parts) > 3
    assert all(parts)


NASTY_NAMES = [
    *("}, {", '"}, {"name": "b"', '}, {"ph": "X"', "}, {}", "},{},{}", "\\", '\\"}, {\\"name\\":'),
    *('"', '\\", {', "]}", "é}, {}", "\n}, {\n", "{", "}", "[{}, {}]", "\u2028}, {}"),
]


@pytest.mark.parametrize("part_bytes", [150, 211, 400, 1000])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_names_that_look_like_the_end_of_an_event(part_bytes, num_threads, folder, monkeypatch):
    """Bounds fall on all places of such names, also within an escape."""
    divide(monkeypatch, part_bytes, 3 * part_bytes, num_threads)
    names = [name * repeats for repeats in (1, 2, 5, 40) for name in NASTY_NAMES]
    trace = assert_same_text(file_of(*numbered(names)), folder)
    assert isinstance(trace, Trace)
    assert trace.events.sort("start_ns")["name"].cast(str).to_list() == names
    assert not trace.skipped


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_objects_inside_an_event_that_look_like_events(num_threads, folder, monkeypatch):
    """A bound may fall between them: then the scan behind the bound does not count."""
    divide(monkeypatch, 300, 400, num_threads)
    parts = taken(monkeypatch)
    inner = json.dumps([{"name": "inner", **DEVICE, "ts": number} for number in range(8)])
    events = [
        f'{{"other": {inner}, {event[1:]}' if number % 7 == 3 else event
        for number, event in enumerate(numbered(["k"] * 60))
    ]
    trace = assert_same_text(file_of(*events), folder)
    assert isinstance(trace, Trace)
    assert trace.events.sort("start_ns")["start_ns"].to_list() == [n * 1000 for n in range(60)]
    assert not trace.skipped
    assert set(parts) == {True, False}


def test_only_the_part_with_a_broken_event_is_read_again(folder, monkeypatch):
    divide(monkeypatch, 1000, 500, 2)
    parts = taken(monkeypatch)
    events = numbered(["k"] * 100)
    events[50] = events[50].replace('"dur": 1', '"dur": inf')
    trace = assert_same_text(file_of(*events), folder)
    assert isinstance(trace, Trace)
    assert len(trace.events) == 99
    assert parts.count(False) == 1
    assert len(parts) > 8


@pytest.mark.parametrize("num_threads", [1, 3])
def test_the_list_ends_before_the_last_parts(num_threads, folder, monkeypatch):
    """What is behind the list is no event, whatever it looks like."""
    divide(monkeypatch, 1000, 500, num_threads)
    other = ",".join(numbered(["other"] * 40))
    text = file_of(*numbered(["k"] * 40))[:-1] + f', "others": [{other}]}}'.encode()
    trace = assert_same_text(text, folder)
    assert isinstance(trace, Trace)
    assert set(trace.events["name"].cast(str)) == {"k"}
    assert len(trace.events) == 40


@given(seed=st.integers(0, 2**32))
def test_changed_bytes(folder, seed):
    rng = random.Random(seed)
    text = text_of(rng.choice([FIXTURES / "gpu_ddp.json", FIXTURES / "cpu_small_net.json.gz"]))
    with pytest.MonkeyPatch.context() as patch:
        divide(patch, rng.choice([1000, 7000]), rng.choice([600, 3000]), rng.randrange(1, 5))
        assert_same_text(mutated(text[:30_000], rng), folder)


@given(
    names=st.lists(st.text('}{, "\\n:[]é', max_size=30), min_size=1, max_size=40),
    part_bytes=st.integers(60, 600),
    num_threads=st.integers(1, 4),
)
def test_random_names(folder, names, part_bytes, num_threads):
    with pytest.MonkeyPatch.context() as patch:
        divide(patch, part_bytes, part_bytes * 2, num_threads)
        trace = assert_same_text(file_of(*numbered(names)), folder)
    assert isinstance(trace, Trace)
    assert trace.events.sort("start_ns")["name"].cast(str).to_list() == names


def long_file(folder: Path, num_events: int = 200) -> Path:
    path = folder / "long.json"
    path.write_bytes(file_of(*numbered(["k"] * num_events)))
    return path


def test_no_thread_can_be_started(folder, monkeypatch):
    divide(monkeypatch, 1000, 500, 2)

    def fail(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    assert len(read(long_file(folder)).events) == 200


def test_a_part_that_does_not_count_is_skipped_without_threads(folder, monkeypatch):
    """The parts behind it are read, not waited for."""
    divide(monkeypatch, 300, 400, 1)
    inner = json.dumps([{"name": "inner", **DEVICE, "ts": number} for number in range(8)])
    events = numbered(["k"] * 60)
    events[3::7] = [f'{{"other": {inner}, {event[1:]}' for event in events[3::7]]
    path = folder / "objects.json"
    path.write_bytes(file_of(*events))
    monkeypatch.setattr(ranges.RangeScans, "start", lambda *_: None)
    assert len(read(path).events) == 60


@pytest.mark.parametrize("error", [MemoryError("no memory"), TraceError("no event begins")])
def test_the_caller_reads_a_part_on_which_a_thread_failed(error, folder, monkeypatch):
    divide(monkeypatch, 1000, 500, 2)
    parts = taken(monkeypatch)
    add = EventReader.add_range

    def failing(reader, source, first, *rest):
        if 5000 < first < 6000:
            raise error
        return add(reader, source, first, *rest)

    monkeypatch.setattr(EventReader, "add_range", failing)
    assert len(read(long_file(folder)).events) == 200
    assert set(parts) == {True, False}


def test_an_unknown_error_of_a_thread_is_raised(folder, monkeypatch):
    divide(monkeypatch, 1000, 500, 2)

    def failing(reader, *_):
        raise ZeroDivisionError

    monkeypatch.setattr(EventReader, "add_range", failing)
    with pytest.raises(ZeroDivisionError):
        read(long_file(folder))
    assert not [thread for thread in threading.enumerate() if thread.name == "ppprof scan"]


def test_progress_ascends_to_the_size_of_the_file(folder, monkeypatch):
    divide(monkeypatch, 10_000, 5000, 2)
    path = long_file(folder, 3000)  # longer than the head of a file, which is read first
    calls: list[tuple[int, int]] = []
    read(path, progress=lambda *numbers: calls.append(numbers))
    positions = [position for position, _ in calls]
    assert positions == sorted(positions)
    assert calls[-1] == (path.stat().st_size, path.stat().st_size)
    assert len(set(positions)) > 10


def test_bounds_follow_from_the_file_alone(folder, monkeypatch):
    monkeypatch.setattr(ranges, "RANGE_BYTES", 1000)
    monkeypatch.setattr(compiled_reader, "_TAIL_BYTES", 400)
    path = long_file(folder)
    text = path.read_bytes()
    with TraceStream(path) as stream:
        stream.read(40)
        first, *bounds, tail = compiled_reader.part_bounds(stream)
        assert stream.position == first == 40
    assert all(text[bound : bound + 8] == b'{"name":' for bound in [*bounds, tail])
    assert all(0 < bound - 40 - 1000 * number < 200 for number, bound in enumerate(bounds, start=1))
    assert len(bounds) == round((len(text) - 40) / 1000) - 1
    assert 0 < tail - (len(text) - 400) < 200
    assert_same(path)
