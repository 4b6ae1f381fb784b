"""Descriptors that the training closes and uses again, and threads with their frames."""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from ppprof.capture import process
from ppprof.capture.process import CLOSED, Descriptor, ScratchFile
from ppprof.capture.ranks.clock_sync import ClockServer
from ppprof.capture.ranks.control_channel import CoordinatorChannel
from ppprof.capture.ranks.udp import Socket
from tests.capture.ranks.stores import Store

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX descriptors")


def take_over(fd: int, path: Path) -> int:
    """Close a descriptor and open a file with its number, as a training may; return the number."""
    with path.open("w+b") as file:
        os.dup2(file.fileno(), fd)
    return fd


def assert_whole(fd: int, path: Path) -> None:
    """The training can still write, at the beginning of its file, and it holds nothing else."""
    os.write(fd, b"theirs")
    assert path.read_bytes() == b"theirs"
    os.close(fd)


def test_a_descriptor_is_closed_while_it_is_ours(tmp_path: Path) -> None:
    reader, writer = (Descriptor(fd) for fd in os.pipe())
    number = reader.fd
    assert reader.is_ours
    reader.close()
    assert not reader.is_ours
    reader.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
    number = take_over(writer.fd, tmp_path / "theirs")
    assert not writer.is_ours
    writer.close()
    assert_whole(number, tmp_path / "theirs")


def test_a_descriptor_that_is_closed_and_not_used_again() -> None:
    reader, writer = (Descriptor(fd) for fd in os.pipe())
    os.close(writer.fd)
    assert not writer.is_ours
    writer.close()
    reader.close()


def test_a_scratch_file_is_read_while_a_child_writes_and_not_once_it_is_taken(
    tmp_path: Path,
) -> None:
    file = ScratchFile()
    os.write(file.fd, b"first, ")
    assert file.read(100) == b"first, "
    os.write(file.fd, b"second")
    assert file.read(100) == b"first, second"
    assert file.read(6) == b"second"
    number = take_over(file.fd, tmp_path / "theirs")
    assert file.read(100) == b""
    file.close()
    assert_whole(number, tmp_path / "theirs")


def test_a_file_with_the_inode_of_a_deleted_one_is_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process.tempfile, "tempdir", str(tmp_path))
    for _ in range(20):  # a file system gives a freed inode to a new file, sooner or later
        file = ScratchFile()
        number = file.fd
        os.close(number)
        take_over(number, tmp_path / "theirs")
        assert not file.is_ours
        file.close()
        assert_whole(number, tmp_path / "theirs")
        (tmp_path / "theirs").unlink()


def test_a_socket_sends_and_receives_only_as_itself(tmp_path: Path) -> None:
    here, there = (Socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    for end in (here, there):
        end.bind(("127.0.0.1", 0))
    here.sendto(b"question", there.getsockname())
    data, sender = there.recvfrom(64)
    assert (data, sender) == (b"question", here.getsockname())
    address = there.getsockname()
    number = take_over(here.fileno(), tmp_path / "theirs")
    for call in (lambda: here.sendto(b"x", address), lambda: here.send(b"x"), lambda: here.recv(1)):
        with pytest.raises(OSError, match=re.escape(CLOSED)):
            call()
    here.close()
    here.close()
    there.close()
    assert_whole(number, tmp_path / "theirs")


def test_a_channel_whose_socket_is_taken_reports_it_and_closes_nothing(tmp_path: Path) -> None:
    channel = CoordinatorChannel("127.0.0.1", 2, Store(), "key")
    number = take_over(channel._socket.fileno(), tmp_path / "theirs")
    with pytest.raises(OSError, match=re.escape(CLOSED)):
        channel.read()
    channel.close(1)
    assert_whole(number, tmp_path / "theirs")


def test_the_thread_of_a_clock_server_ends_when_its_socket_is_taken(tmp_path: Path) -> None:
    """It would turn for ever otherwise: each call fails at once."""
    (tmp_path / "run").mkdir()
    server = ClockServer(tmp_path / "run", "127.0.0.1", Store(), "key")
    address = server._socket.getsockname()
    number = take_over(server._socket.fileno(), tmp_path / "theirs")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"x", address)  # the thread waits in the kernel, with the file of before
    server._thread.join(5)
    assert not server._thread.is_alive()
    server.stop(compare=False, failed=True)
    assert_whole(number, tmp_path / "theirs")


NO_STANDARD_STREAMS = """
import os, sys, time
from pathlib import Path
from ppprof.capture.postprocess import PostProcessor

def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True

folder = Path(sys.argv[1])
os.dup2(os.open(folder / "printed", os.O_WRONLY | os.O_CREAT), 40)
sys.stdout = sys.stderr = open(40, "w")
os.closerange(0, 3)
helper = [sys.executable, "-m", "tests.capture.fake_helper", "print('tables')"]
made = PostProcessor(folder, 0, prints=True, command=helper)
made.add(0, folder / "0.pb")
in_use = [fd for fd in range(3) if is_open(fd)]
made.wait(30)
print("in use:", in_use, [fd for fd in range(3) if is_open(fd)], flush=True)
"""


def test_no_file_of_ours_becomes_a_standard_stream_that_the_training_has_closed(
    tmp_path: Path,
) -> None:
    subprocess.run([sys.executable, "-c", NO_STANDARD_STREAMS, str(tmp_path)], check=True)
    assert (tmp_path / "printed").read_text() == "tables\nin use: [] []\n"


FAULT_OF_A_THREAD = """
import ctypes, faulthandler
from ppprof.capture.process import start_thread
faulthandler.enable()

def read_nothing():
    ctypes.string_at(0)

start_thread(read_nothing, "the test").join()
"""


def test_a_thread_of_ours_that_crashes_says_where() -> None:
    """The flight recorder relies on it: a crash that no handler sees leaves no stack in its file."""
    done = subprocess.run(
        [sys.executable, "-c", FAULT_OF_A_THREAD], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in done.stderr
    assert "in read_nothing" in done.stderr


def test_frames_of_other_threads_keep_nothing_of_this_one_alive() -> None:
    """Without a collection: a profiler of the training, say, is gone once its function has returned."""

    class Local:
        pass

    def ask() -> weakref.ref[Local]:
        local = Local()
        frames = process.current_frames()
        assert threading.get_ident() not in frames
        assert other.ident in frames
        return weakref.ref(local)

    ends = threading.Event()
    other = threading.Thread(target=ends.wait)
    other.start()
    gc.disable()
    try:
        assert ask()() is None
    finally:
        gc.enable()
        ends.set()
        other.join()


@pytest.mark.parametrize("collects", [True, False])
def test_a_stack_that_cannot_be_read_leaves_collection_as_it_was(collects: bool) -> None:
    def refuse() -> None:
        raise MemoryError

    if not collects:
        gc.disable()
    try:
        with pytest.raises(MemoryError):
            process._undisturbed(refuse)
        assert gc.isenabled() == collects
    finally:
        gc.enable()


def test_a_handler_that_raises_while_a_thread_starts_leaves_no_signal_blocked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CPython blocks first, and then calls the handlers of pending signals."""
    block = signal.pthread_sigmask

    def interrupted(how: int, mask: object) -> object:
        result = block(how, mask)  # type: ignore[arg-type]
        if how == signal.SIG_BLOCK and mask:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(signal, "pthread_sigmask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.start_thread(lambda: None, "the test")
    assert block(signal.SIG_BLOCK, ()) == set()


@pytest.mark.parametrize("collects", [True, False])
def test_a_stack_is_that_of_the_callers_and_collection_stays_as_it_was(collects: bool) -> None:
    def inner(depth: int) -> None:
        if depth:
            inner(depth - 1)
            return
        frame = sys._getframe()
        callers = []
        each = frame
        while each is not None:
            callers.append(each)
            each = each.f_back
        assert process.stack_of(frame, 1000) == callers
        assert process.stack_of(frame, 7) == callers[:7]

    if not collects:
        gc.disable()
    try:
        inner(20)
        assert gc.isenabled() == collects
    finally:
        gc.enable()


def test_sot_is_given_no_path_that_it_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    core = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel").base.core
    given: list[tuple[str, ...]] = []
    monkeypatch.setattr(core, "eval_frame_skip_file_prefix", given.append, raising=False)
    process.keep_from_translation()
    assert len(given) == 1
    monkeypatch.setattr(process, "__file__", "/home/用户/ppprof/capture/process.py")
    process.keep_from_translation()
    assert len(given) == 1
