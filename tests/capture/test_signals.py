"""SignalGuard in processes of their own: what they print, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ppprof import units
from ppprof.capture import signals
from tests.fixtures.tiers import one_in

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")

PROGRAM = """
import ctypes, os, signal, subprocess, sys, threading, time
from ppprof.capture import signals

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
        [sys.executable, "-c", PROGRAM + body],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # numpy's threads block no signal
    )
    return done.returncode, done.stdout


def test_it_saves_though_the_main_thread_never_returns_to_python() -> None:
    body = """
guard = signals.SignalGuard.install(save)
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

guard = signals.SignalGuard.install(slowly)
terminate()
time.sleep(60)
"""
    assert run(body) == (-signal.SIGTERM, "saved\n")


@pytest.mark.parametrize("fails", ["1 / 0", "time.sleep(60)"])
def test_the_process_ends_though_the_saving_does_not_succeed(fails: str) -> None:
    body = f"""
signals._PATIENCE = 0.3
threading.excepthook = print
guard = signals.SignalGuard.install(lambda: {fails})
terminate()
sit_in_c()
"""
    assert run(body)[0] == -signal.SIGTERM


def test_once_uninstalled_the_signal_ends_the_process_at_once() -> None:
    body = """
for _ in range(2):
    guard = signals.SignalGuard.install(save)
    guard.uninstall()
    guard.uninstall()
while "ppprof signals" in [thread.name for thread in threading.enumerate()]:
    time.sleep(0.01)
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, signal.set_wakeup_fd(-1), flush=True)
terminate()
"""
    assert run(body) == (-signal.SIGTERM, "True -1\n")


def test_a_signal_ahead_of_the_uninstallation_ends_a_process_that_then_keeps_pythons_lock() -> None:
    body = """
def slowly():
    time.sleep(0.2)
    save()

sys.setswitchinterval(60)
guard = signals.SignalGuard.install(slowly)
terminate()
guard.uninstall()
guard.end_if_signalled()
ctypes.PyDLL(None).sleep(10)  # a call through PyDLL keeps Python's lock
os.write(1, b"lived on\\n")
"""
    assert run(body) == (-signal.SIGTERM, "saved\n")


def test_a_program_that_minds_its_signals_is_left_alone() -> None:
    body = """
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
print(signals.SignalGuard.install(save), signal.set_wakeup_fd(-1) == writer)
signal.signal(signal.SIGTERM, lambda *_: print("mine"))
guard = signals.SignalGuard.install(save)
terminate()
guard.uninstall()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
guard = signals.SignalGuard.install(save)
signal.signal(signal.SIGTERM, lambda *_: print("mine, later"))
terminate()
time.sleep(0.3)
guard.uninstall()
terminate()
"""
    assert run(body) == (0, "None True\nmine\nmine, later\nmine, later\n")


@pytest.mark.parametrize("name", one_in(2, ["SIGTERM", "SIGQUIT", "SIGHUP", "SIGXCPU"]))
@pytest.mark.parametrize("where", ["time.sleep(60)", "sit_in_c()"])
def test_each_guarded_signal_is_saved_and_ends_the_process(name: str, where: str) -> None:
    number = getattr(signal, name)
    body = f"""
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
guard = signals.SignalGuard.install(lambda: (save(), print(signals.ending_signal(), flush=True)))
threading.Timer(0.2, lambda: os.kill(os.getpid(), {int(number)})).start()
{where}
"""
    assert run(body) == (-number, f"saved\n{name}\n")


def test_ignored_signals_and_handlers_of_c_stay() -> None:
    """As under nohup, and with faulthandler, whose handlers Python's signal module does not know."""
    body = """
import faulthandler
handled = open(os.devnull, "w")
signal.signal(signal.SIGHUP, signal.SIG_IGN)
faulthandler.register(signal.SIGQUIT, file=handled)
guard = signals.SignalGuard.install(save)
faulthandler.register(signal.SIGXCPU, file=handled)  # after the guard
for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU):
    os.kill(os.getpid(), number)
print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, flush=True)
guard.uninstall()
for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU):
    os.kill(os.getpid(), number)
faulthandler.unregister(signal.SIGXCPU)
print("goes on", flush=True)
os.kill(os.getpid(), signal.SIGXCPU)  # it has the default action now
"""
    assert run(body) == (-signal.SIGXCPU, "True\ngoes on\n")


def test_a_limit_of_processor_time_is_saved() -> None:
    body = """
import resource
resource.setrlimit(resource.RLIMIT_CPU, (1, 5))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
guard = signals.SignalGuard.install(save)
while True:
    pass
"""
    assert run(body) == (-signal.SIGXCPU, "saved\n")


CLOSING = """
import tempfile
guard = signals.SignalGuard.install(save)
numbers = (guard._reader.fd, guard._writer.fd)
os.closerange(3, 1000)
files = [open(f"theirs{number}", "w+b", buffering=0) for number in range(3)]
# As if they had got our numbers
for number, file in zip(numbers, files):
    os.dup2(file.fileno(), number)
"""


@pytest.mark.parametrize(
    ("body", "ended"),
    [
        ("guard.uninstall()", 0),
        ("guard.check(); guard.uninstall()", 0),
        ("terminate(); time.sleep(60)", -signal.SIGTERM),
        ("guard.check(); threading.Timer(0.2, terminate).start(); sit_in_c()", -signal.SIGTERM),
        ("child = os.fork(); os.waitpid(child, 0) if child else os._exit(0)", 0),
    ],
)
def test_process_that_the_training_has_closed_and_used_again_stay_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, ended: int
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(signals.__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    after = "\nfor number in numbers: os.write(number, b'theirs')\nprint('whole', flush=True)"
    if ended:
        assert run(f"{CLOSING}{body}") == (ended, "saved\n")
        # Python's C handler has written the signal's number into the other file.
        assert Path("theirs0").read_bytes() == b""
    else:
        assert run(f"{CLOSING}{body}{after}") == (0, "whole\n")
        assert [Path(f"theirs{number}").read_bytes() for number in (0, 1)] == [b"theirs"] * 2


def test_a_wakeup_fd_set_later_does_not_keep_the_process_alive() -> None:
    body = """
guard = signals.SignalGuard.install(save)
signal.set_wakeup_fd(-1)
terminate()
time.sleep(60)
"""
    assert run(body) == (-signal.SIGTERM, "saved\n")


def test_a_forked_child_dies_of_its_own_signal_and_of_that_alone() -> None:
    body = """
guard = signals.SignalGuard.install(save)
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
guard = signals.SignalGuard.install(save)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
child.terminate()
print(child.wait())
"""
    assert run(body) == (0, f"{-signal.SIGTERM}\n")


def test_a_program_that_blocks_sigterm_does_not_end_by_it() -> None:
    """No thread of ours receives it instead. Unblocked, it saves and ends the program."""
    body = """
guard = signals.SignalGuard.install(save)
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

guard = signals.SignalGuard.install(slowly)
terminate()
time.sleep(0.2)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
time.sleep(60)
"""
    assert run(body) == (-signal.SIGTERM, "saved\n")


def test_outside_the_main_thread_there_is_no_guard() -> None:
    body = """
thread = threading.Thread(target=lambda: print(signals.SignalGuard.install(save)))
thread.start()
thread.join()
"""
    assert run(body) == (0, "None\n")


HELD = """
import ctypes, os, signal, sys, time
from ppprof.capture import signals
signals._PATIENCE = 1.0
wait_in_c = ctypes.PyDLL(None).sleep  # a call through PyDLL keeps Python's lock
def save():
    print("saving", flush=True)
    with signals.default_actions():
        wait_in_c(60)
guard = signals.SignalGuard.install(save)
if sys.argv[1] == "loop":
    with signals.default_actions():
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


def test_within_default_actions_the_own_handler_of_a_program_stays() -> None:
    def own(number: int, frame: object) -> None:
        pass

    previous = signal.signal(signal.SIGTERM, own)
    try:
        with signals.default_actions():
            assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_a_signal_ends_a_process_that_can_start_no_further_thread() -> None:
    body = """
import resource
guard = signals.SignalGuard.install(save)
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (4 << 20),) * 2)  # a thread takes 8 MiB
terminate()
time.sleep(30)
"""
    assert run(body) == (-signal.SIGTERM, "saved\n")


LIMITS = {
    "threads": """
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (4 << 20),) * 2)  # a thread takes 8 MiB
""",
    "descriptors": """
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
""",
}


@pytest.mark.parametrize("limit", LIMITS)
def test_where_no_thread_can_start_a_signal_keeps_its_effect(limit: str) -> None:
    body = f"""
import resource
{LIMITS[limit]}
guard = signals.SignalGuard.install(save)
print(guard, flush=True)
terminate()
time.sleep(30)
"""
    assert run(body) == (-signal.SIGTERM, "None\n")


def test_a_guard_that_another_thread_has_uninstalled_makes_room_for_the_next() -> None:
    body = """
first = signals.SignalGuard.install(lambda: None)
thread = threading.Thread(target=first.uninstall)
thread.start()
thread.join()
guard = signals.SignalGuard.install(save)
terminate()
time.sleep(30)
"""
    assert run(body) == (-signal.SIGTERM, "saved\n")


def test_a_step_needs_no_descriptor() -> None:
    body = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
signals.CHECK_NS = signals.CHECK_WRITER_NS = 0
guard = signals.SignalGuard.install(save)
os.closerange(3, 1000)
files = []
try:
    while True:
        files.append(open("/dev/null"))
except OSError:
    pass
guard.check()
guard.check()
files.clear()
guard.check()
terminate()
time.sleep(30)
"""
    assert run(body) == (-signal.SIGTERM, "saved\n")


WITHOUT_A_READER = """
import os, signal
from ppprof.capture.signals import write_to_pipe
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
reader, writer = os.pipe()
write_to_pipe(writer, b"read")
assert os.read(reader, 10) == b"read"
os.close(reader)
for _ in range(2):
    try:
        write_to_pipe(writer, b"lost")
    except BrokenPipeError:
        print("broken", flush=True)
os.write(writer, b"lost")
"""


def test_a_pipe_without_a_reader_does_not_end_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_READER], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("broken\nbroken\n", -signal.SIGPIPE), done.stderr


def test_an_error_of_ours_alone_asks_for_no_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come with each operator of a step, and to ask for all handlers takes as long as twenty of these."""
    asked: list[int] = []
    monkeypatch.setattr(signal, "getsignal", asked.append)
    try:
        units.format_ranges("step", [None, 1])  # type: ignore[list-item]
    except TypeError as error:
        ours = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
    assert signals.raised_by_handler(ours) is None
    assert asked == []
