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

from ppprof.cli import main
from ppprof.errors import TraceError
from ppprof.trace import read, write_paddle_json
from ppprof.trace.fastpath import ahead, core, ranges
from ppprof.trace.fastpath.ahead import scanned_ahead, take_begun_scan
from ppprof.trace.fastpath.native.scanner import Scanner
from ppprof.trace.fastpath.ranges import RangeScan
from ppprof.trace.source import TraceStream
from tests.fixtures import gpu_traces
from tests.fixtures.timeline import write
from tests.trace.paddle.test_json import assert_same

pytestmark = pytest.mark.skipif(
    core.load(core.FOLDER)[0] is None,
    reason="needs the compiled core: run `python tools/build_core.py`",
)


@pytest.fixture
def path(tmp_path, monkeypatch) -> Path:
    """A file that is divided into ranges as if it were long."""
    monkeypatch.setattr(ahead, "_FEWEST_BYTES", 0)
    monkeypatch.setattr(ahead, "_HEAD_START_BYTES", 10_000)
    for module in (ahead, ranges):
        monkeypatch.setattr(module, "MIN_RANGE_BYTES", 20_000)
        monkeypatch.setattr(module, "num_processors", lambda: 3)
    trace = read(write(tmp_path / "a.pb", *gpu_traces.training()))
    write_paddle_json(trace, tmp_path / "a.json")
    return tmp_path / "a.json"


@pytest.fixture
def taken(monkeypatch) -> list[tuple[int, int]]:
    """The ranges whose events were taken."""
    noted_ranges = []
    scanned = RangeScan.scanned

    def noted(self):
        noted_ranges.append((self.first, self.end))
        return scanned(self)

    monkeypatch.setattr(RangeScan, "scanned", noted)
    return noted_ranges


def test_the_reader_goes_on_from_what_was_scanned_ahead(path, taken):
    expected = read(path, cache=False)
    usual = taken.copy()
    taken.clear()
    with scanned_ahead(path):
        (begun,) = ahead._begun
        assert_same(read(path, cache=False), expected)
    assert (begun.first, begun.end) == taken[0] != usual[0]
    assert len(taken) == 3
    assert all(before[1] == after[0] for before, after in zip(taken, taken[1:]))
    assert taken[-1][1] == path.stat().st_size


def test_a_short_file_is_scanned_by_one_thread(path, taken, monkeypatch):
    expected = read(path, cache=False)
    taken.clear()
    monkeypatch.setattr(ahead, "_HEAD_START_BYTES", 1 << 30)
    with scanned_ahead(path):
        assert_same(read(path, cache=False), expected)
    assert len(taken) == 1


def test_the_thread_ends_with_the_block(path):
    with pytest.raises(KeyboardInterrupt), scanned_ahead(path):
        raise KeyboardInterrupt
    assert not ahead._begun
    assert not [thread for thread in threading.enumerate() if thread.name == "ppprof scan"]


def test_a_file_that_was_replaced_meanwhile_is_scanned_anew(path, taken):
    text = path.read_bytes()
    with scanned_ahead(path):
        hidden = path.with_name("new.json")
        hidden.write_bytes(text.replace(b'"matmul', b'"matcat'))
        hidden.replace(path)
        assert_same(read(path, cache=False), read(path, cache=False))
        names = set(read(path, cache=False).events["name"].cast(str))
    assert any("matcat" in name for name in names)
    assert not any("matmul" in name for name in names)


def test_a_file_that_was_written_to_meanwhile_is_scanned_anew(path):
    text = path.read_bytes()
    with scanned_ahead(path):
        path.write_bytes(text.replace(b'"matmul', b'"matcat'))
        names = set(read(path, cache=False).events["name"].cast(str))
    assert not any("matmul" in name for name in names)


def test_a_change_that_keeps_size_and_time_is_noticed(path):
    text, state = path.read_bytes(), path.stat()
    with scanned_ahead(path):
        path.write_bytes(text.replace(b'"matmul', b'"matcat'))
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
        names = set(read(path, cache=False).events["name"].cast(str))
    assert not any("matmul" in name for name in names)


def test_a_file_that_is_replaced_while_its_scans_begin_is_an_error(path, monkeypatch):
    """Its ranges would be of two files."""

    def replaced() -> int:
        (path.parent / "new.json").write_bytes(path.read_bytes())
        (path.parent / "new.json").replace(path)
        return 3

    with scanned_ahead(path):
        monkeypatch.setattr(ranges, "num_processors", replaced)
        with pytest.raises(TraceError, match=r"a\.json: replaced while it was read; read it again"):
            read(path, cache=False)


def test_only_one_reader_takes_what_was_scanned_ahead(path):
    expected = read(path, cache=False)
    with scanned_ahead(path):
        with pytest.raises(KeyboardInterrupt):
            read(path, cache=False, progress=interrupt)
        assert_same(read(path, cache=False), expected)
        assert_same(read(path, cache=False), expected)


def interrupt(done: int, size: int) -> None:
    if done == size:
        raise KeyboardInterrupt


def test_an_error_does_not_keep_the_scan_in_memory(path, monkeypatch):
    def fail(*_: object) -> bool:
        raise MemoryError

    monkeypatch.setattr(Scanner, "add_range", fail)
    with TraceStream(path) as source:
        scan = RangeScan(source.path, "ppprof", 0, source.size)
    scan.start()
    kept = weakref.ref(scan)
    gc.disable()
    try:
        with pytest.raises(MemoryError):
            scan.scanned()
        del scan
        sys.exc_info()
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("content", [b"", b"{", b'{"traceEvents": [', b"[]", b"\0" * 99])
def test_what_has_no_events_is_left_to_the_reader(path, content):
    path.write_bytes(content)
    with scanned_ahead(path):
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
        with scanned_ahead(other):
            assert not ahead._begun
    monkeypatch.setenv(core.VARIABLE, core.PYTHON)
    with scanned_ahead(path):
        assert not ahead._begun


def test_without_threads_the_reader_scans_it(path, monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    expected = read(path, cache=False)
    monkeypatch.setattr(threading.Thread, "start", start)
    with scanned_ahead(path):
        assert_same(read(path, cache=False), expected)


def test_summary_scans_ahead(path, taken, monkeypatch, capsys):
    scans = []

    def noted(source, dialect):
        scans.append(take_begun_scan(source, dialect))
        return scans[-1]

    monkeypatch.setattr("ppprof.trace.json_reader.take_begun_scan", noted)
    assert main(["summary", str(path), "--no-cache"]) == 0
    with_ahead = capsys.readouterr().out
    assert [scan is not None for scan in scans] == [True]
    monkeypatch.setattr(ahead, "_FEWEST_BYTES", 1 << 40)
    assert main(["summary", str(path), "--no-cache"]) == 0
    assert capsys.readouterr().out == with_ahead
    assert [scan is not None for scan in scans] == [True, False]
