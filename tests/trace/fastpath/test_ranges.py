"""Threads that read the ranges of a file: what happens when the file or a thread fails them."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path

import pytest

from ppprof.errors import TraceError
from ppprof.trace import read, write_paddle_json
from ppprof.trace.fastpath import core, ranges
from ppprof.trace.fastpath.native.scanner import Scanner
from ppprof.trace.paddle import layout_scans
from ppprof.trace.source import TraceStream
from tests.fixtures import gpu_traces
from tests.fixtures.timeline import write

pytestmark = pytest.mark.skipif(
    core.load(core.FOLDER)[0] is None,
    reason="needs the compiled core: run `python tools/build_core.py`",
)


@pytest.fixture
def path(tmp_path, monkeypatch) -> Path:
    """A file that is divided into ranges as if it were long."""
    monkeypatch.setattr(ranges, "RANGE_BYTES", 20_000)
    monkeypatch.setattr(layout_scans, "num_processors", lambda: 3)
    trace = read(write(tmp_path / "a.pb", *gpu_traces.training()))
    write_paddle_json(trace, tmp_path / "a.json")
    return tmp_path / "a.json"


def test_a_file_that_is_replaced_while_it_is_read_is_an_error(path, monkeypatch):
    """Its ranges would be of two files."""
    scans_of = layout_scans.new_scans

    def replaced(*arguments):
        (path.parent / "new.json").write_bytes(path.read_bytes())
        (path.parent / "new.json").replace(path)
        return scans_of(*arguments)

    monkeypatch.setattr(layout_scans, "new_scans", replaced)
    with pytest.raises(TraceError, match=r"a\.json: replaced while it was read; read it again"):
        read(path)


def test_an_error_does_not_keep_the_scans_in_memory(path, monkeypatch):
    def fail(*_: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(Scanner, "add_range", fail)
    with TraceStream(path) as source:
        source.read(path.read_bytes().index(b"[") + 1)
        scans = layout_scans.new_scans(source, "ppprof")
        scans.start(2)
        kept = weakref.ref(scans)
        gc.disable()
        try:
            with pytest.raises(ZeroDivisionError):
                scans.take(0)
            scans.close()
            del scans
            sys.exc_info()
            assert kept() is None
        finally:
            gc.enable()
