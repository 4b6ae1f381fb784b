"""``python -m ppprof``, and the ``ppprof`` command."""

import atexit
import contextlib
import gc
import os
import sys
from typing import NoReturn

from ppprof.cli import main


def command() -> NoReturn:
    """Run one command, and end the process without freeing what it holds.

    The interpreter would free every module and every event of a trace one by one, which takes
    longer than many commands. Functions that were registered for the end are called. Debuggers and
    profilers need the usual end. For the same reason garbage is looked for less often: a command makes
    little, and looking for some among all modules takes an eighth of a short one.
    """
    gc.set_threshold(100_000)
    code = main()
    if sys.gettrace() or sys.getprofile() or sys.flags.inspect:
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a reader that has gone
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    command()
