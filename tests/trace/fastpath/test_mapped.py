"""Mapped files: the same bytes, and no end of the process if a file becomes shorter."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading

import pytest

from ppprof.errors import TraceError
from ppprof.trace.fastpath import core
from ppprof.trace.fastpath.mapped import MappedFile
from ppprof.trace.paddle import pb_reader
from tests.trace.paddle.test_pb_decoders import TRAINING

pytestmark = pytest.mark.skipif(
    core.load(core.FOLDER)[0] is None,
    reason="needs the compiled core: run `python tools/build_core.py`",
)
PAGE = os.sysconf("SC_PAGESIZE")
PADDING = 32


def mapped(path, padding: int = PADDING) -> MappedFile:
    with path.open("rb") as file:
        found = MappedFile.of(file, path.stat().st_size, padding)
    assert found is not None
    return found


@pytest.mark.parametrize("size", [1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE - PADDING, 3 * PAGE])
def test_the_bytes_and_zeros_behind_them(size, tmp_path):
    path = tmp_path / "a"
    content = bytes(1 + index % 255 for index in range(size))
    path.write_bytes(content)
    found = mapped(path)
    path.unlink()
    assert bytes(found.data) == content + bytes(PADDING)
    assert found.data.readonly
    assert not found.is_cut


@pytest.mark.parametrize("kept", [0, 100, PAGE, 4 * PAGE + 1])
def test_a_file_that_becomes_shorter(kept, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"a" * 10 * PAGE)
    found, other = mapped(path), mapped(path)
    os.truncate(path, kept)
    assert bytes(found.data) == b"a" * kept + bytes(10 * PAGE - kept + PADDING)
    assert found.is_cut
    assert not other.is_cut  # it was not read yet
    del found
    assert sum(other.data) == kept * ord("a")
    assert other.is_cut
    assert not mapped(write(tmp_path / "b", b"b")).is_cut  # in the place of the first one


def write(path, content: bytes):
    path.write_bytes(content)
    return path


def test_more_files_than_there_is_room_for(tmp_path):
    path = write(tmp_path / "a", b"abc")
    with path.open("rb") as file:
        found = [MappedFile.of(file, 3, PADDING) for _ in range(100)]
        assert found[0] is not None
        assert found[-1] is None
        del found
        assert MappedFile.of(file, 3, PADDING) is not None
        assert MappedFile.of(file, 0, PADDING) is None
        assert MappedFile.of(file, 3, 2 * PAGE) is None


def test_threads_map_and_unmap_at_the_same_time(tmp_path):
    paths = [write(tmp_path / str(number), bytes([number]) * 3 * PAGE) for number in range(4)]
    wrong = []

    def read(path, number: int) -> None:
        for _ in range(200):
            found = mapped(path)
            if number % 2:
                os.truncate(path, PAGE)
            end = sum(found.data[-PADDING - 1 :])
            if end != (0 if number % 2 else number) or found.is_cut != bool(number % 2):
                wrong.append(number)
            if number % 2:
                path.write_bytes(bytes([number]) * 3 * PAGE)

    threads = [
        threading.Thread(target=read, args=(path, number)) for number, path in enumerate(paths)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_garbage_collector_unmaps_a_file_while_another_one_is_mapped(tmp_path, monkeypatch):
    path = write(tmp_path / "a", b"abc")
    call = core.call

    def collect_and_call(name, *arguments):
        if name == "map":
            gc.collect()
        return call(name, *arguments)

    gc.disable()
    try:
        cycle = [mapped(path)]
        cycle.append(cycle)
        del cycle
        monkeypatch.setattr(core, "call", collect_and_call)
        thread = threading.Thread(target=mapped, args=(path,), daemon=True)
        thread.start()
        thread.join(30)
    finally:
        gc.enable()
    assert not thread.is_alive()


SIGNALS = """
import faulthandler, mmap, os, signal, sys
from pathlib import Path
from tests.trace.fastpath.test_mapped import mapped
path = Path(sys.argv[1])
caught = []
{before}
found = mapped(path)
{after}
"""


def run(tmp_path, **parts: str) -> subprocess.CompletedProcess[str]:
    path = write(tmp_path / "a", b"a" * 10 * PAGE)
    program = SIGNALS.format(**parts)
    return subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=False
    )


def test_missing_pages_of_other_mappings_end_the_process_as_before(tmp_path):
    ended = run(
        tmp_path,
        before="faulthandler.enable()",
        after="""
with path.open("rb") as file:
    other = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
os.truncate(path, 0)
print(sum(found.data), found.is_cut, flush=True)
print(other[0])
""",
    )
    assert ended.stdout == "0 True\n"
    assert ended.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in ended.stderr


def test_signals_that_are_sent_reach_the_handler_from_before(tmp_path):
    ended = run(
        tmp_path,
        before="signal.signal(signal.SIGBUS, lambda *_: caught.append('handler'))",
        after="""
os.kill(os.getpid(), signal.SIGBUS)
print(caught)
del found
os.kill(os.getpid(), signal.SIGBUS)
print(caught)
""",
    )
    assert ended.stdout == "['handler']\n['handler', 'handler']\n", ended.stderr


@pytest.mark.parametrize(
    ("before", "caught"),
    [
        ("signal.signal(signal.SIGBUS, lambda *_: caught.append('handler'))", "['handler']"),
        ("signal.signal(signal.SIGBUS, signal.SIG_IGN)", "[]"),
    ],
)
def test_a_signal_that_is_sent_does_not_end_the_protection(tmp_path, before, caught):
    ended = run(
        tmp_path,
        before=before,
        after="""
os.kill(os.getpid(), signal.SIGBUS)
print(caught)
os.truncate(path, 0)
print(sum(found.data), found.is_cut)
""",
    )
    assert ended.stdout == f"{caught}\n0 True\n", ended.stderr


@pytest.mark.parametrize("kept", [0, 100, 1 << 20])
def test_a_pb_that_becomes_shorter_while_it_is_read(kept, tmp_path, monkeypatch):
    path = write(tmp_path / "a.pb", TRAINING * (1 + (2 << 20) // len(TRAINING)))
    size = path.stat().st_size
    decode = pb_reader.decode_messages

    def shrink_and_decode(buffer):
        os.truncate(path, kept)
        return decode(buffer)

    monkeypatch.setattr(pb_reader, "decode_messages", shrink_and_decode)
    with pytest.raises(
        TraceError, match=f"only {kept} of {size} bytes could be read: the file beca"
    ):
        pb_reader.read_paddle_pb(path)
