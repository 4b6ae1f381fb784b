"""``ppprof run``: record a training script that knows nothing of ppprof.

The script runs in a program of its own, which replaces this one: its exit code, its signals and its
output are those that it has without ppprof.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import ppprof
from ppprof.cli.parsers.run import Request

_PROGRAM = Path(ppprof.__file__).parent / "integrations" / "launched.py"


def run(args: argparse.Namespace) -> int:
    """Replace this process by the script, or by the launcher, which starts the script on each rank."""
    request: Request = args.request
    command = [str(_PROGRAM), *request.options, "--", *request.program]
    if request.launcher is not None:
        command = ["-m", "paddle.distributed.launch", *request.launcher, *command]
    else:
        # As this interpreter was started: -W, -X, -O; -u is not among these.
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        is_unbuffered = getattr(sys.stdout, "write_through", False)
        command = [*flags, *(["-u"] if is_unbuffered else []), *command]
    command.insert(0, sys.executable)
    if os.name != "posix":
        return subprocess.run(command, check=False).returncode
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command)
    raise AssertionError("the process was not replaced")
