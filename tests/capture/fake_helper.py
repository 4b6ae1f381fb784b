"""``python -m tests.capture.fake_helper PROGRAM ...``: a helper that runs a program for each window.

It speaks as ``ppprof finish --serve`` does. The program's ``sys.argv`` ends in ``--window W``; its
exit code is the window's. Imports nothing of ppprof, so that it starts in no time.
"""

from __future__ import annotations

import contextlib
import os
import sys

NO_TRACES = (sys.executable, "-m", "tests.capture.fake_helper", "")
"""Command of a helper that leaves all raw captures in place."""


def main() -> None:
    """Serve until the end of stdin."""
    program, *arguments = sys.argv[1:]
    status = int(arguments[arguments.index("--serve") + 1])
    arguments = arguments[: arguments.index("--serve")]
    for line in sys.stdin:
        sys.argv = ["helper", *arguments, "--window", line.strip()]
        code = 0
        try:
            exec(program, {"__name__": "__main__"})  # noqa: S102
        except SystemExit as exit:
            code = int(exit.code or 0)
        sys.stdout.flush()
        ends = [os.lseek(stream, 0, os.SEEK_CUR) for stream in (1, 2)]
        with contextlib.suppress(BrokenPipeError):  # the training has ended
            os.write(status, f"{line.strip()} {code} {ends[0]} {ends[0]} {ends[1]}\n".encode())


if __name__ == "__main__":
    main()
