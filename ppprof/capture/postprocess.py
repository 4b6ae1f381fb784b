"""Make tables and traces of saved windows, in a process beside the training: the helper.

::

    training   window 0                window 1                    wait
    helper     | starts | 0 ...... |   | 1 ...... |       | ends after 60 idle seconds

The training writes the numbers of windows to the helper's stdin, one a line. For each window the
helper writes a line to a pipe: the window, its exit code, and where its tables, its stdout and its
stderr end in the two files that hold the helper's output. After the tables, stdout holds the verdict.
``ppprof finish --serve`` is the helper's program.
"""

from __future__ import annotations

import logging
import os
import resource
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from ppprof.capture.children import available_bytes, environment
from ppprof.capture.output import forward_stderr, print_result, reason
from ppprof.capture.process import CLOSED, Descriptor, ScratchFile, above_standard_streams
from ppprof.capture.signals import is_ending, write_to_pipe
from ppprof.errors import InputError
from ppprof.units import escape_control_chars

log = logging.getLogger("ppprof")

LIMIT_SECONDS = 600
"""CPU time after which a helper ends; it is enough for 30 GB of JSON. The helper may still run for
hours: beside a training that uses all cores, the lowest priority gets a hundredth of a core."""


class Finished(NamedTuple):
    """A window that the helper is done with."""

    window: int
    out: str = ""
    """What the helper has written to stdout for the window: its tables."""
    verdict: str = ""
    """What is slow in the window, in a sentence; "" if that is unknown."""
    err: str = ""
    """What the helper has written to stderr for the window."""
    failure: str = ""
    """Why there are no tables and traces; "" if there are, or if ``err`` gives the reason."""
    unprinted: str = ""
    """Why the tables are not in ``out``; "" if they are."""


class Helper:
    """A running helper. Its output waits in files, so that it never waits for the training.

    Args:
        command: the helper's command, to which ``--serve FD`` and ``--seconds N`` are added.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str], nice: int) -> None:
        self.windows: deque[int] = deque()
        """Windows that the helper is not done with, the first of which it works on."""
        self._num_finished = 0
        self._is_raised = self._is_lost = False
        self._lines = b""
        self._ends = [0, 0, 0]
        with above_standard_streams(), ExitStack() as failed, ExitStack() as started:

            def kept(descriptor: Descriptor) -> Descriptor:
                failed.callback(descriptor.close)
                return descriptor

            def passed(fd: int) -> int:
                started.callback(os.close, fd)
                return fd

            self._files = [kept(ScratchFile()), kept(ScratchFile())]
            read_status, write_status = os.pipe()
            self._status, write_status = kept(Descriptor(read_status)), passed(write_status)
            read_windows, write_windows = os.pipe()
            self._stdin, read_windows = kept(Descriptor(write_windows)), passed(read_windows)
            self.process = subprocess.Popen(
                [*command, "--serve", str(write_status), "--seconds", str(LIMIT_SECONDS)],
                stdin=read_windows,
                stdout=self._files[0].fd,
                stderr=self._files[1].fd,
                env=environment(),
                start_new_session=True,
                pass_fds=[write_status],
            )
            os.set_blocking(read_status, False)
            os.set_blocking(write_windows, False)
            failed.pop_all()
        if nice:
            _set_priority(self.process.pid, nice)
        with suppress(OSError):
            Path(f"/proc/{self.process.pid}/oom_score_adj").write_text("1000")
        with suppress(OSError, ValueError, AttributeError):  # not on macOS
            # A limit that the training has set for itself: polars aborts where it cannot reserve.
            hard = resource.prlimit(self.process.pid, resource.RLIMIT_AS)[1]
            resource.prlimit(self.process.pid, resource.RLIMIT_AS, (hard, hard))

    def add(self, window: int) -> bool:
        """Send a window to the helper; if the helper has ended, `poll` reports it.

        Returns:
            False if so many windows wait for the helper that it cannot be sent another one.
        """
        if self._stdin.is_ours:
            try:
                write_to_pipe(self._stdin.fd, f"{window}\n".encode())
            except BrokenPipeError:
                pass
            except BlockingIOError:
                return False
        self.windows.append(window)
        return True

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, or the training has closed the way to it."""
        return self.process.poll() is not None or not self._is_connected

    @property
    def _is_connected(self) -> bool:
        return all(each.is_ours for each in (self._stdin, self._status, *self._files))

    @property
    def has_output(self) -> bool:
        """Whether `poll` has something to return, or the process has ended."""
        if not self._status.is_ours:
            return True
        status = select.poll()  # select() takes no descriptor above 1023
        status.register(self._status.fd, select.POLLIN)
        return bool(status.poll(0)) or self.has_ended

    def raise_priority(self) -> None:
        """Give the helper the usual priority, since the training now only waits for it."""
        if not self._is_raised:
            self._is_raised = True
            _set_priority(self.process.pid, 0)

    def poll(self) -> list[Finished]:
        """Return the windows that were finished since the last call, without waiting.

        If the helper has ended, the window that it worked on is among them with a failure, unless
        it ended in order and had done something: then its other windows need another helper.
        """
        if not self._is_connected:
            self._is_lost = True
            lost = [Finished(window, unprinted=CLOSED) for window in self.windows]
            self.windows.clear()
            return lost
        has_ended = self.has_ended  # ahead of reading: what it wrote before is read now
        with suppress(BlockingIOError):
            while text := os.read(self._status.fd, 1 << 16):
                self._lines += text
        *lines, self._lines = self._lines.split(b"\n")
        finished = []
        for line in lines:
            window, code, *ends = map(int, line.split())
            self.windows.popleft()
            output = self._output(ends)
            is_explained = code == InputError.exit_code and output[2].strip()
            finished.append(Finished(window, *output, "" if is_explained else _cause(code)))
        self._num_finished += len(finished)
        if has_ended and self.windows and (self.process.returncode or not self._num_finished):
            out, err = (os.fstat(file.fd).st_size for file in self._files)
            cause = _cause(self.process.returncode) or "its process ended before it began"
            finished.append(Finished(self.windows.popleft(), *self._output([out, out, err]), cause))
        return finished

    def close(self) -> None:
        """Let the helper go: it ends once it has finished its windows, or at once without any."""
        self._stdin.close()
        if not self.windows and not self._is_lost:
            self.process.kill()
            self.process.wait()
        # Popen warns about a process that is still running; this one is meant to live on.
        self.process.returncode = self.process.returncode or 0
        for each in (self._stdin, self._status, *self._files):
            each.close()

    def _output(self, ends: Sequence[int]) -> tuple[str, str, str]:
        """Return tables, verdict and messages that were written since the last call."""
        stdout, stderr = self._files
        _, out, err = self._ends
        tables_end, out_end, err_end = self._ends = list(ends)
        parts = ((stdout, out, tables_end), (stdout, tables_end, out_end), (stderr, err, err_end))
        tables, verdict, messages = (
            os.pread(file.fd, end - begin, begin).decode(errors="replace")
            for file, begin, end in parts
        )
        return tables, verdict, messages


def _cause(code: int) -> str:
    """Return why there are no tables, from an exit code; a negative code is a signal; "" for 0."""
    if code in (-signal.SIGALRM, -signal.SIGPROF):
        return f"it took more than {LIMIT_SECONDS} s of CPU time, or hours of waiting"
    if code == -signal.SIGKILL:
        return "it was killed, perhaps because memory ran out"
    return f"exit code {code}" if code else ""


def _set_priority(pid: int, nice: int) -> None:
    """Set the nice value of a process and of its session; errors are ignored.

    The session counts because a desktop kernel schedules a session's processes as one group
    (autogroup). Raising a priority needs a privilege. Without it, the priority stays low, and the
    helper still gets idle time.
    """
    with suppress(OSError):  # also if the process has ended
        os.setpriority(os.PRIO_PROCESS, pid, nice)
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


_COMMAND = (sys.executable, "-m", "ppprof", "finish")

_REDRAW_SECONDS = 0.2
_POLL_SECONDS = 0.02
_BRIEF_SECONDS = 1.0

_BASE_BYTES, _BYTES_A_RAW_BYTE, _MOST_RAW_BYTES = 200 << 20, 10, 256 << 20
"""Upper bound of a helper's memory. Helpers took 180, 280 and 660 MiB for raw captures of 3, 16 and
65 MiB. The bound is compared with the free memory ahead of a window, but it is not enforced: polars
reserves far more than it uses, so a limit would make good captures fail."""


class PostProcessor:
    """Has a `Helper` make tables and traces of one window after another.

    The helper gets a window as soon as it is saved. The helper runs

    - at the lowest priority, so that it only uses CPU time that the training leaves;
    - as the first process that the kernel kills when memory runs out;
    - in its own session, so that a signal that ends the training does not end the helper;
    - with a limit on its CPU time for each window.

    It ends after a minute without a window, or once it takes much memory; the next window starts
    another one. Its output for a window is printed when the window is finished. If the helper
    fails, or if there is too little memory, the raw capture stays and a warning is logged.

    Args:
        command: the helper's command instead of ``ppprof finish``.
        background: whether the helper runs beside the training, as above. If False, `add` waits for
            the helper, which has the usual priority.
        then: a command that the helper runs after each window (``Profiler.on_window_end``); empty
            for no command.
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
        self._rank = rank
        self._run = run
        self._prints = prints
        where = [str(run), "--rank", str(rank)]
        self._command = [*(_COMMAND if command is None else command), *where]
        self._with_verdict = ["--verdict"] if prints else []
        self._background = background
        self._then = ["--then", shlex.join(then)] if then else []
        self._raws: dict[int, Path] = {}
        """Raw captures of the windows that the helper is not done with."""
        self._helper: Helper | None = None
        self._lock = threading.RLock()
        """Between the training and a thread of it that opens a profiler, which saves the window."""
        self.verdict = ""
        """What is slow in the window that was finished last, in a sentence; "" if unknown."""

    def add(
        self, window: int, raw: Path, brief: bool = False, num_bytes: int | None = None
    ) -> None:
        """Send a window to the helper; start a helper if none runs.

        Args:
            window: number of the window.
            raw: path of the window's raw capture, or of its first segment.
            brief: whether to return at once even if ``background`` is False, since the process is
                about to end.
            num_bytes: size of all segments of the window; None for that of ``raw``.
        """
        shortage = _memory_shortage(raw, num_bytes)
        if shortage:
            self._log_failure(window, raw, shortage)
            return
        # The training may hold the lock forever: its stdout, on which it prints tables, may hang.
        if not self._lock.acquire(timeout=_BRIEF_SECONDS if brief else -1):
            self._log_failure(window, raw, "the process is about to end")
            return
        try:
            helper = self._helper
            if helper is not None and not helper.has_ended and not helper.add(window):
                self._log_failure(window, raw, f"{len(self._raws)} windows wait for the helper")
            else:
                self._raws[window] = raw
            self.poll()
        finally:
            self._lock.release()
        while not self._background and not brief and not is_ending() and self.poll():
            time.sleep(_POLL_SECONDS)

    @property
    def has_finished_window(self) -> bool:
        """Whether a window is finished, so that `poll` will print its tables."""
        if not self._raws:
            return False
        with self._lock:
            return self._helper is not None and self._helper.has_output

    def poll(self) -> bool:
        """Print the output for finished windows; start another helper if one is needed. Never wait.

        Returns:
            Whether windows are left.
        """
        with self._lock:
            while self._raws:
                if self._helper is None and not self._start():
                    break
                assert self._helper is not None
                has_ended = self._helper.has_ended
                for finished in self._helper.poll():
                    self._report(finished)
                if not has_ended:
                    break
                self._helper.close()
                self._helper = None
            return bool(self._raws)

    def wait(self, seconds: float, patience: float = 3.0) -> None:
        """Wait until all windows have tables and traces; then, or after ``seconds``, call `leave`.

        Args:
            seconds: the longest time to wait.
            patience: seconds after which a progress bar appears on a terminal, or a log message
                elsewhere.

        Raises:
            KeyboardInterrupt: the user stopped waiting; the helper goes on.
        """
        start = time.monotonic()
        has_logged = False
        bar = _Bar(len(self._raws), patience)
        try:
            while True:
                if self.has_finished_window:
                    bar.clear()
                if not self.poll() or time.monotonic() - start > seconds:
                    break
                if self._helper is not None:
                    self._helper.raise_priority()
                if not bar.draw(left=len(self._raws)) and not has_logged:
                    has_logged = time.monotonic() - start > patience
                    if has_logged:
                        log.info(
                            f"rank {self._rank}: making tables and traces of the recorded steps..."
                        )
                time.sleep(_POLL_SECONDS)
        finally:
            bar.close()
            self.leave()

    def leave(self) -> None:
        """Leave the helper to itself: it finishes the windows that are left, and ends.

        If windows are left, a log message gives the command that makes missing tables.
        """
        with self._lock:
            if self._helper is not None:
                self._helper.close()
                if self._raws:
                    log.info(
                        f"rank {self._rank}: exiting before the tables in {self._run} are written; "
                        f"if they do not appear, run: ppprof finish {shlex.quote(str(self._run))}"
                    )
            self._helper = None
            self._raws.clear()

    def _start(self) -> bool:
        """Start a helper for all windows that are left; return whether there is one."""
        try:
            nice = 19 if self._background else 0
            self._helper = Helper([*self._command, *self._with_verdict, *self._then], nice)
        except OSError as error:
            for window, raw in self._raws.items():
                self._log_failure(window, raw, str(error))
            self._raws.clear()
            return False
        waiting = len(self._raws)
        for window in list(self._raws):
            if not self._helper.add(window):
                why = f"{waiting} windows wait for the helper"
                self._log_failure(window, self._raws.pop(window), why)
        return True

    def _report(self, finished: Finished) -> None:
        raw = self._raws.pop(finished.window)
        self.verdict = finished.verdict
        unprinted = finished.unprinted
        if self._prints and not unprinted:
            try:
                print_result(finished.out)
            except (OSError, ValueError) as error:  # a closed pipe must not end the recording
                unprinted = reason(error)
        if self._prints and unprinted:
            again = shlex.join(["ppprof", "summary", str(raw.parents[1])])
            log.warning(f"tables were not printed: {unprinted}; to see them, run: {again}")
        lines = (line.removeprefix("ppprof: ") for line in finished.err.splitlines())
        visible = (escape_control_chars(line) for line in lines if line.strip())
        forward_stderr("".join(f"ppprof: {line}\n" for line in visible))
        if finished.failure:
            self._log_failure(finished.window, raw, finished.failure)

    def _log_failure(self, window: int, raw: Path, why: str) -> None:
        again = shlex.join([*self._command, "--window", str(window), *self._then])
        log.warning(f"{raw}: no tables and traces were made ({why}); to try again, run: {again}")


def helper_bytes(raw_bytes: int, ranks: int) -> int:
    """Return an upper bound of the memory that one helper of each of ``ranks`` ranks takes."""
    return ranks * (_BASE_BYTES + _BYTES_A_RAW_BYTE * raw_bytes)


def _memory_shortage(raw: Path, num_bytes: int | None = None) -> str:
    """Return why memory is too short for one helper of each local rank.

    "" if there is enough memory, or if the free memory is unknown.
    """
    left = available_bytes()
    with suppress(OSError, ValueError):
        ranks = int(os.environ.get("PADDLE_LOCAL_SIZE", "1"))
        size = raw.stat().st_size
        if num_bytes is not None:  # of segments, the helper reads only as many as fit
            size = max(size, min(num_bytes, _MOST_RAW_BYTES))
        needed = helper_bytes(size, ranks)
        if left is not None and left < needed:
            return f"{left >> 20} MiB of memory are left, up to {needed >> 20} MiB may be needed"
    return ""


class _Bar:
    """A progress bar that counts finished windows; only on a terminal, after ``patience`` seconds."""

    def __init__(self, total: int, patience: float) -> None:
        self._total = total
        self._next = time.monotonic() + patience
        self._bar: Any = None

    def draw(self, left: int) -> bool:
        """Draw or redraw the bar; return whether stderr is a terminal."""
        try:
            if not sys.stderr.isatty():
                return False
        except (AttributeError, ValueError):  # no stderr, a stand-in without isatty(), or closed
            return False
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _REDRAW_SECONDS
            if self._bar is None:
                from tqdm import tqdm

                words = "ppprof: making tables and traces"
                bar_format = "{desc}: {n} of {total} windows {bar} {elapsed}"
                self._bar = tqdm(desc=words, total=self._total, bar_format=bar_format, leave=False)
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
