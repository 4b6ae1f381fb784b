"""Results go to stdout and log messages to stderr, also where a stream is missing or full."""

from __future__ import annotations

import io
import logging
import subprocess
import sys

import pytest

from ppprof.capture import output


def test_results_follow_earlier_output_of_the_program() -> None:
    program = """
from ppprof.capture import output
print("first")
output.print_result("second\\n")
print("third")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "first\nsecond\nthird\n"


def test_a_replaced_stream_gets_the_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OfANotebook(io.StringIO):
        def fileno(self) -> int:
            return 1

    shown = OfANotebook()
    monkeypatch.setattr(sys, "stdout", shown)
    output.print_result("table\n")
    assert shown.getvalue() == "table\n"


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_without_stderr_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None
) -> None:
    if stream is not None:
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    logging.getLogger("ppprof").warning("the disk is full")


def test_a_failed_write_does_not_change_the_exit_code() -> None:
    program = """
import logging
from ppprof.capture import output
output.log_to_stderr()
logging.getLogger("ppprof").warning("lost")
try:
    output.print_result("lost\\n")
except OSError as error:
    raise SystemExit(error.errno)
"""
    script = 'exec "$0" -c "$1" > /dev/full 2> /dev/full'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable, program], env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.returncode == 28  # ENOSPC, and not Python's 120


LOG = """
import logging, os, sys, threading
from ppprof.capture.output import log_to_stderr
log = logging.getLogger("ppprof")
"""


def stderr_of(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LOG + program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_message_is_one_line_with_control_characters_escaped() -> None:
    program = """
for _ in range(2):
    log_to_stderr()
log.info("100% of \\x1b[2J")
log.warning("two")
log.debug("not shown")
"""
    assert stderr_of(program) == "ppprof: 100% of \\x1b[2J\nppprof: two\n"


@pytest.mark.parametrize("first", [True, False])
def test_a_configured_root_logger_does_not_repeat_messages(first: bool) -> None:
    calls = ["log_to_stderr()", "logging.basicConfig(level=logging.DEBUG)"]
    program = "\n".join([*(calls if first else reversed(calls)), "log.warning('once')"])
    assert stderr_of(program) == "ppprof: once\n"


def test_a_program_that_configures_logging_does_not_disable_messages() -> None:
    program = """
import logging.config
log_to_stderr()
logging.config.dictConfig({"version": 1})
log_to_stderr()
log.warning("again")
"""
    assert stderr_of(program) == "ppprof: again\n"


def test_a_handler_of_the_program_stays_the_only_one() -> None:
    program = """
log.addHandler(logging.StreamHandler())
log_to_stderr()
log.warning("its own form")
"""
    assert stderr_of(program) == "its own form\n"


def test_a_forked_child_and_the_end_of_the_program_can_log() -> None:
    program = """
import atexit
atexit.register(lambda: log.warning("at exit"))
log_to_stderr()
child = os.fork()
if not child:
    log.warning("child")
    os._exit(0)
os.waitpid(child, 0)
logging.shutdown()
"""
    assert stderr_of(program) == "ppprof: child\nppprof: at exit\n"


def test_no_lock_is_needed_that_a_hanging_thread_may_hold() -> None:
    program = """
log_to_stderr()
acquired = threading.Event()

def hang():
    with logging._lock:  # as a thread that configures logging and waits for a disk
        for handler in [*log.handlers, *logging.getLogger().handlers]:
            handler.acquire()
        acquired.set()
        threading.Event().wait()

threading.Thread(target=hang, daemon=True).start()
acquired.wait()
log.warning("not blocked")
sys.stderr.flush()
os._exit(0)
"""
    assert stderr_of(program) == "ppprof: not blocked\n"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device", "/data"), "No space left on device"),
        (OSError("gone"), "gone"),
        (RuntimeError("\n----\n  first line\nsecond"), "first line"),
        (
            RuntimeError(
                "\n---\nC++ Traceback\n---\n0 f()\n\n---\nError Message Summary:\n---\nwhy"
            ),
            "why",
        ),
        (MemoryError(), "MemoryError"),
    ],
)
def test_a_reason_is_one_line(error: Exception, words: str) -> None:
    assert output.reason(error) == words
