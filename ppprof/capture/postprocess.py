"""Turns saved windows into tables and traces, in a child process beside the training."""

from __future__ import annotations

import io
import logging
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections import deque
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from ppprof.capture.free_memory import available_bytes
from ppprof.capture.output import forward_stderr, print_result, reason

log = logging.getLogger("ppprof")

_COMMAND = (sys.executable, "-m", "ppprof", "finish")

_LIMIT_SECONDS = 600
"""Of computing, after which a child ends: enough for 30 GB of JSON. It may take hours, for beside a
training that uses all cores the lowest priority gets a hundredth of one."""

_REDRAW_SECONDS = 0.2

_BASE_BYTES, _BYTES_A_RAW_BYTE = 200 << 20, 10
"""Bound of a child's memory: it took 180, 280 and 660 MiB for raw captures of 3, 16 and 65 MiB. It
is not enforced, for polars reserves far more than it uses, and a limit would fail good captures."""

_LAUNCHER = ("PADDLE_", "FLAGS_", "MASTER_", "POD_", "TRAINING_ROLE")
"""Prefixes of what the launcher tells a rank; a child that took itself for one would be wrong."""


class PostProcessor:
    """Runs ``ppprof finish`` for one window after another, one child at a time.

    ::

        training   | window 0 | steps ...                        | window 1 | ... | wait
        child 0               | at lowest priority ... tables |                   |
        child 1                                                             | ... | at the usual one

    A child starts as soon as its window is saved: at the lowest priority, so that it takes what
    the training leaves; as the first that the kernel ends where memory runs out, for the training
    is worth more; in a session of its own, so that what ends the training does not end it; and not
    without end. What it prints is passed on when it has ended. Where it fails, the raw capture
    stays, and a line says so.

    Args:
        run: the run directory.
        rank: of this process.
        prints: whether to print the tables.
        command: stands in for ``ppprof finish``.
        background: as above; else in this process, while the training waits: for debugging.
    """

    def __init__(
        self,
        run: Path,
        rank: int,
        prints: bool,
        command: Sequence[str] | None = None,
        background: bool = True,
        then: Sequence[str] = (),
    ) -> None:
        self._run = run
        self._rank = rank
        self._prints = prints
        self._command = _COMMAND if command is None else command
        self._background = background
        self._then = ["--then", shlex.join(then)] if then else []
        self._waiting: deque[tuple[int, Path]] = deque()
        self._child: _Child | None = None
        self._is_left = False

    def add(self, window: int, raw: Path, brief: bool = False) -> None:
        """Finishes a window as soon as the ones before it are.

        Args:
            window: its number.
            raw: the capture.
            brief: the process is about to end: it stays raw where this process would finish it.
        """
        if self._background:
            self._waiting.append((window, raw))
            self.poll()
        elif brief:
            self._is_left = True
        else:
            self._finish_here(window, raw)

    @property
    def has_finished_child(self) -> bool:
        """Whether a child has ended, so that `poll` will print and perhaps start the next."""
        return self._child is not None and self._child.process.poll() is not None

    def poll(self) -> bool:
        """Passes on what has ended and starts what waits; True while anything is left."""
        if self._child is not None and self.has_finished_child:
            child, self._child = self._child, None
            child.report(self._prints)
        while self._child is None and self._waiting:
            window, raw = self._waiting.popleft()
            self._child = _start(self._command_for(window), raw)
        return self._child is not None

    def wait(self, seconds: float, patience: float = 3.0) -> None:
        """Waits until all is finished, or that long; says so when it takes ``patience``.

        On a terminal it shows how far it is.

        Raises:
            KeyboardInterrupt: the user would not wait; the child goes on.
        """
        start = time.monotonic()
        told = False
        bar = _Bar(len(self._waiting) + (self._child is not None), patience)
        try:
            while True:
                if self.has_finished_child:
                    bar.clear()
                if not self.poll() or time.monotonic() - start > seconds:
                    break
                if self._child is not None:
                    self._child.raise_priority()
                if not bar.draw(left=len(self._waiting) + 1) and not told:
                    told = time.monotonic() - start > patience
                    if told:
                        log.info(
                            f"rank {self._rank}: making tables and traces of the recorded steps..."
                        )
                time.sleep(0.02)
        finally:
            bar.close()
            self.leave()

    def leave(self) -> None:
        """Waits no longer: says which command makes, or makes again, what is not there yet."""
        if self._child is not None or self._is_left:
            if self._child is not None:
                self._child.close()
            log.info(
                f"rank {self._rank}: not waiting for the tables of {self._run}; "
                f"if they stay away: ppprof finish {shlex.quote(str(self._run))}"
            )
        self._child = None
        self._waiting.clear()

    def _command_for(self, window: int) -> list[str]:
        rank = str(self._rank)
        where = [str(self._run), "--rank", rank, "--window", str(window)]
        return [*self._command, *where, *self._then]

    def _finish_here(self, window: int, raw: Path) -> None:
        # By name, as a child finds it: a capture knows nothing of how tables are made.
        command = import_module("ppprof.cli.finish")
        then = self._then[1] if self._then else None
        asked = Namespace(
            run=str(self._run), rank=self._rank, window=window, seconds=None, then=then
        )
        printed = io.StringIO()
        try:
            with redirect_stdout(printed):
                command.finish(asked)
        except Exception as error:
            _tell_failure(raw, self._command_for(window), reason(error))
        if self._prints:
            _show_tables(printed.getvalue(), raw)


def _start(command: list[str], raw: Path) -> _Child | None:
    short = _shortage(raw)
    if short:
        _tell_failure(raw, command, short)
        return None
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 (the child's)
    try:
        process = subprocess.Popen(
            [*command, "--seconds", str(_LIMIT_SECONDS)],
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
    _set_priority(process.pid, 19)
    with suppress(OSError):
        Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")
    return _Child(command, raw, process, out, err)


@dataclass
class _Child:
    command: list[str]
    raw: Path
    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]
    _hurries: bool = False

    def raise_priority(self) -> None:
        """Gives it the usual priority: the training only waits for it by now."""
        if not self._hurries:
            self._hurries = True
            _set_priority(self.process.pid, 0)

    def report(self, prints: bool) -> None:
        out, err = _text(self.out), _text(self.err)
        if prints:
            _show_tables(out, self.raw)
        forward_stderr(err)
        if self.process.returncode:
            _tell_failure(self.raw, self.command, _cause(self.process.returncode))
        self.close()

    def close(self) -> None:
        self.out.close()
        self.err.close()
        # Popen complains about a child that it may leave behind; this one is meant to live on.
        self.process.returncode = self.process.returncode or 0


def _shortage(raw: Path) -> str:
    """Why there is too little memory for it and for those of this node's other ranks, or ""."""
    left = available_bytes()
    with suppress(OSError, ValueError):
        ranks = int(os.environ.get("PADDLE_LOCAL_SIZE", "1"))
        needed = ranks * (_BASE_BYTES + _BYTES_A_RAW_BYTE * raw.stat().st_size)
        if left is not None and left < needed:
            return f"{left >> 20} MiB of memory are left, and {needed >> 20} may be needed"
    return ""


def _cause(returncode: int) -> str:
    """How a child ended, in words."""
    if returncode in (-signal.SIGALRM, -signal.SIGPROF):
        return f"it took too long: more than {_LIMIT_SECONDS} s of computing, or hours of waiting"
    if returncode == -signal.SIGKILL:
        return "it was killed, perhaps for memory"
    return f"exit code {returncode}"


def _show_tables(text: str, raw: Path) -> None:
    try:
        print_result(text)
    except (OSError, ValueError) as error:  # a reader who has left ends no recording
        again = shlex.join(["ppprof", "summary", str(raw.parents[1])])
        log.warning(f"tables were not printed: {reason(error)}; to see them: {again}")


def _tell_failure(raw: Path, command: list[str], why: str) -> None:
    again = shlex.join(command)
    log.warning(f"{raw}: could not be made into tables and traces ({why}); to try again: {again}")


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


def _set_priority(pid: int, nice: int) -> None:
    """Also of its session, which a desktop kernel would give a fair share.

    To raise it again takes a privilege; without, the child still gets what is free.
    """
    with suppress(OSError):  # it may have ended, too
        os.setpriority(os.PRIO_PROCESS, pid, nice)
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


class _Bar:
    """How many windows are finished, drawn on a terminal after a while, and nowhere else."""

    def __init__(self, total: int, patience: float) -> None:
        self._total = total
        self._next = time.monotonic() + patience
        self._bar: Any = None

    def draw(self, left: int) -> bool:
        """Draws it, or again, with the time that it has taken; False where there is no terminal."""
        if sys.stderr is None or not sys.stderr.isatty():
            return False
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _REDRAW_SECONDS
            if self._bar is None:
                from tqdm import tqdm

                words = "ppprof: making tables and traces"
                layout = "{desc}: {n} of {total} windows {bar} {elapsed}"
                self._bar = tqdm(desc=words, total=self._total, bar_format=layout, leave=False)
            self._bar.update(self._total - left - self._bar.n)
            self._bar.refresh()
        return True

    def clear(self) -> None:
        """Makes room for what is printed now."""
        if self._bar is not None:
            self._bar.clear()

    def close(self) -> None:
        """Leaves nothing of it."""
        if self._bar is not None:
            self._bar.close()
