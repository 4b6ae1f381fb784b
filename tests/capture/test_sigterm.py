"""SigtermGuard in processes of their own: what they print, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ppprof.capture import sigterm

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")

PROGRAM = """
import ctypes, os, signal, subprocess, sys, threading, time
from ppprof.capture import sigterm

def save():
    os.write(1, b"saved\\n")

def terminate():
    os.kill(os.getpid(), signal.SIGTERM)

def sit_in_c():
    reader, writer = os.pipe()
    ctypes.CDLL(None).read(reader, ctypes.create_string_buffer(1), 1)  # never returns

"""


def run(body: str) -> tuple[int, str]:
    """Exit code, negative for a signal, and stdout."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + body], stdout=subprocess.PIPE, text=True, timeout=60
    )
    return done.returncode, done.stdout


def test_it_saves_though_the_main_thread_never_returns_to_python() -> None:
    body = """
guard = sigterm.SigtermGuard.install(save)
threading.Timer(0.3, terminate).start()
sit_in_c()
"""
    assert run(body) == (-signal.SIGTERM, "saved\n")


def test_further_signals_do_not_end_the_saving() -> None:
    body = """
def slowly():
    for _ in range(3):
        terminate()
        time.sleep(0.1)
    save()

guard = sigterm.SigtermGuard.install(slowly)
terminate()
time.sleep(60)
"""
    assert run(body) == (-signal.SIGTERM, "saved\n")


@pytest.mark.parametrize("fails", ["1 / 0", "time.sleep(60)"])
def test_the_process_ends_though_the_saving_does_not_succeed(fails: str) -> None:
    body = f"""
sigterm._PATIENCE = 0.3
threading.excepthook = print
guard = sigterm.SigtermGuard.install(lambda: {fails})
terminate()
sit_in_c()
"""
    assert run(body)[0] == -signal.SIGTERM


def test_once_uninstalled_the_signal_ends_the_process_at_once() -> None:
    body = """
for _ in range(2):
    guard = sigterm.SigtermGuard.install(save)
    guard.uninstall()
    guard.uninstall()
while "ppprof SIGTERM" in [thread.name for thread in threading.enumerate()]:
    time.sleep(0.01)
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, signal.set_wakeup_fd(-1), flush=True)
terminate()
"""
    assert run(body) == (-signal.SIGTERM, "True -1\n")


def test_a_program_that_minds_its_signals_is_left_alone() -> None:
    body = """
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
print(sigterm.SigtermGuard.install(save), signal.set_wakeup_fd(-1) == writer)
signal.signal(signal.SIGTERM, lambda *_: print("mine"))
print(sigterm.SigtermGuard.install(save))
terminate()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
guard = sigterm.SigtermGuard.install(save)
signal.signal(signal.SIGTERM, lambda *_: print("mine, later"))
terminate()
time.sleep(0.3)
guard.uninstall()
terminate()
"""
    assert run(body) == (0, "None True\nNone\nmine\nmine, later\nmine, later\n")


def test_a_wakeup_fd_set_later_does_not_keep_the_process_alive() -> None:
    body = """
guard = sigterm.SigtermGuard.install(save)
signal.set_wakeup_fd(-1)
terminate()
time.sleep(60)
"""
    assert run(body) == (-signal.SIGTERM, "saved\n")


def test_a_forked_child_dies_of_its_own_signal_and_of_that_alone() -> None:
    body = """
guard = sigterm.SigtermGuard.install(save)
for _ in range(100):
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    os.kill(child, signal.SIGTERM)  # as soon as it exists
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
    assert run(body) == (0, "set()\n")


def test_a_program_started_by_it_finds_the_signal_as_ever() -> None:
    body = """
guard = sigterm.SigtermGuard.install(save)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
child.terminate()
print(child.wait())
"""
    assert run(body) == (0, f"{-signal.SIGTERM}\n")


def test_a_program_that_blocks_sigterm_does_not_end_by_it() -> None:
    """No thread of ours receives it instead. Unblocked, it saves and ends the program."""
    body = """
guard = sigterm.SigtermGuard.install(save)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
terminate()
time.sleep(0.5)
print("goes on", flush=True)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
time.sleep(60)
"""
    assert run(body) == (-signal.SIGTERM, "goes on\nsaved\n")


def test_it_ends_a_program_that_blocks_sigterm_while_it_saves() -> None:
    body = """
def slowly():
    save()
    time.sleep(0.5)

guard = sigterm.SigtermGuard.install(slowly)
terminate()
time.sleep(0.2)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
time.sleep(60)
"""
    assert run(body) == (-signal.SIGTERM, "saved\n")


def test_outside_the_main_thread_there_is_no_guard() -> None:
    body = """
thread = threading.Thread(target=lambda: print(sigterm.SigtermGuard.install(save)))
thread.start()
thread.join()
"""
    assert run(body) == (0, "None\n")


HELD = """
import ctypes, os, signal, sys, time
from ppprof.capture import sigterm
sigterm._PATIENCE = 1.0
wait_in_c = ctypes.PyDLL(None).sleep  # a call through PyDLL keeps Python's lock
def save():
    print("saving", flush=True)
    with sigterm.default_sigterm():
        wait_in_c(60)
guard = sigterm.SigtermGuard.install(save)
if sys.argv[1] == "loop":
    with sigterm.default_sigterm():
        print("ready", flush=True)
        wait_in_c(60)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("where", ["loop", "rescue"])
def test_sigterm_ends_a_process_whose_python_cannot_run(tmp_path: Path, where: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HELD, where], stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        time.sleep(0.2)  # until the loop is in its C function; if it is not, the test still holds
        job.terminate()
        try:
            assert job.wait(20) == -signal.SIGTERM
        finally:
            job.kill()
        assert (job.stdout.read() == "saving\n") is (where == "rescue")


def test_within_default_sigterm_the_own_handler_of_a_program_stays() -> None:
    def own(number: int, frame: object) -> None:
        pass

    previous = signal.signal(signal.SIGTERM, own)
    try:
        with sigterm.default_sigterm():
            assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, previous)
