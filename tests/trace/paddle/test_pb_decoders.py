"""The compiled decoder and the one in numpy return the same trace, or the same error."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from benchmarks import gpu_job
from ppprof.errors import TraceError
from ppprof.trace import Trace, read_paddle_pb
from ppprof.trace.fastpath import core, protobuf_native
from ppprof.trace.fastpath.protobuf_encode import header, varint
from ppprof.trace.source import TraceStream
from tests.fixtures import gpu_traces
from tests.fixtures.hostile_bytes import MOST_SECONDS, mutated
from tests.fixtures.random_traces import traces
from tests.fixtures.timeline import to_proto, write

FIXTURES = sorted((Path(__file__).parents[2] / "fixtures").rglob("*.pb"))
NATIVE = Path(core.__file__).parent / "native"
TRAINING = to_proto(gpu_traces.training(2)).SerializeToString()

needs_compiled = pytest.mark.skipif(core.library() is None, reason="without the compiled library")


def outcome(path: Path) -> Trace | str:
    try:
        return read_paddle_pb(path)
    except TraceError as error:
        return str(error)


def assert_both_read_the_same(path: Path) -> Trace | str:
    native = outcome(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "library", lambda: None)
        plain = outcome(path)
    if isinstance(plain, str) or isinstance(native, str):
        assert native == plain
        return plain
    for name in ("events", "memory", "kernels", "memsets"):
        assert_frame_equal(
            getattr(native, name), getattr(plain, name), categorical_as_str=True, check_exact=True
        )
    for name in ("version", "span", "extra_info", "devices", "skipped", "ignored"):
        assert getattr(native, name) == getattr(plain, name), name
    return plain


@needs_compiled
@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_fixtures(path):
    assert not isinstance(assert_both_read_the_same(path), str)


@needs_compiled
@pytest.mark.parametrize("name", [*gpu_traces.SOUND, "no_step", "nothing"])
def test_fixed_traces(name, tmp_path):
    path = write(tmp_path / "a.pb", *getattr(gpu_traces, name)())
    assert not isinstance(assert_both_read_the_same(path), str)


@needs_compiled
@pytest.mark.parametrize("num_threads", [2, 3, 7])
@pytest.mark.parametrize("name", [*gpu_traces.SOUND, "no_step", "nothing"])
def test_threads_that_divide_the_messages(name, num_threads, tmp_path, monkeypatch):
    monkeypatch.setattr(protobuf_native, "_FEWEST_MESSAGES", 1)
    monkeypatch.setattr(protobuf_native, "num_processors", lambda: num_threads)
    path = write(tmp_path / "a.pb", *getattr(gpu_traces, name)())
    assert not isinstance(assert_both_read_the_same(path), str)


@needs_compiled
def test_threads_report_the_first_damage(tmp_path, monkeypatch):
    monkeypatch.setattr(protobuf_native, "_FEWEST_MESSAGES", 1)
    monkeypatch.setattr(protobuf_native, "num_processors", lambda: 4)
    random_numbers = random.Random(11)
    for _ in range(40):
        path = tmp_path / "a.pb"
        path.write_bytes(mutated(TRAINING, random_numbers))
        assert_both_read_the_same(path)


@needs_compiled
def test_without_threads_one_reads_all(tmp_path, monkeypatch):
    monkeypatch.setattr(protobuf_native, "_FEWEST_MESSAGES", 1)
    monkeypatch.setattr(protobuf_native, "num_processors", lambda: 4)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    path = write(tmp_path / "a.pb", *gpu_traces.training())
    assert not isinstance(assert_both_read_the_same(path), str)


@needs_compiled
@given(threads=traces(newer_types=True))
def test_random_traces(threads, tmp_path):
    assert_both_read_the_same(write(tmp_path / "a.pb", *threads))


@needs_compiled
@given(seed=st.integers(0, 2**32))
def test_damaged_files(seed, tmp_path):
    path = tmp_path / "a.pb"
    path.write_bytes(mutated(TRAINING, random.Random(seed)))
    assert_both_read_the_same(path)


@needs_compiled
@given(places=st.lists(st.integers(0, len(TRAINING) - 1), min_size=1, max_size=3), data=st.data())
def test_changed_bytes(places, data, tmp_path):
    """Such files are mostly readable: ids, parents, types and lengths of other fields change."""
    raw = bytearray(TRAINING)
    for place in places:
        raw[place] ^= data.draw(st.sampled_from([1, 2, 4, 8, 0x80, 0xFF]))
    path = tmp_path / "a.pb"
    path.write_bytes(raw)
    assert_both_read_the_same(path)


def test_an_empty_file_is_an_empty_trace(tmp_path):
    (tmp_path / "a.pb").touch()
    trace = assert_both_read_the_same(tmp_path / "a.pb")
    assert (trace.events.height, trace.memory.height, trace.version) == (0, 0, "")


def test_a_byte_order_mark_is_no_part_of_a_trace(tmp_path):
    path = tmp_path / "a.pb"
    path.write_bytes(b"\xef\xbb\xbf" + TRAINING)
    assert "byte 0 of" in assert_both_read_the_same(path)


@pytest.mark.parametrize("kept", [0, 1, 100, len(TRAINING) - 1])
def test_a_file_that_shrinks_while_it_is_opened(kept, tmp_path, monkeypatch):
    path = tmp_path / "a.pb"
    path.write_bytes(TRAINING)
    open_file = TraceStream.__init__

    def open_and_shrink(self, *args, **kwargs):
        open_file(self, *args, **kwargs)
        os.truncate(path, kept)

    monkeypatch.setattr(TraceStream, "__init__", open_and_shrink)
    message = f"only {kept} of {len(TRAINING)} bytes could be read: the file became shorter"
    with pytest.raises(TraceError, match=message):
        read_paddle_pb(path)


def node(id: int, parent: int, name: bytes = b"a", more: bytes = b"") -> bytes:
    event = field(3, field(1, name) + b"\x10\x07\x18\x01\x20\x02\x28\x01\x30\x01")
    return field(2, b"\x08" + varint(id) + b"\x10" + varint(parent & 2**64 - 1) + event + more)


def field(number: int, content: bytes) -> bytes:
    return header(number, len(content)) + content


def thread(*nodes: bytes) -> bytes:
    return field(3, b"\x08\x01" + node(0, -1) + b"".join(nodes))


def kernel(name: bytes, *infos: bytes) -> bytes:
    """Return a launch and its kernel, with some of the fields that describe a kernel."""
    times = b"\x18\x02\x20\x03"
    described = b"".join(field(9, info) for info in infos)
    device = field(2, field(1, field(1, name) + b"\x10\x04" + times + described))
    return field(4, field(1, field(1, b"launch") + b"\x10\x01\x18\x02") + device)


def test_of_two_descriptions_of_a_kernel_the_last_one_counts(tmp_path):
    path = tmp_path / "a.pb"
    kernels = kernel(b"one", b"\x08\x20") + kernel(b"two", b"\x08\x40", b"\x08\x60")
    path.write_bytes(thread(node(1, 0, more=kernels)))
    trace = assert_both_read_the_same(path)
    assert trace.kernels["block_x"].to_list() == [0x20, 0x60]


MANY = 40_000
LONG = {
    "threads without nodes": lambda: field(3, b"") * 10 * MANY,
    "threads with one node": lambda: field(3, node(0, -1)) * MANY,
    "empty nodes": lambda: thread(field(2, b"") * 10 * MANY),
    "empty launches": lambda: thread(field(2, field(4, b"") * 10 * MANY)),
    "one id": lambda: thread(*(node(7, 7) for _ in range(MANY))),
    "a chain": lambda: thread(*(node(id, id - 1) for id in range(1, MANY))),
    "a chain upside down": lambda: thread(*(node(id, id - 1) for id in range(MANY, 0, -1))),
    "a cycle": lambda: thread(*(node(id, id % MANY + 1) for id in range(1, MANY + 1))),
    "names": lambda: thread(*(node(id, 0, b"%d" % id) for id in range(1, MANY))),
    "long names": lambda: thread(*(node(id, 0, b"%09d" % id * 300) for id in range(1, 2000))),
    "numbers": lambda: b"\x10\x01" * 10 * MANY,
}


@pytest.mark.all
@pytest.mark.parametrize("what", LONG)
def test_files_made_to_be_slow(what, tmp_path):
    path = tmp_path / "a.pb"
    path.write_bytes(LONG[what]())
    began = time.monotonic()
    assert_both_read_the_same(path)
    assert time.monotonic() - began < MOST_SECONDS


MOST_MEMORY = 2.7
"""Bytes of the file and of all columns made from it, as a multiple of the file."""


@needs_compiled
@pytest.mark.all
def test_memory_while_a_file_is_decoded(tmp_path):
    path = write(tmp_path / "a.pb", *gpu_job.threads(2), devices=(0,))
    read_paddle_pb(path)  # imports, and texts that are made once
    tracemalloc.start()
    read_paddle_pb(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MOST_MEMORY * path.stat().st_size


SANITIZED = """
import ctypes, random, sys
from pathlib import Path
from ppprof.errors import TraceError
from ppprof.trace import read_paddle_pb
from ppprof.trace.fastpath import core, protobuf_native
from tests.fixtures.hostile_bytes import mutated

library, folder, num_rounds = ctypes.CDLL(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
core.library = lambda: library
seeds = [path.read_bytes() for path in sorted(folder.glob("*.seed"))]
num_read = 0
path = folder / "mutated.pb"
for number in range(num_rounds):
    rng = random.Random(number)
    content = seeds[number % len(seeds)]
    if number % 2:
        content = mutated(content, rng)
    else:  # such files are mostly readable
        content = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            content[rng.randrange(len(content))] ^= rng.choice([1, 2, 8, 0x80, 0xFF])
    path.write_bytes(content)
    try:
        read_paddle_pb(path)
        num_read += 1
    except TraceError:
        pass
print("read", num_read)
"""


@pytest.mark.all
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_damaged_files_under_the_sanitizers(tmp_path):
    """No access outside of an array, no overflow, in the C code as the sanitizers see it."""
    flags = ["-g", "-O1", "-std=c99", "-shared", "-fPIC", "-fno-omit-frame-pointer"]
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    library = tmp_path / "sanitized.so"
    subprocess.run(["cc", *flags, *checks, "-o", library, *NATIVE.glob("*.c")], check=True)
    preload = subprocess.run(
        ["cc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    ).stdout.strip()
    if not Path(preload).is_absolute():
        pytest.skip("needs libasan")
    for name in ("training", "one_step"):
        trees = to_proto(getattr(gpu_traces, name)(), devices=(0, 1))
        (tmp_path / f"{name}.seed").write_bytes(trees.SerializeToString())
    for path in FIXTURES:
        (tmp_path / f"{path.stem}.seed").write_bytes(path.read_bytes())
    result = subprocess.run(
        [sys.executable, "-c", SANITIZED, library, tmp_path, "1000"],
        env={**os.environ, "LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert int(result.stdout.split()[-1]) > 100
