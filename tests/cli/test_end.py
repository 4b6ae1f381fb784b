"""The end of the process of a command."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from ppprof.cli import _late_interrupts

_PROGRAM = """
import atexit, sys
from ppprof import __main__ as program
atexit.register(lambda: print("called at the end"))
program.main = lambda: print("the command") or {code}
program.command()
"""


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize("before", ["", "sys.setprofile(lambda *_: None)"])
def test_output_is_written_and_functions_are_called_at_the_end(code, before):
    program = _PROGRAM.format(code=code).replace(
        "program.command()", f"{before}\nprogram.command()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.returncode == code, ended.stderr
    assert ended.stdout.splitlines() == ["the command", "called at the end"]


def test_an_interrupt_while_an_object_is_freed_is_not_lost(capsys):
    class Freed:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    def free_and_wait() -> None:
        Freed()
        time.sleep(30)

    with pytest.raises(KeyboardInterrupt), _late_interrupts():
        free_and_wait()
    assert capsys.readouterr().err == ""


def test_other_errors_while_an_object_is_freed_are_printed_as_ever(monkeypatch):
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: printed.append(ignored.exc_type))

    class Freed:
        def __del__(self) -> None:
            raise ValueError

    with _late_interrupts():
        Freed()
    assert printed == [ValueError]
