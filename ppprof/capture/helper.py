"""The process beside a rank that makes tables and traces of its windows, one after another.

::

    training   window 0                window 1                    wait
    helper     | starts | 0 ...... |   | 1 ...... |       | ends after 60 idle seconds

The training writes the numbers of windows to the helper's stdin, one a line. For each window the
helper writes a line to a pipe: the window, its exit code, and where its tables, its stdout and its
stderr end in the two files that hold the helper's output. After the tables, stdout holds the verdict.
``ppprof finish --serve`` is the helper's program.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from ppprof.capture.children import environment
from ppprof.capture.process import CLOSED, Descriptor, ScratchFile, above_standard_streams
from ppprof.capture.signals import write_to_pipe

LIMIT_SECONDS = 600
"""CPU time after which a helper ends; it is enough for 30 GB of JSON. The helper may still run for
hours: beside a training that uses all cores, the lowest priority gets a hundredth of a core."""


class Finished(NamedTuple):
    """A window that the helper is done with."""

    window: int
    out: str
    """What the helper has written to stdout for the window: its tables."""
    verdict: str
    """What is slow in the window, in a sentence; "" if that is unknown."""
    err: str
    """What the helper has written to stderr for the window."""
    failure: str
    """Why there are no tables and traces; "" if there are."""
    unprinted: str = ""
    """Why the tables are not in ``out``; "" if they are."""


class Helper:
    """A running helper. Its output waits in files, so that it never waits for the training.

    Args:
        command: the helper's command, to which ``--serve FD`` and ``--seconds N`` are added.
        nice: its priority; 19 is the lowest.

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
            lost = [Finished(window, "", "", "", "", CLOSED) for window in self.windows]
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
            finished.append(Finished(window, *self._output(ends), _cause(code)))
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
        """Return tables, verdict and messages that were written since the last call.

        Args:
            ends: where they end: tables and verdict in the file of stdout, messages in that of stderr.
        """
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
