"""The end of the process of a command."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
