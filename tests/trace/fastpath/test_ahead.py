"""Scanning the beginning of a file before its reader asks for it."""

from __future__ import annotations

import gc
import gzip
import os
import sys
import threading
import weakref
from pathlib import Path

import pytest

from ppprof.errors import TraceError
from ppprof.trace import read, write_paddle_json
from ppprof.trace.fastpath import ahead, core, ranges
from ppprof.trace.fastpath.ahead import scanned_ahead
from ppprof.trace.fastpath.native import scanner
from ppprof.trace.fastpath.native.scanner import Scanner
from ppprof.trace.fastpath.ranges import RangeScans
from ppprof.trace.json_head import new_scans
from ppprof.trace.kineto import compiled_reader
from ppprof.trace.source import TraceStream
from tests.fixtures import gpu_traces
from tests.fixtures.kineto_files import FILES as KINETO
from tests.fixtures.kineto_files import text_of
from tests.fixtures.same_traces import assert_same
from tests.fixtures.timeline import write

pytestmark = pytest.mark.skipif(
    core.load(core.FOLDER)[0] is None,
    reason="needs the compiled core: run `python tools/build_core.py`",
)


@pytest.fixture
def path(tmp_path, monkeypatch) -> Path:
    """A file that is divided into ranges as if it were long."""
    monkeypatch.setattr(ranges, "RANGE_BYTES", 20_000)
    monkeypatch.setattr(scanner, "num_processors", lambda: 3)
    trace = read(write(tmp_path / "a.pb", *gpu_traces.training()))
    write_paddle_json(trace, tmp_path / "a.json")
    return tmp_path / "a.json"


@pytest.fixture
def taken(monkeypatch) -> list[tuple[int, int]]:
    """The ranges whose events were taken."""
    noted_ranges = []
    take = RangeScans.take

    def noted(self, number, source):
        noted_ranges.append(self.ranges[number])
        return take(self, number, source)

    monkeypatch.setattr(RangeScans, "take", noted)
    return noted_ranges


def test_the_reader_goes_on_from_what_was_scanned_ahead(path, taken):
    expected = read(path)
    usual = taken.copy()
    taken.clear()
    with scanned_ahead(path, new_scans):
        (begun,) = ahead._begun
        assert_same(read(path), expected)
    assert begun.ranges == taken == usual
    assert len(taken) >= 3
    assert all(before[1] == after[0] for before, after in zip(taken, taken[1:]))
    assert taken[-1][1] == path.stat().st_size


@pytest.mark.parametrize("recorded", KINETO, ids=lambda path: path.name)
def test_traces_of_torch_are_scanned_ahead(recorded, tmp_path, taken, monkeypatch):
    monkeypatch.setattr(ranges, "RANGE_BYTES", 20_000)
    monkeypatch.setattr(compiled_reader, "_TAIL_BYTES", 3000)
    (tmp_path / "a.json").write_bytes(text_of(recorded))
    expected = read(tmp_path / "a.json")
    taken.clear()
    with scanned_ahead(tmp_path / "a.json", new_scans):
        (begun,) = ahead._begun
        assert_same(read(tmp_path / "a.json"), expected)
        assert not ahead._begun
    assert begun.ranges == taken


@pytest.mark.parametrize("command", ["summary", "advise", "ranks"])
def test_a_command_begins_to_read_a_long_file(command, path, taken, cli, monkeypatch):
    monkeypatch.setattr("ppprof.cli._LONG_FILE_BYTES", 0)
    begun = []
    start = RangeScans.start
    monkeypatch.setattr(
        RangeScans, "start", lambda self, threads: (begun.append(threads), start(self, threads))
    )
    cli(command, path)
    assert begun[:2] == [1, 3], "one thread during the imports, more once they are done"
    assert len(taken) == len(set(taken)), "a range was read twice"
    assert not ahead._begun


def test_the_thread_ends_with_the_block(path):
    with pytest.raises(KeyboardInterrupt), scanned_ahead(path, new_scans):
        raise KeyboardInterrupt
    assert not ahead._begun
    assert not [thread for thread in threading.enumerate() if thread.name == "ppprof scan"]


def replace(path: Path, content: bytes) -> None:
    path.with_name("new.json").write_bytes(content)
    path.with_name("new.json").replace(path)


def write_as_before(path: Path, content: bytes) -> None:
    """The file keeps its size and time."""
    state = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.mark.parametrize("change", [replace, Path.write_bytes, write_as_before])
def test_a_file_that_was_changed_meanwhile_is_scanned_anew(change, path):
    with scanned_ahead(path, new_scans):
        change(path, path.read_bytes().replace(b'"matmul', b'"matcat'))
        found = read(path)
    assert_same(found, read(path))
    names = set(found.events["name"].cast(str))
    assert any("matcat" in name for name in names)
    assert not any("matmul" in name for name in names)


def test_a_file_that_is_replaced_while_it_is_read_is_an_error(path, monkeypatch):
    """Its ranges would be of two files."""
    scans_of = scanner.new_scans

    def replaced(*arguments):
        (path.parent / "new.json").write_bytes(path.read_bytes())
        (path.parent / "new.json").replace(path)
        return scans_of(*arguments)

    monkeypatch.setattr(scanner, "new_scans", replaced)
    with pytest.raises(TraceError, match=r"a\.json: replaced while it was read; read it again"):
        read(path)


def test_only_one_reader_takes_what_was_scanned_ahead(path):
    expected = read(path)
    with scanned_ahead(path, new_scans):
        with pytest.raises(KeyboardInterrupt):
            read(path, progress=interrupt)
        assert_same(read(path), expected)
        assert_same(read(path), expected)


def interrupt(done: int, size: int) -> None:
    if done == size:
        raise KeyboardInterrupt


def test_an_error_does_not_keep_the_scans_in_memory(path, monkeypatch):
    def fail(*_: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(Scanner, "add_range", fail)
    with TraceStream(path) as source:
        source.read(path.read_bytes().index(b"[") + 1)
        scans = scanner.new_scans(source, "ppprof")
        scans.start(2)
        kept = weakref.ref(scans)
        gc.disable()
        try:
            with pytest.raises(ZeroDivisionError):
                scans.take(0, source)
            scans.close()
            del scans
            sys.exc_info()
            assert kept() is None
        finally:
            gc.enable()


@pytest.mark.parametrize("content", [b"", b"{", b'{"traceEvents": [', b"[]", b"\0" * 99])
def test_what_has_no_events_is_left_to_the_reader(path, content):
    path.write_bytes(content)
    with scanned_ahead(path, new_scans):
        assert not ahead._begun


def test_other_files_are_left_to_the_reader(path, tmp_path, monkeypatch):
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    for other in (
        packed,
        tmp_path / "a.pb",
        tmp_path,
        tmp_path / "missing.json",
        "memory://a.json",
    ):
        with scanned_ahead(other, new_scans):
            assert not ahead._begun
    monkeypatch.setenv(core.VARIABLE, core.PYTHON)
    with scanned_ahead(path, new_scans):
        assert not ahead._begun


def test_without_threads_the_reader_scans_it(path, monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    expected = read(path)
    monkeypatch.setattr(threading.Thread, "start", start)
    with scanned_ahead(path, new_scans):
        assert_same(read(path), expected)
