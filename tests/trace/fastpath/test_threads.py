"""Threads that scan a file: their errors arrive, and none outlives the reader."""

from __future__ import annotations

import threading
import time

import pytest

from ppprof.errors import TraceError
from ppprof.trace.fastpath import threads
from ppprof.trace.fastpath.fixed_layout import Scanned
from ppprof.trace.fastpath.threads import ScanThreads

EVENTS = b'\n{"name":"a"},' * 1000
BOUNDS = [0, 5000, len(EVENTS)]


class Recorder:
    """Scanner that keeps the bytes of its blocks."""

    block_bytes = 300

    def __init__(self, dialect: object) -> None:
        self.text = b""

    def add(self, block):
        self.text += block.text()
        return []

    def scanned(self) -> Scanned:
        return Scanned([], [self.text], [], 0)


@pytest.fixture
def path(tmp_path, monkeypatch) -> str:
    monkeypatch.setattr(threads, "new_scanner", Recorder)
    (tmp_path / "trace.json").write_bytes(EVENTS)
    return str(tmp_path / "trace.json")


def num_scans() -> int:
    return sum(thread.name == "ppprof scan" for thread in threading.enumerate())


def test_each_range_is_read_once_and_in_order(path):
    with ScanThreads(path, "ppprof", [1, 5000, 9001, len(EVENTS)]) as scans:
        texts = [scanned.texts[0] for scanned in scans.scanned()]
    assert texts == [EVENTS[1:5000], EVENTS[5000:9001], EVENTS[9001:]]
    assert num_scans() == 0


@pytest.mark.parametrize("error", [MemoryError("no memory"), TraceError("no event begins")])
def test_an_error_of_a_thread_is_raised_where_its_events_are_asked_for(path, error, monkeypatch):
    def add(self, block):
        if block.first >= BOUNDS[1]:
            raise error

    monkeypatch.setattr(Recorder, "add", add)
    with ScanThreads(path, "ppprof", BOUNDS) as scans:
        parts = scans.scanned()
        next(parts)
        with pytest.raises(type(error), match=str(error)):
            next(parts)
    assert num_scans() == 0


def test_an_error_of_the_reader_ends_the_threads_early(path, monkeypatch):
    """Otherwise Ctrl-C would wait for the end of a long file."""
    num_blocks = []

    def add(self, block):
        num_blocks.append(block)
        time.sleep(0.05)

    monkeypatch.setattr(Recorder, "add", add)
    with pytest.raises(KeyboardInterrupt), ScanThreads(path, "ppprof", BOUNDS):
        raise KeyboardInterrupt
    assert num_scans() == 0
    assert len(num_blocks) <= 4
