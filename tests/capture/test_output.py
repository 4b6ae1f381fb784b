"""Where words of a capture go, and that they harm nobody who cannot hear them."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from ppprof.capture import output


def test_words_follow_what_the_program_has_printed() -> None:
    program = """
from ppprof.capture import output
print("first")
output.print_result("second\\n")
print("third")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "first\nsecond\nthird\n"


def test_a_stream_that_is_not_what_its_file_is_gets_them(
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
    output.tell("the disk is full")


def test_what_cannot_be_printed_does_not_change_the_exit_code() -> None:
    program = """
from ppprof.capture import output
output.tell("lost")
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


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device", "/data"), "No space left on device"),
        (OSError("gone"), "gone"),
        (RuntimeError("\n----\n  first line\nsecond"), "first line"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_a_reason_is_one_line(error: Exception, words: str) -> None:
    assert output.reason(error) == words
