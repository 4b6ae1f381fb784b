"""Make tables and traces of saved windows, in a child process beside the training."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ppprof.capture.children import environment
from ppprof.capture.free_memory import available_bytes
from ppprof.capture.output import forward_stderr, print_result, reason

log = logging.getLogger("ppprof")

_COMMAND = (sys.executable, "-m", "ppprof", "finish")

_LIMIT_SECONDS = 600
"""CPU time after which a child ends; it is enough for 30 GB of JSON. The child may still run for
hours: beside a training that uses all cores, the lowest priority gets a hundredth of a core."""

_REDRAW_SECONDS = 0.2

_BASE_BYTES, _BYTES_A_RAW_BYTE = 200 << 20, 10
"""Upper bound of a child's memory. Children took 180, 280 and 660 MiB for raw captures of 3, 16 and
65 MiB. The bound is compared with the free memory before a child starts, but it is not enforced:
polars reserves far more than it uses, so a limit would make good captures fail."""


class PostProcessor:
    """Runs ``ppprof finish`` for one window after another, one child at a time.

    ::

        training   | window 0 | steps ...                        | window 1 | ... | wait
        child 0               | at lowest priority ... tables |
        child 1                                                             | ... | usual priority

    A child starts as soon as its window is saved:

    - at the lowest priority, so that it only uses CPU time that the training leaves;
    - as the first process that the kernel kills when memory runs out;
    - in a session of its own, so that a signal that ends the training does not end the child;
    - with a limit on its CPU time.

    The child's output is printed when the child has ended. If the child fails, or if there is too
    little memory to start it, the raw capture stays and a warning is logged.

    Args:
        run: the run directory.
        rank: this process's rank.
        prints: whether to print the tables.
        command: the child's command instead of ``ppprof finish``.
        background: whether children run beside the training, as above. If False, `add` waits for
            the child, which has the usual priority.
        then: a command that the child runs afterwards (``Profiler.on_window_end``); empty for no
            command.
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

    def add(self, window: int, raw: Path, brief: bool = False) -> None:
        """Start a child for a window, as soon as the children of earlier windows have ended.

        Args:
            window: number of the window.
            raw: path of the window's raw capture.
            brief: whether to return at once even if ``background`` is False, since the process is
                about to end.
        """
        self._waiting.append((window, raw))
        self.poll()
        if not self._background and not brief and self._child is not None:
            self._child.process.wait()
            self.poll()

    @property
    def has_finished_child(self) -> bool:
        """Whether the current child has ended, so that `poll` will print its output."""
        return self._child is not None and self._child.process.poll() is not None

    def poll(self) -> bool:
        """Print the output of a finished child and start the next child; never wait for a child.

        Returns:
            Whether a child is running now. False means that no window is left.
        """
        if self._child is not None and self.has_finished_child:
            child, self._child = self._child, None
            child.report(self._prints)
        while self._child is None and self._waiting:
            window, raw = self._waiting.popleft()
            self._child = _start(self._command_for(window), raw, 19 if self._background else 0)
        return self._child is not None

    def wait(self, seconds: float, patience: float = 3.0) -> None:
        """Wait until all windows have tables and traces; then, or after ``seconds``, call `leave`.

        Args:
            seconds: the longest time to wait.
            patience: seconds after which a progress bar appears on a terminal, or a log message
                elsewhere.

        Raises:
            KeyboardInterrupt: the user stopped waiting; the child goes on.
        """
        start = time.monotonic()
        has_logged = False
        bar = _Bar(len(self._waiting) + (self._child is not None), patience)
        try:
            while True:
                if self.has_finished_child:
                    bar.clear()
                if not self.poll() or time.monotonic() - start > seconds:
                    break
                if self._child is not None:
                    self._child.raise_priority()
                if not bar.draw(left=len(self._waiting) + 1) and not has_logged:
                    has_logged = time.monotonic() - start > patience
                    if has_logged:
                        log.info(
                            f"rank {self._rank}: making tables and traces of the recorded steps..."
                        )
                time.sleep(0.02)
        finally:
            bar.close()
            self.leave()

    def leave(self) -> None:
        """Leave a running child to itself, and drop the windows that wait for it.

        If a child is running, a log message gives the command that makes missing tables.
        """
        if self._child is not None:
            self._child.close()
            log.info(
                f"rank {self._rank}: exiting before the tables in {self._run} are written; "
                f"if they do not appear, run: ppprof finish {shlex.quote(str(self._run))}"
            )
        self._child = None
        self._waiting.clear()

    def _command_for(self, window: int) -> list[str]:
        rank = str(self._rank)
        where = [str(self._run), "--rank", rank, "--window", str(window)]
        return [*self._command, *where, *self._then]


def _start(command: list[str], raw: Path, nice: int) -> _Child | None:
    shortage = _memory_shortage(raw)
    if shortage:
        _log_failure(raw, command, shortage)
        return None
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 (the child's)
    try:
        process = subprocess.Popen(
            [*command, "--seconds", str(_LIMIT_SECONDS)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment(),
            start_new_session=True,
        )
    except OSError as error:
        out.close()
        err.close()
        _log_failure(raw, command, str(error))
        return None
    if nice:
        _set_priority(process.pid, nice)
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
    _is_raised: bool = False

    def raise_priority(self) -> None:
        """Give the child the usual priority, since the training now only waits for the child."""
        if not self._is_raised:
            self._is_raised = True
            _set_priority(self.process.pid, 0)

    def report(self, prints: bool) -> None:
        out, err = _text(self.out), _text(self.err)
        if prints:
            _print_tables(out, self.raw)
        forward_stderr(err)
        if self.process.returncode:
            _log_failure(self.raw, self.command, _cause(self.process.returncode))
        self.close()

    def close(self) -> None:
        self.out.close()
        self.err.close()
        # Popen warns about a child that is still running; this one is meant to live on.
        self.process.returncode = self.process.returncode or 0


def helper_bytes(raw_bytes: int, ranks: int) -> int:
    """Return an upper bound of the memory that one child of each of ``ranks`` ranks takes.

    Args:
        raw_bytes: size of each rank's raw capture.
        ranks: ranks on this machine.
    """
    return ranks * (_BASE_BYTES + _BYTES_A_RAW_BYTE * raw_bytes)


def _memory_shortage(raw: Path) -> str:
    """Return why memory is too short for one child of each local rank.

    "" if there is enough memory, or if the free memory is unknown.
    """
    left = available_bytes()
    with suppress(OSError, ValueError):
        ranks = int(os.environ.get("PADDLE_LOCAL_SIZE", "1"))
        needed = helper_bytes(raw.stat().st_size, ranks)
        if left is not None and left < needed:
            return f"{left >> 20} MiB of memory are left, up to {needed >> 20} MiB may be needed"
    return ""


def _cause(returncode: int) -> str:
    """Return why a child failed, from its return code; a negative return code is a signal."""
    if returncode in (-signal.SIGALRM, -signal.SIGPROF):
        return f"it took more than {_LIMIT_SECONDS} s of CPU time, or hours of waiting"
    if returncode == -signal.SIGKILL:
        return "it was killed, perhaps because memory ran out"
    return f"exit code {returncode}"


def _print_tables(text: str, raw: Path) -> None:
    try:
        print_result(text)
    except (OSError, ValueError) as error:  # a closed pipe must not end the recording
        again = shlex.join(["ppprof", "summary", str(raw.parents[1])])
        log.warning(f"tables were not printed: {reason(error)}; to see them, run: {again}")


def _log_failure(raw: Path, command: list[str], why: str) -> None:
    again = shlex.join(command)
    log.warning(f"{raw}: no tables and traces were made ({why}); to try again, run: {again}")


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _set_priority(pid: int, nice: int) -> None:
    """Set the nice value of a process and of its session; errors are ignored.

    The session counts because a desktop kernel schedules a session's processes as one group
    (autogroup). Raising a priority needs a privilege. Without it, the priority stays low, and the
    child still gets idle time.
    """
    with suppress(OSError):  # also if the process has ended
        os.setpriority(os.PRIO_PROCESS, pid, nice)
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


class _Bar:
    """A progress bar that counts finished windows; only on a terminal, after ``patience`` seconds."""

    def __init__(self, total: int, patience: float) -> None:
        self._total = total
        self._next = time.monotonic() + patience
        self._bar: Any = None

    def draw(self, left: int) -> bool:
        """Draw or redraw the bar; return whether stderr is a terminal.

        Args:
            left: number of unfinished windows.
        """
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
        """Remove the bar until the next `draw`, so that other text can be printed."""
        if self._bar is not None:
            self._bar.clear()

    def close(self) -> None:
        """Remove the bar for good."""
        if self._bar is not None:
            self._bar.close()
