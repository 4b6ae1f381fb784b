"""Turns saved windows into tables and traces, in a child process beside the training."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ppprof.capture.talk import tell

_COMMAND = (sys.executable, "-m", "ppprof", "finish")

_LAUNCHER = ("PADDLE_", "FLAGS_", "MASTER_", "POD_", "TRAINING_ROLE")
"""Prefixes of what the launcher tells a rank; a child that took itself for one would be wrong."""


class Finisher:
    """Runs ``ppprof finish`` for one window after another, one child at a time.

    A child starts as soon as its window is saved: at the lowest priority, so that it takes what
    the training leaves and the rest once that waits for it in `wait`; in a session of its own, so
    that what ends the training does not end it. What it prints is passed on when it has ended.
    """

    def __init__(
        self, run: Path, rank: int, prints: bool, command: Sequence[str] | None = None
    ) -> None:
        self._run = run
        self._rank = rank
        self._prints = prints
        self._command = _COMMAND if command is None else command
        self._waiting: deque[tuple[int, Path]] = deque()
        self._child: _Child | None = None

    def add(self, window: int, raw: Path) -> None:
        """Finishes a window as soon as the ones before it are."""
        self._waiting.append((window, raw))
        self.poll()

    @property
    def has_news(self) -> bool:
        """Whether a child has ended, so that `poll` will print and perhaps start the next."""
        return self._child is not None and self._child.process.poll() is not None

    def poll(self) -> bool:
        """Passes on what has ended and starts what waits; True while anything is left."""
        if self._child is not None and self.has_news:
            child, self._child = self._child, None
            child.report(self._prints)
        while self._child is None and self._waiting:
            window, raw = self._waiting.popleft()
            arguments = [str(self._run), "--rank", str(self._rank), "--window", str(window)]
            self._child = _start([*self._command, *arguments], raw)
        return self._child is not None

    def wait(self, seconds: float, patience: float = 3.0) -> None:
        """Waits until all is finished, or that long; says so when it takes ``patience``.

        Raises:
            KeyboardInterrupt: the user would not wait; the child goes on.
        """
        start = time.monotonic()
        told = False
        try:
            while self.poll() and time.monotonic() - start <= seconds:
                if time.monotonic() - start > patience and not told:
                    tell(f"rank {self._rank}: making tables and traces of the recorded steps...")
                    told = True
                time.sleep(0.02)
        finally:
            self.leave()

    def leave(self) -> None:
        """Waits no longer for what is not finished: says which command makes, or makes again, what is not there yet."""
        if self._child is not None:
            self._child.close()
            tell(
                f"rank {self._rank}: not waiting for the tables of {self._run}; "
                f"if they stay away: ppprof finish {shlex.quote(str(self._run))}"
            )
        self._child = None
        self._waiting.clear()


def _start(command: list[str], raw: Path) -> _Child | None:
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 (the child's)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=_environment(),
            start_new_session=True,
        )
    except OSError as error:
        out.close()
        err.close()
        _tell_failure(raw, command, str(error))
        return None
    _lower_priority(process.pid)
    return _Child(command, raw, process, out, err)


@dataclass
class _Child:
    command: list[str]
    raw: Path
    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]

    def report(self, prints: bool) -> None:
        out, err = _text(self.out), _text(self.err)
        if prints:
            sys.stdout.write(out)
            sys.stdout.flush()
        sys.stderr.write(err)
        if self.process.returncode:
            _tell_failure(self.raw, self.command, f"exit code {self.process.returncode}")
        self.close()

    def close(self) -> None:
        self.out.close()
        self.err.close()
        # Popen complains about a child that it may leave behind; this one is meant to live on.
        self.process.returncode = self.process.returncode or 0


def _tell_failure(raw: Path, command: list[str], why: str) -> None:
    again = shlex.join(command)
    tell(f"{raw}: could not be made into tables and traces ({why}); to try again: {again}")


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _environment() -> dict[str, str]:
    """Ours without the launcher's part, and with this package where the child finds it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(_LAUNCHER)}
    package = str(Path(__file__).parents[2])
    paths = [path for path in (environment.get("PYTHONPATH"), package) if path]
    # SAFEPATH: modules are not looked for in the directory where the training was started.
    return {**environment, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


def _lower_priority(pid: int) -> None:
    """The lowest; also for the new session, which a desktop kernel would give a fair share."""
    with suppress(OSError):  # it may have ended
        os.setpriority(os.PRIO_PROCESS, pid, 19)
        Path(f"/proc/{pid}/autogroup").write_text("19")
