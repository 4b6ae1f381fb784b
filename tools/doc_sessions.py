"""Run the console sessions in pages and write their output into the pages.

A session is a code block marked ``console``. Lines that begin with ``$`` are commands; the lines
below a command are what it prints, stdout and stderr together::

    ```console
    $ ppprof summary eight_ranks --views model | head -8
    rank 0 (dp0 pp0 sharding0 mp0), window 0, steps 3 to 5
    ```

Commands run in a copy of ``tests/fixtures/runs``, which also holds ``configs/``. ``ppprof`` runs in
this process; a command after ``|`` gets its output, and ``; echo $?`` prints its exit code.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ppprof.cli import main

ROOT = Path(__file__).parents[1]
_SESSION = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COLUMNS = "100"


def commands(page: str) -> list[str]:
    """Return the commands of all sessions in a page, in order."""
    return [
        line[2:]
        for session in _SESSION.findall(page)
        for line in session.splitlines()
        if line.startswith("$ ")
    ]


def updated(page: str) -> str:
    """Return a page with the present output below each command. Call it in `runs_folder`."""

    def session(block: re.Match[str]) -> str:
        parts = "".join(f"$ {command}\n{output(command)}" for command in commands(block[0]))
        return f"```console\n{parts}```"

    return _SESSION.sub(session, page)


@cache
def output(command: str) -> str:
    """Return what a command prints, without spaces at the ends of lines and blank lines at the end.

    Both languages of a page have the same commands, hence the cache.
    """
    line, _, echo = command.partition("; echo ")
    line, _, filters = line.partition(" | ")
    words = shlex.split(line)
    if words[0] != "ppprof" or echo not in ("", "$?"):
        raise ValueError(f"a session runs ppprof, with | and ; echo $? after it, not {command!r}")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            code: object = main(words[1:])
        except SystemExit as end:  # of argparse
            code = end.code
    text = printed.getvalue()
    if filters:
        text = subprocess.run(
            filters, shell=True, input=text, capture_output=True, text=True, check=True
        ).stdout
    if echo:
        text += f"{code}\n"
    return "\n".join(map(str.rstrip, text.splitlines())).rstrip() + "\n"


@contextlib.contextmanager
def runs_folder() -> Iterator[None]:
    """Change to a copy of the committed runs and configs, and to a width of 100 columns."""
    before, columns = Path.cwd(), os.environ.get("COLUMNS")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "tests/fixtures/runs", folder, dirs_exist_ok=True)
        shutil.copytree(ROOT / "configs", Path(folder, "configs"))
        os.chdir(folder)
        os.environ["COLUMNS"] = _COLUMNS
        try:
            yield
        finally:
            os.chdir(before)
            os.environ.pop("COLUMNS")
            if columns is not None:
                os.environ["COLUMNS"] = columns
